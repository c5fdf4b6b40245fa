"""A leader whose database is away: it says so, and hangs up on whom it does not hear, as at any other time."""

from __future__ import annotations

import json
from threading import Thread

import httpx
import httpx_sse
import pytest
from structlog.testing import capture_logs

from controller.devstack.serving import client_of, serving_leader, token_for
from controller.domain.errors import StoreUnavailable
from tests.support.bench import Bench
from tests.support.database_away import away
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
SUBSCRIPTIONS = ("billing", "audit")
PATH = "/api/v1/topics/acme/shop/orders/subscriptions/{}/consumers/a"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A topic with two subscriptions."""
    bench.topic_with(segments=1, subscriptions=SUBSCRIPTIONS)
    return bench


def hold(address: str, subscription: str, ended: dict[str, str]) -> None:
    """Hold the stream of a consumer that never answers, and note why it ended."""
    headers = {"Authorization": f"Bearer {token_for()}"}
    with (
        httpx.Client(base_url=address, headers=headers, timeout=30.0) as http,
        httpx_sse.connect_sse(
            http, "GET", f"{PATH.format(subscription)}/assignment", params={"incarnation": "1"}
        ) as stream,
    ):
        for event in stream.iter_sse():
            ended.setdefault(subscription, "")
            if event.event == "end":
                ended[subscription] = str(json.loads(event.data)["reason"])


def test_the_silent_are_hung_up_on_and_who_asks_is_told(bench: Bench) -> None:
    """The lease lasts longer than a consumer may be silent: until it is over nobody else leads."""
    with serving_leader(bench.url, worker_lease_seconds=30.0, consumer_grace_seconds=6.0) as address:
        servers = client_of(address)
        ended: dict[str, str] = {}
        holders = []
        for subscription in SUBSCRIPTIONS:
            servers.ask("POST", PATH.format(subscription), document={"incarnation": "1"})
            holders.append(Thread(target=hold, args=(address, subscription, ended)))
            holders[-1].start()
        wait_until(lambda: set(ended) == set(SUBSCRIPTIONS), message="both are connected")

        with away(bench.url, "cleave", "cleave-leader", "cleave-sessions", "cleave-watches"):
            with pytest.raises(StoreUnavailable, match="not currently accepting connections"):
                servers.ask("POST", f"{PATH.format('billing')}-late", document={"incarnation": "1"})
            wait_until(
                lambda: ended == dict.fromkeys(SUBSCRIPTIONS, "silent"), message="the silent are hung up on"
            )
        for holder in holders:
            holder.join()

        def registers() -> bool:
            try:
                servers.ask("POST", f"{PATH.format('billing')}-late", document={"incarnation": "1"})
            except StoreUnavailable:
                return False
            return True

        wait_until(registers, message="all is well again")
        servers.close()


def test_nothing_else_is_settled_before_the_loop_has_looked_after_who_is_led(bench: Bench) -> None:
    """Each try may last as long as it takes to find that nobody answers, and meanwhile nobody would be hung up on."""
    with serving_leader(bench.url, worker_lease_seconds=30.0, consumer_grace_seconds=60.0) as address:
        servers = client_of(address)
        for subscription in SUBSCRIPTIONS:
            servers.ask("POST", PATH.format(subscription), document={"incarnation": "1"})

        def said() -> list[str]:
            events = [line["event"] for line in lines]
            return [
                event for event in events if event in ("sessions not settled", "round of the leader failed")
            ]

        with capture_logs() as lines, away(bench.url, "cleave-leader"):
            bench.execute("SELECT pg_notify('cleave_drains', '1')")
            wait_until(lambda: said().count("round of the leader failed") >= 3, message="three rounds")

        assert said()[:6] == ["sessions not settled", "round of the leader failed"] * 3
        servers.close()
