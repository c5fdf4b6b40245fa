"""Rows that nobody can compute with, among healthy ones: both engines leave them out, say so, and serve the rest alike."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from controller.domain.key_count_limits import PRODUCERS, SEGMENT_MESSAGES
from controller.domain.policy import PolicyOverride
from controller.landing.schemas import KEY_COUNT_SCHEMA, SAMPLE_SCHEMA
from controller.services.load_aggregation import SparkEngine, SqlEngine
from controller.store.topics import policies
from tests.support.aggregation import END_MS, Run, loading
from tests.support.bench import Bench

HUGE = 2**63 - 1


@pytest.fixture
def run(spark: SparkSession, database: str, tmp_path: Path) -> Iterator[Run]:
    """A live topic of two segments that is decided on by `adaptive`, both with load."""
    bench = Bench(database)
    bench.topic_with(segments=2, subscriptions=())
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(profile="adaptive"), actor="t")
    with loading(bench) as store:
        run = Run(bench, store, tmp_path, bench.topic_id)
        run.steady(10)
        run.steady(20, segment_id=1)
        yield run
    bench.close()


@pytest.fixture(params=["spark", "sql"])
def engine(request: pytest.FixtureRequest, run: Run) -> SparkEngine | SqlEngine:
    return SparkEngine("local[2]") if request.param == "spark" else SqlEngine(run.store)


def set_aside(run: Run) -> list[tuple[str, str, int | None]]:
    rows = run.bench.rows(
        "SELECT batch, subject, topic_id FROM inspect.set_aside WHERE is_current ORDER BY 1, 2"
    )
    return [tuple(row) for row in rows]  # type: ignore[misc]


def land_samples(run: Run, *rows: dict[str, Any]) -> None:
    usual = {
        "topic_id": run.topic_id,
        "segment_id": 0,
        "backing_topic": "log",
        "source": "odd",
        "reader": "c",
    }
    counters = dict.fromkeys(("msg_in", "byte_in", "msg_out", "byte_out"), 0)
    table = [
        {**usual, **counters, "instant": datetime.fromtimestamp(END_MS / 1000 - 30 + at, UTC), **row}
        for at, row in enumerate(rows)
    ]
    run.area.append(END_MS, "odd", pa.Table.from_pylist(table, SAMPLE_SCHEMA))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([{"msg_in": -1}, {"msg_in": HUGE}], id="a difference above 2^63"),
        pytest.param([{"byte_out": -5}, {"byte_out": -10}], id="below 0"),
        pytest.param(
            [{"source": "o" * 100_000}, {"source": "o" * 100_000, "msg_in": 9}],
            id="a name too long for a key",
        ),
        pytest.param([{"source": "o\0dd"}, {"source": "o\0dd", "msg_in": 9}], id="a name with a zero"),
    ],
)
def test_samples_that_cannot_be_are_set_aside(
    run: Run, engine: SparkEngine | SqlEngine, rows: list[dict[str, Any]]
) -> None:
    land_samples(run, *rows)
    result = run.aggregate(engine=engine)

    assert result.applied
    assert (run.rate(0), run.rate(1)) == (10.0, 20.0)
    [(batch, subject, topic_id)] = set_aside(run)
    assert (batch, subject[:8], topic_id) == ("load", "source o", run.topic_id)
    assert run.last_report_second() == 0


def test_the_largest_counters_there_are_count(run: Run, engine: SparkEngine | SqlEngine) -> None:
    land_samples(run, {"segment_id": 1, "byte_in": 0}, {"segment_id": 1, "byte_in": HUGE})
    result = run.aggregate(engine=engine)

    assert result.applied
    assert run.rate(0) == 10.0
    assert set_aside(run) == []


@pytest.mark.parametrize(
    "poison",
    [
        pytest.param([{"bins": [2**40 - 1] * 1_024}] * 2, id="more than a topic sends"),
        pytest.param([{"bins": [HUGE] + [0] * 1_023}] * 3, id="a sum above 2^63"),
        pytest.param([{"bins": [-(2**40)] * 1_024}], id="below 0"),
        pytest.param([{"bins": [None] * 1_024}], id="nothing in a bin"),
        pytest.param([{"bins": [1] * 100_000}], id="more bins than there are"),
        pytest.param([{"producers": PRODUCERS + 1}], id="more producers than a topic has"),
        pytest.param([{"producers": HUGE}] * 3, id="producers above 2^63"),
    ],
)
def test_counts_that_cannot_be_are_set_aside(
    run: Run, engine: SparkEngine | SqlEngine, poison: list[dict[str, Any]]
) -> None:
    for number, row in enumerate(poison):
        land_counts(run, {"segment_id": 1, **row}, worker=f"poisoned-{number}")
    land_counts(run, {"segment_id": 0, "bins": [600, *[0] * 1_023]}, worker="healthy")
    result = run.aggregate(engine=engine)

    assert result.applied
    assert sketched(run) == {0: 600.0}
    assert set_aside(run) == [("key counts", f"segment 1 of topic {run.topic_id}", run.topic_id)]


def test_counts_lead_no_further_than_the_brokers_counters(run: Run, engine: SparkEngine | SqlEngine) -> None:
    """They say where the load lies: of 600 messages a third."""
    most = SEGMENT_MESSAGES // 4
    land_counts(run, {"segment_id": 0, "bins": [most, 2 * most, *[0] * 1_022]})
    run.aggregate(engine=engine)

    bins = run.bench.scalar("SELECT bins[1:3] FROM cleave.segment_sketch WHERE segment_id = 0")
    assert bins == [200.0, 400.0, 0.0]
    assert set_aside(run) == []


def land_counts(run: Run, row: dict[str, Any], *, worker: str = "w") -> None:
    instant = datetime.fromtimestamp(END_MS / 1000 - 10, UTC)
    usual = {
        "topic_id": run.topic_id,
        "source": worker,
        "instant": instant,
        "producers": 1,
        "bins": [1] * 1_024,
    }
    table = pa.Table.from_pylist([{**usual, **row}], KEY_COUNT_SCHEMA)
    run.counts_area.append(END_MS - 10_000, worker, table)


def sketched(run: Run) -> dict[int, float]:
    return dict(run.bench.rows("SELECT segment_id, messages FROM cleave.segment_sketch"))  # type: ignore[arg-type]
