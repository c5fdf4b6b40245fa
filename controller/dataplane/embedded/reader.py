"""Reading one embedded log for one subscription, as the cursor's owner of one generation.

Each statement carries the generation, so a reader that was replaced, or whose cursor was moved by hand, learns
it from its next call and can neither read on nor acknowledge. Not for use by two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from controller.dataplane.base import LogMessage, Position
from controller.dataplane.embedded.names import ARRIVALS, no_cursor
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import CleaveError, FencedOut, InvalidInput, LostRace

MAX_READ_BYTES = 8 * 1024 * 1024
"""A read stops before the message that would take it beyond this, but always gives one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# Offsets are dense, so a range of them works as a limit, and the planner cannot misjudge it.
_READ = """
WITH held AS (
    SELECT FROM embedded.cursor
     WHERE log_id = %(log)s AND subscription = %(subscription)s AND generation = %(generation)s
), page AS (
    SELECT log_offset, published_at, key, payload, sum(octet_length(payload)) OVER (ORDER BY log_offset) AS bytes
      FROM embedded.message WHERE log_id = %(log)s AND log_offset >= %(start)s AND log_offset < %(start)s + %(limit)s
)
SELECT log_offset, published_at, key, payload
  FROM held LEFT JOIN page ON page.bytes <= %(bytes)s OR page.log_offset = %(start)s ORDER BY log_offset
"""
_ACKNOWLEDGE = """
UPDATE embedded.cursor SET position = greatest(position, %s), msg_out = msg_out + %s, byte_out = byte_out + %s
 WHERE log_id = %s AND subscription = %s AND generation = %s
"""
_DRAINED = """
SELECT l.terminated_at IS NOT NULL AND c.position = l.next_offset
  FROM embedded.log l JOIN embedded.cursor c USING (log_id)
 WHERE c.log_id = %s AND c.subscription = %s AND c.generation = %s
"""
_RELEASE = """
WITH released AS (
    UPDATE embedded.cursor SET owner = NULL, generation = generation + 1
     WHERE log_id = %s AND subscription = %s AND generation = %s RETURNING log_id)
SELECT pg_notify(%s, log_id::text) FROM released
"""


class EmbeddedReader:
    """A `LogReader`; `EmbeddedLogClient.open_reader` makes it."""

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        subscription: str,
        owner: str,
        log_id: int,
        generation: int,
        position: int,
        on_close: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._backing_topic, self._subscription, self._owner = backing_topic, subscription, owner
        self._log_id, self._generation = log_id, generation
        self._next = position
        self._unreported = [0, 0]  # messages and bytes delivered since the last acknowledgement
        self._on_close = on_close
        self._closed = False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit` and some 8 MiB; empty when there is none now."""
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        with self._calls.statement(f"read {self._backing_topic}") as cursor:
            cursor.execute(
                _READ,
                {
                    "log": self._log_id,
                    "subscription": self._subscription,
                    "generation": self._generation,
                    "start": self._next,
                    "limit": limit,
                    "bytes": MAX_READ_BYTES,
                },
            )
            rows = cursor.fetchall()
        if not rows:
            raise self._lost()
        if rows[0][0] is None:
            return ()
        messages = [
            LogMessage(
                (at,), (when - _EPOCH) // _MILLISECOND, None if key is None else bytes(key), bytes(payload)
            )
            for at, when, key, payload in rows
        ]
        self._next = rows[-1][0] + 1
        self._unreported[0] += len(messages)
        self._unreported[1] += sum(len(m.payload) + len(m.key or b"") for m in messages)
        return messages

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to and including `position`; it also reports what was delivered."""
        (offset,) = position
        if offset >= self._next:
            raise InvalidInput(
                f"{self._backing_topic}: offset {offset} was not read yet (next is {self._next}); "
                "acknowledge what was read"
            )
        with self._calls.statement(f"acknowledge {self._backing_topic}") as cursor:
            cursor.execute(
                _ACKNOWLEDGE,
                (offset + 1, *self._unreported, self._log_id, self._subscription, self._generation),
            )
            if cursor.rowcount == 0:
                raise self._lost()
        self._unreported = [0, 0]

    def is_drained(self) -> bool:
        """Whether the log is terminated and acknowledged to its end."""
        with self._calls.statement(f"look at {self._backing_topic}") as cursor:
            cursor.execute(_DRAINED, (self._log_id, self._subscription, self._generation))
            row = cursor.fetchone()
        if row is None:
            raise self._lost()
        return bool(row[0])

    def close(self) -> None:
        """Let go of the cursor. If that fails, the next owner finds this one gone and cuts it off."""
        if self._closed:
            return
        self._closed = True
        self._on_close()
        with suppress(CleaveError), self._calls.statement(f"let go of {self._backing_topic}") as cursor:
            cursor.execute(_RELEASE, (self._log_id, self._subscription, self._generation, ARRIVALS))

    def _lost(self) -> CleaveError:
        """The error that says who took the cursor, or what became of it."""
        with self._calls.statement(f"look at {self._backing_topic}") as cursor:
            cursor.execute(
                "SELECT owner FROM embedded.cursor WHERE log_id = %s AND subscription = %s",
                (self._log_id, self._subscription),
            )
            row = cursor.fetchone()
        if row is None:
            return no_cursor(self._backing_topic, self._subscription)
        if row[0] == self._owner:
            return FencedOut(
                f"{self._backing_topic}: a newer reader named {self._owner!r} has the cursor; this one is "
                "stale and must stop"
            )
        return LostRace(
            f"{self._backing_topic}: the cursor of {self._subscription!r} moved on (owner now {row[0]!r}); "
            "open a new reader",
            delay_seconds=0.0,
        )
