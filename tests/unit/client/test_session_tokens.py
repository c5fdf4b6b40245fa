"""A session whose tokens are refused, or whose token function fails, for a time or for good."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from controller.client import retry, session
from controller.client.session import Session
from controller.domain.errors import FencedOut, TokenOutOfTime
from tests.support.scripted_leader import HandClock, ScriptedLeader
from tests.support.waiting import wait_until


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


class ShortLeader(ScriptedLeader):
    """A leader whose consumers may keep their buckets for a tenth of a second without it."""

    def ask(self, *arguments: Any, **options: Any) -> Any:
        """As `Servers.ask`."""
        answer = super().ask(*arguments, **options)
        return answer if answer is None else answer | {"silent_seconds": 0.05, "grace_seconds": 0.1}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ShortLeader, OSError("injected: no token file")),
        (ScriptedLeader, FencedOut("injected: another process has this name")),
    ],
    ids=["the token function fails", "the session has failed"],
)
def test_a_consumer_is_told_to_let_go_whatever_the_error(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch, kind: type[ScriptedLeader], error: Exception
) -> None:
    """Its application may be busy with a batch, and make no call, for long."""
    monkeypatch.setattr(session, "_LONGEST_RETRY_SECONDS", 0.2)
    leader = kind()
    lost: list[bool] = []
    document = {"term": 1, "generation": 1, "epoch": 0, "origin": 1, "data_plane": "embedded", "buckets": []}
    reading = Session(
        leader,
        "topic://a/b/c",
        "s",
        "me",
        on_change=lambda: None,
        on_lost=lambda: lost.append(reading.is_lost),
    )
    with closing(reading):
        leader.feed().say("assignment", document)
        wait_until(lambda: reading.assignment)

        def refuse(*_arguments: object, **_options: object) -> None:
            raise error

        monkeypatch.setattr(leader, "ask", refuse)
        leader.feed().hang_up()

        wait_until(lambda: lost, timeout_seconds=5, message="the consumer is told")
    assert set(lost) == {True}
