"""Reading one topic for one subscription through an exclusive consumer, for as long as one connection lasts.

The broker allows one consumer at a time and breaks its connection when the cursor is moved or taken. The library would
connect again by itself and go on as if nothing had happened; a reader ends there instead, and says why at its next
call. So what it acknowledges never undoes a seek, and a stale owner learns that it is stale. A connection that breaks
because all of a terminated topic is acknowledged (see `binary`) is no loss: the reader has finished.

A broker writes a cursor down once a second at most (`managedLedgerDefaultMarkDeleteRateLimit`), and the last position
up to a minute later. The answer that a topic is drained must survive a crash of the broker, so it waits for the disk.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Sequence

import pulsar

from controller import telemetry
from controller.dataplane.base import LogMessage, Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import is_barrier
from controller.dataplane.pulsar.binary import Connections, mapped
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.drain_look import DrainLook
from controller.dataplane.pulsar.encryption import is_unreadable, unreadable
from controller.dataplane.pulsar.intake import Intake
from controller.dataplane.pulsar.runs import Messages, Run, RunQueue, runs
from controller.dataplane.pulsar.stall import STALL_SECONDS, SubscriptionStall
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
)
from controller.domain.hash_range import HashRange
from controller.forks import OneProcess

log = telemetry.get_logger(__name__)

PREFETCH_MESSAGES = 1000
"""The most messages of a reader that are in its hands and not handed out, beside as many in the library's queue."""
_POLL_SECONDS = 0.02


