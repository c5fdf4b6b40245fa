"""What policies would have cost on recorded loads: every load under every candidate, side by side on any Spark master.

`compute` runs it on a session, `compute_here` in this process, with the very same function (`answers`), so both give the
same figures. A load is one sequential simulation a candidate; loads are independent. What is computed follows from the
inputs alone. `main` is the same for `spark-submit`. On a cluster the executors need this package with its extra
`backtest`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from controller.backtest.arrays import Floats
from controller.backtest.load_series import LoadSeries, of_messages
from controller.backtest.optimum import lower_bound
from controller.backtest.rivals.registry import RULES, rule_named
from controller.backtest.rule import Rule, of_policy
from controller.backtest.score import Prices, score
from controller.backtest.simulation import Conditions, Simulation, simulate
from controller.backtest.spread import Spread
from controller.domain.errors import InvalidInput
from controller.domain.load import METRICS, LoadStats
from controller.domain.policy import AutoScalePolicy, validate
from controller.domain.shown import shown
from spark_jobs.backtest_picture import front, picture
from spark_jobs.recorded_load import RATE_COLUMNS, Recording, series_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN_FORCE = "in-force"
"""The candidate that is each topic's own policy."""

TOGETHER = 64
"""Loads whose least costs are computed in one go: step by step for all of them costs hardly more than for one."""

WAVES = 4
"""Tasks of Spark's for each that runs at a time, so that a slow one holds up little and none holds many loads."""

RESULTS = pa.schema(
    [
        ("key", pa.int64()),
        ("load", pa.string()),
        ("policy", pa.string()),
        ("seed", pa.int32()),
        ("cost", pa.float64()),
        ("least_cost", pa.float64()),
        ("figures", pa.string()),
        ("picture", pa.string()),
        ("error", pa.string()),
    ]
)
"""One row a load, candidate and seed; `figures` and `picture` are JSON, the latter null unless it was asked for. A load that cannot be
simulated has one row with its `error`, which is null elsewhere.
"""

_HISTORY = (
    "topic_id BIGINT, segment_id BIGINT, "
    + ", ".join(f"{metric} DOUBLE" for metric in METRICS)
    + ", covered_ms BIGINT, window_end STRING"
)
_RESULTS_DDL = "key BIGINT, load STRING, policy STRING, seed INT, cost DOUBLE, least_cost DOUBLE, figures STRING, picture STRING, error STRING"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy to try: a rule by name, and the parameters that differ from the topic's policy in force."""

    name: str
    rule: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def as_rule(self, base: AutoScalePolicy, series: LoadSeries) -> Rule:
        """The rule to simulate. Raises InvalidInput for a name that there is not, InvalidPolicy for its parameters."""
        policy = AutoScalePolicy.from_document({**base.to_document(), **self.parameters})
        validate(policy)
        if self.rule == IN_FORCE:
            return of_policy(policy, self.name)
        if self.rule not in RULES:
            raise InvalidInput(
                f"no policy is called {shown(self.rule)}; there are {', '.join((IN_FORCE, *RULES))}"
            )
        return replace(rule_named(self.rule, series, policy), name=self.name)

    def check(self, base: AutoScalePolicy) -> None:
        """Raises what `as_rule` would raise for any load."""
        self.as_rule(base, of_messages(self.name, [0.0]))


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about every load. `seeds`: 0 is the load as it was recorded, any other draws each step's messages anew
    from a Poisson law about it. `actuation_seconds`: how long a reshape takes.
    """

    candidates: tuple[Candidate, ...]
    prices: Prices = field(default_factory=Prices)
    seeds: tuple[int, ...] = (0,)
    tick_seconds: int = 60
    actuation_seconds: float = 0.0
    pictures: bool = False

    def to_json(self) -> str:
        """For another process, and for the row of the run."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `to_json`'s."""
        document = json.loads(text)
        return cls(
            **{
                **document,
                "candidates": tuple(Candidate(**one) for one in document["candidates"]),
                "prices": Prices(**document["prices"]),
                "seeds": tuple(document["seeds"]),
            }
        )

    @property
    def cases(self) -> list[tuple[Candidate, int]]:
        """Each candidate with each seed."""
        return [(candidate, seed) for candidate in self.candidates for seed in self.seeds]


Done = Callable[[int], None]
"""Told how many simulations have been done."""


