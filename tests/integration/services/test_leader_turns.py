"""A leader of many subscriptions answers requests between their settlements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from controller.services.consumer_sessions import leader as session_leader
from controller.services.consumer_sessions.requests import Heartbeat, Register
from controller.services.consumer_sessions.settlement import Settlement
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.bench import Bench
from tests.support.led_topic import Leader

NAMES = ("audit", "billing", "search", "shipping")


@pytest.fixture
def leader(bench: Bench) -> Iterator[Leader]:
    one = Leader(bench, "one")
    one.leases.round()
    yield one
    one.stop()


def sweep(leader: Leader) -> None:
    leader._leader._sweep_at = leader.clock.seconds


def expire(leader: Leader) -> None:
    leader.clock.seconds += 11.0  # the grace period is 10 s


@pytest.mark.parametrize("make_due", [sweep, expire])
def test_a_request_does_not_wait_for_all_settlements_that_are_due_and_each_has_its_turn(
    bench: Bench,
    leader: Leader,
    monkeypatch: pytest.MonkeyPatch,
    make_due: Callable[[Leader], None],
) -> None:
    topic_id = bench.topic_with(segments=1, subscriptions=NAMES)
    keys = [SubscriptionKey(topic_id, name) for name in NAMES]
    assert leader.answers([Register(key=key, consumer="one", incarnation="1") for key in keys]) == [None] * 4
    heartbeats: list[Heartbeat] = []
    settled: list[str] = []
    settle = session_leader.settle

    def settle_while_a_heartbeat_comes(
        tx: Connection, key: SubscriptionKey, *arguments: Any, **options: Any
    ) -> Settlement:
        settled.append(key.name)
        heartbeats.append(Heartbeat(key=keys[0], consumer="one", incarnation="1"))
        leader.submit(heartbeats[-1])
        return settle(tx, key, *arguments, **options)

    monkeypatch.setattr(session_leader, "settle", settle_while_a_heartbeat_comes)
    monkeypatch.setattr(session_leader, "SETTLING_SECONDS", 0.0)
    make_due(leader)
    while len(settled) < len(NAMES):
        due, asked = len(settled), len(heartbeats)
        leader.round()
        assert due < len(settled) <= due + 2, "one that expires and one that changed"
        assert all(heartbeat.done.done() for heartbeat in heartbeats[:asked])

    assert sorted(settled[: len(NAMES)]) == sorted(NAMES)
