"""Reads one embedded log as one of several readers that share its messages: each message is taken,
acknowledged and returned by itself.

The server records the messages of a reader under the reader's mark (sql/schema/86_embedded_queues.sql). They
belong to the reader for `LIFE_SECONDS` after the last call that extends its life: a read of the reader, or a call
of `QueueKeeper`, which calls for all readers of a client. A batch is requested under a number, so that a batch
whose response was lost is returned again. A log that lacks the highest message that the reader received refuses
a read (`timelines`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from controller import telemetry
from controller.clock import boot_seconds
from controller.dataplane.embedded.names import no_cursor
from controller.dataplane.embedded.reader import MAX_READ_BYTES, message
from controller.dataplane.embedded.timelines import Place, Timelines, demand_present
from controller.dataplane.log_client import LogMessage, Position
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import CleaveError, LostRace
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess
from controller.repeating import repeat_every

log = telemetry.get_logger(__name__)

LIFE_SECONDS = 20.0
"""A reader whose life neither its reads nor `QueueKeeper` extend for this time counts as dead, and its messages are
delivered to other readers.
"""
MAX_UNSETTLED = 10_000
"""Largest number of delivered and unacknowledged messages of one subscription on one log. At the limit, no
message is delivered for the first time.
"""
_TAKE = """
SELECT log_offset, published_at, key, payload, metadata::text, deliveries, timelines
  FROM embedded.queue_take(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_ACKNOWLEDGE = "SELECT embedded.queue_acknowledge(%s, %s, %s, %s::bigint[], %s::bigint[])"
_GIVE_BACK = "SELECT embedded.queue_give_back(%s, %s, %s, %s::bigint[], %s::bigint[], %s, %s)"
_KEEP = "SELECT mark FROM embedded.queue_keep(%s::text[], %s) AS known (mark)"
_IS_DRAINED = "SELECT embedded.queue_is_drained(%s, %s)"
_CLOSE = "SELECT embedded.queue_close(%s, %s, %s)"


class EmbeddedQueueReader(OneProcess):
    """A `QueueReader`: one of the readers that share the messages of a log for a subscription. Created by
    `EmbeddedLogClient.open_queue_reader`. For one thread; the thread of `QueueKeeper` keeps it alive.
    """

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        subscription: str,
        log_id: int,
        mark: str,
        life_seconds: float,
        contact_at: float,
        on_close: Callable[[], None],
    ) -> None:
        """Create the object for a reader that `embedded.queue_open` registered in the server under `mark`; makes no
        call. `log_id` and `backing_topic` are the id and the name of one log.

        Each `read` extends the reader's life on the server to `life_seconds`, the value with which the reader was
        registered. `contact_at` is the time (`boot_seconds`) at which the registering call began. `close` calls
        `on_close`, once.
        """
        self._calls, self._backing_topic, self.mark = calls, backing_topic, mark
        self._queue = (log_id, subscription)
        self._life_seconds, self._contact_at, self._on_close = life_seconds, contact_at, on_close
        self._numbers = itertools.count(1)
        self._number = next(self._numbers)
        self._batches: dict[Position, int] = {}
        """The batch of each message that this reader has."""
        self._highest: Position = (0, -1)
        """Position of the highest message that this reader ever received."""
        self._is_lost = self._is_closed = False

    @property
    def is_current(self) -> bool:
        """True if the server extended the reader's life within the last `life_seconds`, and the reader is neither
        closed nor known to be lost. Other readers then do not get this reader's messages, unless the cursor was
        moved, which only the next call to the server detects. Makes no call.
        """
        return not self._is_lost and boot_seconds() < self._contact_at + self._life_seconds

    def note_contact(self, at: float) -> None:
        """Record that the server extended the reader's life. `at` is the time (`boot_seconds`) at which the call
        began.
        """
        self._contact_at = max(self._contact_at, at)

    def mark_lost(self) -> None:
        """Mark the reader as unknown to the server: `is_current` becomes False, and later calls to read,
        acknowledge or return messages raise LostRace.
        """
        self._is_lost = True

    def may_wait(self) -> bool:
        """Return False: each read is a call, but to the one server that has all logs, so a background thread
        would not help.
        """
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Take messages for this reader, and return them in the order of their offsets. The result has at most
        `limit` messages, at most 10,000, and about 8 MiB, but at least one message if one can be delivered; otherwise
        the result is empty. Messages that are delivered again come before messages that were never delivered. While
        the subscription has `MAX_UNSETTLED` delivered messages that are not acknowledged, no message is delivered for
        the first time. The call extends the reader's life on the server.

        After an error of the connection, a repeated call returns the batch of the lost response, whatever its
        `limit`. Raises InvalidInput for a limit below 1; LostRace if this reader is closed or the server does not
        know the reader, for instance because the log or the cursor was deleted or moved; LogShortened if the log
        lacks the highest message that this reader received; DataPlaneUnavailable; and DataPlaneTimeout. After
        LostRace or LogShortened the reader is lost: open another one.
        """
        whole(limit, "read limit", 1)
        self._demand_known()
        began_at = boot_seconds()
        timeline, offset = self._highest
        limits = (limit, MAX_READ_BYTES, MAX_UNSETTLED, self._life_seconds, offset, timeline)
        parameters = (*self._queue, self.mark, self._number, *limits)
        rows = self._calls.rows(f"read {self._backing_topic}", _TAKE, parameters)
        if not rows:
            self.mark_lost()
            timeline, offset = self._highest
            demand_present(self._calls, self._backing_topic, *self._queue, Place(offset + 1, timeline))
            self._demand_known()
        self.note_contact(began_at)
        *message_rows, (*_, timelines) = rows
        position = Timelines(timelines).position
        messages = [message(position(at), *row) for at, *row, _ in message_rows]
        self._batches |= {batch_message.position: self._number for batch_message in messages}
        self._highest = max([self._highest, *(batch_message.position for batch_message in messages[-1:])])
        self._number = next(self._numbers)
        return messages

    def acknowledge(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Acknowledge the messages at these positions, at most 10,000, each by itself.

        Return those of the positions, in the given order, whose messages stay unacknowledged because this reader does
        not have them: another reader has the message or will get it. The position of a message that is already
        acknowledged is not returned.

        Raises LostRace if the reader is closed or known to be lost; SubscriptionNotFound if there is no cursor;
        InvalidInput for more positions; DataPlaneUnavailable; and DataPlaneTimeout. After an error the call may be
        repeated.
        """
        self._demand_known()
        parameters = (*self._queue, self.mark, *self._offsets_and_batches(positions))
        ((refused,),) = self._calls.rows(f"acknowledge {self._backing_topic}", _ACKNOWLEDGE, parameters)
        if refused is None:
            raise no_cursor(self._backing_topic, self._queue[1])
        self._forget(positions)
        return [position for position in positions if position[1] in refused]

    def give_back(
        self, positions: Sequence[Position], *, delay_seconds: float = 0.0, unseen: bool = False
    ) -> None:
        """Return the messages at these positions, at most 10,000, to the queue without acknowledging them. Any reader
        of the queue may receive them again after `delay_seconds` (0 to 604,800, a week). With `unseen`, the delivery
        to this reader does not count in the messages' numbers of deliveries.

        A message that this reader does not have is ignored; if there is no cursor, all messages are ignored. Raises
        LostRace if the reader is closed or known to be lost; InvalidInput for more messages or another delay;
        DataPlaneUnavailable; and DataPlaneTimeout.
        """
        self._demand_known()
        parameters = (*self._queue, self.mark, *self._offsets_and_batches(positions), delay_seconds, unseen)
        self._calls.rows(f"return messages of {self._backing_topic}", _GIVE_BACK, parameters)
        self._forget(positions)

    def is_drained(self) -> bool:
        """Return True if the log is terminated and all its messages are acknowledged, by any reader of the
        subscription. The method also works on a reader that is lost or closed.

        Raises SubscriptionNotFound if there is no log or no cursor, or if readers that read in order have divided the
        cursor; DataPlaneUnavailable; and DataPlaneTimeout.
        """
        rows = self._calls.rows(f"check {self._backing_topic}", _IS_DRAINED, self._queue)
        if not rows or rows[0][0] is None:
            raise no_cursor(self._backing_topic, self._queue[1])
        return bool(rows[0][0])

    def close(self) -> None:
        """Leave the queue. Messages that this reader has not acknowledged are delivered to other readers. Further
        calls do nothing. Raises nothing: if the call to the server fails, the server considers the reader dead after
        `life_seconds`, and the messages are delivered then.
        """
        if self._is_closed:
            return
        self._is_closed = self._is_lost = True
        self._on_close()
        with suppress(CleaveError):
            self._calls.rows(f"release {self._backing_topic}", _CLOSE, (*self._queue, self.mark))

    def _offsets_and_batches(self, positions: Sequence[Position]) -> tuple[list[int], list[int]]:
        """Return the offsets of the positions, and the number of the batch in which each message was
        delivered. The number is 0, which no batch has, for a message that the reader does not have.
        """
        return [offset for _, offset in positions], [self._batches.get(position, 0) for position in positions]

    def _forget(self, positions: Iterable[Position]) -> None:
        """Drop the records of messages that are acknowledged or returned. Unknown positions are ignored."""
        for position in positions:
            self._batches.pop(position, None)

    def _demand_known(self) -> None:
        """Raise LostRace if this reader is closed or marked as lost. Makes no call."""
        if self._is_lost:
            raise LostRace(
                f"{self._backing_topic}: this reader of {self._queue[1]!r} made no call for {self._life_seconds:g} s, was "
                "closed, or the cursor was moved; open a new reader",
                delay_seconds=0.0,
            )


