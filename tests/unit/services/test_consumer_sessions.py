"""One subscription's sessions in memory, told the time."""

from __future__ import annotations

from controller.services.consumer_sessions.requests import PushedAssignment
from controller.services.consumer_sessions.sessions import SubscriptionSessions
from controller.services.consumer_sessions.timing import ConsumerTiming


class Heard:
    """A stream that keeps what it was told."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def push(self, assignment: PushedAssignment) -> None:
        """Nothing is pushed here."""

    def end(self, reason: str) -> None:
        self.ended.append(reason)


def test_who_registers_again_at_the_end_of_grace_has_it_anew() -> None:
    known = SubscriptionSessions(ConsumerTiming(10.0))
    known.restore("a", "1", now=0.0)
    known.begin("a", "1", now=9.9)

    assert known.expired(now=10.1) == []
    assert known.expired(now=19.9) == [("a", "1")]


def test_a_stream_that_was_replaced_ends_nothing_when_it_breaks() -> None:
    known, old, new = SubscriptionSessions(ConsumerTiming(10.0)), Heard(), Heard()
    known.begin("a", "1", now=0.0)
    known.attach("a", "1", old, now=1.0)
    known.attach("a", "1", new, now=2.0)

    known.detach("a", old, now=3.0)

    assert old.ended == ["superseded"]
    assert known.expired(now=100.0) == []


def test_who_is_not_heard_is_disconnected_and_then_expires() -> None:
    known, stream = SubscriptionSessions(ConsumerTiming(10.0)), Heard()
    known.begin("a", "1", now=0.0)
    known.attach("a", "1", stream, now=0.0)

    known.hang_up_silent(now=5.0)
    assert stream.ended == []
    known.hang_up_silent(now=5.1)

    assert stream.ended == ["silent"]
    assert known.expired(now=15.0) == []
    assert known.expired(now=15.2) == [("a", "1")]


def test_a_goodbye_that_could_not_be_written_ends_the_session_all_the_same() -> None:
    known, stream = SubscriptionSessions(ConsumerTiming(10.0)), Heard()
    known.begin("a", "1", now=0.0)
    known.attach("a", "1", stream, now=0.0)

    known.arm("a", "1", now=1.0)

    assert known.expired(now=11.0) == [("a", "1")]
