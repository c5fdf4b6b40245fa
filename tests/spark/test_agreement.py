"""Spark, the SQL twin and the domain's functions answer alike, to the last bit, on random histories."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from controller.domain.load import CounterSample, LoadStats, LoadThresholds
from controller.domain.load_window import LoadWindow
from controller.landing.schemas import RATE_SCHEMA
from controller.store import load_twin
from controller.store.engine import Store
from controller.store.loads import Baseline
from spark_jobs.load_aggregation import build_changes, build_heard, build_rates
from tests.spark.oracle import Case, Stored, Values, by_topic, tables

END = 1_800_000_000_000
WINDOW = LoadWindow(END, 60_000, 60_000)
START, READ_FROM = WINDOW.start_ms, WINDOW.read_from_ms

CASES = 300
"""Segments in one batch: a try costs a Spark job, whatever it holds."""


def _instant(random: Random) -> int:
    """Often an edge of a span, or equal to another."""
    edges = [READ_FROM, READ_FROM + 1, START - 1, START, START + 1, END - 1, END, END + 1]
    choices = [
        END + 10_000 * random.randint(-13, 1),
        random.choice(edges),
        random.randint(READ_FROM, END + 5_000),
    ]
    return random.choice(choices)


def _counter(random: Random) -> int:
    return random.choice([600 * random.randint(0, 12), random.randint(0, 100_000), random.randint(0, 2**60)])


def _stats(random: Random) -> LoadStats:
    few = [0.0, 5.0, 10.0, 12.5, 20.0, 100.0]
    return LoadStats(*(random.choice([*few, random.uniform(0, 5_000)]) for _ in range(4)))


def _stored(random: Random, names: list[str]) -> Stored:
    cold_since, silent_since = (random.choice([None, None, _instant(random)]) for _ in range(2))
    return Stored(
        _stats(random), random.choice(names), _instant(random), cold_since, silent_since, random.randint(1, 9)
    )


def _case(random: Random, number: int) -> Case:
    """One segment; its sources are named after its number, so that cases do not touch each other."""
    names = [f"{number}-{name}" for name in ("a", "b", 'é,"')]
    samples = tuple(
        CounterSample(random.choice(names), _instant(random), *(_counter(random) for _ in range(4)))
        for _ in range(random.choice([0, 1, 1, 2, 5, 8, 12]))
    )
    heard = {name: _instant(random) for name in names if random.random() < 0.5}
    speaking = [sample.source for sample in samples] or names
    stored = _stored(random, speaking) if random.random() < 0.7 else None
    split, merge = _stats(random), _stats(random)
    case = Case(samples, LoadThresholds(split, merge), random.choice([0.0, 0.25, 1.0]), stored, heard)
    rates = case.rates(WINDOW)
    if rates is not None and random.random() < 0.5:  # thresholds and records that are hit exactly
        case = replace(
            case, thresholds=random.choice([LoadThresholds(rates, merge), LoadThresholds(split, rates)])
        )
        if stored is not None and random.random() < 0.7:
            factor = random.choice([1.0, 0.8, 1.25, 0.5])
            near = LoadStats(*(rate * factor for rate in rates.rates))
            case = replace(case, stored=replace(stored, stats=near))
    return case


def _batch(seed: int) -> list[Case]:
    random = Random(seed)
    return [_case(random, number) for number in range(CASES)]


def _expected(drawn: list[Case]) -> tuple[dict[int, Values], dict[int, Values], dict[str, int]]:
    numbered = list(enumerate(drawn))
    heard = {source: at for case in drawn for source, at in case.expected_heard(WINDOW).items()}
    return (
        {n: found for n, case in numbered if (found := case.expected_rates(WINDOW)) is not None},
        {n: found for n, case in numbered if (found := case.expected_change(WINDOW)) is not None},
        heard,
    )


def _check(cases: list[Case], rates: pa.Table, changes: pa.Table, heard: pa.Table) -> None:
    """All of it, and of what differs the first case alone."""
    expected_rates, expected_changes, expected_heard = _expected(cases)
    for expected, found in ((expected_rates, by_topic(rates)), (expected_changes, by_topic(changes))):
        wrong = [n for n in range(len(cases)) if expected.get(n) != found.get(n)]
        if wrong:
            n = wrong[0]
            pytest.fail(f"{len(wrong)} differ; {cases[n]}: {found.get(n)} instead of {expected.get(n)}")
    assert {row["source"]: row["observed_at_ms"] for row in heard.to_pylist()} == expected_heard


seeds = given(seed=st.integers(0, 2**32))
quickly = settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is no smaller batch
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@seeds
@quickly
def test_spark_answers_as_the_domain_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    cases = _batch(seed)
    given_tables = tables(cases)
    path = tmp_path_factory.mktemp("samples") / "samples.parquet"
    pq.write_table(given_tables.pop("samples"), path)
    samples = spark.read.parquet(str(path))
    before = {name: spark.createDataFrame(table) for name, table in given_tables.items()}
    rates, heard = build_rates(samples, WINDOW), build_heard(samples, WINDOW)

    changes = build_changes(rates, heard, window=WINDOW, **before)

    _check(cases, rates.toArrow(), changes.toArrow(), heard.toArrow())


@seeds
@quickly
def test_the_twin_answers_as_the_domain_does(database: str, seed: int) -> None:
    cases = _batch(seed)
    given_tables = tables(cases)
    samples = given_tables.pop("samples").select(load_twin.COLUMNS).to_batches()
    store = Store(database, pool_size=1)

    with store.transaction() as tx:
        rates, changes, heard = load_twin.aggregate(
            tx, samples, WINDOW, Baseline(None, **given_tables), RATE_SCHEMA
        )
    store.dispose()

    _check(cases, rates, changes, heard)


def test_the_batches_hold_what_they_are_meant_to() -> None:
    """Writes, silences and stays: a generator that never writes would prove nothing."""
    cases = _batch(0)
    rates, changes, _ = _expected(cases)

    silenced = [n for n, change in changes.items() if change[6] is not None]

    assert len(rates) > CASES / 4
    assert len(silenced) > CASES / 100
    assert len([n for n in rates if n not in changes]) > CASES / 50
