"""Any login may notify of anything: a real worker and each of its listeners ignore it, and go on reacting to what Cleave sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import httpx_sse
import pytest
from prometheus_client import REGISTRY

from controller.client.session import Session
from controller.dataplane.postgres_listener import PostgresListener
from controller.devstack.serving import ServingWorker, client_of, serving_worker, token_for
from controller.domain.decision import Lane
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.services import asset_events, segment_admin
from controller.services.asset_events import AssetEventPoster, LayoutFollower
from controller.services.consumer_sessions import leader
from controller.services.watches import feeds
from controller.store.decisions import evaluations
from controller.store.shards import Shards
from tests.support.bench import TOPIC, Bench
from tests.support.hostile_notifications import CHANNELS, KNOWN, send_all
from tests.support.waiting import wait_until

NEVER_SECONDS = 3600.0
pytestmark = pytest.mark.drawn


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A topic with a subscription."""
    bench.topic_with(segments=1)
    return bench


@pytest.fixture
def worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServingWorker]:
    """A worker that looks at everything once only: what it does later it was notified of."""
    monkeypatch.setattr(feeds, "SWEEP_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(leader, "SWEEP_SECONDS", NEVER_SECONDS)
    with serving_worker(bench.url, worker_sweep_seconds=NEVER_SECONDS, worker_load_lane=True) as running:
        yield running


def errors() -> float:
    """Rounds of any loop that ended with an unexpected error."""
    found = [one for one in REGISTRY.collect() if one.name == "cleave_loop_errors"]
    return sum(sample.value for one in found for sample in one.samples if sample.name.endswith("_total"))


def ignored(channel: str) -> float:
    return REGISTRY.get_sample_value("cleave_ignored_notifications_total", {"channel": channel}) or 0.0


def test_a_worker_with_its_leader_and_its_feeds_ignores_them_and_still_reacts(
    bench: Bench, worker: ServingWorker
) -> None:
    servers = client_of(worker.address)
    session = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: session.assignment, message="the leader assigns")
    failed, dropped = errors(), ignored("cleave_consumers")

    send_all(bench.store)

    headers = {"Authorization": f"Bearer {token_for()}"}
    path = "/api/v1/topics/acme/shop/orders/layout/watch"
    with (
        httpx.Client(base_url=worker.address, headers=headers, timeout=30.0) as http,
        httpx_sse.connect_sse(http, "GET", path) as stream,
    ):
        layouts = (event.json()["epoch"] for event in stream.iter_sse() if event.event == "layout")
        assert next(layouts) == 0
        operation = bench.intend(segment_admin.splitting(0)).operation  # the loop is told, and runs it
        assert next(layouts) == 1  # so is the feed
    wait_until(
        lambda: session.assignment and all(one.sealed for one in session.assignment.buckets),
        message="the leader tells that the segment is sealed",
    )
    # The layout is announced by the commit, which the operation's last step follows.
    wait_until(
        lambda: not bench.operation(operation.operation_id).state.is_live, message="the operation ends"
    )
    assert worker.thread.is_alive()
    assert errors() == failed
    assert ignored("cleave_consumers") >= dropped + len(KNOWN)
    session.close()
    servers.close()


def test_consumers_that_come_afterwards_are_decided_on(bench: Bench, worker: ServingWorker) -> None:
    send_all(bench.store, ["cleave_consumers", "cleave_policy", "cleave_load"])
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, 'billing', 'c')",
        id=bench.topic_id,
    )

    def is_decided() -> bool:
        return bench.store.in_transaction(evaluations.next_due, {Lane.CONSUMER}, Shards.of(1, [0])) is None

    wait_until(is_decided, message="the consumer lane is evaluated")
    assert worker.thread.is_alive()


class Airflow:
    """Takes every event."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def post(self, partition_key: str, extra: dict[str, object]) -> bool:
        self.epochs.append(int(str(extra["epoch"])))
        return True


def test_the_poster_ignores_them_and_still_posts(bench: Bench) -> None:
    airflow = Airflow()
    listener = Listener(bench.url, asset_events.CHANNELS, application_name="hostile-poster")
    poster = AssetEventPoster(bench.store, listener, airflow, shards=lambda: Shards.of(1, [0]))
    failed = errors()
    thread = threading.Thread(target=poster.run)
    thread.start()
    try:
        wait_until(lambda: _listens(bench, "hostile-poster"), message="it listens")
        send_all(bench.store, asset_events.CHANNELS)
        bench.reshape(segment_admin.splitting(0))
        wait_until(lambda: airflow.epochs == [1], message="the split is posted")
    finally:
        poster.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert errors() == failed


def test_a_follower_ignores_them_and_still_tells(bench: Bench) -> None:
    with Listener(bench.url, asset_events.CHANNELS) as listener:
        following = LayoutFollower(bench.store, listener)
        assert (following.wait(0.0), following.wait(0.0)) == ([], [])
        send_all(bench.store, asset_events.CHANNELS)
        assert following.wait(0.2) == []
        bench.reshape(segment_admin.splitting(0))
        assert [one.epoch for one in following.wait(30.0)] == [1]


def test_a_listener_gives_nothing_illegible_to_anybody_and_does_not_wake_for_it(bench: Bench) -> None:
    with Listener(bench.url, CHANNELS) as listener:
        assert listener.wait(30.0)[0].is_resync
        send_all(bench.store)
        bench.execute("SELECT pg_notify('cleave_consumers', '17')")
        heard: list[Notification] = []
        wait_until(
            lambda: heard.extend(listener.wait(1.0)) or Notification("cleave_consumers", "17") in heard,
            message="what comes after them is heard",
        )

    assert all(one.is_legible for one in heard)
    assert {one.payload for one in heard if one.channel != "cleave_topics"}.isdisjoint(KNOWN)


def test_an_applications_listener_ignores_them_and_still_rings(bench: Bench) -> None:
    rung: list[int] = []
    ready = threading.Event()
    listener = PostgresListener(bench.url, CHANNELS, on_notification=rung.append, on_gap=ready.set)
    listener.start()
    try:
        assert ready.wait(30.0)
        ready.clear()
        send_all(bench.store)
        bench.execute("SELECT pg_notify('embedded_arrivals', '4711')")
        wait_until(lambda: 4711 in rung, message="it rings")
    finally:
        listener.close()
    assert not ready.is_set()  # the connection was never made anew


def _listens(bench: Bench, name: str) -> object:
    return bench.scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND state = 'idle' AND query <> ''",
        name=name,
    )
