"""Watches over HTTP: what a client that comes back is sent, who leads by now, and that a client that leaves is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx_sse
import pytest

from controller.devstack.serving import serving_leader, token_for
from controller.services.segment_admin import splitting
from controller.services.watches import feeds, topic_feed
from controller.store import leases
from tests.support.asking import bearer
from tests.support.bench import Bench
from tests.support.waiting import wait_until

SEGMENTS = 1

WATCH = "/api/v1/topics/acme/shop/orders/layout/watch"
MOST_HEARTBEATS = 50  # a third of a second each


@pytest.fixture
def http(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of its leader, which looks at everything once only: what is told later was notified of."""
    monkeypatch.setattr(feeds, "SWEEP_SECONDS", 3600.0)
    with serving_leader(bench.url) as address:
        headers = {"Authorization": f"Bearer {token_for()}"}
        with httpx.Client(base_url=address, headers=headers, timeout=30.0) as client:
            yield client


@contextmanager
def watched(http: httpx.Client, **known: object) -> Iterator[Iterator[dict[str, Any]]]:
    """The layouts that a watch is sent whose client knows this already."""
    with httpx_sse.connect_sse(http, "GET", WATCH, params=known) as stream:
        yield layouts(stream.iter_sse())


def layouts(events: Iterator[httpx_sse.ServerSentEvent]) -> Iterator[dict[str, Any]]:
    """One after the other. A silence of many heartbeats fails the test."""
    heartbeats = 0
    for event in events:
        heartbeats = heartbeats + 1 if event.event == "heartbeat" else 0
        assert heartbeats < MOST_HEARTBEATS, "no layout came"
        if event.event == "layout":
            yield event.json()


def lead(bench: Bench, worker: str, address: str) -> None:
    """Have another worker lead the topic, as when the leases of the one before have run out."""
    run_out = "UPDATE cleave.lease SET expires_at = clock_timestamp() WHERE starts_with(name, 'shard/') RETURNING name"
    with bench.store.transaction() as tx:
        leases.renew_or_acquire(tx, f"worker/{worker}", worker, 60.0)
        leases.announce(tx, f"worker/{worker}", worker, address)
        names = tx.exec_driver_sql(run_out).scalars().all()
        assert names
        assert all(leases.acquire(tx, name, worker, 60.0) for name in names)


def test_a_change_of_leader_is_told_at_once(bench: Bench, http: httpx.Client) -> None:
    with watched(http) as told:
        assert next(told)["leader"] == str(http.base_url)

        lead(bench, "another", "http://another:1")

        assert next(told)["leader"] == "http://another:1"


@pytest.mark.parametrize("says_leader", [True, False])
def test_who_comes_back_is_not_sent_what_it_knows_and_everything_after_it(
    bench: Bench, http: httpx.Client, *, says_leader: bool
) -> None:
    leader = {"leader": str(http.base_url)} if says_leader else {}
    with watched(http, epoch=0, **leader) as told:
        with watched(http) as also_told:
            next(also_told)  # and the one who came before has been told as well
        lead(bench, "another", "http://another:1")
        first = next(told)
        bench.reshape(splitting(0))
        second = next(told)

    assert (first["epoch"], first["leader"]) == (0, "http://another:1")
    assert second["epoch"] == 1


@pytest.mark.parametrize(
    "known", [{}, {"epoch": 0}, {"epoch": 1, "leader": "http://gone:1"}], ids=["nothing", "older", "leader"]
)
def test_who_comes_back_and_has_missed_something_is_sent_it_at_once(
    bench: Bench, http: httpx.Client, known: dict[str, object]
) -> None:
    bench.reshape(splitting(0))
    with watched(http, **known) as told:
        assert next(told)["epoch"] == 1


@pytest.mark.parametrize(
    "path", [WATCH, "/api/v1/namespaces/acme/shop/topics/watch"], ids=["layout", "topics"]
)
def test_who_goes_away_is_watched_for_no_more(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    watched_feeds = list[feeds.Feed[Any, Any]]()
    watch = feeds.Feed.watch

    def noted(feed: feeds.Feed[Any, Any], *arguments: Any) -> None:
        watched_feeds.append(feed)
        watch(feed, *arguments)

    monkeypatch.setattr(feeds.Feed, "watch", noted)

    with httpx_sse.connect_sse(http, "GET", path) as stream:
        events = stream.iter_sse()  # held, because its end closes the stream
        next(events)
        [feed] = watched_feeds
        assert feed._watchers

    wait_until(lambda: not feed._watchers, message="its watch is forgotten")


def test_a_namespace_that_a_token_is_not_for_is_not_read(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names would be compared with the token at each change, however many they are."""
    subjects = list[Any]()
    look = topic_feed.TopicFeed.look

    def noted(feed: topic_feed.TopicFeed, subject: topic_feed.TopicFilter) -> topic_feed.Names:
        subjects.append(subject)
        return look(feed, subject)

    monkeypatch.setattr(topic_feed.TopicFeed, "look", noted)
    path, headers = "/api/v1/namespaces/acme/shop/topics", bearer(token_for("topic://acme/store/*"))
    none = {"hash": topic_feed.snapshot_hash([]), "topics": []}

    assert http.get(path, headers=headers).json() == none
    with httpx_sse.connect_sse(http, "GET", f"{path}/watch", headers=headers) as stream:
        assert next(stream.iter_sse()).json() == none

    assert subjects == [topic_feed.NO_TOPICS] * 2
    assert http.get(path, headers=bearer(token_for("topic://acme/s*"))).json()["topics"] != []
