"""Each case by name with its answer worked out by hand, in one query; and the shape of that query's plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from controller.domain.counter_rates import CounterSample
from controller.domain.load_record import LoadStats, LoadThresholds
from controller.domain.load_window import LoadWindow
from controller.services.load_aggregation.record_changes import record_changes
from controller.store.load.records import Baseline
from spark_jobs.load_aggregation import build_heard, build_rates
from spark_jobs.run_load_aggregation import SAMPLES
from tests.spark.oracle import Case, StoredRecord, Values, by_topic, tables

MINUTE = 60_000
END = 1_800_000_000_000
WINDOW = LoadWindow(END)
THRESHOLDS = LoadThresholds(LoadStats(*[10_000.0] * 4), LoadStats(*[1_000.0] * 4))
NEVER_COLD = LoadThresholds(THRESHOLDS.split, LoadStats())


def sample(seconds: float, count: int, source: str, reader: str = "") -> CounterSample:
    """Seconds after the window's end; all four counters alike."""
    return CounterSample(source, END + round(seconds * 1000), count, count, count, count, reader)


def stored(
    rate: float, source: str, cold_since: int | None = None, silent_since: int | None = None
) -> StoredRecord:
    """A record that was written and seen a minute before the window's end."""
    return StoredRecord(LoadStats(*[rate] * 4), source, END - MINUTE, cold_since, silent_since)


@dataclass(frozen=True, slots=True)
class ExpectedSegment:
    """A segment, the rate expected of it (None: nothing is known), and what is written (None: nothing)."""

    samples: list[tuple[float, int, str] | tuple[float, int, str, str]]
    rate: float | None
    written: Values | None = None
    before: StoredRecord | None = None
    thresholds: LoadThresholds = NEVER_COLD


