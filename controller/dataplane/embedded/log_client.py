"""Producing to embedded logs, and opening readers on them.

A batch is one statement and so one transaction: stored whole or not at all, with the log's lock held only while the
server works (`embedded.append` says why it is not a COPY). The notification is a call of its own after the commit.
Inside the transaction it would make all appends of the database commit one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from sqlalchemy import URL

from controller.dataplane.base import OutgoingMessage
from controller.dataplane.embedded.names import ARRIVALS, checked, no_cursor, no_log
from controller.dataplane.embedded.reader import EmbeddedReader
from controller.dataplane.postgres_calls import PostgresCalls
from controller.dataplane.postgres_listener import PostgresListener
from controller.domain.errors import CleaveError, InvalidInput, LostRace, SegmentTerminated

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Keys and payloads of one append; the statement that carries them is twice as long."""

_TAKE = """
UPDATE embedded.cursor c SET owner = %(owner)s, generation = generation + 1
  FROM embedded.log l
 WHERE l.log_id = c.log_id AND l.name = %(log)s AND c.subscription = %(subscription)s
   AND (c.owner IS NULL OR c.owner = %(owner)s OR c.owner <> ALL (%(live)s))
RETURNING c.log_id, c.generation, c.position
"""
_WHY_NOT = """
SELECT c.subscription, c.owner FROM embedded.log l
  LEFT JOIN embedded.cursor c ON c.log_id = l.log_id AND c.subscription = %s WHERE l.name = %s
"""


class EmbeddedLogClient:
    """A `LogClient` on the PostgreSQL at `url`; connects at the first call, listens from the first reader on."""

    def __init__(self, url: str | URL, *, call_timeout_seconds: float = 5.0, pool_size: int = 5) -> None:
        self._url = url
        self._calls = PostgresCalls(url, call_timeout_seconds=call_timeout_seconds, pool_size=pool_size)
        self._lock = threading.Lock()
        self._listener: PostgresListener | None = None
        self._callbacks: dict[EmbeddedReader, tuple[str, Callable[[], None]]] = {}

    def append(
        self, backing_topic: str, messages: Sequence[OutgoingMessage], *, producer: str, sequence: int
    ) -> int:
        """Store a batch whole and return its length; see `LogClient.append`."""
        checked("producer", producer)
        if not messages:
            return 0
        size = sum(len(m.payload) + len(m.key or b"") for m in messages)
        if size > MAX_BATCH_BYTES:
            raise InvalidInput(
                f"a batch of {size} bytes for {backing_topic}: append at most {MAX_BATCH_BYTES} at once"
            )
        keys, payloads = _array(m.key for m in messages), _array(m.payload for m in messages)
        with self._calls.statement(f"append to {backing_topic}") as cursor:
            cursor.execute(
                "SELECT outcome, log_id FROM embedded.append(%s, %s, %s, %s, %s::bytea[], %s::bytea[])",
                (backing_topic, producer, sequence, size, keys, payloads),
            )
            ((outcome, log_id),) = cursor.fetchall()
        if outcome == "missing":
            raise no_log(backing_topic)
        if outcome == "terminated":
            raise SegmentTerminated(
                f"{backing_topic} is terminated; look up the layout again and send to its successors",
                delay_seconds=0.0,
            )
        self._ring(log_id)
        return len(messages)

    def open_reader(
        self,
        backing_topic: str,
        subscription: str,
        *,
        owner: str,
        live_owners: Collection[str],
        on_arrival: Callable[[], None],
    ) -> EmbeddedReader:
        """Take the cursor by compare-and-set and read from its position; see `LogClient.open_reader`."""
        self._listen()
        with self._calls.statement(f"read {backing_topic} as {owner!r}") as cursor:
            cursor.execute(
                _TAKE,
                {
                    "owner": checked("owner", owner),
                    "log": backing_topic,
                    "subscription": subscription,
                    "live": sorted(live_owners),
                },
            )
            taken = cursor.fetchone()
            if taken is None:
                cursor.execute(_WHY_NOT, (subscription, backing_topic))
                raise _refusal(backing_topic, subscription, cursor.fetchone())
        log_id, generation, position = taken
        reader = EmbeddedReader(
            self._calls,
            backing_topic=backing_topic,
            subscription=subscription,
            owner=owner,
            log_id=log_id,
            generation=generation,
            position=position,
            on_close=lambda: self._forget(reader),
        )
        with self._lock:
            self._callbacks[reader] = (str(log_id), on_arrival)
        return reader

    def close(self) -> None:
        """Close the readers and give back connections."""
        for reader in list(self._callbacks):
            reader.close()
        if self._listener is not None:
            self._listener.close()
        self._calls.close()

    def _forget(self, reader: EmbeddedReader) -> None:
        with self._lock:
            self._callbacks.pop(reader, None)

    def _listen(self) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = PostgresListener(
                    self._url,
                    [ARRIVALS],
                    on_notification=lambda _, log_id: self._call_back(log_id),
                    on_gap=lambda: self._call_back(None),
                )
                self._listener.start()

    def _call_back(self, log_id: str | None) -> None:
        with self._lock:
            wanted = [call for of_log, call in self._callbacks.values() if log_id is None or of_log == log_id]
        for call in wanted:
            call()

    def _ring(self, log_id: int) -> None:
        """Tell the readers. The batch is stored even if this fails, and readers look by themselves now and then."""
        with suppress(CleaveError), self._calls.statement("notify readers") as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", (ARRIVALS, str(log_id)))


def _array(values: Iterable[bytes | None]) -> str:
    """A bytea[] literal; psycopg2's own adaptation of a list makes a parse node a value, three times as slow."""
    return "{" + ",".join(["NULL" if v is None else f'"\\\\x{v.hex()}"' for v in values]) + "}"


def _refusal(
    backing_topic: str, subscription: str, found: tuple[str | None, str | None] | None
) -> CleaveError:
    if found is None:
        return no_log(backing_topic)
    held_subscription, owner = found
    if held_subscription is None:
        return no_cursor(backing_topic, subscription)
    return LostRace(
        f"{backing_topic}: {owner!r} still reads for {subscription!r}; try again when it lets go",
        delay_seconds=0.2,
    )
