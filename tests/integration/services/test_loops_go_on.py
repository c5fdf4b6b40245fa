"""No loop of a long-lived thread ends with an unexpected error: each is given one, and does its work afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import requests
from sqlalchemy import Connection
from structlog.testing import capture_logs

from controller import repeating
from controller.bundles.broker_reports import ReportArea
from controller.bundles.brokers import BundleReader
from controller.bundles.services.collector import BundleCollector
from controller.client.servers import topic_path
from controller.clock import SystemClock
from controller.dataplane.embedded.queue_reader import QueueKeeper
from controller.dataplane.postgres_calls import PostgresCalls
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.devstack.serving import client_of, serving_leader
from controller.domain.decision import Lane
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable, Retryable
from controller.landing.area import LandingArea
from controller.landing.schemas import KEY_COUNT_SCHEMA
from controller.postgres.listener import Listener
from controller.services import (
    approval_answers,
    asset_events,
    drain_watch,
    key_count_landing,
    key_sampler,
    mirror,
)
from controller.services.approval_answers import ApprovalClock
from controller.services.asset_events import AirflowLogin, AirflowRest, AssetEventPoster
from controller.services.collection.consumer_watch import ConsumerWatch
from controller.services.collection.load_collector import LoadCollector
from controller.services.consumer_sessions import leader
from controller.services.consumer_sessions.leader import SessionLeader
from controller.services.consumer_sessions.settlement import Settlement
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.services.drain_watch import DrainWatch
from controller.services.key_count_landing import KeyCountLanding
from controller.services.key_sampler import KeySampler
from controller.services.log_trimmer import LogTrimmer
from controller.services.mirror import MirrorLoop
from controller.services.reconciler import Suspects, Verifier, verifier
from controller.services.watches import feeds, layout_feed
from controller.services.watches.feeds import Feeds
from controller.services.watches.layout_feed import FedLayout, LayoutFeed
from controller.services.worker.sensors import Sensor
from controller.services.worker.shard_leases import ShardLeases
from controller.services.worker.work import Work
from controller.services.worker.work_loop import WorkLoop
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.published_layout import PublishedLayout
from tests.support.bench import Bench

SOON = 0.02
ALL = Shards.of(1, [0])


class Loop(Protocol):
    def run(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class FailingLoop:
    """A loop, and what each of its rounds calls."""

    loop: Loop
    owner: Any
    call: str


class _Leases:
    """`ShardLeases` as a part of a worker, which calls it otherwise."""

    def __init__(self, leases: ShardLeases) -> None:
        self._leases = leases

    def run(self) -> None:
        self._leases.run(lambda: None)

    def stop(self) -> None:
        self._leases.stop()


class _Keeper:
    """A keeper of queues, with one reader to keep."""

    def __init__(self, keeper: QueueKeeper) -> None:
        self._keeper = keeper
        keeper._readers["mark"] = UnknownReader()  # type: ignore[assignment]

    def run(self) -> None:
        self._keeper._run()

    def stop(self) -> None:
        self._keeper.close()


class RecordingWatcher:
    """A watcher that keeps the epochs that it was told."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def push(self, pushed: FedLayout) -> None:
        self.epochs.append(pushed.published.layout.epoch)

    def end(self, reason: str) -> None:
        """Nothing to close."""


class UnknownReader:
    """A reader that the server does not know."""

    def mark_lost(self) -> None:
        """It is known no more."""


def _work_loop(bench: Bench, _: Path) -> FailingLoop:
    loop = WorkLoop(
        bench.store,
        Listener(bench.url, []),
        (),
        evaluate=lambda *_: 0,
        run_operations=lambda _: 0,
        sweep_deletion_entries=lambda: None,
        shards=lambda: ALL,
        sweep_seconds=SOON,
        clock=SystemClock(),
        parallel_operations=2,
    )
    return FailingLoop(loop, WorkLoop, "_perform")


def _leader(bench: Bench, _: Path) -> FailingLoop:
    leases = ShardLeases(bench.store, "w", shard_count=1, ttl_seconds=60.0, clock=SystemClock())
    listener = Listener(bench.url, leader.CHANNELS)
    timing = ConsumerTiming(10.0)
    loop = SessionLeader(
        Store(bench.url, pool_size=1), listener, leases, shard_count=1, timing=timing, clock=SystemClock()
    )
    return FailingLoop(loop, SessionLeader, "_follow_leases")


