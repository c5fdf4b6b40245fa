"""The collector on real logs and real files: what it lands, what it leaves out, and that it goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import REGISTRY

from controller.bootstrap import Application, build_collector
from controller.clock import SystemClock
from controller.dataplane.base import Counters, DataPlane
from controller.domain.errors import InvalidInput
from controller.landing.area import LandingArea
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.services import segment_admin, topic_admin
from controller.services.collection import load_collector
from controller.services.collection.load_collector import LoadCollector, Tick
from controller.settings import Settings
from controller.store.load import counter_readers
from controller.store.topics.watched_logs import SEALED_FOR_SECONDS
from tests.support.bench import Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

NOW_MS = 1_800_000_000_000


class StoppedClock(SystemClock):
    """Wall-clock time stands still, so that two ticks have one name."""

    def now_ms(self) -> int:
        """Always the same."""
        return NOW_MS


def collector(
    bench: Bench, directory: Path, planes: Mapping[str, DataPlane] | None = None, **options: Any
) -> LoadCollector:
    """A collector of everything, landing below the directory."""
    known: dict[str, Any] = {"name": "c1", "interval_seconds": 0.1, "clock": SystemClock()}
    return LoadCollector(
        bench.store,
        bench.planes if planes is None else planes,
        LandingArea(str(directory)),
        **(known | options),
    )


def landed(directory: Path, tick: Tick) -> list[dict[str, Any]]:
    """The samples of a tick, by segment."""
    assert tick.path is not None
    table = pq.ParquetFile(directory / tick.path).read()
    assert table.schema.equals(SAMPLE_SCHEMA)
    return sorted(table.to_pylist(), key=lambda row: (row["topic_id"], row["segment_id"]))


def ticks(outcome: str) -> float:
    """How many ticks had the outcome so far."""
    return REGISTRY.get_sample_value("cleave_collector_ticks_total", {"outcome": outcome}) or 0.0


def test_a_tick_lands_the_counters_of_every_segment_in_one_file(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with(segments=2)
    bench.publish(1, 5)
    before = ticks("whole")
    tick = collector(bench, tmp_path).tick()

    assert (tick.watched, tick.sampled, tick.failed_planes) == (2, 2, ())
    rows = landed(tmp_path, tick)
    assert [(row["topic_id"], row["segment_id"], row["msg_in"]) for row in rows] == [
        (bench.topic_id, 0, 0),
        (bench.topic_id, 1, 5),
    ]
    assert rows[1]["byte_in"] == bench.plane.sample([bench.log_of(1)])[bench.log_of(1)].byte_in > 0
    assert rows[1]["backing_topic"] == bench.log_of(1)
    assert len({row["source"] for row in rows}) == 1
    assert ticks("whole") == before + 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(tick.path or "").name]


class ProducerCountingPlane:
    """A data plane that knows how many producers each log has."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.producers: dict[str, int | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        found = self._plane.sample(backing_topics)
        return {name: replace(one, producers=self.producers.get(name)) for name, one in found.items()}


