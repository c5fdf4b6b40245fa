"""Defines positions in embedded logs: the timeline in which a message was written, then the message's offset.

A server that was restarted or replaced begins a timeline with the first batch that it appends to a log
(sql/schema/80_embedded_logs.sql). If an offset is reused after a failover or a restore, its message has
another timeline, so no position refers to two messages. Positions that were stored before logs had timelines
consist of the offset alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from controller import client_metrics, telemetry
from controller.dataplane.log_client import Position
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import LogShortened
from controller.domain.hash_range import FULL_RANGE, HashRange

log = telemetry.get_logger(__name__)

_MISSED = 'SELECT "position", next_offset FROM embedded.missed(%s, %s, %s, %s, %s, %s)'


class Place(NamedTuple):
    """The offset that a reader reads next, and the timeline of the message before that offset. The timeline
    is 0 at the beginning of a log.
    """

    offset: int
    timeline: int

    @property
    def last(self) -> Position:
        """Position of the message before the offset."""
        return self.timeline, self.offset - 1


class Timelines:
    """The timelines of a range of offsets, as the schema `embedded` returns them."""

    def __init__(self, rows: Sequence[Sequence[int]] | None) -> None:
        """Use `rows` of first offset and timeline, in rising order. Offsets before the first row have
        timeline 0; so have all offsets if `rows` is empty or None.
        """
        self._first_offsets = [first_offset for first_offset, _ in rows or ()]
        self._timelines = [0, *(timeline for _, timeline in rows or ())]

    def position(self, offset: int) -> Position:
        """Return the position of the message at the offset."""
        return self._timelines[bisect_right(self._first_offsets, offset)], offset


def timeline_and_offset(position: Position) -> tuple[int | None, int]:
    """Return the timeline and the offset of a position. The timeline is None if the position consists of the offset
    alone, because the position was stored before logs had timelines. The position must not be empty.
    """
    *timeline, offset = position
    return (timeline[0] if timeline else None), offset


def demand_present(
    calls: PostgresCalls,
    backing_topic: str,
    log_id: int,
    subscription: str,
    place: Place,
    bucket: HashRange = FULL_RANGE,
) -> None:
    """Raise LogShortened, which is also counted and logged, if the log lacks the message before `place`. A reader
    calls this after the server refused its statement. Return if the log has the message, and also if there is no log
    or no cursor.

    `bucket` is the range of bucket hashes that the reader had. The message of the error says that reading continues
    at the lowest position of a part of the cursor in this range. Makes one call; raises the errors of
    `PostgresCalls.statement`.
    """
    parameters = (log_id, subscription, bucket.start, bucket.end, *place)
    for next_offset, end in calls.rows(f"check {backing_topic}", _MISSED, parameters):
        raise shortened(backing_topic, subscription, place.offset, end, next_offset)


def shortened(
    backing_topic: str,
    subscription: str | None,
    place: int,
    end: int,
    next_offset: int,
    *,
    resume: Position | None = None,
) -> LogShortened:
    """Count and log that the log lacks the message before offset `place`, at which a reader wanted to continue.
    Return the error for the caller to raise.

    `end` is the offset behind the log's last message, and `next_offset` the offset at which reading continues; both
    appear in the message. `resume` is the position that the error carries, after which the application continues;
    None if the server keeps the position. `subscription` is None for a reader without a subscription.
    """
    client_metrics.SHORTENED_LOGS.inc()
    log.warning(
        "log shortened",
        log=backing_topic,
        subscription=subscription,
        own_position=place,
        log_end=end,
        server_position=next_offset,
    )
    finding = (
        f"position {place} is beyond the end {end}"
        if place > end
        else f"other messages were written below position {place}"
    )
    error = LogShortened(
        f"the log became shorter: {finding} of {backing_topic}; reading continues at {next_offset}",
        delay_seconds=0.0,
    )
    error.resume = resume
    return error
