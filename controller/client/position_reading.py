"""Reads a segment from a position, for consumers that store their own positions.

Returns messages, and True or False for the end of the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller import client_metrics
from controller.client.reader_slot import ReaderSlot
from controller.client.segment_readers import SegmentReaders
from controller.dataplane.log_client import LogClient, LogMessage, Position, PositionReader
from controller.domain.errors import DataPlaneUnavailable, LogShortened


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages that were read.

    `is_end` is True if no message can follow. `unanswered` is the error if the log could not be queried for
    its end; there are no messages then.
    """

    messages: Sequence[LogMessage]
    is_end: bool
    unanswered: DataPlaneUnavailable | None = None


def open_at(
    logs: LogClient, segment_reader: ReaderSlot[PositionReader], after: Position | None
) -> PositionReader:
    """Open a reader behind the position `after`; None: at the beginning. Raises the errors of
    `LogClient.open_reader_at` except LogShortened.

    If the log became shorter, open the reader behind the last message that the log shares with the history of
    the position, and set `segment_reader.setback` to the reason. The messages that follow belong to the log's
    own history, and none of them was read.
    """
    try:
        return logs.open_reader_at(segment_reader.backing_topic, after, on_arrival=segment_reader.notify)
    except LogShortened as error:
        segment_reader.setback = error.message
        return logs.open_reader_at(
            segment_reader.backing_topic, error.resume, on_arrival=segment_reader.notify
        )


def read_on(
    readers: SegmentReaders[PositionReader],
    segment_reader: ReaderSlot[PositionReader],
    reader: PositionReader,
    limit: int,
    *,
    is_sealed: bool,
) -> Reading | None:
    """Return the next messages of the segment, at most `limit` and perhaps none, and whether the segment is read to
    its end. Return None if this call began a query of the log in a background thread; a later call returns the result
    of the query. Also return None if the log is out of reach (DataPlaneUnavailable); its reader is then closed and
    reopened after a delay.

    `is_sealed` is True if the consumer knows that the log is complete; otherwise the end is never reported. A log is
    sealed before its children are known, and its end counts only when the children are known. If a query is in
    progress (`ReaderSlot.is_queried`), the call waits for its end.

    If only the query for the end failed, the result has no messages, and the error is recorded in `segment_reader`
    for a retry. Any other result clears the recorded error, and resets the delays of retries. Messages also clear the
    setback. Raises DataGone, and the other errors of the reader.
    """
    try:
        result: Reading | None = segment_reader.take_result()
        if result is None:
            result = _read_or_ask(readers, segment_reader, reader, limit, is_sealed=is_sealed)
    except DataPlaneUnavailable as error:
        readers.reopen(segment_reader, error)
        return None
    if result is not None and result.unanswered is not None:  # the reader stays open
        segment_reader.signal.set()
        segment_reader.fail(result.unanswered)
    elif result is not None:
        segment_reader.succeed()
        readers.settled(segment_reader.segment_id)
        if result.messages:
            client_metrics.CONSUMER_MESSAGES.labels("checkpoint").inc(len(result.messages))
            segment_reader.signal.set()
            segment_reader.setback = None
    return result


def _read_or_ask(
    readers: SegmentReaders[PositionReader],
    segment_reader: ReaderSlot[PositionReader],
    reader: PositionReader,
    limit: int,
    *,
    is_sealed: bool,
) -> Reading | None:
    """Read the next messages of the segment, at most `limit`, and return them. If the read may block, begin instead a
    query in a background thread that reads, and return None. If a segment with `is_sealed` has no next message, begin
    a query whether the log is at its end, and return None. If a segment without `is_sealed` has no next message, the
    result has no messages and no end.

    The result of the query is a `Reading`, which `take_result` of `segment_reader` returns. Raises the errors of
    `PositionReader.read`.
    """
    segment_reader.signal.clear()
    is_far = reader.may_wait()
    messages = () if is_far else reader.read(limit)
    if messages or not (is_far or is_sealed):
        return Reading(messages, is_end=False)

    def ask() -> Reading:
        messages = reader.read(limit) if is_far else ()
        try:
            return Reading(messages, not messages and is_sealed and reader.is_at_end())
        except DataPlaneUnavailable as error:
            return Reading(messages, is_end=False, unanswered=error)

    readers.ask(segment_reader, ask)
    return None
