"""The cost of policies on recorded loads: every load under every candidate, in parallel on any Spark master.

`compute` runs the backtest on a session, `compute_here` in this process, with the same function (`answers`), so both
give the same figures. A load is one sequential simulation per candidate; loads are independent. The results follow
from the inputs alone. `main` is the entry point for `spark-submit`. On a cluster the executors need this package with
its extra `backtest`.
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
from controller.backtest.simulation import Conditions, Simulation, segment_figures, simulate
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.load_record import METRICS, LoadStats
from controller.domain.policy import AutoScalePolicy, validate
from spark_jobs.backtest_picture import front, picture
from spark_jobs.recorded_load import RATE_COLUMNS, Recording, series_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN_FORCE = "in-force"
"""The candidate that stands for each topic's own policy."""

TOGETHER = 64
"""Number of loads whose least costs are computed at once: step by step this costs hardly more for all of them than for
one.
"""

WAVES = 4
"""Number of Spark tasks per task that runs at a time, so that a slow task delays little and no task holds many loads.
"""

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
"""One row per load, candidate and seed; `figures` and `picture` are JSON, and `picture` is null unless it was requested.
A load that cannot be simulated has one row with its `error`, which is null otherwise.
"""

_HISTORY = (
    "topic_id BIGINT, segment_id BIGINT, "
    + ", ".join(f"{metric} DOUBLE" for metric in METRICS)
    + ", covered_ms BIGINT, window_end STRING"
)
_RESULTS_DDL = "key BIGINT, load STRING, policy STRING, seed INT, cost DOUBLE, least_cost DOUBLE, figures STRING, picture STRING, error STRING"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy to test: a rule by name, and the parameters that differ from the topic's policy in force."""

    name: str
    rule: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def as_rule(self, base: AutoScalePolicy, series: LoadSeries) -> Rule:
        """Return the rule to simulate on `series`, with the candidate's name as its name. The policy of the rule is
        `base` with the parameters of the candidate, then with the parameters that the rule itself sets, such as the
        profile. The rule requires no approvals. The rule `in-force` decides by the profile of the policy. `series`
        matters only to the rule `static peak`.

        Raises InvalidPolicy for parameters that do not exist or that are invalid together with `base`, and
        InvalidInput for an unknown rule.
        """
        policy = AutoScalePolicy.from_document({**base.to_document(), **self.parameters})
        validate(policy)
        if self.rule == IN_FORCE:
            return of_policy(policy, self.name)
        if self.rule not in RULES:
            raise InvalidInput(
                f"rule {shown(self.rule)} is unknown; choose one of {', '.join((IN_FORCE, *RULES))}"
            )
        return replace(rule_named(self.rule, series, policy), name=self.name)

    def check(self, base: AutoScalePolicy) -> None:
        """Raise InvalidInput for an unknown rule, and InvalidPolicy for parameters that are invalid on the policy `base`."""
        self.as_rule(base, of_messages(self.name, [0.0]))


@dataclass(frozen=True, slots=True)
class Question:
    """The parameters of a backtest, the same for every load. `seeds`: 0 is the load as it was recorded; any other seed draws each step's
    messages from a Poisson distribution around it. `tick_seconds`: seconds between two evaluations. `actuation_seconds`: duration of a
    reshape. `pictures`: True if the results have data for charts.
    """

    candidates: tuple[Candidate, ...]
    prices: Prices = field(default_factory=Prices)
    seeds: tuple[int, ...] = (0,)
    tick_seconds: int = 60
    actuation_seconds: float = 0.0
    pictures: bool = False

    def to_json(self) -> str:
        """Return the parameters as text, for another process and for the row of the run."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the parameters that `to_json` wrote."""
        document = json.loads(text)
        return cls(
            **{
                **document,
                "candidates": tuple(Candidate(**candidate) for candidate in document["candidates"]),
                "prices": Prices(**document["prices"]),
                "seeds": tuple(document["seeds"]),
            }
        )

    @property
    def cases(self) -> list[tuple[Candidate, int]]:
        """The simulations of one load: each candidate with each seed, candidate by candidate."""
        return [(candidate, seed) for candidate in self.candidates for seed in self.seeds]


Done = Callable[[int], None]
"""Progress callback: called with the number of simulations that were completed since its last call."""


class Load(NamedTuple):
    """One load to simulate; `part` (number, of) selects every `of`-th case of the question, beginning with `number`."""

    recording: Recording
    rates: pa.Table
    part: tuple[int, int] = (0, 1)


