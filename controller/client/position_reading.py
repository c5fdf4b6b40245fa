"""Reads a segment from a position, for consumers that store their own positions.

Returns messages, and True or False for the end of the segment.
"""

from __future__ import annotations

from controller import client_metrics
from controller.client.reader_set import Reading
from controller.client.reader_slot import ReaderSlot
from controller.client.segment_readers import SegmentReaders
from controller.dataplane.log_client import LogClient, Position, PositionReader
from controller.domain.errors import DataGone, DataPlaneUnavailable, LogShortened, Terminal


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
    reopened after a delay. And return None if the log cannot be read (Terminal); the error is recorded in
    `segment_reader`, and the log is read again after a delay.

    `is_sealed` is True if the consumer knows that the log is complete; otherwise the end is never reported. A log is
    sealed before its children are known, and its end counts only when the children are known. If a query is in
    progress (`ReaderSlot.is_queried`), the call waits for its end.

    If only the query for the end failed, the result has no messages, and the error is recorded in `segment_reader`
    for a retry. Any other result clears the recorded error, and resets the delays of retries. Messages also clear the
    setback. Raises DataGone, and the other errors of the reader that are not Terminal.
    """
    try:
        is_over = reader.is_at_end if is_sealed else None
        result = readers.read_or_ask(segment_reader, reader, limit, is_over)
    except DataPlaneUnavailable as error:
        readers.reopen(segment_reader, error)
        return None
    except DataGone:  # raised although other segments have messages, because reading on would skip messages
        raise
    except Terminal as error:  # of this segment alone; other segments continue
        segment_reader.signal.set()
        segment_reader.fail(error)
        return None
    if result is not None and result.unanswered is not None:  # the reader stays open
        segment_reader.signal.set()
        segment_reader.fail(result.unanswered)
    elif result is not None:
        segment_reader.succeed()
        readers.settled(segment_reader)
        if result.messages:
            client_metrics.CONSUMER_MESSAGES.labels("checkpoint").inc(len(result.messages))
            segment_reader.signal.set()
            segment_reader.setback = None
    return result
