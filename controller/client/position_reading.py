"""Reads a whole segment from a position on, for consumers that keep their own places: messages, and whether that was the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.client.segment_readers import SegmentReader, SegmentReaders
from controller.dataplane.base import LogMessage, PositionReader
from controller.domain.errors import DataPlaneUnavailable


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read just now, and whether nothing can come after it."""

    messages: Sequence[LogMessage]
    is_end: bool


def read_on(
    readers: SegmentReaders[PositionReader],
    one: SegmentReader[PositionReader],
    reader: PositionReader,
    most_messages: int,
    *,
    is_sealed: bool,
) -> Reading | None:
    """The segment's next messages. None where it is out of reach: then it is opened anew.

    `is_sealed`: whether the consumer knows that nothing more is written there. A log is sealed before its children are known, and
    its end counts only when they are.
    """
    one.rung.clear()
    messages: Sequence[LogMessage] = ()
    try:
        messages = reader.read(most_messages)
        one.succeed()
        readers.settled(one.segment_id)
        is_end = is_sealed and len(messages) < most_messages and reader.is_at_end()
    except DataPlaneUnavailable as error:
        if not messages:
            readers.reopen(one, error)
            return None
        is_end = False  # what was read before is handed out all the same
    if messages:
        one.rung.set()
    return Reading(messages, is_end)