class Load(NamedTuple):
    """One load to answer for; `part` (number, of) takes only every so-many-th case of the question."""

    recording: Recording
    rates: pa.Table
    part: tuple[int, int] = (0, 1)


def answers(
    loads: Iterable[Load], question: Question, done: Done = lambda _count: None
) -> Iterator[pa.RecordBatch]:
    """The results of these loads, in their order."""
    waiting: list[Load] = []
    for load in loads:
        waiting.append(load)
        if len(waiting) == TOGETHER:
            yield _answered(waiting, question, done)
            waiting = []
    if waiting:
        yield _answered(waiting, question, done)


def _answered(loads: Sequence[Load], question: Question, done: Done) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = []
    bounded: dict[tuple[int, ...], list[tuple[int, Floats]]] = defaultdict(list)
    for load in loads:
        try:
            simulated = _simulations(load, question, done)
        except Exception as error:  # noqa: BLE001 - of one load, and its row says it; the others have their answers
            rows.append(_failed(load.recording, error))
            continue
        for row, group, of_seed in simulated:
            bounded[group].append((len(rows), of_seed))
            rows.append(row)
    for (_, step_seconds, most, first), members in bounded.items():
        if question.pictures:
            _add_fronts(rows, members, question.prices, step_seconds, max(most, first), first)
        least = lower_bound(
            np.stack([load for _, load in members]),
            question.prices,
            step_seconds=step_seconds,
            most_segments=max(most, first),
            first=first,
        )
        for (place, _), cost in zip(members, least, strict=True):
            rows[place]["least_cost"] = float(cost)
    return pa.RecordBatch.from_pylist(rows, RESULTS)


def _simulations(
    load: Load, question: Question, done: Done
) -> list[tuple[dict[str, Any], tuple[int, ...], Floats]]:
    """Of each case of a load: its row, the loads that its least cost can be computed with, and the load itself."""
    recording, rates, (number, of) = load
    series = series_of(recording, rates)
    base = recording.base_policy
    most = max(one.as_rule(base, series).policy.max_segments for one in question.candidates)
    group = (series.steps, series.step_seconds, most, recording.segments)
    found: list[tuple[dict[str, Any], tuple[int, ...], Floats]] = []
    for candidate, seed in question.cases[number::of]:
        row = _simulated(recording, series, candidate, seed, question)
        if not np.isfinite(row["cost"]):
            raise InvalidInput(
                f"the cost under {candidate.name} is {row['cost']}; its recorded rates are beyond any capacity"
            )
        found.append((row, group, drawn(series, seed).load(base.thresholds.split.rates)))
        done(1)
    return found


def _failed(recording: Recording, error: Exception) -> dict[str, Any]:
    nothing = {"policy": "", "seed": 0, "cost": 0.0, "least_cost": 0.0, "figures": "{}", "picture": None}
    return {
        "key": recording.key,
        "load": recording.name,
        **nothing,
        "error": f"{type(error).__name__}: {error}",
    }


def _add_fronts(
    rows: list[dict[str, Any]],
    members: Sequence[tuple[int, Floats]],
    prices: Prices,
    step_seconds: int,
    most: int,
    first: int,
) -> None:
    """To the picture of each load's first case, of the load as it was recorded."""
    drawn_already: set[int] = set()
    for place, load in members:
        row = rows[place]
        if row["seed"] == 0 and row["key"] not in drawn_already:
            drawn_already.add(row["key"])
            best = front(load, prices, step_seconds=step_seconds, most_segments=most, first=first)
            row["picture"] = json.dumps({**json.loads(row["picture"]), "front": best})


def _simulated(
    recording: Recording, series: LoadSeries, candidate: Candidate, seed: int, question: Question
) -> dict[str, Any]:
    base = recording.base_policy
    conditions = Conditions(
        tick_seconds=question.tick_seconds,
        window_seconds=max(60, series.step_seconds),
        actuation_seconds=question.actuation_seconds,
        initial_segments=recording.segments,
    )
    rule = candidate.as_rule(base, series)
    own = simulate(drawn(series, seed), rule, conditions)
    run = in_capacities_of(own, base.thresholds.split)
    figures = asdict(score(run, question.prices))
    if run is not own:  # what it left alone in silence goes by what it takes for hot itself
        figures["silent_seconds"] = score(own, question.prices).silent_seconds
    cost = figures.pop("cost")
    figures |= {"days": series.days, "measured": float(series.measured.mean())}
    figures |= {"is_ideal": True} if rule.is_ideal else {}
    figures |= {"refusals": dict(sorted(run.refusals.items()))}
    return {
        "key": recording.key,
        "load": recording.name,
        "policy": candidate.name,
        "seed": seed,
        "cost": cost,
        "least_cost": 0.0,
        "figures": json.dumps(figures, sort_keys=True, allow_nan=False),
        "picture": json.dumps(picture(run, base.thresholds.split)) if question.pictures else None,
        "error": None,
    }


