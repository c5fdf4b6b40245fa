"""Watches over HTTP: what a client is sent, who leads by now, and that a client that leaves is forgotten."""

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
def watched(http: httpx.Client, **parameters: object) -> Iterator[Iterator[dict[str, Any]]]:
    """The layouts that a watch is sent, with these parameters."""
    with httpx_sse.connect_sse(http, "GET", WATCH, params=parameters) as stream:
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


def test_a_new_layout_is_told_at_once(bench: Bench, http: httpx.Client) -> None:
    with watched(http) as told:
        assert next(told)["epoch"] == 0

        bench.reshape(splitting(0))

        assert next(told)["epoch"] == 1


def test_who_knows_a_layout_of_this_epoch_is_sent_the_present_one_too(http: httpx.Client) -> None:
    """What the client knows may be the layout of a deleted topic of the name, so such parameters have no effect."""
    with watched(http, epoch=0, leader=str(http.base_url)) as told:
        assert next(told)["epoch"] == 0


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