COLD = END - 10 * MINUTE
CASES: dict[str, ExpectedSegment] = {
    "steady": ExpectedSegment([(-60, 0, "a"), (-30, 300, "a"), (0, 600, "a")], 10.0, (10.0, "a", END, None, None, 0)),
    "a counter that went back, and another beside it": ExpectedSegment(
        [(-60, 900, "b"), (-40, 1_100, "b"), (-30, 1_200, "b"), (-20, 100, "b"), (0, 300, "b"), (0, 350, "b", "y"), (-9, 260, "b", "y")],
        10.0,
        (10.0, "b", END - 40_000, None, None, 0),
    ),
    "a counter that always went back": ExpectedSegment([(-60, 900, "y"), (-30, 300, "y"), (0, 200, "y")], None, None),
    "a restarted source has another name": ExpectedSegment(
        [(-60, 900, "z@1"), (-30, 1_200, "z@1"), (-20, 10, "z@2"), (0, 210, "z@2")], 10.0, (10.0, "z@2", END, None, None, 0)
    ),
    "two readers of one counter are not added up": ExpectedSegment(
        [(-60, 0, "aa", "x"), (0, 600, "aa", "x"), (-50, 200, "aa", "y"), (-1, 800, "aa", "y")], 10.0, (10.0, "aa", END, None, None, 0)
    ),
    "the same sample twice": ExpectedSegment([(-60, 0, "c"), (0, 600, "c"), (0, 600, "c")], 10.0, (10.0, "c", END, None, None, 0)),
    "two counts at one instant: the greater": ExpectedSegment([(-60, 0, "d"), (0, 600, "d"), (0, 120, "d")], 10.0, (10.0, "d", END, None, None, 0)),
    "out of order": ExpectedSegment([(0, 600, "e"), (-60, 0, "e"), (-30, 300, "e")], 10.0, (10.0, "e", END, None, None, 0)),
    "an interval over the edge": ExpectedSegment([(-90, 0, "f"), (0, 900, "f")], 10.0, (10.0, "f", END, None, None, 0)),
    "older than the look back": ExpectedSegment([(-120, 0, "g"), (0, 600, "g")], None),
    "after the window": ExpectedSegment([(-60, 0, "h"), (0, 600, "h"), (0.001, 10**9, "h")], 10.0, (10.0, "h", END, None, None, 0)),
    "a first sample": ExpectedSegment([(-5, 10**12, "i")], None),
    "an owner's move, its gap left out": ExpectedSegment(
        [(-60, 0, "j"), (-40, 200, "j"), (-20, 10**6, "k"), (0, 10**6 + 200, "k")], 10.0, (10.0, "k", END, None, None, 0)
    ),
    "two owners at once add up": ExpectedSegment(
        [(-60, 0, "l"), (0, 600, "l"), (-60, 0, "m"), (0, 1_800, "m")], 40.0, (40.0, "m", END, None, None, 0)
    ),
    "within a quarter": ExpectedSegment([(-60, 0, "n"), (0, 7_200, "n")], 120.0, None, stored(100, "n")),
    "beyond a quarter": ExpectedSegment([(-60, 0, "o"), (0, 7_560, "o")], 126.0, (126.0, "o", END, None, None, 1), stored(100, "o")),
    "over a threshold within a quarter": ExpectedSegment(
        [(-60, 0, "p"), (0, 606_000, "p")], 10_100.0, (10_100.0, "p", END, None, None, 1), stored(9_900, "p")
    ),
    "noise of the nearly idle": ExpectedSegment(
        [(-60, 0, "q"), (0, 480, "q")], 8.0, None, stored(1, "q", cold_since=COLD), THRESHOLDS
    ),
    "jitter that stays cold keeps its since": ExpectedSegment(
        [(-60, 0, "r"), (0, 6_000, "r")], 100.0, (100.0, "r", END, COLD, None, 1), stored(1, "r", cold_since=COLD), THRESHOLDS
    ),
    "what cools down is cold from now on": ExpectedSegment(
        [(-60, 0, "s"), (0, 59_940, "s")], 999.0, (999.0, "s", END, END, None, 1), stored(1_001, "s"), THRESHOLDS
    ),
    "a move to another source alone keeps the rates": ExpectedSegment(
        [(-60, 0, "u"), (0, 6_060, "u")], 101.0, (100.0, "u", END - MINUTE, None, None, 1), stored(100, "t")
    ),
    "not spoken of by a source that speaks": ExpectedSegment(
        [(-5, 1, "v")], None, (100.0, "v", END - MINUTE, None, END - MINUTE, 1), stored(100, "v")
    ),
    "a dead source": ExpectedSegment([], None, None, stored(100, "w")),
    "spoken of again after silence": ExpectedSegment(
        [(-60, 0, "x"), (0, 6_000, "x")],
        100.0,
        (100.0, "x", END - MINUTE, None, None, 1),
        stored(100, "x", silent_since=END - 5 * MINUTE),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[int, Values], dict[int, Values]]:
    """Rates and changes of all cases, by the case's place."""
    cases = [
        Case(tuple(sample(*one) for one in named.samples), named.thresholds, stored=named.before)
        for named in CASES.values()
    ]
    given = tables(cases)
    path = tmp_path_factory.mktemp("named") / "samples.parquet"
    pq.write_table(given.pop("samples"), path)
    samples = spark.read.schema(SAMPLES).parquet(str(path))
    rates, heard = build_rates(samples, WINDOW).toArrow(), build_heard(samples, WINDOW).toArrow()
    return by_topic(rates), by_topic(record_changes(rates, heard, Baseline(None, **given), WINDOW))


@pytest.mark.parametrize("name", CASES)
def test_named_case(answers: tuple[dict[int, Values], dict[int, Values]], name: str) -> None:
    topic, named = list(CASES).index(name), CASES[name]
    rates, changes = answers

    found = rates.get(topic)
    assert (found or (None,) * 4)[:4] == (named.rate,) * 4
    expected = None if named.written is None else ((named.written[0],) * 4 + named.written[1:])
    assert changes.get(topic) == expected


def test_rates_take_one_shuffle_and_one_sort_and_no_python(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    pq.write_table(tables([])["samples"], path)
    rates = build_rates(spark.read.schema(SAMPLES).parquet(str(path)), WINDOW)

    plan = rates._jdf.queryExecution().executedPlan().toString()

    by_segment = re.findall(r"Exchange hashpartitioning\(topic_id#\d+L, segment_id#\d+L", plan)
    assert len(by_segment) == 1
    assert len(re.findall(r"\bSort \[topic_id[^\]]*instant_ms", plan)) == 1, (
        "the other is of readers of a segment"
    )
    assert "BatchEvalPython" not in plan
    assert "ArrowEvalPython" not in plan
    assert re.search(r"PushedFilters: \[[^]]*GreaterThanOrEqual\(instant", plan), (
        "old row groups are not read"
    )