def drawn(series: LoadSeries, seed: int) -> LoadSeries:
    """The series as it was recorded (seed 0), or with each step's messages drawn anew; the other metrics go with them."""
    if seed == 0:
        return series
    expected = np.nan_to_num(series.rates[:, 0]) * series.step_seconds
    counts = np.random.default_rng(seed).poisson(expected)
    factor = np.divide(counts, expected, out=np.ones_like(expected), where=expected > 0)
    return replace(series, rates=series.rates * factor[:, None])


def in_capacities_of(run: Simulation, capacity: LoadStats) -> Simulation:
    """What happened, counted in segments of that capacity: a candidate with another threshold makes no segment stronger."""
    if run.rule.policy.thresholds.split == capacity:
        return run
    total = run.series.load(capacity.rates)
    spread = Spread.of(run.series)
    max_load, excess = np.zeros_like(run.max_load), np.zeros_like(run.excess)
    overloaded = np.zeros_like(run.overloaded)
    ends = [stretch.begins for stretch in run.stretches[1:]] + [run.series.steps]
    for stretch, end in zip(run.stretches, ends, strict=True):
        span = slice(stretch.begins, end)
        loads = total[span, None] * spread.shares(stretch.ranges, span)
        over = np.maximum(loads - 1.0, 0.0)
        max_load[span], excess[span] = loads.max(axis=1), over.sum(axis=1)
        overloaded[span] = (over > 0).sum(axis=1)
    limits: dict[str, Any] = {
        f"split_{metric}": rate for metric, rate in zip(METRICS, capacity.rates, strict=True)
    }
    counted = replace(run.rule.policy, **limits)
    return replace(
        run,
        rule=replace(run.rule, policy=counted),
        max_load=max_load,
        excess=excess,
        overloaded=overloaded,
    )


def by_key(rates: pa.Table, recordings: Iterable[Recording]) -> Iterator[Load]:
    """Each recording with its rows, in the order of their keys; one without a row is left out."""
    known = {one.key: one for one in recordings}
    rates = rates.sort_by([("key", "ascending"), ("window_end_ms", "ascending")])
    keys = rates.column("key").to_numpy()
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    ends = np.append(begins[1:], [len(keys)] * (len(keys) > 0)).astype(np.int64)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if int(keys[begin]) in known:
            yield Load(known[int(keys[begin])], rates.slice(begin, end - begin))


def compute_here(
    rates: pa.Table, recordings: Sequence[Recording], question: Question, done: Done = lambda _count: None
) -> pa.Table:
    """In this process. `rates` has the columns of `RATE_COLUMNS`."""
    batches = list(answers(by_key(rates, recordings), question, done))
    return _sorted(pa.Table.from_batches(batches, RESULTS))


