"""An application that follows the topics of its namespace over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from controller.client.servers import Servers
from controller.client.topic_watch import TopicWatch
from controller.devstack.serving import client_of
from controller.domain.errors import AccessDenied, InvalidInput
from controller.services.topic_admin import create_topic, delete_topic
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

OTHER = "topic://acme/shop/payments"


@pytest.fixture
def limited(leader: str) -> Iterator[Servers]:
    """With a token for one topic only."""
    servers = client_of(leader, topics=(OTHER,))
    yield servers
    servers.close()


def create(bench: Bench, name: str, **properties: str) -> None:
    bench.finish(
        create_topic(
            bench.store, bench.planes, name, bench.request(), data_plane="embedded", properties=properties
        )
    )


def test_topics_that_come_and_go_are_told_of(bench: Bench, servers: Servers, limited: Servers) -> None:
    create(bench, TOPIC, team="orders")
    changes: list[tuple[frozenset[str], frozenset[str]]] = []
    every = TopicWatch(
        servers, "acme/shop", on_change=lambda removed, added: changes.append((removed, added))
    )
    orders = TopicWatch(servers, "acme/shop", properties={"team": "orders"})
    own = TopicWatch(limited, "acme/shop")
    assert (every.topics, orders.topics, own.topics) == ({TOPIC}, {TOPIC}, frozenset())
    wait_until(lambda: changes, message="the first topic is reported")

    create(bench, OTHER, team="payments")
    wait_until(lambda: every.topics == {TOPIC, OTHER} and own.topics == {OTHER}, message="the second topic")
    bench.finish(delete_topic(bench.store, TOPIC, bench.request()))
    wait_until(lambda: (every.topics, orders.topics) == ({OTHER}, frozenset()), message="the first is gone")

    for watch in (every, orders, own):
        watch.close()
    assert changes == [(frozenset(), {TOPIC}), (frozenset(), {OTHER}), ({TOPIC}, frozenset())]


def test_a_topic_that_goes_while_the_watch_begins_is_told_of_as_often_as_it_came(
    bench: Bench, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(bench, TOPIC)
    ask, open_topics = servers.ask, list[str]()

    def ask_and_change(*arguments: Any, **options: Any) -> Any:
        """Answer, and replace the topic before the watch can open its stream."""
        answer = ask(*arguments, **options)
        bench.finish(delete_topic(bench.store, TOPIC, bench.request()))
        create(bench, OTHER)
        return answer

    def on_change(removed: frozenset[str], added: frozenset[str]) -> None:
        for name in removed:
            open_topics.remove(name)
        open_topics.extend(added)

    monkeypatch.setattr(servers, "ask", ask_and_change)
    with closing(TopicWatch(servers, "acme/shop", on_change=on_change)) as watch:
        wait_until(lambda: watch.topics == {OTHER} and open_topics, message="the change")

    assert open_topics == [OTHER]


def test_a_change_that_the_application_failed_over_is_told_again(bench: Bench, servers: Servers) -> None:
    create(bench, TOPIC)
    told: list[tuple[frozenset[str], frozenset[str]]] = []
    seen: list[frozenset[str]] = []

    def on_change(removed: frozenset[str], added: frozenset[str]) -> None:
        told.append((removed, added))
        if len(told) > 1:  # the first call may come before `watch` has its value
            seen.append(watch.topics)
        if 2 <= len(told) <= 3:
            raise RuntimeError("injected: the application fails")

    with closing(TopicWatch(servers, "acme/shop", on_change=on_change)) as watch:
        wait_until(lambda: len(told) == 1, message="the first topic is reported")
        create(bench, OTHER)
        wait_until(lambda: len(told) == 4, message="the change, told until it is taken")
        bench.finish(delete_topic(bench.store, TOPIC, bench.request()))
        wait_until(lambda: len(told) == 5 and watch.topics == {OTHER}, message="the next change")

    assert told == [(frozenset(), {TOPIC}), *[(frozenset(), {OTHER})] * 3, ({TOPIC}, frozenset())]
    assert seen == [*[{TOPIC, OTHER}] * 3, {OTHER}]


def test_what_can_never_be_watched_is_refused_at_once(servers: Servers, leader: str) -> None:
    with pytest.raises(InvalidInput, match="tenant/namespace"):
        TopicWatch(servers, "shop")
    with closing(Servers([leader], "nonsense")) as stranger, pytest.raises(AccessDenied):
        TopicWatch(stranger, "acme/shop")