class QueueKeeper:
    """A thread that keeps the queue readers of one client alive on the server, with five calls per
    `life_seconds`. Safe to share between threads.
    """

    def __init__(self, calls: PostgresCalls, life_seconds: float) -> None:
        """Create the keeper without a thread. The server considers a reader dead whose life is not extended
        for `life_seconds` (at most 3600); each call of the keeper extends the life to that time.
        """
        self._calls, self._life_seconds = calls, life_seconds
        self._lock = threading.Lock()
        self._readers: dict[str, EmbeddedQueueReader] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, reader: EmbeddedQueueReader) -> None:
        """Keep this reader alive until `remove` or `close` of the keeper is called. The first call starts the
        keeper's thread. After `close` of the keeper, the reader is not kept alive.
        """
        with self._lock:
            self._readers[reader.mark] = reader
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cleave-queue-keeper", daemon=True)
                self._thread.start()

    def remove(self, mark: str) -> None:
        """Stop keeping the reader with this mark alive. Does nothing if there is none."""
        with self._lock:
            self._readers.pop(mark, None)

    def close(self) -> None:
        """Stop keeping readers alive, and wait for the thread. The readers are not closed."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        repeat_every(
            self._life_seconds / 5, self._keep_all, self._ended, log, "cannot keep queue readers alive"
        )

    def _keep_all(self) -> None:
        """Extend the lives of all added readers on the server, and mark the readers that the server does not know as
        lost. Without readers, make no call. Raises DataPlaneUnavailable and DataPlaneTimeout; after an error no
        reader is marked.
        """
        with self._lock:
            readers = dict(self._readers)
        if readers:
            self._keep(readers)

    def _keep(self, readers: dict[str, EmbeddedQueueReader]) -> None:
        """Extend the lives of `readers`, given by their marks, on the server, in one call. Note the contact in each
        reader that the server knows, and mark the other readers as lost. Raises DataPlaneUnavailable and
        DataPlaneTimeout; after an error no reader is marked.
        """
        began_at = boot_seconds()
        rows = self._calls.rows("keep queue readers alive", _KEEP, (sorted(readers), self._life_seconds))
        known_marks = {mark for (mark,) in rows}
        for mark, reader in readers.items():
            reader.note_contact(began_at) if mark in known_marks else reader.mark_lost()
