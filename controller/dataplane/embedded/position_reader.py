"""Reading one embedded log from a position on, without a cursor: the application keeps the position.

Nothing is kept for such a reader, so nothing holds up the trimming of the log. What was trimmed before it was read is DataGone. A log
that does not have the last message that the reader was given is opened again, where its history goes on (`timelines`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.dataplane.base import LogMessage
from controller.dataplane.embedded.reader import MAX_READ_BYTES, message
from controller.dataplane.embedded.timelines import Place, Timelines
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import DataGone, DataPlaneUnavailable, InvalidInput
from controller.forks import OneProcess

_READ_AT = """
SELECT log_offset, published_at, key, payload, metadata, first_offset, is_at_end, timelines
  FROM embedded.read_at(%s, %s, %s, %s, %s, %s)
"""


class EmbeddedPositionReader(OneProcess):
    """A `PositionReader`; `EmbeddedLogClient.open_reader_at` makes it. For one thread."""

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        log_id: int,
        place: Place,
        on_close: Callable[[], None],
    ) -> None:
        self._calls, self._backing_topic, self._log_id = calls, backing_topic, log_id
        self._place, self._on_close = place, on_close

    def may_wait(self) -> bool:
        """Never: each read is a call to the server that has all logs."""
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit` and some 8 MiB; empty when there is none now."""
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        messages, _ = self._look(limit)
        if messages:
            timeline, offset = messages[-1].position
            self._place = Place(offset + 1, timeline)
        return messages

    def is_at_end(self) -> bool:
        """Whether the log is terminated and read to its end."""
        messages, is_at_end = self._look(0)
        return is_at_end and not messages

    def close(self) -> None:
        """Read no further."""
        self._on_close()

    def _look(self, limit: int) -> tuple[list[LogMessage], bool]:
        """The next messages, and whether nothing can follow upon them."""
        with self._calls.statement(f"read {self._backing_topic}") as cursor:
            place = (self._place.offset, limit, MAX_READ_BYTES, self._place.timeline)
            cursor.execute(_READ_AT, (self._log_id, *place, self._backing_topic))
            rows = cursor.fetchall()
        if not rows:
            raise DataGone(
                f"{self._backing_topic} was deleted before it was read to its end; begin anew where messages are left"
            )
        *found, (scanned, *_, first_offset, is_at_end, timelines) = rows
        if scanned is None:
            raise DataPlaneUnavailable(
                f"{self._backing_topic}: the log became shorter; open a new reader", delay_seconds=0.0
            )
        if first_offset > self._place.offset:
            raise gone(self._backing_topic, self._place.offset, first_offset)
        position = Timelines(timelines).position
        messages = [message(position(at), *row) for at, *row, _, _, _ in found]
        return messages, bool(is_at_end)


def unknown(backing_topic: str, offset: int, end: int) -> DataGone:
    """Return the error for a position without a timeline that lies beyond the end of the log."""
    return DataGone(
        f"{backing_topic}: position {offset} is beyond the end {end} of the log, which became shorter, and the position names no "
        "timeline, so the first message that was not read is not known; begin at an earlier position or instant"
    )


def gone(backing_topic: str, wanted: int, first_offset: int) -> DataGone:
    """What was to be read next is trimmed."""
    return DataGone(
        f"{backing_topic}: messages {wanted} to {first_offset - 1} were trimmed before they were read; begin anew where "
        "messages are left, and give the logs the retention that you need"
    )
