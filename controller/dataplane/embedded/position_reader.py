"""Reading one embedded log from a position on, without a cursor: the application keeps the position.

Nothing is kept for such a reader, so nothing holds up the trimming of the log. What was trimmed before it was read is DataGone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.dataplane.base import LogMessage
from controller.dataplane.embedded.reader import MAX_READ_BYTES, milliseconds
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import DataGone, InvalidInput

_READ_AT = """
SELECT log_offset, published_at, key, payload, first_offset, is_at_end FROM embedded.read_at(%s, %s, %s, %s)
"""


class EmbeddedPositionReader:
    """A `PositionReader`; `EmbeddedLogClient.open_reader_at` makes it. For one thread."""

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        log_id: int,
        next_offset: int,
        on_close: Callable[[], None],
    ) -> None:
        self._calls, self._backing_topic, self._log_id = calls, backing_topic, log_id
        self._next, self._on_close = next_offset, on_close

    def may_wait(self) -> bool:
        """Never: each read is a call to the server that has all logs."""
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit` and some 8 MiB; empty when there is none now."""
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        messages, _ = self._look(limit)
        if messages:
            (self._next,) = (messages[-1].position[0] + 1,)
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
            cursor.execute(_READ_AT, (self._log_id, self._next, limit, MAX_READ_BYTES))
            rows = cursor.fetchall()
        if not rows:
            raise DataGone(
                f"{self._backing_topic} was deleted before it was read to its end; begin anew where messages are left"
            )
        *found, (_, _, _, _, first_offset, is_at_end) = rows
        if first_offset > self._next:
            raise gone(self._backing_topic, self._next, first_offset)
        messages = [
            LogMessage((at,), milliseconds(when), None if key is None else bytes(key), bytes(payload))
            for at, when, key, payload, _, _ in found
        ]
        return messages, bool(is_at_end)


def gone(backing_topic: str, wanted: int, first_offset: int) -> DataGone:
    """What was to be read next is trimmed."""
    return DataGone(
        f"{backing_topic}: messages {wanted} to {first_offset - 1} were trimmed before they were read; begin anew where "
        "messages are left, and give the logs the retention that you need"
    )
