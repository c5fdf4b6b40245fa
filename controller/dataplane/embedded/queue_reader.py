"""Reading one embedded log as one of several who share its messages: each taken, acknowledged and given back by itself.

What a reader took is noted under its mark (sql/schema/86_embedded_queues.sql says how). It keeps that for `LIFE_SECONDS` after it was last heard of,
and `QueueKeeper` lets the server hear of all readers of a process. A batch is asked for under a number, so that one whose answer
was lost is given again. A log that does not have the highest message that the reader was given refuses a read (`timelines`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from controller import telemetry
from controller.clock import boot_seconds
from controller.dataplane.base import LogMessage, Position
from controller.dataplane.embedded.names import no_cursor
from controller.dataplane.embedded.reader import MAX_READ_BYTES, message
from controller.dataplane.embedded.timelines import Place, Timelines, demand_there
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import CleaveError, InvalidInput, LostRace
from controller.forks import OneProcess
from controller.repeating import repeat_every

log = telemetry.get_logger(__name__)

LIFE_SECONDS = 20.0
"""A reader that was not heard for so long is taken for dead, and what it holds is given to others."""
MAX_UNSETTLED = 10_000
"""Messages of one subscription on one log that are given out and not acknowledged; beyond, none is given out for the first
time.
"""
_TAKE = """
SELECT log_offset, published_at, key, payload, metadata, deliveries, timelines
  FROM embedded.queue_take(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_ACKNOWLEDGE = "SELECT embedded.queue_acknowledge(%s, %s, %s, %s::bigint[], %s::bigint[])"
_GIVE_BACK = "SELECT embedded.queue_give_back(%s, %s, %s, %s::bigint[], %s::bigint[], %s, %s)"
_KEEP = "SELECT mark FROM embedded.queue_keep(%s::text[], %s) AS known (mark)"
_IS_DRAINED = "SELECT embedded.queue_is_drained(%s, %s)"
_CLOSE = "SELECT embedded.queue_close(%s, %s, %s)"


class EmbeddedQueueReader(OneProcess):
    """A `QueueReader`; `EmbeddedLogClient.open_queue_reader` makes it. For one thread; it is kept alive by another."""

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        subscription: str,
        log_id: int,
        mark: str,
        life_seconds: float,
        heard_at: float,
        on_close: Callable[[], None],
    ) -> None:
        self._calls, self._backing_topic, self.mark = calls, backing_topic, mark
        self._queue = (log_id, subscription)
        self._life_seconds, self._heard_at, self._on_close = life_seconds, heard_at, on_close
        self._numbers = itertools.count(1)
        self._number = next(self._numbers)
        self._batches: dict[Position, int] = {}
        """Of each message that is held the batch in which it came."""
        self._highest: Position = (0, -1)
        """Position of the highest message that was ever given to this reader."""
        self._is_lost = self._is_closed = False

    @property
    def is_current(self) -> bool:
        """Whether the server has heard of it lately, so that nobody else has what it holds."""
        return not self._is_lost and boot_seconds() < self._heard_at + self._life_seconds

    def heard(self, at: float) -> None:
        """The server was told, in a call that began then, that this reader is alive."""
        self._heard_at = max(self._heard_at, at)

    def lose(self) -> None:
        """The server does not know it any more."""
        self._is_lost = True

    def may_wait(self) -> bool:
        """Never: each read is a call to the server that has all logs."""
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Take at most `limit` messages and some 8 MiB; empty when there is none now."""
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        self._demand_known()
        began = boot_seconds()
        timeline, offset = self._highest
        given = (limit, MAX_READ_BYTES, MAX_UNSETTLED, self._life_seconds, offset, timeline)
        with self._calls.statement(f"read {self._backing_topic}") as cursor:
            cursor.execute(_TAKE, (*self._queue, self.mark, self._number, *given))
            rows = cursor.fetchall()
        if not rows:
            self.lose()
            timeline, offset = self._highest
            demand_there(self._calls, self._backing_topic, *self._queue, Place(offset + 1, timeline))
            self._demand_known()
        self.heard(began)
        *found, (*_, timelines) = rows
        position = Timelines(timelines).position
        messages = [message(position(at), *row) for at, *row, _ in found]
        self._batches |= {one.position: self._number for one in messages}
        self._highest = max([self._highest, *(one.position for one in messages[-1:])])
        self._number = next(self._numbers)
        return messages

    def acknowledge(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Done with these; those that others have, or will have, are given back."""
        self._demand_known()
        offsets, batches = self._noted(positions)
        with self._calls.statement(f"acknowledge {self._backing_topic}") as cursor:
            cursor.execute(_ACKNOWLEDGE, (*self._queue, self.mark, offsets, batches))
            ((refused,),) = cursor.fetchall()
        if refused is None:
            raise no_cursor(self._backing_topic, self._queue[1])
        self._forget(positions)
        return [one for one in positions if one[1] in refused]

    def give_back(
        self, positions: Sequence[Position], *, delay_seconds: float = 0.0, unseen: bool = False
    ) -> None:
        """Have these given out again after the delay."""
        self._demand_known()
        offsets, batches = self._noted(positions)
        with self._calls.statement(f"give back of {self._backing_topic}") as cursor:
            cursor.execute(_GIVE_BACK, (*self._queue, self.mark, offsets, batches, delay_seconds, unseen))
        self._forget(positions)

    def is_drained(self) -> bool:
        """Whether the log is terminated and all of it acknowledged."""
        with self._calls.statement(f"look at {self._backing_topic}") as cursor:
            cursor.execute(_IS_DRAINED, self._queue)
            row: tuple[bool | None] | None = cursor.fetchone()
        if row is None or row[0] is None:
            raise no_cursor(self._backing_topic, self._queue[1])
        return row[0]

    def close(self) -> None:
        """Leave. If that fails, the server notices after a while that this reader is not heard any more."""
        if self._is_closed:
            return
        self._is_closed = self._is_lost = True
        self._on_close()
        with suppress(CleaveError), self._calls.statement(f"let go of {self._backing_topic}") as cursor:
            cursor.execute(_CLOSE, (*self._queue, self.mark))

    def _noted(self, positions: Sequence[Position]) -> tuple[list[int], list[int]]:
        """Offsets, and the batch in which each came; 0, which is none, for what is not held."""
        return [offset for _, offset in positions], [self._batches.get(one, 0) for one in positions]

    def _forget(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self._batches.pop(position, None)

    def _demand_known(self) -> None:
        if self._is_lost:
            raise LostRace(
                f"{self._backing_topic}: this reader of {self._queue[1]!r} was not heard for {self._life_seconds:g} s, was "
                "closed, or the cursor was moved; open a new reader",
                delay_seconds=0.0,
            )


class QueueKeeper:
    """Lets the server hear, several times in each life, of those readers of a process that do not read just now."""

    def __init__(self, calls: PostgresCalls, life_seconds: float) -> None:
        self._calls, self._life_seconds = calls, life_seconds
        self._lock = threading.Lock()
        self._readers: dict[str, EmbeddedQueueReader] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, reader: EmbeddedQueueReader) -> None:
        """Keep this one alive until it is removed."""
        with self._lock:
            self._readers[reader.mark] = reader
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cleave-queue-keeper", daemon=True)
                self._thread.start()

    def remove(self, mark: str) -> None:
        """Keep it no more."""
        with self._lock:
            self._readers.pop(mark, None)

    def close(self) -> None:
        """Keep nobody any more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        repeat_every(
            self._life_seconds / 5, self._keep_all, self._ended, log, "readers of queues are not kept alive"
        )

    def _keep_all(self) -> None:
        with self._lock:
            readers = dict(self._readers)
        if readers:
            self._keep(readers)

    def _keep(self, readers: dict[str, EmbeddedQueueReader]) -> None:
        began = boot_seconds()
        with self._calls.statement("keep readers of queues") as cursor:
            cursor.execute(_KEEP, (sorted(readers), self._life_seconds))
            known = {mark for (mark,) in cursor.fetchall()}
        for mark, reader in readers.items():
            reader.heard(began) if mark in known else reader.lose()
