"""Reads one topic for one subscription through an exclusive consumer, for the lifetime of one connection.

The broker allows one consumer at a time, and closes its connection when the cursor is moved or taken. The
library would reconnect and continue as if nothing had happened. A reader ends instead, and raises the reason
at its next call. Its acknowledgements therefore never undo a seek, and a stale owner learns that it is stale.
A connection that breaks because all of a terminated topic is acknowledged (`binary`) is no loss: the reader
has finished.

A broker writes a cursor to disk at most once a second (`managedLedgerDefaultMarkDeleteRateLimit`), and the
last position up to a minute later. The result that a topic is drained must survive a crash of the broker, so
`is_drained` waits for the disk.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Sequence

import pulsar

from controller.dataplane.log_client import LogMessage, Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import is_barrier
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.drain_query_pace import DrainCheck
from controller.dataplane.pulsar.encryption import is_unreadable, unreadable
from controller.dataplane.pulsar.library_errors import mapped
from controller.dataplane.pulsar.message_intake import Intake, call_on_arrival
from controller.dataplane.pulsar.message_runs import Messages, Run, RunQueue, runs
from controller.dataplane.pulsar.reader_stall import STALL_SECONDS, StallWatch, subscription_stalls
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
)
from controller.domain.hash_range import HashRange
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess

PREFETCH_MESSAGES = 1000
"""Largest number of buffered messages of a reader, in addition to as many in the library's queue."""
_POLL_SECONDS = 0.02