def _feeds(bench: Bench, _: Path) -> FailingLoop:
    listener = Listener(bench.url, ["cleave_layout"])
    layouts = LayoutFeed(bench.store, listener.interrupt, shard_count=1, clock=SystemClock())
    return FailingLoop(Feeds(listener, [layouts], clock=SystemClock()), LayoutFeed, "notice")


def _poster(bench: Bench, _: Path) -> FailingLoop:
    listener = Listener(bench.url, asset_events.CHANNELS)
    airflow = AirflowRest(AirflowLogin("http://127.0.0.1:1", "token"))
    return FailingLoop(
        AssetEventPoster(bench.store, listener, airflow, shards=lambda: ALL), AssetEventPoster, "_enqueue"
    )


def _leases(bench: Bench, _: Path) -> FailingLoop:
    leases = ShardLeases(bench.store, "w", shard_count=1, ttl_seconds=3 * SOON, clock=SystemClock())
    return FailingLoop(_Leases(leases), ShardLeases, "round")


def _sampler(bench: Bench, _: Path) -> FailingLoop:
    settings = {"messages": 10, "from_load": 0.5, "every_seconds": 60.0, "fresh_seconds": 60.0}
    return FailingLoop(
        KeySampler(bench.store, bench.planes, lambda: ALL, SystemClock(), **settings), KeySampler, "_logs_due"
    )


def _collector(bench: Bench, directory: Path) -> FailingLoop:
    area = LandingArea(str(directory))
    loop = LoadCollector(
        bench.store, bench.planes, area, name="c", interval_seconds=SOON, clock=SystemClock()
    )
    return FailingLoop(loop, LoadCollector, "tick")


def _consumer_watch(bench: Bench, _: Path) -> FailingLoop:
    loop = ConsumerWatch(
        bench.store, bench.planes, interval_seconds=SOON, sealed_for_seconds=60.0, clock=SystemClock()
    )
    return FailingLoop(loop, ConsumerWatch, "round")


def _bundle_collector(_: Bench, directory: Path) -> FailingLoop:
    session = requests.Session()
    reader = BundleReader(
        session, BrokerList(session, ["http://127.0.0.1:1"]), cluster="c", deadline_seconds=1.0
    )
    loop = BundleCollector(
        reader, ReportArea(str(directory)), name="c", interval_seconds=SOON, clock=SystemClock()
    )
    return FailingLoop(loop, BundleCollector, "tick")


def _key_counts(bench: Bench, directory: Path) -> FailingLoop:
    def area() -> LandingArea:
        return LandingArea(str(directory), KEY_COUNT_SCHEMA)

    return FailingLoop(KeyCountLanding(bench.store, area, worker="w"), KeyCountLanding, "land")


def _keeper(bench: Bench, _: Path) -> FailingLoop:
    calls = PostgresCalls(
        bench.url,
        call_timeout_seconds=5.0,
        pool_size=1,
        application_name="keeper",
        unavailable_error=DataPlaneUnavailable,
        timeout_error=DataPlaneTimeout,
    )
    return FailingLoop(_Keeper(QueueKeeper(calls, 5 * SOON)), QueueKeeper, "_keep")