def test_how_many_producers_there_are_is_written_down_where_it_changed(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with(segments=2)
    plane = ProducerCountingPlane(bench.plane)
    watch = collector(bench, tmp_path, {bench.plane.name: plane})
    known = "SELECT segment_id, connected, xmin::text FROM cleave.segment_producers ORDER BY segment_id"
    plane.producers = {bench.log_of(0): 3}  # of the other one nobody knows
    watch.tick()
    [(segment_id, count, written_by)] = bench.rows(known)
    assert (segment_id, count) == (0, 3)

    plane.producers |= {bench.log_of(1): 0}
    watch.tick()
    collector(bench, tmp_path, {bench.plane.name: plane}, name="c2").tick()  # one that was just started
    assert bench.rows(known)[0] == (0, 3, written_by)
    assert [row[:2] for row in bench.rows(known)] == [(0, 3), (1, 0)]

    bench.reshape(segment_admin.splitting(0))
    bench.settle(collects=True)
    assert [row[:2] for row in bench.rows(known)] == [(1, 0)]


@pytest.mark.parametrize("turns", [[1, None, 2], [1, 2]], ids=["lost", "lost and taken again meanwhile"])
def test_a_collector_at_its_next_turn_stores_the_counts_that_another_one_has_replaced(
    bench: Bench, tmp_path: Path, turns: list[int | None]
) -> None:
    bench.topic_with()
    plane = ProducerCountingPlane(bench.plane)
    plane.producers = {bench.log_of(0): 3}

    def takes_turn() -> int | None:
        bench.execute("UPDATE cleave.segment_producers SET connected = 9")
        turn = turns.pop(0)
        if not turns:
            one.stop()
        return turn

    one = collector(bench, tmp_path, {bench.plane.name: plane}, takes_turn=takes_turn)
    one.run()

    assert bench.rows("SELECT connected FROM cleave.segment_producers") == [(3,)]


def test_sealed_segments_are_watched_for_a_while(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with()
    bench.reshape(segment_admin.splitting(0))
    watch = collector(bench, tmp_path)
    assert [row["segment_id"] for row in landed(tmp_path, watch.tick())] == [0, 1, 2]

    bench.execute("ALTER TABLE cleave.segment DISABLE TRIGGER USER")
    bench.execute(
        "UPDATE cleave.segment SET sealed_at = sealed_at - make_interval(secs => :s) WHERE segment_id = 0",
        s=SEALED_FOR_SECONDS,
    )
    assert [row["segment_id"] for row in landed(tmp_path, watch.tick())] == [1, 2]


def test_only_the_topics_it_was_told_of_are_watched(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with()
    other = "topic://acme/mail/out"
    bench.finish(topic_admin.create_topic(bench.store, bench.planes, other, bench.request()))
    tick = collector(bench, tmp_path, prefix="topic://acme/mail/").tick()
    assert [row["topic_id"] for row in landed(tmp_path, tick)] == [bench.topic_id + 1]


def test_nothing_to_watch_lands_nothing(bench: Bench, tmp_path: Path) -> None:
    tick = collector(bench, tmp_path).tick()
    assert (tick.watched, tick.sampled, tick.path) == (0, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_is_gone_is_silent_and_no_load_of_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with(segments=2, subscriptions=())
    bench.plane.terminate_segment(bench.log_of(0))
    bench.plane.delete_segment(bench.log_of(0))
    tick = collector(bench, tmp_path).tick()
    assert (tick.watched, tick.sampled, tick.failed_planes) == (2, 1, ())
    assert [row["segment_id"] for row in landed(tmp_path, tick)] == [1]


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_REQUEST], ids=str)
def test_a_data_plane_that_does_not_answer_holds_up_no_other(
    bench: Bench, tmp_path: Path, fault: Fault
) -> None:
    bench.topic_with()
    away = topic_on(bench, "away")
    before = ticks("partial")
    planes = dict(bench.planes) | {
        "away": FaultyDataPlane(bench.runner_plane, PlannedFault(fault, "sample")).as_data_plane()
    }
    tick = collector(bench, tmp_path, planes).tick()
    assert (tick.watched, tick.sampled, tick.failed_planes) == (2, 1, ("away",))
    assert away not in {row["topic_id"] for row in landed(tmp_path, tick)}
    assert ticks("partial") == before + 1


def test_a_data_plane_that_is_not_configured_here_is_named(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with()
    topic_on(bench, "elsewhere")
    tick = collector(bench, tmp_path).tick()
    assert (tick.sampled, tick.failed_planes) == (1, ("elsewhere",))


def test_what_was_said_before_a_failure_lands_and_the_failure_is_told(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_collector, "CALL_SEGMENTS", 1)
    bench.topic_with(segments=3)
    faulty = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED, number=2)).as_data_plane()
    tick = collector(bench, tmp_path, {"embedded": faulty}).tick()
    assert (tick.watched, tick.sampled, tick.failed_planes) == (3, 1, ("embedded",))
    assert len(landed(tmp_path, tick)) == 1


def test_a_slow_data_plane_is_heard_in_turns_and_no_tick_outlasts_the_interval_by_more_than_a_call(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_collector, "CALL_SEGMENTS", 1)
    bench.topic_with(segments=5)
    slow = collector(bench, tmp_path, interval_seconds=2.0, clock=ManualClock(0.0, step=1.0))

    heard = [[row["segment_id"] for row in landed(tmp_path, slow.tick())] for _ in range(3)]

    assert heard == [[0, 1], [2, 3], [0, 4]]
    assert slow.tick().failed_planes == ("embedded",)


def topic_on(bench: Bench, data_plane: str) -> int:
    """Another topic, said to be on another data plane."""
    name = f"topic://acme/shop/{data_plane}"
    operation = bench.finish(topic_admin.create_topic(bench.store, bench.planes, name, bench.request()))
    bench.execute(
        "UPDATE cleave.topic SET data_plane = :plane, row_version = row_version + 1 WHERE topic_id = :id",
        plane=data_plane,
        id=operation.topic_id,
    )
    return operation.topic_id


def test_two_collectors_on_one_host_do_not_write_over_each_other(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with()
    app = Application(Settings(database_url=bench.url, landing_url=str(tmp_path)), bench.store)
    names = {str(build_collector(app).tick().path).partition("Z-")[2] for _ in range(2)}
    assert len(names) == 2


def test_a_repeated_tick_of_one_collector_is_one_file(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with()
    again = collector(bench, tmp_path, clock=StoppedClock())
    assert again.tick().path == again.tick().path
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


class SetClock(SystemClock):
    """A clock that somebody sets."""

    ahead_ms = 0

    def now_ms(self) -> int:
        """As set."""
        return super().now_ms() + self.ahead_ms


class ClockedPlane:
    """A data plane that stamps by a clock."""

    def __init__(self, plane: DataPlane, clock: SetClock) -> None:
        self._plane, self._clock = plane, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        now = self._clock.now_ms()
        return {
            name: replace(one, instant_ms=now) for name, one in self._plane.sample(backing_topics).items()
        }


def watching(bench: Bench, directory: Path, clock: SetClock, **options: Any) -> LoadCollector:
    """A collector that reads by the clock, on a host whose clock is the same."""
    planes = {bench.plane.name: ClockedPlane(bench.plane, clock)}
    return collector(bench, directory, planes, clock=clock, wall_clock=clock, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead_ms", [-86_400_000, -200, 0, 15_000])
def test_samples_land_on_the_databases_time(bench: Bench, tmp_path: Path, ahead_ms: int) -> None:
    bench.topic_with()
    clock = SetClock()
    clock.ahead_ms = ahead_ms
    before = bench.scalar("SELECT clock_timestamp()")
    tick = watching(bench, tmp_path, clock).tick()
    after = bench.scalar("SELECT clock_timestamp()")

    [row] = landed(tmp_path, tick)
    slack = timedelta(milliseconds=counter_readers.MOST_APART_MS)
    assert before - slack <= row["instant"] <= after + slack
    assert row["reader"].startswith("c1@")
    [(name, ahead)] = bench.rows("SELECT name, clock_ahead_seconds FROM inspect.load_readers WHERE is_live")
    assert (name, float(ahead)) == ("c1", pytest.approx(ahead_ms / 1000, abs=1.0))


@pytest.mark.parametrize("ahead_ms", [-15_000, 15_000])
def test_after_a_clock_was_set_a_tick_is_left_out_and_another_reader_begins(
    bench: Bench, tmp_path: Path, ahead_ms: int
) -> None:
    bench.topic_with()
    clock = SetClock()
    watch = watching(bench, tmp_path, clock)
    [first], [second] = landed(tmp_path, watch.tick()), landed(tmp_path, watch.tick())
    clock.ahead_ms = ahead_ms
    assert watch.tick().path is None
    [third], [fourth] = landed(tmp_path, watch.tick()), landed(tmp_path, watch.tick())

    assert (first["reader"], third["reader"]) == (second["reader"], fourth["reader"])
    assert first["reader"] != third["reader"]
    assert first["instant"] <= second["instant"] <= third["instant"] + timedelta(seconds=2)
    assert third["instant"] <= fourth["instant"] <= second["instant"] + timedelta(minutes=2)


def test_two_collectors_side_by_side_are_seen_and_read_one_load(bench: Bench, tmp_path: Path) -> None:
    """The second one's clock is behind; each is a reader of its own."""
    bench.topic_with()
    clock = SetClock()
    clock.ahead_ms = -30_000
    one = collector(bench, tmp_path, name="one", interval_seconds=10)
    other = watching(bench, tmp_path, clock, name="other", interval_seconds=10)
    apart = collector(bench, tmp_path, name="apart", interval_seconds=10, prefix="topic://acme/mail/")
    for _ in range(3):
        one.tick(), other.tick(), apart.tick()
        bench.publish(0, 20)

    assert (
        len(
            {
                row["reader"]
                for path in tmp_path.rglob("*.parquet")
                for row in pq.ParquetFile(path).read().to_pylist()
            }
        )
        == 2
    )
    beside = "SELECT name, beside FROM inspect.load_readers WHERE is_live ORDER BY name"
    assert bench.rows(beside) == [("apart", []), ("one", ["other"]), ("other", ["one"])]
    assert bench.rows("SELECT collectors_beside, clock_off_seconds > 25 FROM inspect.health") == [(2, True)]
    other.leave()
    assert bench.rows(beside) == [("apart", []), ("one", [])]


def test_it_ticks_until_it_is_stopped_and_outlives_a_storage_that_is_away(
    bench: Bench, tmp_path: Path
) -> None:
    bench.topic_with()
    landing = tmp_path / "landing"
    landing.write_text("a file where the directory should be")
    before = ticks("failed")
    watch = collector(bench, landing)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        wait_until(lambda: ticks("failed") > before, message="a tick failed")
        landing.unlink()
        wait_until(lambda: len(list(landing.rglob("*.parquet"))) >= 2, message="later ticks land")
    finally:
        watch.stop()
        thread.join()
    assert bench.rows("SELECT name FROM cleave.load_reader") == []


def test_a_collector_that_loses_the_turn_takes_no_sample_and_is_no_reader(
    bench: Bench, tmp_path: Path
) -> None:
    """The next collector's samples must not be compared with those of this one's last turn."""
    bench.topic_with()
    seen: list[list[tuple[Any, ...]]] = []

    def takes_turn() -> int | None:
        seen.append(bench.rows("SELECT name FROM cleave.load_reader"))
        if len(seen) == 3:
            one.stop()
        return 1 if len(seen) == 1 else None

    one = collector(bench, tmp_path, takes_turn=takes_turn)
    one.run()

    assert seen == [[], [("c1",)], []]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_an_interval_is_longer_than_nothing(bench: Bench, tmp_path: Path, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="must be longer than 0 s, not"):
        collector(bench, tmp_path, interval_seconds=seconds)


def test_a_landed_file_can_be_read_by_the_aggregation(bench: Bench, tmp_path: Path) -> None:
    bench.topic_with()
    tick = collector(bench, tmp_path).tick()
    area = LandingArea(str(tmp_path))
    files, foreign = area.files(tick.instant_ms, tick.instant_ms)
    examined = area.examine(files, deeply=True)
    assert (foreign, examined.rejected, examined.rows) == ([], (), 1)
    assert pa.Table.from_batches(list(area.batches(files, ["segment_id"]))).num_rows == 1
