"""A close of a session in the middle of anything: nothing is begun after it, and the answers that come late change nothing.

Where the session is when it is closed, what is answered, and when that arrives (before the goodbye is heard, after it, after the
close has returned) are all combined. No time passes: the answers are the test's, and so is the clock by which a close waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product

import pytest

from controller.client import session
from controller.client.session import Session
from controller.domain.errors import CleaveError, FencedOut, LostRace, SessionExpired, StoreUnavailable
from tests.support.scripted_leader import BackgroundCall, Call, HandClock, ScriptedLeader
from tests.support.waiting import wait_until

NOTHING = (
    "assignment",
    {"term": 1, "generation": 1, "epoch": 0, "origin": 1, "data_plane": "embedded", "buckets": []},
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock of a close. And nobody waits between two tries."""
    clock = HandClock()
    monkeypatch.setattr(session, "time", clock)
    monkeypatch.setattr(session, "_FIRST_RETRY_SECONDS", 0.0)
    return clock


class Run:
    """A session and its leader."""

    def __init__(self, *held: str) -> None:
        """`held`: what waits for its answer from the beginning on."""
        self._before = {*threading.enumerate()}
        self.leader = ScriptedLeader(lambda _call: None, *held)
        self.session = Session(self.leader, "topic://a/b/c", "s", "me", on_change=lambda: None)

    @property
    def threads(self) -> list[threading.Thread]:
        """The session's own that go on."""
        return [
            one
            for one in threading.enumerate()
            if one not in self._before and one.name.startswith("cleave-session")
        ]

    def tell(self) -> None:
        """What it owns, over its first stream."""
        self.leader.feed().say(*NOTHING)
        self.leader.feed().say("heartbeat", {})
        wait_until(lambda: self.session.assignment is not None)
        self.leader.call("pulse")  # what is counted later comes after it

    def demand_over(self, began: int) -> None:
        """Of all calls since the first `began` of them only goodbyes came, each of the life that was there, and nothing goes on."""
        wait_until(lambda: not self.threads, message="its threads end")
        calls = self.leader.calls
        assert {one.what for one in calls[began:]} <= {"goodbye"}
        assert {one.incarnation for one in self.leader.of("goodbye")} == {
            self.leader.of("register")[-1].incarnation
        }
        assert not self.session.is_current
        assert self.leader.open_feeds == 0


# Where it is when it is closed: each gives what waits for an answer there.


def attaching() -> tuple[Run, Call]:
    """For the first time."""
    run = Run("attach")
    return run, run.leader.call("attach")


def pulsing() -> tuple[Run, Call]:
    """Connected, and the answer to a heartbeat is under way."""
    run = Run("pulse")
    run.tell()
    return run, run.leader.call("pulse")


def reconnecting(held: str = "register") -> tuple[Run, Call]:
    """Its stream broke: it registers again. `held`: what waits for its answer."""
    run = Run()
    run.tell()
    run.leader.held |= {held}
    run.leader.feed().hang_up()
    return run, run.leader.call(held, 2)


def reconnecting_twice() -> tuple[Run, Call]:
    """The first register was not answered in time, and may arrive whenever it likes; the second is under way."""
    run, first = reconnecting()
    first.answer(StoreUnavailable("nobody answered in time", 0.0))
    return run, run.leader.call("register", 3)


def attaching_again() -> tuple[Run, Call]:
    """The register was answered, the stream is asked for."""
    return reconnecting("attach")


def beginning_anew() -> tuple[Run, Call]:
    """It had expired: it registers under another incarnation."""
    run, first = reconnecting()
    first.answer(SessionExpired("away for too long", 0.0))
    return run, run.leader.call("register", 3)


PLACES = (attaching, pulsing, reconnecting, reconnecting_twice, attaching_again, beginning_anew)
ANSWERS: tuple[CleaveError | None, ...] = (
    None,
    StoreUnavailable("nobody leads", 0.0),
    LostRace("register again", 0.0),
    SessionExpired("away for too long", 0.0),
    FencedOut("has left"),
)


# When that answer comes.


def before_the_goodbye(run: Run, held: Call, answer: CleaveError | None, _clock: HandClock) -> None:
    """The goodbye has been said, and is not heard before whoever waited for that answer has gone on."""
    closing = BackgroundCall(run.session.close)
    goodbye = run.leader.call("goodbye")
    held.answer(answer)
    wait_until(lambda: not held.thread.is_alive())
    goodbye.answer()
    closing.result()


def after_the_goodbye(run: Run, held: Call, answer: CleaveError | None, _clock: HandClock) -> None:
    """While the close waits for the session's thread."""
    closing = BackgroundCall(lambda: run.session.close(60.0))
    run.leader.call("goodbye").answer()
    held.answer(answer)
    closing.result()


def after_the_close(run: Run, held: Call, answer: CleaveError | None, clock: HandClock) -> None:
    """Its time was over."""
    closing = BackgroundCall(run.session.close)
    goodbye = run.leader.call("goodbye")
    clock.seconds = 1e9
    goodbye.answer()
    closing.result()
    assert not run.session.is_current
    held.answer(answer)


MOMENTS = (before_the_goodbye, after_the_goodbye, after_the_close)


@pytest.mark.parametrize(
    ("place", "answer", "moment"),
    [*product(PLACES, ANSWERS, MOMENTS)],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_after_a_close_nothing_is_begun_and_the_goodbye_is_of_the_life_that_was_there(
    clock: HandClock,
    place: Callable[[], tuple[Run, Call]],
    answer: CleaveError | None,
    moment: Callable[[Run, Call, CleaveError | None, HandClock], None],
) -> None:
    run, held = place()
    run.leader.held = {"goodbye"}
    began = len(run.leader.calls)

    moment(run, held, answer, clock)

    run.demand_over(began)


@pytest.mark.parametrize("place", PLACES, ids=lambda one: one.__name__)
def test_a_goodbye_that_is_not_heard_is_said_again_for_the_same_life(
    place: Callable[[], tuple[Run, Call]],
) -> None:
    """The first worker may be stopped, the second may lead nothing; what it waited for before is answered in between."""
    run, held = place()
    run.leader.held = {"goodbye"}
    began = len(run.leader.calls)

    closing = BackgroundCall(run.session.close)
    run.leader.call("goodbye").answer(StoreUnavailable("nobody answered in time", 0.0))
    second = run.leader.call("goodbye", 2)
    held.answer()
    second.answer(StoreUnavailable("another worker leads this topic now", 0.0))
    run.leader.call("goodbye", 3).answer()
    closing.result()

    run.demand_over(began)
    assert len(run.leader.of("goodbye")) == 3


def test_who_was_told_that_it_left_leaves_no_thread_behind_when_it_is_closed() -> None:
    """Somebody has said goodbye for it, with its own words."""
    run = Run()
    run.tell()
    run.leader.feed().say("end", {"reason": "left"})
    wait_until(lambda: run.leader.open_feeds == 0)

    run.session.close()

    wait_until(lambda: not run.threads, message="its threads end")
    assert len(run.leader.of("register")) == 1


def test_a_token_function_that_fails_does_not_keep_a_closed_session_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run()
    run.tell()
    run.leader.held = {"goodbye"}
    began = len(run.leader.calls)

    closing = BackgroundCall(run.session.close)
    run.leader.call("goodbye").answer(RuntimeError("the vault is sealed"))
    closing.result()

    run.demand_over(began)
    assert "RuntimeError: the vault is sealed" in caplog.text