LOOPS: dict[str, Callable[[Bench, Path], FailingLoop]] = {
    "work loop": _work_loop,
    "leader": _leader,
    "feeds": _feeds,
    "poster": _poster,
    "leases": _leases,
    "key sampler": _sampler,
    "load collector": _collector,
    "consumer watch": _consumer_watch,
    "bundle collector": _bundle_collector,
    "key counts": _key_counts,
    "keeper of queues": _keeper,
    "suspects": lambda bench, _: FailingLoop(
        Suspects(bench.store, bench.planes, SystemClock()), Suspects, "check_next"
    ),
    "drain watch": lambda bench, _: FailingLoop(
        DrainWatch(bench.store, bench.planes, lambda: ALL, SystemClock(), reconcile=id), DrainWatch, "round"
    ),
    "mirror": lambda bench, _: FailingLoop(
        MirrorLoop(bench.store, bench.planes, lambda: ALL, interval_seconds=SOON), mirror, "follow_due"
    ),
    "log trimmer": lambda bench, _: FailingLoop(
        LogTrimmer(bench.planes, retention_seconds=60.0, interval_seconds=SOON), LogTrimmer, "_trim"
    ),
    "approvals": lambda bench, _: FailingLoop(
        ApprovalClock(bench.store, interval_seconds=SOON), approval_answers, "settle"
    ),
    "verifier": lambda bench, _: FailingLoop(
        Verifier(bench.store, bench.planes, lambda: ALL, lambda: None), Verifier, "round"
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_goes_on_after_errors_that_nobody_expected(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module, setting in (
        (repeating, "FIRST_PAUSE_SECONDS"),
        (drain_watch, "INTERVAL_SECONDS"),
        (key_sampler, "INTERVAL_SECONDS"),
        (key_count_landing, "LANDS_EVERY_SECONDS"),
        (verifier, "INTERVAL_SECONDS"),
        (feeds, "LONGEST_WAIT_SECONDS"),
        (asset_events.poster, "IDLE_SECONDS"),
        (leader, "LONGEST_WAIT_SECONDS"),
    ):
        monkeypatch.setattr(module, setting, SOON)
    broken = LOOPS[name](bench, tmp_path)
    good, errors = threading.Semaphore(0), [ValueError("²"), RuntimeError("event loop is closed")]
    whole = getattr(broken.owner, broken.call)

    def breaks(*arguments: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop(0)
        answer = whole(*arguments, **named)
        good.release()
        return answer

    monkeypatch.setattr(broken.owner, broken.call, breaks)
    with capture_logs() as lines:
        thread = threading.Thread(target=broken.loop.run, daemon=True)
        thread.start()
        try:
            assert good.acquire(timeout=30.0), "no round went well after the errors"
            assert good.acquire(timeout=30.0), "a round that went well is followed by none"
        finally:
            broken.loop.stop()
            thread.join(30.0)
    assert not thread.is_alive()
    assert [str(one["exc_info"]) for one in lines if "exc_info" in one] == ["²", "event loop is closed"]


def test_operations_go_on_while_no_evaluation_goes_well(bench: Bench) -> None:
    """One topic that cannot be evaluated must not keep the others' operations."""
    ran = threading.Event()

    def evaluate(*_: object) -> int:
        raise ValueError("one topic's")

    def run_operations(_: Shards) -> int:
        ran.set()
        return 0

    loop = WorkLoop(
        bench.store,
        Listener(bench.url, []),
        [Sensor("due", Work(frozenset({Lane.LOAD}), None), fires_at=lambda _tx, _shards: None)],
        evaluate=evaluate,
        run_operations=run_operations,
        sweep_deletion_entries=lambda: None,
        shards=lambda: ALL,
        sweep_seconds=SOON,
        clock=SystemClock(),
        parallel_operations=2,
    )
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        assert ran.wait(30.0)
    finally:
        loop.stop()
        thread.join(30.0)
    assert not thread.is_alive()


def test_a_layout_that_cannot_be_read_keeps_no_other_from_its_watchers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, told = bench.topic_with(1), RecordingWatcher()
    layouts = LayoutFeed(bench.store, lambda: None, shard_count=1, clock=SystemClock())
    whole = layout_feed.published_layout

    def breaks(tx: Connection, topic: str | int) -> PublishedLayout:
        if topic != good:
            raise ValueError("²")
        return whole(tx, topic)

    monkeypatch.setattr(layout_feed, "published_layout", breaks)
    for topic_id in (good, *range(100, 120)):  # whichever comes first
        layouts.watch(topic_id, told)
    with capture_logs() as lines:
        layouts.notify()

    assert told.epochs == [0]
    assert [one["log_level"] for one in lines] == ["error"] * 20


def test_a_subscription_that_cannot_be_settled_keeps_no_other_from_its_leader(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(1, ("bad", "billing"))
    whole = leader.settle

    def breaks(tx: Connection, key: SubscriptionKey, *more: Any, **options: Any) -> Settlement:
        if key.name == "bad":
            raise ValueError("²")
        return whole(tx, key, *more, **options)

    monkeypatch.setattr(leader, "settle", breaks)
    with serving_leader(bench.url) as address, closing(client_of(address)) as servers:
        path = f"{topic_path(bench.topic_name)}/subscriptions/{{}}/consumers/a"
        for _ in range(2):
            with pytest.raises(Retryable, match="the leader failed"):
                servers.ask("POST", path.format("bad"), document={"incarnation": "1", "reads": "STREAM"})
        begun = servers.ask("POST", path.format("billing"), document={"incarnation": "1", "reads": "STREAM"})

    assert begun["topic_id"] == bench.topic_id
