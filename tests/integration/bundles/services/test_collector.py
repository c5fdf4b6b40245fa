"""The bundle collector on staged brokers and real files: what a tick lands, and what silence leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.bundles.brokers.documents import TopicReport
from controller.bundles.services.collector import BundleCollector, BundleTick
from controller.clock import SystemClock, to_datetime
from controller.dataplane.pulsar_load.brokers import Broker
from controller.domain.errors import InvalidInput
from tests.support.bundle_brokers import CLUSTER, Bench, staged_bench

HALF = 0x80000000
NAMESPACE = "acme/shop"


@pytest.fixture
def bench() -> Iterator[Bench]:
    with staged_bench() as bench:
        yield bench


class TickedCollector:
    """A collector, and what it landed last."""

    def __init__(self, bench: Bench, directory: Path) -> None:
        self.area = ReportArea(str(directory))
        self._directory = directory
        self._collector = BundleCollector(
            bench.reader, self.area, name="c1", interval_seconds=60, clock=SystemClock()
        )

    def tick(self) -> BundleTick:
        return self._collector.tick()

    def rows(self, kind: str, tick: BundleTick) -> list[dict[str, Any]]:
        assert tick.path is not None
        path = self._directory / tick.path.replace("brokers/", f"{kind}/", 1)
        table = pq.ParquetFile(path).read()
        assert table.schema.equals(REPORT_SCHEMAS[kind])
        return sorted(table.to_pylist(), key=str)


@pytest.fixture
def ticks(bench: Bench, tmp_path: Path) -> TickedCollector:
    bench.cluster.add(NAMESPACE, HALF)
    for number in range(6):
        bench.cluster.publish(f"persistent://{NAMESPACE}/orders-{number}", 2.0)
    return TickedCollector(bench, tmp_path)


def test_a_tick_lands_everything_every_broker_said(bench: Bench, ticks: TickedCollector) -> None:
    tick = ticks.tick()

    assert (tick.brokers, tick.topics, tick.namespaces, tick.silent) == (2, 6, 1, ())
    first, second = bench.cluster.brokers
    assert {(r["broker"], r["lower_bound"], r["upper_bound"]) for r in ticks.rows("owned", tick)} == {
        (first, 0, HALF),
        (second, HALF, 0xFFFFFFFF),
    }
    for row in ticks.rows("topics", tick):
        assert row["broker"] == bench.cluster.owners[bench.cluster.bundle_of(row["topic"])]
        assert (row["msg_rate_in"], row["byte_rate_out"], row["consumer_count"]) == (2.0, 200.0, 2)
    assert [r["boundaries"] for r in ticks.rows("boundaries", tick)] == [[0, HALF, 0xFFFFFFFF]]
    brokers = ticks.rows("brokers", tick)
    assert sum(row["topic_count"] for row in brokers) == 6
    assert {(r["cluster"], r["report"], r["cpu_usage"]) for r in brokers} == {(CLUSTER, "load-report", 50.0)}


def test_a_broker_that_does_not_answer_is_silent_and_the_others_are_heard(
    bench: Bench, ticks: TickedCollector
) -> None:
    ticks.tick()
    first, second = bench.cluster.brokers
    bench.cluster.silent = {second}

    tick = ticks.tick()

    assert tick.silent == (second,)
    assert {row["broker"] for row in ticks.rows("brokers", tick)} == {first}


def test_where_nobody_lists_the_brokers_nothing_is_landed(bench: Bench, ticks: TickedCollector) -> None:
    bench.cluster.silent = set(bench.cluster.brokers)

    tick = ticks.tick()

    assert (tick.path, tick.silent) == (None, (CLUSTER,))


def test_boundaries_are_read_again_once_a_report_speaks_against_them(
    bench: Bench, ticks: TickedCollector
) -> None:
    ticks.tick()
    bench.cluster.split(bench.cluster.lists[NAMESPACE].bundles[0], [1000])

    tick = ticks.tick()

    assert [r["boundaries"] for r in ticks.rows("boundaries", tick)] == [[0, 1000, HALF, 0xFFFFFFFF]]


def test_what_was_landed_is_found_by_span_and_kind(ticks: TickedCollector) -> None:
    tick = ticks.tick()

    landed = ticks.area.landed(tick.instant_ms, tick.instant_ms)

    assert {kind: len(files) for kind, files in landed.files.items()} == dict.fromkeys(REPORT_SCHEMAS, 1)
    assert (landed.topics, landed.rejected) == (6, ())
    assert not ticks.area.landed(tick.instant_ms + 1, tick.instant_ms + 1).files["brokers"]


def test_files_that_are_none_are_set_aside_by_name(ticks: TickedCollector, tmp_path: Path) -> None:
    tick = ticks.tick()
    assert tick.path is not None
    topics = tmp_path / tick.path.replace("brokers/", "topics/", 1)
    topics.write_bytes(b"half a file")
    (topics.parent / "notes.txt").write_text("x")

    landed = ticks.area.landed(tick.instant_ms, tick.instant_ms)

    assert sorted(reason.reason[:20] for reason in landed.rejected) == [
        "not readable as Parq",
        "the name is not <tic",
    ]
    assert len(ticks.area.quarantine(landed)) == 2
    assert ticks.area.landed(tick.instant_ms, tick.instant_ms).rejected == ()


def test_old_days_go_with_all_their_kinds(ticks: TickedCollector, tmp_path: Path) -> None:
    tick = ticks.tick()
    ticks.area.publish_hot_topics(tick.instant_ms, pa.table({"topic": ["t"]}))
    today = to_datetime(tick.instant_ms).date()

    assert ticks.area.expire(today) == []
    kept = ticks.area.hot_topics(tick.instant_ms)
    assert kept is not None
    assert kept.num_rows == 1
    assert len(ticks.area.expire(today + timedelta(days=1))) == len(REPORT_SCHEMAS) + 1
    assert ticks.area.hot_topics(tick.instant_ms) is None
    assert not ticks.area.landed(tick.instant_ms, tick.instant_ms).files["brokers"]


def test_an_interval_of_nothing_is_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be greater than 0"):
        BundleCollector(
            bench.reader, ReportArea(str(tmp_path)), name="c", interval_seconds=0, clock=SystemClock()
        )


def test_a_broker_whose_answer_nobody_can_read_is_silent_and_the_others_are_heard(
    bench: Bench, ticks: TickedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.reader.brokers()[0]
    topics = bench.reader.topics

    def trouble(broker: Broker) -> Iterable[TopicReport]:
        if broker == first:
            raise ValueError("a bug")
        return topics(broker)

    monkeypatch.setattr(bench.reader, "topics", trouble)
    tick = ticks.tick()

    assert tick.silent == (first.name,)
    assert {row["broker"] for row in ticks.rows("brokers", tick)} == {
        one.name for one in bench.reader.brokers()[1:]
    }
