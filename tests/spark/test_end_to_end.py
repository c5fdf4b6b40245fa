"""A run on Spark from landed files to load records: real PostgreSQL, the loader's own login, damaged files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.services.load_aggregation import AggregationResult, SparkEngine, SqlEngine, aggregate
from controller.store.postgres.engine import Store
from tests.support.bench import Bench

END = 1_800_000_000_000
TICK = 10_000


class Landing:
    """A live topic with two segments, ticks of it, and runs over them."""

    def __init__(self, database: str, directory: Path) -> None:
        self.bench = Bench(database)
        self.bench.topic_with(segments=2, subscriptions=())
        self.login = f"loader_{secrets.token_hex(4)}"
        self.bench.execute(f"CREATE ROLE {self.login} LOGIN PASSWORD 'x' IN ROLE cleave_spark_loader")
        self.store = Store(make_url(database).set(username=self.login, password="x"))
        self.directory = directory
        self.area = LandingArea(str(directory / "landing"))
        self.history = RateHistory(str(directory / "history"))

    def tick(self, number: int, rates: tuple[int, int]) -> Path:
        """Both segments' counters, so many ticks after the window's end."""
        instant_us = (END + number * TICK) * 1000
        counts = [(100 + number) * 10 * rate for rate in rates]
        rows = [
            (self.bench.topic_id, segment_id, "log", "broker", "c", instant_us, count, count, count, count)
            for segment_id, count in enumerate(counts)
        ]
        columns = zip(zip(*rows, strict=True), SAMPLE_SCHEMA, strict=True)
        table = pa.table([pa.array(c, f.type) for c, f in columns], schema=SAMPLE_SCHEMA)
        return self.directory / "landing" / self.area.append(instant_us // 1000, "c", table)

    def aggregate(self, run_id: str, end_ms: int = END, *, spark: bool = True) -> AggregationResult:
        """A run by Spark, or by PostgreSQL."""
        engine = SparkEngine("local[2]") if spark else SqlEngine(self.store)
        return aggregate(self.store, self.area, self.history, engine, LoadWindow(end_ms), run_id=run_id)

    def records(self) -> list[tuple[object, ...]]:
        """What is stored of the two segments."""
        with self.bench.store.transaction() as tx:
            rows = tx.exec_driver_sql(
                "SELECT segment_id, msg_rate_in, byte_rate_out, source, modified_at, cold_since, silent_since, row_version"
                "  FROM cleave.segment_load ORDER BY segment_id"
            )
            return [tuple(row) for row in rows]

    def close(self) -> None:
        """Give back what was made."""
        self.store.dispose()
        self.bench.execute(f"DROP ROLE {self.login}")
        self.bench.close()


@pytest.fixture
def landing(spark: SparkSession, database: str, tmp_path: Path) -> Iterator[Landing]:
    """Seven ticks up to the window's end."""
    landing = Landing(database, tmp_path)
    for number in range(-7, 1):
        landing.tick(number, (30, 4_000))
    yield landing
    landing.close()


def test_rates_reach_the_database_with_the_loaders_rights(landing: Landing) -> None:
    result = landing.aggregate("first")

    assert (result.engine, result.applied, result.samples, result.segments, result.written) == (
        "spark",
        True,
        16,
        2,
        2,
    )
    assert [record[1:4] for record in landing.records()] == [
        (30.0, 30.0, "broker"),
        (4_000.0, 4_000.0, "broker"),
    ]
    kept = landing.history.read(END, END)
    assert sorted(kept.column("msg_rate_in").to_pylist()) == [30.0, 4_000.0]
    assert list((landing.directory / "history").glob("_runs/*")) == []


def test_a_repeat_and_an_older_window_change_nothing(landing: Landing) -> None:
    landing.aggregate("first")
    before = landing.records()

    results = [landing.aggregate("first"), landing.aggregate("again"), landing.aggregate("older", END - 1)]

    assert [result.applied for result in results] == [False] * 3
    assert landing.records() == before
    assert landing.history.read(END - 1, END).num_rows == 2


def test_spark_and_postgresql_take_turns(landing: Landing) -> None:
    landing.aggregate("first")
    for number in (1, 2, 3, 4, 5, 6):
        landing.tick(number, (30, 4_000))

    result = landing.aggregate("second", END + 6 * TICK, spark=False)

    assert (result.engine, result.applied, result.written) == ("sql", True, 0)


def test_a_file_whose_pages_are_broken_is_set_aside_and_the_rest_goes_on(landing: Landing) -> None:
    broken = landing.tick(-2, (30, 4_000))
    content = bytearray(broken.read_bytes())
    content[4:300] = b"\xff" * 296
    broken.write_bytes(content)

    result = landing.aggregate("first")

    assert [Path(path).name for path in result.quarantined] == [broken.name]
    assert [record[1] for record in landing.records()] == [30.0, 4_000.0]