class PulsarReader(OneProcess):
    """A `LogReader`: the only reader of a topic, or of one bucket of it, for a subscription, as long as its
    connection lasts. Created by `PulsarLogClient.open_reader`. For one thread; `on_arrival` may be called from
    any thread.
    """

    def __init__(
        self,
        cursors: Cursors,
        connections: Connections,
        *,
        backing_topic: str,
        subscription: str,
        owner: str,
        mark: str,
        on_arrival: Callable[[], None],
        on_close: Callable[[PulsarReader], None],
        prefetch_messages: int = PREFETCH_MESSAGES,
        bucket: HashRange | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """Create a reader without a connection. `mark`, which no other reader has, identifies the reader in
        the broker's statistics. If another consumer with the name `owner` took the cursor, this reader is
        stale (FencedOut). At most `prefetch_messages` messages are buffered, more if a `read` requests more.
        `bucket` None: the whole subscription. `stall_seconds` is the time without messages after which an
        idle reader checks if the broker still delivers. `on_arrival` is called, from any thread, when there
        may be news; `on_close` is called by `close`.
        """
        self.bucket = bucket
        self.prefetch_messages = prefetch_messages
        self._cursors, self._connections = cursors, connections
        self._backing_topic, self._subscription = backing_topic, subscription
        self._owner, self.mark = owner, mark
        self._on_arrival, self._on_close = on_arrival, on_close
        self._arrived, self._unacknowledged = RunQueue(), RunQueue()
        self._last_arrived: Position = ()
        self._read: Position = ()
        self._acknowledged: Position = ()
        self._drain = DrainCheck(cursors, backing_topic, subscription)
        self._stall = StallWatch(stall_seconds, backing_topic=backing_topic, subscription=subscription)
        self.misplaced = 0
        """Number of arrived messages that belong to another bucket, and are neither delivered nor
        acknowledged.
        """
        self._interrupted = threading.Event()
        self._lost: CleaveError | None = None
        self._unreadable: CleaveError | None = None
        self._is_attached = self._is_finished = self._is_end_durable = False
        self._closing = threading.Lock()
        self._opened: tuple[pulsar.Client, pulsar.Consumer, Intake] | None = None
        self._intake: Intake | None = None

    def attach(self, client: pulsar.Client, consumer: pulsar.Consumer) -> None:
        """Set the connection, before the reader is returned to the application. A reader without a connection
        has nothing to read.
        """
        self._intake = Intake(consumer, self.notify_owner)
        self._opened, self._is_attached = (client, consumer, self._intake), True
        self._intake.begin()

    def _take_in(self, limit: int) -> None:
        """Take messages that have arrived from the library, until the buffer has `limit` messages, or
        `prefetch_messages` if that is more. Does nothing before `attach`, or after an entry that cannot be decrypted.
        Does not wait.

        Barriers are acknowledged and skipped. An entry that cannot be decrypted ends the taking; a later `read`
        raises the error. A message that arrives behind later messages is inserted at its place (`_put_in_place`). If
        the message cannot be inserted, the reading ends (`interrupt`).
        """
        if self._intake is None or self._unreadable is not None:
            return
        capacity = max(limit, self.prefetch_messages) - self._arrived.messages
        arrived = self._intake.take(capacity)
        if arrived:
            self._stall.note_activity()
        for run in runs(arrived):
            if not run.is_batched and is_unreadable(run.messages[0]):
                if is_barrier(run.messages[0]):
                    self._skip_barrier(run)
                    continue
                self._unreadable = unreadable(run.messages[0], self._backing_topic)
                return
            for fitting in self._runs_to_deliver(run):
                if fitting.first > self._last_arrived:
                    self._last_arrived = fitting.last
                    self._arrived.extend([fitting])
                elif not self._put_in_place(fitting):
                    self.interrupt()
                    return

    def _skip_barrier(self, run: Run) -> None:
        """Acknowledge the barrier of a gate, which is not a message."""
        opened = self._opened
        if opened is not None:
            with contextlib.suppress(pulsar.PulsarException):  # it arrives again on another connection
                opened[1].acknowledge(run.last_id)
        self._drain.note_acknowledged(1)

    def _runs_to_deliver(self, run: Run) -> Iterable[Run]:
        """Return the parts of the run that are to be delivered here."""
        return (run,)

    def _put_in_place(self, _run: Run) -> bool:
        """Insert messages that arrived behind later ones among the undelivered messages. Return False if they cannot be
        inserted, which means that there was another connection in between. Here always False: the broker
        sends a subscription's only consumer the topic in order.
        """
        return False

    def notify_owner(self) -> None:
        """Call `on_arrival`, because there may be news. An error of the callback is logged."""
        call_on_arrival(self._on_arrival, self._backing_topic)

    def check_connection(self) -> None:
        """Detect a broken connection, which ends the reading, and notify the owner if a postponed query of
        the topic's end is due. Called many times a second, because the library restores a connection after
        100 ms.
        """
        opened = self._opened
        if opened is not None and not opened[1].is_connected():
            self.interrupt()
        elif self._drain.is_due:
            self.notify_owner()

    def interrupt(self) -> None:
        """End this reading: close the connection in a background thread, so that the library does not reconnect, and
        notify the owner. The owner's next `read` or `is_drained` raises the reason, unless the topic is drained.
        Unacknowledged messages are delivered to the next reader. Does nothing if the reading has ended.
        """
        if not self._interrupted.is_set():
            self._interrupted.set()
            opened = self._take_opened()
            if opened is not None:
                client, consumer, intake = opened
                self._connections.close_aside(consumer, intake, client)
            self.notify_owner()

    def may_wait(self) -> bool:
        """Return True if the next `read` may wait for a request: if the reading has ended, or if the reader is
        idle (attached, no message buffered or unacknowledged) and it is time to check for a stall.
        """
        self.check_connection()
        if self._interrupted.is_set():
            return True
        is_idle = self._is_attached and not (self._arrived or self._unacknowledged)
        return is_idle and self._stall.is_due

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages in order, at most `limit`, without waiting for arrivals. Empty if none have
        arrived, if the reading ended during the call, or if the connection has ended because the topic is drained.

        Raises InvalidInput for a limit below 1; Terminal if the next message is encrypted and no key here can decrypt
        it; and LostRace if the broker has stopped delivering (`reader_stall`), which ends the reading.

        If the reading has ended, raises the reason: LostRace, FencedOut, SegmentNotFound or SubscriptionNotFound.
        Requests determine a reason that is not known yet; their errors, such as DataPlaneUnavailable, are raised.
        """
        whole(limit, "read limit", 1)
        self._demand_held()
        self._take_in(limit)
        if self._interrupted.is_set():  # the next call raises the reason
            return ()
        delivered = self._arrived.take(limit)
        if not delivered and self._unreadable is not None:
            raise self._unreadable.with_traceback(None)
        if delivered:
            self._unacknowledged.extend(delivered)
            self._read = delivered[-1].last
        elif (
            self._is_attached
            and not self._unacknowledged
            and self._stall.is_stalled(
                lambda: subscription_stalls(
                    self._cursors, self._backing_topic, self._subscription, self.mark, self.misplaced
                )
            )
        ):
            raise self._end_stalled()
        return Messages(delivered)

    def _end_stalled(self) -> CleaveError:
        """End this reading, to which the broker has stopped delivering, notify the owner, and return the error: a
        LostRace, which later calls of `read` raise too. Another reader gets new permits from the broker.
        """
        part = "" if self.bucket is None else f" of bucket {self.bucket}"
        self._lost = LostRace(
            f"{self._backing_topic}: the broker delivers nothing{part} for {self._subscription!r} though messages wait; open a "
            "new reader",
            delay_seconds=0.0,
        )
        self.interrupt()
        return self._lost

    def acknowledge(self, position: Position) -> None:
        """Acknowledge all messages up to and including `position`. The library sends the acknowledgement within 100
        ms. If this reader has acknowledged these messages before, nothing is done, even after the reading has ended.

        Raises InvalidInput for a position behind the last message that `read` returned. If the reading has ended,
        raises the reason if it is known, otherwise LostRace; no request is made to find the reason, as `read` does.
        An error of the library ends the reading and is raised as Cleave's. If the reading ends during the call, the
        method may return although the messages will be delivered again.
        """
        if position > self._read and position > self._acknowledged:
            raise InvalidInput(
                f"{self._backing_topic}: {position} was not read yet; acknowledge what was read"
            )
        self.check_connection()
        if self._interrupted.is_set() and position > self._acknowledged:
            raise self._lost or self._cut_off()
        settled = self._unacknowledged.take_upto(position)
        opened = self._opened
        if not settled:
            return
        self._acknowledged = settled[-1].last
        self._stall.note_activity()
        if opened is None:
            return
        try:
            self._settle(opened[1], settled)
            self._drain.note_acknowledged(sum(map(len, settled)))
        except pulsar.PulsarException as error:
            self.interrupt()
            raise self._lost or mapped(error, f"acknowledge {self._backing_topic}") from error

    def _settle(self, consumer: pulsar.Consumer, settled: Sequence[Run]) -> None:
        """Acknowledge the runs at the broker. They follow the previously acknowledged messages."""
        consumer.acknowledge_cumulative(settled[-1].last_id)

    def is_drained(self) -> bool:
        """Return True if the topic is terminated, all its messages are acknowledged, and the broker has stored the
        cursor at the end. Waits for acknowledgements in flight. For `ASK_AGAIN_SECONDS` after a False, may return
        False without a request (`DrainCheck`).

        At the end, the cursor is moved to its present position, so that the broker stores it; this disconnects all
        readers of the subscription. The cursor of a topic without entries is not moved. Raises DataPlaneUnavailable
        if the broker does not store the cursor.

        Raises the errors of `read` if the reading has ended for another reason than the end of the topic, or if the
        topic was drained when the reader was opened and the cursor was moved back since; SegmentNotFound;
        SubscriptionNotFound; DataPlaneTimeout; and the other errors of `AdminCalls.ask`.
        """
        self._demand_held()
        deadline = self._cursors.deadline()
        if not self._drain.is_drained(deadline, is_idle=lambda: not (self._unacknowledged or self._arrived)):
            # if the topic was drained before, the cursor was moved back
            self._is_finished = False
            if not self._is_attached:
                self.interrupt()
                self._demand_held()
            return False
        self._demand_held()
        self._make_end_durable(deadline)
        return True

    def _make_end_durable(self, deadline: Deadline) -> None:
        """Make the broker write the present position of the cursor to disk, so that the position survives a crash
        (`Cursors.make_durable`). Does nothing if this reader has done that.

        Call this only when the topic is read to its end: all readers of the subscription may be disconnected, and
        unacknowledged messages are then delivered again. A reader of a bucket retries after DataPlaneUnavailable,
        because another reader of the subscription may be doing the same, and raises the error at the deadline. Any
        other reader raises DataPlaneUnavailable at once. Raises also the other errors of `Cursors.make_durable`.
        """
        pause = threading.Event()
        while not self._is_end_durable:
            try:
                self._cursors.make_durable(self._backing_topic, self._subscription, deadline)
                self._is_end_durable = True
            except DataPlaneUnavailable:  # another reader of the subscription does the same at this moment
                if self.bucket is None or not deadline.left_seconds:
                    raise
                pause.wait(random.uniform(_POLL_SECONDS, 5 * _POLL_SECONDS))  # noqa: S311 - no secret

    def evict(self, error: CleaveError) -> None:
        """Release the cursor at once, for another reader of this process, and notify the owner. Later calls of `read`
        and `is_drained` raise `error`, as does `acknowledge` for messages that are not acknowledged. If the reading
        had ended before and its reason is known, they raise that reason instead.
        """
        self._lost = self._lost or error
        self._disconnect()
        self.notify_owner()

    def close(self) -> None:
        """Release the cursor, and call `on_close`. Acknowledgements in flight arrive at the broker before the next
        reader is admitted. Unacknowledged messages are delivered to the next reader. Raises nothing, and may be
        repeated.
        """
        self._disconnect()
        self._on_close(self)

    def _disconnect(self) -> None:
        """End the reading: close the consumer in this thread, so that acknowledgements in flight arrive, and close
        the rest of the connection in a background thread. The owner is not notified. Errors of the library are
        ignored. Does nothing more if the connection is closed already.
        """
        self._interrupted.set()
        opened = self._take_opened()
        if opened is not None:
            client, consumer, intake = opened
            with contextlib.suppress(pulsar.PulsarException):
                consumer.close()
            self._connections.close_aside(intake, client)

    def _take_opened(self) -> tuple[pulsar.Client, pulsar.Consumer, Intake] | None:
        """Remove and return the connection, so that one caller closes it. None if there is none, or another caller
        has removed it.
        """
        with self._closing:
            opened, self._opened = self._opened, None
        return opened

    def _demand_held(self) -> None:
        """Raise the error that says why this reading ended. Return if the reading continues, or if it ended because
        the topic is terminated and all its messages are acknowledged. Makes requests only if the reading has ended
        and the reason is not known; their errors are raised, such as DataPlaneUnavailable.
        """
        self.check_connection()
        if not self._interrupted.is_set() or (self._is_finished and self._lost is None):
            return
        lost = self._why_lost()
        self._is_finished = self._lost is None and self._has_finished()
        if not self._is_finished:
            raise lost

    def _has_finished(self) -> bool:
        """Return True if this reader has no messages, and the broker reports that the topic is terminated and all its
        messages are acknowledged. The connection then broke because no message can follow. False, without a request,
        if this reader has buffered or unacknowledged messages. Raises the errors of `Cursors.is_drained`.
        """
        if self._arrived or self._unacknowledged:
            return False
        return self._cursors.is_drained(self._backing_topic, self._subscription, self._cursors.deadline())

    def _why_lost(self) -> CleaveError:
        """Return, without raising it, the error that says why this reading ended. If the reason is not known, the
        consumers of the subscription are requested. An error that names the present owner of the cursor, or says that
        the topic or the subscription is missing, is kept, because the reason cannot change for this reading. If no
        reason is found, return a LostRace for a lost connection, which is not kept. Raises the errors of the request,
        except NotFound.
        """
        if self._lost is None:
            self._lost = self._read_loss_reason()
        return self._lost or self._cut_off()

    def _cut_off(self) -> LostRace:
        """Return the error for a connection that ended for an unknown reason."""
        return LostRace(
            f"{self._backing_topic}: the connection of {self._subscription!r} ended, or its cursor was moved; open a "
            "new reader",
            delay_seconds=0.0,
        )

    def _read_loss_reason(self) -> CleaveError | None:
        """Request the consumers of the subscription, and return, without raising it, the error that says why this
        reader lost its part: FencedOut if the consumer that has the part has this reader's owner name; LostRace for
        another consumer; SegmentNotFound or SubscriptionNotFound for a missing topic or subscription. Return None if
        no consumer has the part, or if the broker still shows this reader. Raises the other errors of
        `Cursors.attachments`.
        """
        try:
            attached = self._cursors.attachments(
                self._backing_topic, self._subscription, self._cursors.deadline()
            )
        except NotFound as gone:
            return gone
        holders = attached.in_the_way_of(self.bucket)
        if not holders or any(holder.reader == self.mark for holder in holders):
            return None
        holder = holders[0]
        if holder.owner == self._owner:
            return FencedOut(
                f"{self._backing_topic}: a newer reader named {self._owner!r} has the cursor; this one is stale and "
                "must stop"
            )
        return LostRace(
            f"{self._backing_topic}: the cursor of {self._subscription!r} was taken or moved (owner: {holder.owner!r}); "
            "open a new reader",
            delay_seconds=0.0,
        )
