"""Of several processes that may collect, one does: the others wait, and one of them takes over."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest

from controller import telemetry
from controller.bootstrap import Application, build_collection
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.observed_consumers import ObservedConsumer
from controller.services.collection.consumer_watch import ConsumerWatch
from controller.services.collection.lease import CollectionLease, LeasedCollection
from controller.services.collection.load_collector import LoadCollector
from controller.settings import Settings
from controller.store import leases
from tests.support.bench import CALL_TIMEOUT_SECONDS, Bench
from tests.support.waiting import wait_until


@pytest.fixture
def app(bench: Bench, database: str, tmp_path: Path) -> Iterator[Application]:
    """An application that takes a sample each half second, on a topic of two segments."""
    bench.topic_with(segments=2)
    settings = Settings(
        database_url=database,  # type: ignore[arg-type]
        embedded_url=database,  # type: ignore[arg-type]
        landing_url=str(tmp_path / "landing"),
        collect_interval_seconds=0.5,
        worker_lease_seconds=2.0,
    )
    app = Application(settings, bench.store)
    yield app
    for plane in app.planes.values():
        plane.close()


@contextmanager
def collecting(app: Application, holder: str) -> Iterator[None]:
    """A collection in a thread; at the end it stops in order."""
    collection = build_collection(app, holder=holder)
    thread = telemetry.start_thread(holder, collection.run)
    try:
        yield
    finally:
        collection.stop()
        thread.join()


def samples_by_reader(app: Application) -> dict[str, int]:
    """Number of landed samples of each reader."""
    counts: dict[str, int] = {}
    for path in Path(app.settings.landing_url).rglob("*.parquet"):
        for row in pq.ParquetFile(path).read(["reader"]).to_pylist():
            counts[row["reader"]] = counts.get(row["reader"], 0) + 1
    return counts


def holder(bench: Bench) -> str | None:
    """Holder of the lease that is in force."""
    live = bench.store.in_transaction(leases.live_leases, "collector/")
    return live[0].holder if live else None


def test_one_of_two_processes_collects_and_the_other_takes_over_at_once_when_it_stops(
    app: Application, bench: Bench
) -> None:
    with collecting(app, "second"):
        wait_until(lambda: holder(bench) == "second", message="the second process collects")
        with collecting(app, "third"):
            wait_until(lambda: sum(samples_by_reader(app).values()) >= 6, message="three ticks are landed")
            assert len(samples_by_reader(app)) == 1
            assert holder(bench) == "second"

    assert holder(bench) is None, "the process has resigned the lease"
    with collecting(app, "fourth"):
        wait_until(lambda: len(samples_by_reader(app)) == 2, message="the fourth process collects")


def test_a_process_takes_over_from_one_that_died_once_the_lease_has_expired(
    app: Application, bench: Bench
) -> None:
    with bench.store.transaction() as tx:
        name = "collector/" + "+".join(sorted(app.planes)) + "/"
        assert leases.acquire(tx, name, "dead", ttl_seconds=1.5) is not None

    with collecting(app, "heir"):
        wait_until(lambda: holder(bench) == "heir", message="the lease is taken over")
        wait_until(lambda: samples_by_reader(app) != {}, message="samples are landed")


def test_other_topics_and_other_data_planes_have_leases_of_their_own(app: Application, bench: Bench) -> None:
    with collecting(app, "all"):
        wait_until(lambda: holder(bench) == "all", message="all topics are collected")
        mine = build_collection(app, "topic://other/", holder="some")
        thread = telemetry.start_thread("some", mine.run)
        try:
            wait_until(lambda: live(bench) == 2, message="both have a lease")
        finally:
            mine.stop()
            thread.join()


def live(bench: Bench) -> int:
    """Number of leases of collections in force."""
    return len(bench.store.in_transaction(leases.live_leases, "collector/"))


class SeeingPlane(EmbeddedDataPlane):
    """The embedded logs, which keep what they were asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url, call_timeout_seconds=CALL_TIMEOUT_SECONDS)
        self.asked: list[tuple[str, ...]] = []

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """None."""
        self.asked.append(tuple(backing_topics))
        return {}


def test_a_process_without_the_lease_asks_for_no_consumers_and_lands_no_samples(
    app: Application, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = SeeingPlane(bench.url)
    app.__dict__["planes"] = {"embedded": plane}
    assert (
        bench.store.in_transaction(leases.acquire, "collector/embedded/", "other", ttl_seconds=3600.0)
        is not None
    )
    take, turns = CollectionLease.take, list[int | None]()

    def counted(lease: CollectionLease) -> int | None:
        turns.append(take(lease))
        return turns[-1]

    monkeypatch.setattr(CollectionLease, "take", counted)
    with collecting(app, "waiting"):
        wait_until(lambda: len(turns) >= 3, message="the process asks for its turn three times")

    assert not any(turns)
    assert (plane.asked, samples_by_reader(app)) == ([], {})
    assert holder(bench) == "other"


class FailingCollector:
    """A collector that ends with an error."""

    name = "c1"

    def run(self) -> None:
        """Raise."""
        raise ZeroDivisionError


class Watch:
    """A watch that runs until it is stopped."""

    can_observe = True

    def __init__(self) -> None:
        self._stopping, self.has_ended = threading.Event(), threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        if self._stopping.wait(20):
            self.has_ended.set()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()


class RecordedLease:
    """A lease that keeps whether the watch had ended when it was resigned."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self.resigned_after_the_watch = watch, list[bool]()

    def resign(self) -> None:
        """As `CollectionLease.resign`."""
        self.resigned_after_the_watch.append(self._watch.has_ended.is_set())


def test_a_collection_that_fails_ends_its_watch_and_then_resigns_the_lease() -> None:
    watch = Watch()
    lease = RecordedLease(watch)
    collection = LeasedCollection(
        cast(LoadCollector, FailingCollector()), cast(ConsumerWatch, watch), cast(CollectionLease, lease)
    )

    with pytest.raises(ZeroDivisionError):
        collection.run()

    assert lease.resigned_after_the_watch == [True]
