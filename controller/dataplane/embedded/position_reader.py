"""Reads one embedded log from a position without a cursor, because the application stores the position.

Nothing is stored for such a reader, so it does not delay the trimming of the log. Messages that were trimmed
before they were read are reported as DataGone. If the log lacks the last message that the reader returned,
the reader must be opened again where the log's history continues (`timelines`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.dataplane.embedded.reader import MAX_READ_BYTES, message
from controller.dataplane.embedded.timelines import Place, Timelines
from controller.dataplane.log_client import LogMessage
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import DataGone, DataPlaneUnavailable
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess

_READ_AT = """
SELECT log_offset, published_at, key, payload, metadata::text, first_offset, is_at_end, timelines
  FROM embedded.read_at(%s, %s, %s, %s, %s, %s)
"""


class EmbeddedPositionReader(OneProcess):
    """A `PositionReader`: reads a log without a subscription. Created by `EmbeddedLogClient.open_reader_at`.
    For one thread.
    """

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        log_id: int,
        place: Place,
        on_close: Callable[[], None],
    ) -> None:
        """Read the log `log_id`, whose name is `backing_topic`, from `place` on. `close` calls `on_close`."""
        self._calls, self._backing_topic, self._log_id = calls, backing_topic, log_id
        self._place, self._on_close = place, on_close

    def may_wait(self) -> bool:
        """Return False: each read is a call, but to the one server that has all logs, so a background thread
        would not help.
        """
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages in order, and advance the reader behind them. The result has at most `limit`
        messages, at most 10,000, and about 8 MiB, but at least one message if there is one. The result is empty if no
        message follows at present, or if the log is terminated and read to its end (`is_at_end`).

        Raises InvalidInput for a limit below 1; DataGone if the log was deleted, or the next messages were trimmed;
        DataPlaneUnavailable if the log lacks the last message that was read, in which case the reader is useless and
        another one must be opened; DataPlaneUnavailable also if PostgreSQL cannot serve the call; and
        DataPlaneTimeout. An error does not advance the reader.
        """
        whole(limit, "read limit", 1)
        messages, _ = self._read_at(limit)
        if messages:
            timeline, offset = messages[-1].position
            self._place = Place(offset + 1, timeline)
        return messages

    def is_at_end(self) -> bool:
        """Return True if the log is terminated and read to its end. Does not advance the reader. Raises the
        errors of `read`.
        """
        messages, is_at_end = self._read_at(0)
        return is_at_end and not messages

    def close(self) -> None:
        """Close the reader."""
        self._on_close()

    def _read_at(self, limit: int) -> tuple[list[LogMessage], bool]:
        """Return two values: the next messages, within the limits of `read`; and True if the log is terminated and no
        message follows these messages. With a `limit` of 0, no messages are returned. Does not advance the reader.
        Raises DataGone, DataPlaneUnavailable and DataPlaneTimeout as `read` does.
        """
        place = (self._place.offset, limit, MAX_READ_BYTES, self._place.timeline)
        parameters = (self._log_id, *place, self._backing_topic)
        rows = self._calls.rows(f"read {self._backing_topic}", _READ_AT, parameters)
        if not rows:
            raise DataGone(
                f"{self._backing_topic} was deleted before it was read to its end; start again at the earliest stored message"
            )
        *message_rows, (scanned, *_, first_offset, is_at_end, timelines) = rows
        if scanned is None:
            raise DataPlaneUnavailable(
                f"{self._backing_topic}: the log became shorter; open a new reader", delay_seconds=0.0
            )
        if first_offset > self._place.offset:
            raise trimmed(self._backing_topic, self._place.offset, first_offset)
        position = Timelines(timelines).position
        messages = [message(position(at), *row) for at, *row, _, _, _ in message_rows]
        return messages, bool(is_at_end)


def beyond_end(backing_topic: str, offset: int, end: int) -> DataGone:
    """Return the error for position `offset` without a timeline, which is beyond `end`, the end of the log."""
    return DataGone(
        f"{backing_topic}: position {offset} is beyond the end {end} of the log, which became shorter, and the position names no "
        "timeline, so the first unread message is unknown; start at an earlier position or instant"
    )


def trimmed(backing_topic: str, first_unread: int, first_offset: int) -> DataGone:
    """Return the error for messages that were trimmed before they were read: `first_unread` and those behind
    it, up to before `first_offset`, the first offset of the log.
    """
    return DataGone(
        f"{backing_topic}: messages {first_unread} to {first_offset - 1} were trimmed before they were read; start again at the "
        "earliest stored message, and give the logs a longer retention"
    )
