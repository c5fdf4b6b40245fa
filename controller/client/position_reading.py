"""Reads a whole segment from a position on, for consumers that keep their own places: messages, and whether that was the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller import client_metrics
from controller.client.segment_readers import SegmentReader, SegmentReaders
from controller.dataplane.base import LogClient, LogMessage, Position, PositionReader
from controller.domain.errors import DataPlaneUnavailable, LogShortened


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read just now, and whether nothing can come after it. `unanswered`: why that could not be asked for."""

    messages: Sequence[LogMessage]
    is_end: bool
    unanswered: DataPlaneUnavailable | None = None


def open_at(logs: LogClient, one: SegmentReader[PositionReader], after: Position | None) -> PositionReader:
    """Open a reader behind the position; where the log became shorter, behind the last message that its history shares with the
    position's. The messages after that are of the log's own history, and none of them was read.
    """
    try:
        return logs.open_reader_at(one.backing_topic, after, on_arrival=one.ring)
    except LogShortened as error:
        one.setback = error.message
        return logs.open_reader_at(one.backing_topic, error.resume, on_arrival=one.ring)


def read_on(
    readers: SegmentReaders[PositionReader],
    one: SegmentReader[PositionReader],
    reader: PositionReader,
    most_messages: int,
    *,
    is_sealed: bool,
) -> Reading | None:
    """The segment's next messages. None where there are none just now, or it is out of reach: then it is opened anew. What the log has
    to be asked for is asked aside and comes with a later look.

    `is_sealed`: whether the consumer knows that nothing more is written there. A log is sealed before its children are known, and
    its end counts only when they are.
    """
    try:
        found: Reading | None = one.take_answer()
        if found is None:
            found = _read_or_ask(readers, one, reader, most_messages, is_sealed=is_sealed)
    except DataPlaneUnavailable as error:
        readers.reopen(one, error)
        return None
    if found is not None and found.unanswered is not None:  # what is open goes on
        one.rung.set()
        one.fail(found.unanswered)
    elif found is not None:
        one.succeed()
        readers.settled(one.segment_id)
        if found.messages:
            client_metrics.CONSUMER_MESSAGES.labels("checkpoint").inc(len(found.messages))
            one.rung.set()
            one.setback = None
    return found


def _read_or_ask(
    readers: SegmentReaders[PositionReader],
    one: SegmentReader[PositionReader],
    reader: PositionReader,
    most_messages: int,
    *,
    is_sealed: bool,
) -> Reading | None:
    one.rung.clear()
    is_far = reader.may_wait()
    messages = () if is_far else reader.read(most_messages)
    if messages or not (is_far or is_sealed):
        return Reading(messages, is_end=False)

    def ask() -> Reading:
        found = reader.read(most_messages) if is_far else ()
        try:
            return Reading(found, not found and is_sealed and reader.is_at_end())
        except DataPlaneUnavailable as error:
            return Reading(found, is_end=False, unanswered=error)

    readers.ask(one, ask)
    return None