def compute(
    spark: SparkSession, rates: DataFrame, recordings: Sequence[Recording], question: Question, parallel: int
) -> pa.Table:
    """On Spark, by `parallel` tasks. With fewer loads than tasks the candidates of a load are divided among them."""
    from pyspark.sql import functions as f

    keys = spark.createDataFrame([(one.key,) for one in recordings], "key BIGINT")
    parts = max(1, min(len(question.cases), -(-parallel // max(1, len(recordings)))))
    divided = (
        rates.join(f.broadcast(keys), "key", "left_semi")
        .select(*RATE_COLUMNS.names)
        .withColumn("part", f.explode(f.sequence(f.lit(0), f.lit(parts - 1))))
        .repartition(max(1, min(WAVES * parallel, parts * len(recordings))), "key", "part")
        .sortWithinPartitions("part", "key", "window_end_ms")
    )
    asked = {one.key: one.to_json() for one in recordings}
    run = partial(_partition, asked=asked, question=question.to_json(), parts=parts)
    return _sorted(divided.mapInArrow(run, _RESULTS_DDL).toArrow().cast(RESULTS))


def rates_of_history(
    spark: SparkSession, history_url: str, day_urls: Sequence[str], since_ms: int, until_ms: int
) -> DataFrame:
    """The rates that the aggregation has kept of these days, of the windows that ended in the inclusive span."""
    from pyspark.sql import functions as f

    ended = f.to_timestamp(f.regexp_extract("window_end", r"^(\d{8}T\d{9})Z$", 1), "yyyyMMdd'T'HHmmssSSS")
    stored = spark.read.schema(_HISTORY).option("basePath", history_url).parquet(*day_urls)
    return (
        stored.withColumn("window_end_ms", f.unix_millis(ended))
        .where(f.col("window_end_ms").between(since_ms, until_ms) & (f.col("covered_ms") > 0))
        .withColumnRenamed("topic_id", "key")
        .select(*RATE_COLUMNS.names)
    )


def _partition(
    batches: Iterator[pa.RecordBatch], *, asked: Mapping[int, str], question: str, parts: int
) -> Iterator[pa.RecordBatch]:
    """One task of Spark's."""
    yield from answers(
        (Load(Recording.from_json(asked[key]), rates, (part, parts)) for part, key, rates in _runs(batches)),
        Question.from_json(question),
    )


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.Table]]:
    """The rows of each part and key, which lie together; no more than those of one key are held."""
    held: list[pa.RecordBatch] = []
    of: tuple[int, int] | None = None
    for batch in batches:
        ids = np.column_stack([batch.column("part").to_numpy(), batch.column("key").to_numpy()])
        begins = [0, *(np.flatnonzero(np.any(np.diff(ids, axis=0) != 0, axis=1)) + 1).tolist()]
        for begin, end in pairwise([*begins, len(ids)]):
            found = (int(ids[begin, 0]), int(ids[begin, 1]))
            if of is not None and found != of:
                yield *of, _rates(held)
                held = []
            of = found
            held.append(batch.slice(begin, end - begin))
    if of is not None:
        yield *of, _rates(held)


def _rates(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).select(RATE_COLUMNS.names).cast(RATE_COLUMNS)


def _sorted(results: pa.Table) -> pa.Table:
    return results.sort_by([(name, "ascending") for name in ("load", "key", "policy", "seed")])


def main(arguments: Sequence[str] | None = None) -> None:
    """For `spark-submit`: rates as Parquet with the columns of `RATE_COLUMNS`, what is asked as JSON files; results as
    one Parquet file.
    """
    from spark_jobs.session import with_session

    parser = argparse.ArgumentParser(
        prog="policy_backtest", description=main.__doc__, fromfile_prefix_chars="@"
    )
    parser.add_argument("--master", default="local[2]", help="local[n], spark://host:port or sc://host:port")
    parser.add_argument("--parallel", type=int, default=2, help="tasks side by side")
    parser.add_argument("--rates", nargs="+", required=True, help="URLs of files of rates")
    parser.add_argument(
        "--recordings", type=Path, required=True, help="a file with one recording a line, as JSON"
    )
    parser.add_argument("--question", type=Path, required=True, help="a file with the question, as JSON")
    parser.add_argument("--results", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    recordings = [Recording.from_json(line) for line in options.recordings.read_text().splitlines()]
    question = Question.from_json(options.question.read_text())

    def run(spark: SparkSession) -> pa.Table:
        return compute(spark, spark.read.parquet(*options.rates), recordings, question, options.parallel)

    pq.write_table(with_session(options.master, run), options.results)


def rates_of_trace(recording: Recording, series: LoadSeries) -> pa.Table:
    """A trace as rows of `RATE_COLUMNS`, so that it goes the same way as what was recorded here."""
    step_ms = series.step_seconds * 1000
    ends = series.start_ms + step_ms * np.arange(1, series.steps + 1)
    columns = {
        "key": np.full(series.steps, recording.key),
        "window_end_ms": ends,
        "segment_id": np.zeros(series.steps, np.int64),
        **{metric: series.rates[:, number] for number, metric in enumerate(METRICS)},
    }
    return pa.table(columns, RATE_COLUMNS)


if __name__ == "__main__":
    main()
