"""The consumer watch on a real store: what it writes, what silence does, whose turn it is, and what follows."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.clock import SystemClock
from controller.dataplane.base import Counters
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.decision import Lane
from controller.domain.errors import DataPlaneUnavailable, InvalidInput
from controller.domain.observed_consumers import ObservedConsumer
from controller.landing.area import LandingArea
from controller.services import autoscaler, segment_admin, topic_admin
from controller.services.collection import consumer_watch
from controller.services.collection.consumer_watch import ConsumerWatch
from controller.services.collection.load_collector import LoadCollector
from tests.support.bench import CALL_TIMEOUT_SECONDS, TOPIC, Bench
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until


class SeeingPlane(EmbeddedDataPlane):
    """The embedded logs, with a list of who consumes as a broker would have it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, call_timeout_seconds=CALL_TIMEOUT_SECONDS)
        self.attached: dict[str, list[ObservedConsumer]] = {}
        self.silent: set[str] = set()
        self.asked: list[tuple[str, ...]] = []

    @property
    def sample_limit(self) -> int:
        """Any number at once."""
        return 1_000_000

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Of those that are not silent."""
        self.asked.append(tuple(backing_topics))
        heard = [one for one in backing_topics if one not in self.silent]
        if not heard:
            raise DataPlaneUnavailable("all of them are silent")
        return {one: self.attached.get(one, []) for one in heard}

    def attach(self, log: str, *names: str, subscription: str = "app", kind: str = "Failover") -> None:
        """From now on these consume."""
        self.attached[log] = [ObservedConsumer(subscription, kind, name, name, "b") for name in names]


@pytest.fixture
def plane(bench: Bench) -> Any:
    """The bench's data plane sees consumers."""
    plane = SeeingPlane(bench.url)
    bench.planes = {"embedded": plane}
    yield plane
    plane.close()


def watching(bench: Bench, **options: Any) -> ConsumerWatch:
    """A watch over everything."""
    known: dict[str, Any] = {"interval_seconds": 60.0, "sealed_for_seconds": 600.0, "clock": SystemClock()}
    return ConsumerWatch(bench.store, bench.planes, **(known | options))


def seen(bench: Bench) -> dict[str, int]:
    """Counts by subscription, as stored."""
    return dict(
        bench.scalar(
            "SELECT coalesce(jsonb_object_agg(name, consumers), '{}') FROM cleave.observed_subscription"
        )
    )


def decide(bench: Bench) -> list[int]:
    """The consumer lane of whatever is dirty; the operations intended."""
    passed = autoscaler.run_pass(bench.store, bench.planes, {Lane.CONSUMER}, decided_by="test", limit=10)
    return list(passed.operation_ids)


def test_a_third_consumer_of_an_application_that_never_registered_splits(
    bench: Bench, plane: SeeingPlane
) -> None:
    bench.topic_with(segments=2, subscriptions=())
    watch = watching(bench)
    plane.attach(bench.log_of(0), "a", "b")
    assert watch.round() == (1, 0, [bench.topic_id])
    assert decide(bench) == []

    plane.attach(bench.log_of(1), "b", "c")
    watch.round()
    [operation_id] = decide(bench)

    bench.drive(operation_id)
    assert (seen(bench), len(bench.layout.active)) == ({"app": 3}, 3)


def test_workers_of_a_queue_split_nothing(bench: Bench, plane: SeeingPlane) -> None:
    bench.topic_with(subscriptions=())
    plane.attach(bench.log_of(0), *"abcdef", kind="Shared")
    watching(bench).round()

    assert seen(bench) == {"app": 6}
    assert decide(bench) == []


def test_a_silent_segment_takes_nothing_away_and_a_quiet_one_does(bench: Bench, plane: SeeingPlane) -> None:
    bench.topic_with(segments=2, subscriptions=())
    watch = watching(bench)
    for segment_id, name in enumerate("ab"):
        plane.attach(bench.log_of(segment_id), name)
    watch.round()

    plane.silent = {bench.log_of(1)}
    assert (watch.round(), seen(bench)) == ((1, 1, []), {"app": 2})
    plane.silent |= {bench.log_of(0)}
    assert (watch.round(), seen(bench)) == ((1, 1, []), {"app": 2})

    plane.silent = set()
    plane.attached = {}
    assert (watch.round(), seen(bench)) == ((1, 0, [bench.topic_id]), {})


