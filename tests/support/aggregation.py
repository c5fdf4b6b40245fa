"""A topic whose load is aggregated: a landing area, a history, and runs over them on the SQL engine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import make_url

from controller.clock import to_ms
from controller.domain.load_window import LoadWindow
from controller.domain.policy import PolicyOverride
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.landing.schemas import KEY_COUNT_SCHEMA, SAMPLE_SCHEMA
from controller.services.load_aggregation import (
    AggregationResult,
    Engine,
    SqlEngine,
    aggregate,
    counts_since_last_run,
)
from controller.store.postgres.engine import Store
from controller.store.topics import policies
from tests.support.bench import Bench

END_MS = to_ms(datetime(2026, 5, 17, 12, 0, tzinfo=UTC))
MINUTE_MS = 60_000
BROKER, OTHER = "broker-1", "broker-2"


@contextmanager
def loading(bench: Bench, *, pool_size: int = 2) -> Iterator[Store]:
    """Create a login with the rights of a loader only, and open a store on the bench's database with it. Drops the login at the end."""
    login = f"loader_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE cleave_spark_loader")
    store = Store(make_url(bench.url).set(username=login, password="x"), pool_size=pool_size)
    try:
        yield store
    finally:
        store.dispose()
        bench.execute(f"DROP ROLE {login}")


@dataclass
class Run:
    """A topic of two segments with a landing area, and aggregation runs over it."""

    bench: Bench
    store: Store
    directory: Path
    topic_id: int
    area: LandingArea = field(init=False)
    history: RateHistory = field(init=False)
    counts_area: LandingArea = field(init=False)
    files: int = 0

    def __post_init__(self) -> None:
        self.area = LandingArea(str(self.directory / "landing"))
        self.history = RateHistory(str(self.directory / "history"))
        self.counts_area = LandingArea(str(self.directory / "key-counts"), KEY_COUNT_SCHEMA)

    def land(
        self, *samples: tuple[float, int], segment_id: int = 0, source: str = BROKER, reader: str = "c"
    ) -> str:
        """Write one file of samples, each given as seconds after END_MS and the counter of messages in; bytes are a hundredfold. Return
        the path.
        """
        rows = [
            {
                "topic_id": self.topic_id,
                "segment_id": segment_id,
                "backing_topic": "log",
                "source": source,
                "reader": reader,
                "instant": datetime.fromtimestamp(END_MS / 1000 + at, UTC),
                "msg_in": count,
                "byte_in": count * 100,
                "msg_out": 0,
                "byte_out": 0,
            }
            for at, count in samples
        ]
        self.files += 1
        latest_ms = END_MS + round(max(at for at, _ in samples) * 1000)
        return self.area.append(latest_ms, f"c{self.files}", pa.Table.from_pylist(rows, SAMPLE_SCHEMA))

    def steady(self, rate: int, *, begin: int = -70, end: int = 0, **where: Any) -> None:
        """Write a sample every ten seconds of a counter that grows by `rate` per second."""
        self.land(*((at, rate * (at - begin)) for at in range(begin, end + 1, 10)), **where)

    def aggregate(
        self, run_id: str = "", *, minutes: int = 0, engine: Engine | None = None
    ) -> AggregationResult:
        """Aggregate the window that ends `minutes` after END_MS, on the SQL engine unless another one is given."""
        return aggregate(
            self.store,
            self.area,
            self.history,
            engine or SqlEngine(self.store),
            LoadWindow(END_MS + minutes * MINUTE_MS),
            run_id=run_id or secrets.token_hex(6),
            key_counts=partial(counts_since_last_run, self.counts_area, 600.0),
        )

    def record(self, segment_id: int = 0) -> dict[str, Any] | None:
        """Return the stored load record, None if there is none."""
        with self.bench.store.transaction() as tx:
            row = tx.exec_driver_sql(
                "SELECT * FROM cleave.segment_load WHERE topic_id = %s AND segment_id = %s",
                (self.topic_id, segment_id),
            ).one_or_none()
        return None if row is None else dict(row._mapping)

    def rate(self, segment_id: int = 0) -> float:
        """Return the stored rate of messages in per second."""
        record = self.record(segment_id)
        assert record is not None
        return float(record["msg_rate_in"])

    def last_report_second(self, source: str = BROKER) -> int:
        """Return the seconds after END_MS at which the source last reported."""
        at = self.bench.scalar("SELECT observed_at FROM cleave.load_source WHERE source = :s", s=source)
        return (to_ms(at) - END_MS) // 1000


@contextmanager
def adaptive_run(bench: Bench, directory: Path, segments: int = 1) -> Iterator[Run]:
    """Create a topic that `adaptive` decides on, and yield its run in the directory. The loader logs in as itself."""
    bench.topic_with(segments=segments, subscriptions=())
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(profile="adaptive"), actor="t")
    with loading(bench) as store:
        yield Run(bench, store, directory, bench.topic_id)
