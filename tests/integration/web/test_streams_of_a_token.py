"""A stream ends when the token runs out with which it was opened, and a client with a fresh one goes on as if nothing had been."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import httpx_sse
import pytest

from controller.client.http_source import HttpSource
from controller.client.servers import Servers
from controller.client.session import Session
from controller.client.topic_watch import TopicWatch
from controller.devstack.serving import serving_leader, token_for
from controller.services import topic_admin
from controller.services.segment_admin import splitting
from controller.web.access import CLOCK_LEEWAY_SECONDS, Grant, Role
from tests.support.asking import bearer
from tests.support.bench import Bench
from tests.support.waiting import wait_until

SEGMENTS = 1

NAME = "topic://acme/shop/orders"
RETURNS = "topic://acme/shop/returns"
TOPIC = "/api/v1/topics/acme/shop/orders"
CONSUMER = f"{TOPIC}/subscriptions/billing/consumers/a"
STREAMS = {
    "layout": f"{TOPIC}/layout/watch",
    "topics": "/api/v1/namespaces/acme/shop/topics/watch",
    "assignment": f"{CONSUMER}/assignment?incarnation=1",
}
LIFE_SECONDS = 3.0
LATE_SECONDS = CLOCK_LEEWAY_SECONDS / 2
"""A stream that has not ended by then was not ended for its token."""


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    with serving_leader(bench.url, consumer_grace_seconds=8.0) as address:
        yield address


class RenewedTokens:
    """Tokens that live for seconds: each is given out for half of its life."""

    def __init__(self) -> None:
        self._ends_at, self._token, self.given = 0.0, "", 0

    def __call__(self) -> str:
        if time.time() >= self._ends_at:
            self._token, self._ends_at = token_for(life_seconds=LIFE_SECONDS), time.time() + LIFE_SECONDS / 2
            self.given += 1
        return self._token


@pytest.fixture
def tokens() -> RenewedTokens:
    return RenewedTokens()


@pytest.fixture
def servers(address: str, tokens: RenewedTokens) -> Iterator[Servers]:
    with closing(Servers([address], tokens, call_timeout_seconds=30.0)) as servers:
        yield servers


@pytest.mark.parametrize("event", STREAMS)
def test_a_stream_ends_with_its_token(address: str, event: str) -> None:
    events = list[str]()
    with httpx.Client(base_url=address, timeout=60.0) as http:
        begun = http.post(CONSUMER, json={"incarnation": "1"}, headers=bearer(token_for()))
        assert begun.status_code == 200
        ends_at = int(time.time() + LIFE_SECONDS)
        headers = bearer(token_for(life_seconds=LIFE_SECONDS))
        with httpx_sse.connect_sse(http, "GET", STREAMS[event], headers=headers) as stream:
            for said in stream.iter_sse():
                events.append(said.event)
                if said.event == "end":
                    assert said.json() == {"reason": "token expired"}
                assert time.time() < ends_at + LATE_SECONDS, "it goes on"

    assert time.time() >= ends_at
    assert events[0] == event
    assert events[-1] == "end"


def test_a_token_that_is_taken_for_the_clocks_sake_has_a_stream_until_no_clock_takes_it() -> None:
    grant = Grant(Role.CLIENT, ("*",), ends_at=100.0)

    assert grant.stream_until(99.0) == 100.0
    assert grant.stream_until(100.0) == 100.0 + CLOCK_LEEWAY_SECONDS
    assert Grant(Role.READER).stream_until(100.0) == float("inf")


def test_a_consumer_reads_on_while_its_tokens_change(servers: Servers, tokens: RenewedTokens) -> None:
    session = Session(servers, NAME, "billing", "a", on_change=lambda: None)
    with closing(session):
        wait_until(lambda: session.assignment is not None, message="it has a session")
        first, opened = session.assignment, session._feed

        def is_renewed() -> bool:
            assert session.is_current
            return tokens.given > 3 and session._feed is not opened

        wait_until(is_renewed, message="it had three tokens more")
        assert session.assignment == first


def test_watches_miss_nothing_while_their_tokens_change(
    bench: Bench, servers: Servers, tokens: RenewedTokens, address: str
) -> None:
    source, looks, topics = HttpSource(servers), list[int](), list[frozenset[str]]()
    first = source.topic(NAME)

    def look() -> None:
        looks.append(source.topic(NAME).layout.epoch)

    watches: list[Callable[[], None]] = [
        source.watch(first.topic_id, look).close,
        TopicWatch(servers, "acme/shop", on_change=lambda _gone, came: topics.append(came)).close,
    ]
    wait_until(lambda: tokens.given > 2 and topics, message="the first tokens are over")

    bench.reshape(splitting(0))
    bench.finish(topic_admin.create_topic(bench.store, bench.planes, RETURNS, bench.request()))

    wait_until(lambda: looks and looks[-1] == 1, message="the layout is told")
    wait_until(lambda: topics == [{NAME}, {RETURNS}], message="the topic is told, once")
    for close in watches:
        close()
