"""One subscription's sessions in memory, told the time."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from controller.domain.assignment import SegmentBucket
from controller.domain.bucket_ownership import BucketOwner
from controller.domain.hash_range import HashRange
from controller.services.consumer_sessions.requests import PushedAssignment
from controller.services.consumer_sessions.sessions import SubscriptionSessions
from controller.services.consumer_sessions.settlement import ConnectionState, Settlement
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.topics.consumers import ConsumerRow


class RecordedStream:
    """A stream that keeps what it was told."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def push(self, assignment: PushedAssignment) -> None:
        """Nothing is pushed here."""

    def end(self, reason: str) -> None:
        self.ended.append(reason)


def connected() -> tuple[SubscriptionSessions, RecordedStream]:
    """Sessions with one consumer, `a`, which began and attached its stream at 0."""
    known, stream = SubscriptionSessions(ConsumerTiming(10.0)), RecordedStream()
    known.begin("a", "1", now=0.0)
    known.attach("a", "1", stream, now=0.0)
    return known, stream


def test_who_registers_again_at_the_end_of_grace_has_it_anew() -> None:
    known = SubscriptionSessions(ConsumerTiming(10.0))
    known.restore("a", "1", now=0.0)
    known.begin("a", "1", now=9.9)

    assert known.expired(now=10.1) == []
    assert known.expired(now=19.9) == [("a", "1")]


def test_a_stream_that_was_replaced_ends_nothing_when_it_breaks() -> None:
    known, old = connected()
    known.attach("a", "1", RecordedStream(), now=2.0)

    known.detach("a", old, now=3.0)

    assert old.ended == ["superseded"]
    assert known.expired(now=100.0) == []


def test_who_is_not_heard_is_disconnected_and_then_expires() -> None:
    known, stream = connected()

    known.disconnect_silent(now=5.0)
    assert stream.ended == []
    known.disconnect_silent(now=5.1)

    assert stream.ended == ["silent"]
    assert known.expired(now=10.0) == []
    assert known.expired(now=10.1) == [("a", "1")], "the grace period counts from when it was last heard"


def test_whose_stream_ends_has_the_grace_period_to_come_back() -> None:
    known, stream = connected()

    known.detach("a", stream, now=4.0)

    assert known.expired(now=13.9) == []
    assert known.expired(now=14.0) == [("a", "1")]


def test_a_leader_that_was_busy_for_long_leaves_who_was_silent_time_to_come_back() -> None:
    known, _ = connected()

    known.disconnect_silent(now=50.0)

    assert known.expired(now=54.9) == []


def test_a_goodbye_that_could_not_be_written_ends_the_session_all_the_same() -> None:
    known, _ = connected()

    known.end_after_grace("a", "1", now=1.0)

    assert known.expired(now=11.0) == [("a", "1")]


def row(name: str, away_seconds: float | None = None) -> ConsumerRow:
    """Of a consumer that was noted as away for so long, or not at all."""
    return ConsumerRow(1, "billing", name, datetime(2026, 11, 1, tzinfo=UTC), "1", away_seconds)


def settled(*rows: ConsumerRow, owners: tuple[BucketOwner, ...] = ()) -> Settlement:
    """What a transaction left of these consumers."""
    return Settlement(1, 0, owners, Mock(), {one.name: one for one in rows}, "t", "embedded", {}, 0)


def owner(consumer: str, start: int, asked_seconds: float = 0.0) -> BucketOwner:
    """Of a bucket that begins there."""
    bucket = SegmentBucket(0, HashRange(start, start + 9))
    return BucketOwner(bucket, consumer, 1, asked_seconds > 0.0, None, asked_seconds)


def test_who_is_back_in_a_moment_was_never_away() -> None:
    known, stream = connected()
    known.settled = settled(row("a"))
    assert known.note_at == math.inf, "it is connected"

    known.detach("a", stream, now=1.0)
    assert known.note_at == 3.0
    assert known.connection_state(2.9) == ConnectionState(set(), {})
    assert known.connection_state(3.0) == ConnectionState(set(), {"a": 2.0})

    known.attach("a", "1", RecordedStream(), now=2.9)
    assert known.note_at == math.inf
    assert known.connection_state(9.0) == ConnectionState({"a"}, {})


def test_what_is_noted_is_not_noted_again_and_is_taken_back_at_once() -> None:
    known = SubscriptionSessions(ConsumerTiming(10.0))
    known.restore("a", "1", now=0.0)
    known.settled = settled(row("a", 2.0))
    assert known.note_at == math.inf

    known.attach("a", "1", RecordedStream(), now=5.0)
    assert known.note_at == -math.inf


def test_being_away_is_not_the_grace_period() -> None:
    known, stream = connected()
    known.detach("a", stream, now=1.0)
    known.begin("a", "1", now=9.0)

    assert known.connection_state(10.0).away_seconds == {"a": 9.0}, (
        "registered anew, and still without a stream"
    )
    assert known.expired(now=18.9) == []
    assert known.expired(now=19.0) == [("a", "1")]


def test_who_hangs_is_away_since_it_was_last_heard() -> None:
    known = SubscriptionSessions(ConsumerTiming(10.0))
    known.begin("a", "1", now=0.0)
    known.attach("a", "1", RecordedStream(), now=1.0)
    known.disconnect_silent(now=6.5)

    assert known.connection_state(6.5).away_seconds == {"a": 5.5}
    assert known.expired(now=11.4) == []


def test_rows_are_changed_only_where_they_say_something_else() -> None:
    rows = {
        one.name: one
        for one in (row("here"), row("gone", 9.0), row("back", 9.0), row("lost"), row("moment", 9.0))
    }
    presence = ConnectionState({"here", "back"}, {"gone": 11.0, "lost": 2.0, "nobody": 5.0})

    assert presence.row_changes(rows, ()) == {"back": None, "lost": 2.0}
    assert presence.row_changes(rows, {"gone", "lost"}) == {"back": None, "gone": None}


@pytest.mark.parametrize(
    ("asked", "away", "is_overdue", "again"),
    [
        (0.0, None, False, math.inf),
        (0.0, 2.0, False, 18.0),
        (0.0, 20.5, True, math.inf),
        (5.0, 2.0, False, 15.0),
        (2.0, 5.0, False, 15.0),
        (20.5, 5.0, True, 15.0),
        (20.5, None, True, math.inf),
    ],
)
def test_a_bucket_of_who_is_away_becomes_overdue_as_one_that_is_not_let_go_of(
    asked: float, away: float | None, is_overdue: bool, again: float
) -> None:
    found = settled(row("a", away), row("b"), owners=(owner("a", 0, asked), owner("b", 10)))

    assert [one.consumer for one in found.overdue(ConsumerTiming(60.0))] == ["a"] * is_overdue
    assert found.settle_again_seconds(ConsumerTiming(60.0)) == again
    assert found.away == (away is not None)