def test_who_still_reads_the_sealed_parent_is_a_consumer(bench: Bench, plane: SeeingPlane) -> None:
    bench.topic_with(subscriptions=())
    watch = watching(bench)
    plane.attach(bench.log_of(0), "a", "b")
    bench.reshape(segment_admin.splitting(0))
    plane.attach(bench.log_of(2), "b")

    watch.round()

    assert seen(bench) == {"app": 2}


def test_only_topics_of_planes_that_see_and_of_the_prefix_are_looked_at(
    bench: Bench, plane: SeeingPlane
) -> None:
    bench.topic_with(subscriptions=())
    other = "topic://acme/mail/out"
    bench.finish(topic_admin.create_topic(bench.store, bench.planes, other, bench.request()))

    assert watching(bench, prefix=TOPIC).round().topics == 1
    assert watching(bench).round().topics == 2
    blind = Bench(bench.url)
    watch = watching(blind)
    assert (watch.can_observe, watch.round()) == (False, (0, 0, []))
    blind.close()


def test_a_fleet_too_large_for_the_interval_is_looked_at_in_turns(
    bench: Bench, plane: SeeingPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_watch, "CALL_TOPICS", 2)
    for name in "abcde":
        bench.finish(
            topic_admin.create_topic(bench.store, bench.planes, f"topic://t/n/{name}", bench.request())
        )

    watch = watching(bench, clock=ManualClock(step=3600.0))
    assert [watch.round().topics for _ in range(4)] == [2, 2, 1, 2]
    assert len({one for asked in plane.asked[:3] for one in asked}) == 5
    assert plane.asked[3] == plane.asked[0]


def test_a_name_that_the_database_refuses_keeps_no_other_topic_from_being_stored(
    bench: Bench, plane: SeeingPlane
) -> None:
    bench.topic_with(subscriptions=())
    plane.attach(bench.log_of(0), "a", subscription=token_hex(4000))
    other = "topic://acme/mail/out"
    bench.finish(topic_admin.create_topic(bench.store, bench.planes, other, bench.request()))
    plane.attach(plane.backing_topic(other, "0000-ffff-0"), "b")
    watch = watching(bench)

    with capture_logs() as lines:
        assert len(watch.round().changed) == 1

    assert seen(bench) == {"app": 1}
    [refused] = [line for line in lines if line["event"] == "consumers of a topic not stored"]
    assert refused["topic_id"] == bench.topic_id


def test_it_goes_on_round_by_round_until_it_is_stopped(bench: Bench, plane: SeeingPlane) -> None:
    bench.topic_with(subscriptions=())
    log = bench.log_of(0)
    watch = watching(bench, interval_seconds=0.05)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        plane.attach(log, "a")
        wait_until(lambda: seen(bench) == {"app": 1}, message="the first consumer is seen")
        plane.attach(log, "a", "b")
        wait_until(lambda: seen(bench) == {"app": 2}, message="the second consumer is seen")
    finally:
        watch.stop()
        thread.join()


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_an_interval_is_longer_than_nothing(bench: Bench, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="must be longer than 0 s, not"):
        watching(bench, interval_seconds=seconds)


def test_a_plane_that_reads_pages_is_asked_for_all_samples_at_once(
    bench: Bench, plane: SeeingPlane, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.services.collection.load_collector.CALL_SEGMENTS", 1)
    bench.topic_with(segments=3, subscriptions=())
    calls: list[int] = []

    def sample(logs: Sequence[str]) -> Mapping[str, Counters]:
        calls.append(len(logs))
        return {}

    monkeypatch.setattr(plane, "sample", sample)
    LoadCollector(
        bench.store,
        bench.planes,
        LandingArea(str(tmp_path)),
        name="c",
        interval_seconds=10.0,
        clock=SystemClock(),
    ).tick()

    assert calls == [3]


def test_a_watch_without_the_turn_asks_no_data_plane(
    bench: Bench, plane: SeeingPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with()
    turns: list[bool] = []
    asked: list[Sequence[str]] = []

    def has_turn() -> bool:
        turns.append(False)
        if len(turns) == 3:
            watch.stop()
        return False

    def consumers(logs: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        asked.append(logs)
        watch.stop()
        return {}

    monkeypatch.setattr(plane, "consumers", consumers)
    watch = watching(bench, interval_seconds=0.05, has_turn=has_turn)
    watch.run()

    assert (len(turns), asked) == (3, [])
