"""A session whose tokens are refused for a time."""

from __future__ import annotations

from contextlib import closing

import pytest

from controller.client import retry, session
from controller.client.session import Session
from controller.domain.errors import TokenOutOfTime
from tests.support.scripted_leader import HandClock, ScriptedLeader


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock by which an outage is measured. And nobody waits between two tries."""
    clock = HandClock(1.0)
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(session, "_FIRST_RETRY_SECONDS", 0.0)
    return clock


def test_a_token_that_was_accepted_ends_the_outage_of_tokens(clock: HandClock) -> None:
    """Of two refusals with a healthy stream between them, neither lasts."""
    leader = ScriptedLeader()
    with closing(
        Session(leader, "topic://a/b/c", "s", "me", on_change=lambda: None, patience_seconds=30.0)
    ) as reading:
        leader.feed().say("heartbeat", {})
        leader.call("pulse")
        leader.held |= {"register"}
        leader.feed().hang_up()
        leader.call("register", 2).answer(TokenOutOfTime("injected"))
        leader.call("register", 3).answer()
        leader.feed(2).say("heartbeat", {})
        leader.call("pulse", 2)
        clock.seconds += 3600.0
        leader.feed(2).say("end", {"reason": "token expired"})
        leader.call("register", 4).answer(TokenOutOfTime("injected"))
        leader.held.clear()
        leader.call("register", 5).answer()
        leader.feed(3)

        reading.demand_alive()