class PulsarReader(OneProcess):
    """A `LogReader`; `PulsarLogClient.open_reader` makes it. For one thread; `on_arrival` is called from the library's."""

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
        self._drain = DrainLook(cursors, backing_topic, subscription)
        self._stall = SubscriptionStall(cursors, backing_topic, subscription, mark, stall_seconds)
        self.misplaced = 0
        """Messages that came here and are another bucket's: neither handed out nor acknowledged."""
        self._interrupted = threading.Event()
        self._lost: CleaveError | None = None
        self._unreadable: CleaveError | None = None
        self._is_attached = self._is_written_down = False
        self._closing = threading.Lock()
        self._opened: tuple[pulsar.Client, pulsar.Consumer, Intake] | None = None
        self._intake: Intake | None = None

    def attach(self, client: pulsar.Client, consumer: pulsar.Consumer) -> None:
        """Set the connection it reads through, before the reader is handed out. Without one there is
        nothing to read.
        """
        self._intake = Intake(consumer, self.ring)
        self._opened, self._is_attached = (client, consumer, self._intake), True
        self._intake.begin()

    def _take_in(self, limit: int) -> None:
        """Put what has arrived to those to hand out, until the reading turns out to have ended."""
        if self._intake is None or self._unreadable is not None:
            return
        room = max(limit, self.prefetch_messages) - self._arrived.messages
        arrived = self._intake.take(room)
        if arrived:
            self._stall.heard()
        for run in runs(arrived):
            if not run.is_batched and is_unreadable(run.messages[0]):
                if is_barrier(run.messages[0]):
                    self._skip_barrier(run)
                    continue
                self._unreadable = unreadable(run.messages[0], self._backing_topic)
                return
            for found in self._to_hand_out(run):
                if found.first > self._last_arrived:
                    self._last_arrived = found.last
                    self._arrived.extend([found])
                elif not self._put_in_place(found):
                    self.interrupt()
                    return

    def _skip_barrier(self, run: Run) -> None:
        """Acknowledge a gate's barrier, which is no message."""
        opened = self._opened
        if opened is not None:
            with contextlib.suppress(pulsar.PulsarException):  # it comes again through another connection
                opened[1].acknowledge(run.last_id)
        self._drain.acknowledged(1)

    def _to_hand_out(self, run: Run) -> Iterable[Run]:
        """What of these is to be handed out here."""
        return (run,)

    def _put_in_place(self, _found: Run) -> bool:
        """What to do with messages behind which others have come already. False: they came before, or too late, so there was
        another connection in between.
        """
        return False

    def ring(self) -> None:
        """There may be something new. No error may reach the library's thread, since the process would end."""
        try:
            self._on_arrival()
        except Exception:
            log.exception("the callback for arrivals failed", backing_topic=self._backing_topic)

    def look(self) -> None:
        """Notice a broken connection, and that it is time to ask for the end again. Called many times a second, since the library
        restores a connection after 100 ms.
        """
        opened = self._opened
        if opened is not None and not opened[1].is_connected():
            self.interrupt()
        elif self._drain.is_due:
            self.ring()

    def interrupt(self) -> None:
        """This reading has ended. Keep the library from connecting again, and notify the owner, whose next call says
        why.
        """
        if not self._interrupted.is_set():
            self._interrupted.set()
            opened = self._take_opened()
            if opened is not None:
                client, consumer, intake = opened
                self._connections.close_aside(consumer, intake, client)
            self.ring()

    def may_wait(self) -> bool:
        """Whether the next `read` would ask why the connection ended, or whether the broker delivers no more."""
        self.look()
        if self._interrupted.is_set():
            return True
        is_empty_handed = self._is_attached and not (self._arrived or self._unacknowledged)
        return is_empty_handed and self._stall.is_due

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit`; empty when none has arrived. Terminal where the next one is encrypted, and no
        key here fits; LostRace where the broker delivers no more (see `stall`).
        """
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        self._demand_held()
        self._take_in(limit)
        if self._interrupted.is_set():  # why, the next call says
            return ()
        taken = self._arrived.take(limit)
        if not taken and self._unreadable is not None:
            raise self._unreadable.with_traceback(None)
        if taken:
            self._unacknowledged.extend(taken)
            self._read = taken[-1].last
        elif self._is_attached and not self._unacknowledged and self._stall.is_stalled(self.misplaced):
            raise self._passed_over()
        return Messages(taken)

    def _passed_over(self) -> CleaveError:
        """End this reading; a new one gets new permits."""
        what = "" if self.bucket is None else f" of bucket {self.bucket}"
        self._lost = LostRace(
            f"{self._backing_topic}: the broker delivers nothing{what} for {self._subscription!r} though messages wait; open a "
            "new reader",
            delay_seconds=0.0,
        )
        self.interrupt()
        return self._lost

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to and including `position`; the broker knows it within 100 ms. It asks nobody: why it is lost, a read
        says.
        """
        if position > self._read and position > self._acknowledged:
            raise InvalidInput(
                f"{self._backing_topic}: {position} was not read yet; acknowledge what was read"
            )
        self.look()
        if self._interrupted.is_set() and position > self._acknowledged:
            raise self._lost or self._cut_off()
        settled = self._unacknowledged.take_upto(position)
        opened = self._opened
        if not settled:
            return
        self._acknowledged = settled[-1].last
        self._stall.heard()
        if opened is None:
            return
        try:
            self._settle(opened[1], settled)
            self._drain.acknowledged(sum(map(len, settled)))
        except pulsar.PulsarException as error:
            self.interrupt()
            raise self._lost or mapped(error, f"acknowledge {self._backing_topic}") from error

    def _settle(self, consumer: pulsar.Consumer, settled: Sequence[Run]) -> None:
        """Tell the broker that these are acknowledged, which follow upon those that were before."""
        consumer.acknowledge_cumulative(settled[-1].last_id)

    def is_drained(self) -> bool:
        """Whether the topic is terminated and acknowledged to its end, for good. It waits for an acknowledgement on its
        way.

        The reader has finished then: its connection is broken.
        """
        self._demand_held()
        deadline = self._cursors.deadline()
        if not self._drain.is_drained(deadline, is_idle=lambda: not (self._unacknowledged or self._arrived)):
            if not self._is_attached:  # drained when it was opened: somebody has moved the cursor back
                self.interrupt()
                self._demand_held()
            return False
        self._demand_held()
        self._write_down(deadline)
        return True

    def _write_down(self, deadline: Deadline) -> None:
        """Have the broker write the end down as the cursor's place, so that it survives a crash. A move, even to where
        the cursor is, is answered when it is on the disk.
        """
        patience = threading.Event()
        while not self._is_written_down:
            try:
                self._cursors.cut_off(self._backing_topic, self._subscription, deadline)
                self._is_written_down = True
            except DataPlaneUnavailable:  # another reader of the subscription does the same at this moment
                if self.bucket is None or not deadline.left_seconds:
                    raise
                patience.wait(random.uniform(_POLL_SECONDS, 5 * _POLL_SECONDS))  # noqa: S311 - no secret

    def give_way(self, error: CleaveError) -> None:
        """Let go at once, for another reader of this process. Every call raises `error` from now on."""
        self._lost = self._lost or error
        self._let_go()
        self.ring()

    def close(self) -> None:
        """Let go of the cursor; acknowledgements on their way arrive before the next reader is let in."""
        self._let_go()
        self._on_close(self)

    def _let_go(self) -> None:
        self._interrupted.set()
        opened = self._take_opened()
        if opened is not None:
            client, consumer, intake = opened
            with contextlib.suppress(pulsar.PulsarException):
                consumer.close()
            self._connections.close_aside(intake, client)

    def _take_opened(self) -> tuple[pulsar.Client, pulsar.Consumer, Intake] | None:
        """What is to be closed. Only one caller gets it."""
        with self._closing:
            opened, self._opened = self._opened, None
        return opened

    def _demand_held(self) -> None:
        """Return if this reading goes on or has come to the topic's end. Otherwise raise the error that says why it is
        over.
        """
        self.look()
        if not self._interrupted.is_set():
            return
        lost = self._why_lost(None)
        if self._lost is not None or not self._has_finished():
            raise lost

    def _has_finished(self) -> bool:
        """Whether the connection broke because nothing can follow: all is delivered and acknowledged here."""
        if self._arrived or self._unacknowledged:
            return False
        return self._cursors.is_drained(self._backing_topic, self._subscription, self._cursors.deadline())

    def _why_lost(self, otherwise: CleaveError | None) -> CleaveError:
        """The error that says who has the cursor now, or what became of it. It is kept, since it can no longer change
        for this reading.
        """
        if self._lost is None:
            self._lost = self._ask_why() or otherwise
        return self._lost or self._cut_off()

    def _cut_off(self) -> LostRace:
        return LostRace(
            f"{self._backing_topic}: the connection of {self._subscription!r} ended, or its cursor was moved; open a "
            "new reader",
            delay_seconds=0.0,
        )

    def _ask_why(self) -> CleaveError | None:
        try:
            found = self._cursors.attachments(
                self._backing_topic, self._subscription, self._cursors.deadline()
            )
        except NotFound as gone:
            return gone
        holders = found.in_the_way_of(self.bucket)
        if not holders or any(one.reader == self.mark for one in holders):
            return None
        holder = holders[0]
        if holder.owner == self._owner:
            return FencedOut(
                f"{self._backing_topic}: a newer reader named {self._owner!r} has the cursor; this one is stale and "
                "must stop"
            )
        return LostRace(
            f"{self._backing_topic}: the cursor of {self._subscription!r} moved on (owner now {holder.owner!r}); "
            "open a new reader",
            delay_seconds=0.0,
        )
