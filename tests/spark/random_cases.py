"""Random histories of segments, many in one batch, and what the domain makes of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from controller.domain.counter_rates import CounterSample
from controller.domain.load_record import LoadStats, LoadThresholds
from controller.domain.load_record_rule import FLOOR_FRACTION
from controller.domain.load_window import LoadWindow
from tests.spark.oracle import Case, StoredRecord, Values, by_topic

END = 1_800_000_000_000
WINDOW = LoadWindow(END, 60_000, 60_000)
START, READ_FROM = WINDOW.start_ms, WINDOW.read_from_ms

CASES = 500
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


def _samples(random: Random, names: list[str]) -> tuple[CounterSample, ...]:
    """Mostly of counters that rise, and go back now and then by less than, more than and just a tenth of that."""
    readers = random.choice([[""], ["", "é"], ["x", "y", "z"]])
    counters, samples = [_counter(random) for _ in range(4)], []
    for instant_ms in sorted(_instant(random) for _ in range(random.choice([0, 1, 1, 2, 5, 8, 12, 20]))):
        factor = random.choice([0, 0, 1, 1, 1, 10, 100, -1])
        counters = [max(0, one + factor * random.choice([0, 60, 60, 61, 700])) for one in counters]
        if random.random() < 0.1:
            counters = [_counter(random) for _ in range(4)]
        samples.append(CounterSample(random.choice(names), instant_ms, *counters, random.choice(readers)))
    random.shuffle(samples)
    return tuple(samples)


def _stats(random: Random) -> LoadStats:
    few = [0.0, 5.0, 10.0, 12.5, 20.0, 100.0]
    return LoadStats(*(random.choice([*few, random.uniform(0, 5_000)]) for _ in range(4)))


def _stored(random: Random, names: list[str]) -> StoredRecord:
    cold_since, silent_since = (random.choice([None, None, _instant(random)]) for _ in range(2))
    return StoredRecord(
        _stats(random), random.choice(names), _instant(random), cold_since, silent_since, random.randint(1, 9)
    )


def _case(random: Random, number: int) -> Case:
    """One segment; its sources are named after its number, so that cases do not touch each other."""
    names = [f"{number}-{name}" for name in ("a", "b", 'é,"')]
    samples = _samples(random, names)
    heard = {name: _instant(random) for name in names if random.random() < 0.5}
    speaking = [sample.source for sample in samples] or names
    stored = _stored(random, speaking) if random.random() < 0.7 else None
    split, merge = _stats(random), _stats(random)
    change_threshold, strict_pulsar = random.choice([0.0, 0.25, 1.0]), random.random() < 0.3
    case = Case(samples, LoadThresholds(split, merge), change_threshold, strict_pulsar, stored, heard)
    rates = case.rates(WINDOW)
    return case if rates is None or random.random() < 0.3 else _at_the_limits(random, case, rates)


def _at_the_limits(random: Random, case: Case, rates: LoadStats) -> Case:
    """Thresholds and the stored record as far from the rates as makes the difference, and exactly there."""

    def beside(*factors: float) -> LoadStats:
        common, varied = random.choice(factors), random.random() < 0.5
        return LoadStats(*(rate * (random.choice(factors) if varied else common) for rate in rates.rates))

    split, merge = beside(1.0, 0.95, 1.05, 100.0), beside(1.0, 1.05, 2.0, 1 / FLOOR_FRACTION, 0.9)
    near = beside(1.0, 0.0, 0.97, 1.03, 0.8, 1.25, 3.0)
    stored = None if case.stored is None else replace(case.stored, stats=near)
    return replace(case, thresholds=LoadThresholds(split, merge), stored=stored)


def batch(seed: int) -> list[Case]:
    random = Random(seed)
    return [_case(random, number) for number in range(CASES)]


def expected(drawn: list[Case]) -> tuple[dict[int, Values], dict[str, int]]:
    """The rates by topic, and when each source was heard."""
    heard = {source: at for case in drawn for source, at in case.expected_reports(WINDOW).items()}
    rates = {n: found for n, case in enumerate(drawn) if (found := case.expected_rates(WINDOW)) is not None}
    return rates, heard


def check(cases: list[Case], rates: pa.Table, heard: pa.Table) -> None:
    """All of it, and of what differs the first case alone."""
    expected_rates, expected_reports = expected(cases)
    demand_equal(cases, expected_rates, by_topic(rates))
    assert {row["source"]: row["observed_at_ms"] for row in heard.to_pylist()} == expected_reports


def demand_equal(cases: list[Case], wanted: dict[int, Values], found: dict[int, Values]) -> None:
    """Fail with the first case that differs."""
    wrong = [n for n in range(len(cases)) if wanted.get(n) != found.get(n)]
    if wrong:
        n = wrong[0]
        pytest.fail(f"{len(wrong)} differ; {cases[n]}: {found.get(n)} instead of {wanted.get(n)}")