def answers(
    loads: Iterable[Load], question: Question, done: Done = lambda _count: None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of result rows (`RESULTS`) in the order of the loads. A batch has the rows of up to TOGETHER
    loads: one row for each case of the load's part of the question. If a case of a load cannot be simulated, the load
    has instead a single row with the error, and nothing is raised. Without a load, nothing is yielded.

    Errors in computing the least costs, and errors of the iterable `loads`, are raised during the iteration. `done`
    is a progress callback: it is called with 1 after each simulation.
    """
    waiting: list[Load] = []
    for load in loads:
        waiting.append(load)
        if len(waiting) == TOGETHER:
            yield _answer_batch(waiting, question, done)
            waiting = []
    if waiting:
        yield _answer_batch(waiting, question, done)


def _answer_batch(loads: Sequence[Load], question: Question, done: Done) -> pa.RecordBatch:
    """Return the result rows (`RESULTS`) of the loads, in the order of the loads: one row for each case of the load's
    part of the question. If simulating a case raises an error, the load has instead a single row with the error, and
    the other loads have their results. `done` is called with 1 after each simulation.

    After the simulations, the least costs are computed, together for all cases with the same steps and limits. If the
    question requests pictures, the least costs for several prices are added to them (`_add_fronts`). Errors of these
    computations are raised.
    """
    rows: list[dict[str, Any]] = []
    groups: dict[tuple[int, ...], list[tuple[int, Floats]]] = defaultdict(list)
    for load in loads:
        try:
            cases = _simulations(load, question, done)
        except Exception as error:  # noqa: BLE001 - the load's row reports the error; the other loads have results
            rows.append(_error_row(load.recording, error))
            continue
        for row, group, seed_load in cases:
            groups[group].append((len(rows), seed_load))
            rows.append(row)
    for (_, step_seconds, limit, first), members in groups.items():
        if question.pictures:
            _add_fronts(rows, members, question.prices, step_seconds, max(limit, first), first)
        least = lower_bound(
            np.stack([load for _, load in members]),
            question.prices,
            step_seconds=step_seconds,
            most_segments=max(limit, first),
            first=first,
        )
        for (index, _), cost in zip(members, least, strict=True):
            rows[index]["least_cost"] = float(cost)
    return pa.RecordBatch.from_pylist(rows, RESULTS)


def _simulations(
    load: Load, question: Question, done: Done
) -> list[tuple[dict[str, Any], tuple[int, ...], Floats]]:
    """Simulate each case of a load's part of the question. Return, for each case, its row of `RESULTS` with the least cost 0, the key of the
    cases with which its least cost can be computed (steps, seconds of a step, greatest maximum number of segments of any candidate of the
    question, initial number of segments), and the load of each step in segments' capacities. Calls `done(1)` after each simulation.

    Raises InvalidInput if a figure is not finite, and the errors of `series_of`, of `Candidate.as_rule` (also for candidates of other
    parts), and of `simulate`.
    """
    recording, rates, (number, of) = load
    series = series_of(recording, rates)
    base = recording.base_policy
    limit = max(candidate.as_rule(base, series).policy.max_segments for candidate in question.candidates)
    group = (series.steps, series.step_seconds, limit, recording.segments)
    cases: list[tuple[dict[str, Any], tuple[int, ...], Floats]] = []
    for candidate, seed in question.cases[number::of]:
        row = _simulate_case(recording, series, candidate, seed, question)
        cases.append((row, group, drawn(series, seed).load(base.thresholds.split.rates)))
        done(1)
    return cases


def _error_row(recording: Recording, error: Exception) -> dict[str, Any]:
    """Return the only result row of a load that cannot be simulated, with type and text of the error; costs are 0."""
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
    max_segments: int,
    first: int,
) -> None:
    """Add the result of `front`, the least costs for several prices of excess, as `front` to the picture of each recording's first row with
    seed 0 among `members`; other rows are unchanged. `rows` are changed in place, and their pictures must not be None. `members`: index of
    a row, and the load of each step in capacities. `step_seconds`, `max_segments` and `first`, the initial number of segments, are those of
    all members.
    """
    done_keys: set[int] = set()
    for index, load in members:
        row = rows[index]
        if row["seed"] == 0 and row["key"] not in done_keys:
            done_keys.add(row["key"])
            best = front(
                load, prices, step_seconds=step_seconds, most_segments=max_segments, initial_segments=first
            )
            row["picture"] = json.dumps({**json.loads(row["picture"]), "front": best})


def _simulate_case(
    recording: Recording, series: LoadSeries, candidate: Candidate, seed: int, question: Question
) -> dict[str, Any]:
    """Simulate one candidate on one load, with the messages that the seed draws (`drawn`). Return the row of
    `RESULTS`, in which the least cost is 0 and the error is None. `picture` is None unless the question requests
    pictures.

    The figures of the row are the fields of `Score` except the cost; `days`; `measured`, the share of the steps with
    a measurement; `refusals`, the number of refusals by reason; and, for an ideal rule only, `is_ideal`. Load and
    cost are counted in capacities of the recording's policy in force, not of the candidate. Only the figure
    `silent_seconds` follows the candidate's own thresholds.

    Raises InvalidInput if a figure is not finite, and the errors of `Candidate.as_rule` and `simulate`.
    """
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
    if run is not own:  # silence is measured by the candidate's own thresholds
        figures["silent_seconds"] = score(own, question.prices).silent_seconds
    for name, figure in figures.items():
        if not np.isfinite(figure):
            raise InvalidInput(
                f"the figure {name} under {candidate.name} is {figure}; the recorded rates exceed any capacity; correct or exclude the load"
            )
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
    """Return the series unchanged for seed 0. For any other seed return a copy in which each step's incoming messages are drawn from a
    Poisson distribution around the recorded number; equal seeds give equal series. The other metrics of a step change in proportion.
    A step without recorded incoming messages is unchanged.
    """
    if seed == 0:
        return series
    expected = np.nan_to_num(series.rates[:, 0]) * series.step_seconds
    counts = np.random.default_rng(seed).poisson(expected)
    factor = np.divide(counts, expected, out=np.ones_like(expected), where=expected > 0)
    return replace(series, rates=series.rates * factor[:, None])


def in_capacities_of(run: Simulation, capacity: LoadStats) -> Simulation:
    """Return the simulation with `max_load`, `excess` and `overloaded` counted in segments of the given capacity, and
    with this capacity as the split thresholds of its policy. `run` is unchanged. The conversion makes candidates
    comparable: the thresholds of a candidate do not change the load that a segment can serve.

    The loads of actions and of ticks are not converted. If the policy of `run` has these split thresholds already,
    the result is `run` itself.
    """
    if run.rule.policy.thresholds.split == capacity:
        return run
    limits: dict[str, Any] = {
        f"split_{metric}": rate for metric, rate in zip(METRICS, capacity.rates, strict=True)
    }
    policy = replace(run.rule.policy, **limits)
    figures = segment_figures(run.series, run.spread, run.stretches, capacity)
    return replace(run, rule=replace(run.rule, policy=policy), **figures)


def by_key(rates: pa.Table, recordings: Iterable[Recording]) -> Iterator[Load]:
    """Yield each recording with its rows of `rates` (columns `RATE_COLUMNS`, in any order), in ascending order of the recordings' keys; the
    rows of a recording are in the order of their windows. A recording without rows is left out, and so are rows without a recording. Of
    several recordings with one key, the last counts.
    """
    recordings_by_key = {recording.key: recording for recording in recordings}
    rates = rates.sort_by([("key", "ascending"), ("window_end_ms", "ascending")])
    keys = rates.column("key").to_numpy()
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    ends = np.append(begins[1:], [len(keys)] * (len(keys) > 0)).astype(np.int64)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if int(keys[begin]) in recordings_by_key:
            yield Load(recordings_by_key[int(keys[begin])], rates.slice(begin, end - begin))


def compute_here(
    rates: pa.Table, recordings: Sequence[Recording], question: Question, done: Done = lambda _count: None
) -> pa.Table:
    """Compute the results (`RESULTS`) in this process, and return them sorted by load, key, policy and seed. `rates` has the columns of
    `RATE_COLUMNS`. A recording without rates has no result, and rates without a recording are ignored. A load that cannot be simulated
    has a single row with its error. `done` is a progress callback: it is called with 1 after each simulation.
    """
    batches = list(answers(by_key(rates, recordings), question, done))
    return _sorted(pa.Table.from_batches(batches, RESULTS))


def compute(
    spark: SparkSession, rates: DataFrame, recordings: Sequence[Recording], question: Question, parallel: int
) -> pa.Table:
    """Compute the results (`RESULTS`) on Spark, and return them sorted by load, key, policy and seed. `rates` has the
    columns of `RATE_COLUMNS`. Rates without a recording are ignored, and a recording without rates has no result.

    `parallel` is the number of tasks that the session runs at a time. The work is divided into at most `WAVES` times
    as many tasks. With fewer loads than `parallel`, the cases of a load are divided among tasks.

    If a case cannot be simulated, the results of its task for this load are a single row with the error. Other tasks
    may still have results for the load. Spark's errors are raised unchanged.
    """
    from pyspark.sql import functions as f

    keys = spark.createDataFrame([(recording.key,) for recording in recordings], "key BIGINT")
    parts = max(1, min(len(question.cases), -(-parallel // max(1, len(recordings)))))
    divided = (
        rates.join(f.broadcast(keys), "key", "left_semi")
        .select(*RATE_COLUMNS.names)
        .withColumn("part", f.explode(f.sequence(f.lit(0), f.lit(parts - 1))))
        .repartition(max(1, min(WAVES * parallel, parts * len(recordings))), "key", "part")
        .sortWithinPartitions("part", "key", "window_end_ms")
    )
    texts = {recording.key: recording.to_json() for recording in recordings}
    run = partial(_partition, recordings=texts, question=question.to_json(), parts=parts)
    return _sorted(divided.mapInArrow(run, _RESULTS_DDL).toArrow().cast(RESULTS))


def rates_of_history(
    spark: SparkSession, history_url: str, day_urls: Sequence[str], since_ms: int, until_ms: int
) -> DataFrame:
    """Return, with the columns of `RATE_COLUMNS`, the rates that the aggregation stored; the key is the topic's id. A
    row is included if its window ended from `since_ms` to `until_ms`, both included (milliseconds since the Unix
    epoch), and the rates cover a part of the window.

    `day_urls` are the directories of the days to read, and `history_url` is the root of these directories. `day_urls`
    must not be empty, and each directory must exist; otherwise Spark raises its own errors. The rows are read when
    the result is used.
    """
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
    batches: Iterator[pa.RecordBatch], *, recordings: Mapping[int, str], question: str, parts: int
) -> Iterator[pa.RecordBatch]:
    """Yield the result rows of one Spark task. `batches` have the columns of `RATE_COLUMNS` and `part`, sorted by part and key.
    `recordings` (by key) and `question` are JSON. Each load is simulated for one of `parts` parts of the question's cases.
    """
    yield from answers(
        (
            Load(Recording.from_json(recordings[key]), rates, (part, parts))
            for part, key, rates in _runs(batches)
        ),
        Question.from_json(question),
    )


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield each part and key with its rows, as a table with the columns of `RATE_COLUMNS`, in the order of the rows. `batches` have these
    columns and `part`; none may be empty, but there may be no batch. The rows of one part and key must be adjacent, also over several
    batches; only these rows and the current batch are held in memory.
    """
    batches_of_key: list[pa.RecordBatch] = []
    current: tuple[int, int] | None = None
    for batch in batches:
        ids = np.column_stack([batch.column("part").to_numpy(), batch.column("key").to_numpy()])
        begins = [0, *(np.flatnonzero(np.any(np.diff(ids, axis=0) != 0, axis=1)) + 1).tolist()]
        for begin, end in pairwise([*begins, len(ids)]):
            part_and_key = (int(ids[begin, 0]), int(ids[begin, 1]))
            if current is not None and part_and_key != current:
                yield *current, _rates(batches_of_key)
                batches_of_key = []
            current = part_and_key
            batches_of_key.append(batch.slice(begin, end - begin))
    if current is not None:
        yield *current, _rates(batches_of_key)


def _rates(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the batches as one table of `RATE_COLUMNS`."""
    return pa.Table.from_batches(batches).select(RATE_COLUMNS.names).cast(RATE_COLUMNS)


def _sorted(results: pa.Table) -> pa.Table:
    """Return the results in the order of load, key, policy and seed."""
    return results.sort_by([(name, "ascending") for name in ("load", "key", "policy", "seed")])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a backtest with `spark-submit`. The rates are Parquet files with the columns of `RATE_COLUMNS`; the file of recordings has one
    JSON object per line, and the file of the question is one JSON object. The results are one Parquet file, which is replaced if it exists.
    """
    from spark_jobs.session import with_session

    parser = argparse.ArgumentParser(
        prog="policy_backtest", description=main.__doc__, fromfile_prefix_chars="@"
    )
    parser.add_argument("--master", default="local[2]", help="local[n], spark://host:port or sc://host:port")
    parser.add_argument("--parallel", type=int, default=2, help="number of parallel tasks; default: 2")
    parser.add_argument("--rates", nargs="+", required=True, help="URLs of Parquet files with rates")
    parser.add_argument(
        "--recordings", type=Path, required=True, help="file with one recording per line, as JSON"
    )
    parser.add_argument("--question", type=Path, required=True, help="file with the question, as JSON")
    parser.add_argument("--results", type=Path, required=True, help="Parquet file to write")
    options = parser.parse_args(arguments)
    recordings = [Recording.from_json(line) for line in options.recordings.read_text().splitlines()]
    question = Question.from_json(options.question.read_text())

    def run(spark: SparkSession) -> pa.Table:
        return compute(spark, spark.read.parquet(*options.rates), recordings, question, options.parallel)

    pq.write_table(with_session(options.master, run), options.results)


def rates_of_trace(recording: Recording, series: LoadSeries) -> pa.Table:
    """Return the series of a trace as rows of `RATE_COLUMNS` with the recording's key, so that the trace is processed like a
    load recorded by Cleave. All rates are of segment 0; each step is a window that ends with the step.
    """
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
