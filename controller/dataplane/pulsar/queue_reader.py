"""Reads one topic as one of several readers that share its messages: a Shared consumer that acknowledges each
message by itself.

The broker delivers whole entries. This reader therefore keeps a returned message of a batch, and delivers the
message again itself: the broker would deliver the whole batch to any reader, with messages that are unsettled
here and messages whose acknowledgement is in flight. If a message is alone in its entry, the broker delivers
it again, to this reader or another one.

As for a reader in order, a connection that breaks ends the reader: after a move of the cursor, messages of
this reader must neither be acknowledged nor kept from being delivered again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import pulsar

from controller.dataplane.log_client import LogMessage, Position
from controller.dataplane.pulsar.barrier import is_barrier
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.drain_query_pace import DrainCheck
from controller.dataplane.pulsar.encryption import is_unreadable, unreadable
from controller.dataplane.pulsar.message_intake import call_on_arrival
from controller.dataplane.pulsar.messages import incoming, position_of, shares_its_entry
from controller.dataplane.pulsar.reader_stall import STALL_SECONDS, StallWatch, subscription_stalls
from controller.domain.errors import DataPlaneUnavailable, LostRace, NotFound
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess

QUEUE_PREFETCH_MESSAGES = 500
"""Largest number of buffered messages in this process, in addition to as many in the library's queue."""
AGAIN_MS = 100
"""Shortest time in milliseconds before a returned message is delivered again."""
MOST_REMEMBERED = 10_000
"""Number of settled messages that are remembered, so that they are recognized if their batch is delivered
again.
"""


class _Delivery(NamedTuple):
    """The latest delivery of a message, and its number."""

    message: pulsar.Message
    number: int


class PulsarQueueReader(OneProcess):
    """A `QueueReader`: one of the readers that share the messages of a topic for a subscription, as long as
    its connection lasts. Created by `PulsarLogClient.open_queue_reader`. For one thread; arrivals come from
    the library's thread.
    """

    def __init__(
        self,
        cursors: Cursors,
        connections: Connections,
        *,
        backing_topic: str,
        subscription: str,
        mark: str,
        prefetch_messages: int,
        on_arrival: Callable[[], None],
        on_close: Callable[[PulsarQueueReader], None],
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """Create a reader without a connection. `mark`, which no other reader has, identifies the reader in
        the broker's statistics. Arrivals pause at `prefetch_messages` buffered messages. `stall_seconds` is
        the time without messages after which an idle reader checks if the broker still delivers. `on_arrival`
        is called, from any thread, when there may be news; `on_close` is called by `close`.
        """
        self.mark, self.prefetch_messages = mark, prefetch_messages
        self._cursors, self._connections = cursors, connections
        self._backing_topic, self._subscription = backing_topic, subscription
        self._on_arrival, self._on_close = on_arrival, on_close
        self._lock = threading.Lock()
        self._arrived: dict[Position, _Delivery] = {}
        self._held: dict[Position, _Delivery] = {}
        # of each returned delivery, the time (`time.monotonic`) at which its message is due again
        self._waiting: dict[Position, tuple[float, _Delivery]] = {}
        self._settled: dict[Position, None] = {}
        self._drain = DrainCheck(cursors, backing_topic, subscription)
        self._stall = StallWatch(stall_seconds, backing_topic=backing_topic, subscription=subscription)
        self._is_paused = self._is_end_durable = self._is_attached = False
        self._interrupted = threading.Event()
        self._opened: tuple[pulsar.Client, pulsar.Consumer] | None = None

    def attach(self, client: pulsar.Client, consumer: pulsar.Consumer) -> None:
        """Set the connection. A reader without a connection has nothing to read."""
        self._opened, self._is_attached = (client, consumer), True

    @property
    def is_current(self) -> bool:
        """True if the connection is intact, so that the broker has delivered no message of this reader to
        others.
        """
        opened = self._opened
        return not self._interrupted.is_set() and opened is not None and bool(opened[1].is_connected())

    def on_message(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Buffer a message, and notify the owner. The library calls this for each arrival, in its own thread.

        If an earlier copy of the message is here (buffered, returned by `read`, or given back), the message replaces
        the copy. If this reader has acknowledged the message and still remembers this (`MOST_REMEMBERED`), the
        message is acknowledged again and not buffered. When `prefetch_messages` messages are buffered, arrivals pause
        until `read` has taken half of them.
        """
        message_id = message.message_id()
        position = position_of(message_id)
        self._stall.note_activity()
        with self._lock:
            is_settled = position in self._settled
            if position in self._arrived:
                self._arrived[position] = self._arrived[position]._replace(message=message)
            elif position in self._held:
                self._held[position] = self._held[position]._replace(message=message)
            elif position in self._waiting:
                due_at, delivery = self._waiting[position]
                self._waiting[position] = (due_at, delivery._replace(message=message))
            elif not is_settled:
                self._arrived[position] = _Delivery(message, message.redelivery_count() + 1)
                if len(self._arrived) >= self.prefetch_messages and not self._is_paused:
                    self._is_paused = True
                    consumer.pause_message_listener()
        if is_settled:
            with contextlib.suppress(pulsar.PulsarException):
                consumer.acknowledge(message_id)
        self.notify_owner()

    def notify_owner(self) -> None:
        """Call `on_arrival`, because there may be news. An error of the callback is logged."""
        call_on_arrival(self._on_arrival, self._backing_topic)

    def check_connection(self) -> None:
        """If the connection is broken, end the reader and notify the owner. Does nothing if the reader has no
        connection.

        If the connection is intact, deliver again the messages that were given back and whose delay is over. A
        message that shares its entry with others is buffered here again. For any other message, the broker is asked
        to deliver it again, to any reader. Notify the owner if messages were buffered, or if a drain check is due.
        Errors of the library are ignored.
        """
        opened = self._opened
        if opened is None:
            return
        if not opened[1].is_connected():
            self._disconnect()
            self.notify_owner()
            return
        if self._drain.is_due:
            self.notify_owner()
        now, broker_message_ids, is_returned = time.monotonic(), list[pulsar.MessageId](), False
        with self._lock:
            for position in [position for position, (due_at, _) in self._waiting.items() if due_at <= now]:
                _, (message, number) = self._waiting.pop(position)
                message_id = message.message_id()
                if shares_its_entry(message_id):
                    self._arrived[position] = _Delivery(message, number + 1)
                    is_returned = True
                else:
                    broker_message_ids.append(message_id)
        for message_id in broker_message_ids:
            with contextlib.suppress(pulsar.PulsarException):
                opened[1].negative_acknowledge(message_id)
        if is_returned:
            self.notify_owner()

    def may_wait(self) -> bool:
        """Return True if the next `read` may wait for a request: if the connection has ended, or if this reader
        has no messages buffered or taken and it is time to check for a stall.
        """
        self.check_connection()
        return self._interrupted.is_set() or (not (self._arrived or self._held) and self._stall.is_due)

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return at most `limit` messages that have arrived, in the order of their arrival. The messages belong to
        this reader until they are acknowledged or given back, or the connection ends. Empty if none have arrived, or
        if the connection has ended because the topic is drained. Entries of barriers are acknowledged and skipped.

        Raises InvalidInput for a limit below 1; Terminal if the next message is encrypted and no key here can decrypt
        it; LostRace if the broker has stopped delivering (`reader_stall`), which ends the reader; and LostRace if the
        connection has ended and the topic is not drained. A request checks the latter; its errors, such as
        DataPlaneUnavailable, are raised. After LostRace, open another reader.
        """
        whole(limit, "read limit", 1)
        self._demand_connected()
        opened = self._opened
        self._skip_barriers()
        with self._lock:
            readable = takewhile(lambda arrived: not is_unreadable(arrived[1].message), self._arrived.items())
            delivered = [*islice(readable, limit)]
            if not delivered and self._arrived:
                raise unreadable(next(iter(self._arrived.values())).message, self._backing_topic)
            for position, _ in delivered:
                del self._arrived[position]
            self._held |= dict(delivered)
            if self._is_paused and len(self._arrived) <= self.prefetch_messages // 2 and opened is not None:
                self._is_paused = False
                opened[1].resume_message_listener()
            is_idle = not (delivered or self._held or self._waiting)
        if (
            is_idle
            and opened is not None
            and self._stall.is_stalled(
                lambda: subscription_stalls(self._cursors, self._backing_topic, self._subscription, self.mark)
            )
        ):
            self._disconnect()
            raise LostRace(
                f"{self._backing_topic}: the broker delivers nothing for {self._subscription!r} though messages wait; open a new "
                "reader",
                delay_seconds=0.0,
            )
        return [
            incoming(message, position)._replace(deliveries=number)
            for position, (message, number) in delivered
        ]

    def _skip_barriers(self) -> None:
        """While the first buffered message is an entry of a gate's barrier, acknowledge and remove it. A barrier is
        no message of an application. Does nothing without a connection. Errors of the library are ignored.
        """
        opened = self._opened
        while opened is not None:
            with self._lock:
                place = next(iter(self._arrived), None)
                if place is None:
                    return
                first = self._arrived[place].message
                if not (is_unreadable(first) and is_barrier(first)):
                    return
                del self._arrived[place]
                self._remember(place)
            with contextlib.suppress(pulsar.PulsarException):  # it comes again through another connection
                opened[1].acknowledge(first.message_id())
            self._drain.note_acknowledged(1)

    def acknowledge(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Acknowledge the messages at these positions. The library sends the acknowledgements within 100 ms. A
        repeated acknowledgement has no effect.

        Return those of the positions that were not acknowledged: `read` did not return the message, the message was
        given back, or the message was acknowledged more than `MOST_REMEMBERED` messages ago. Empty if there are none.

        Raises LostRace if the connection has ended and the topic is not drained (a request checks the latter, and its
        errors are raised), or if the connection ends during the call; a part of the messages may then be
        acknowledged.
        """
        self._demand_connected()
        opened, refused, acknowledged = self._opened, [], 0
        for position in positions:
            with self._lock:
                delivery = self._held.pop(position, None)
                if delivery is not None:
                    self._remember(position)
                    acknowledged += 1
                elif position not in self._settled:
                    refused.append(position)
            if delivery is not None and opened is not None:
                try:
                    opened[1].acknowledge(delivery.message.message_id())
                except pulsar.PulsarException:
                    self._disconnect()
                    raise self._lost() from None
        self._stall.note_activity()
        self._drain.note_acknowledged(acknowledged)
        return refused

    def give_back(
        self,
        positions: Sequence[Position],
        *,
        delay_seconds: float = 0.0,
        unseen: bool = False,  # noqa: ARG002 - counted as a delivery in either case
    ) -> None:
        """Return the messages at these positions to the queue without acknowledging them. A message is delivered
        again after `delay_seconds`, at least 100 ms: by this reader if the message shares its entry with others,
        otherwise by any reader. The delivery counts in the message's number of deliveries, whatever `unseen` says.
        Messages that this reader does not have are ignored.

        Raises LostRace if the connection has ended and the topic is not drained. A request checks the latter; its
        errors are raised.
        """
        self._demand_connected()
        self._stall.note_activity()
        now = time.monotonic()
        with self._lock:
            for position in positions:
                delivery = self._held.pop(position, None)
                if delivery is not None:
                    # The library waits for `AGAIN_MS` before it requests the redelivery.
                    by_library = 0.0 if shares_its_entry(delivery.message.message_id()) else AGAIN_MS / 1000
                    due_at = now + max(delay_seconds, AGAIN_MS / 1000) - by_library
                    self._waiting[position] = (due_at, delivery)
        self.check_connection()

    def is_drained(self) -> bool:
        """Return True if the topic is terminated, all its messages are acknowledged, and the broker has stored the
        cursor at the end. Waits for acknowledgements in flight. For `ASK_AGAIN_SECONDS` after a False, may return
        False without a request (`DrainCheck`).

        At the end, the cursor is moved to its present position, so that the broker stores it; this disconnects all
        readers of the subscription. Return False if the broker could not do that; call again. Raises LostRace if the
        topic was drained when the reader was opened and the cursor was moved back since; SegmentNotFound;
        SubscriptionNotFound; DataPlaneUnavailable; DataPlaneTimeout; and the other errors of `AdminCalls.ask`.
        """
        deadline = self._cursors.deadline()
        if not self._drain.is_drained(
            deadline, is_idle=lambda: not (self._held or self._arrived or self._waiting)
        ):
            if not self._is_attached:
                # the topic was drained when the reader was opened, so the cursor was moved back
                raise self._lost()
            return False
        if not self._is_end_durable:
            with contextlib.suppress(DataPlaneUnavailable):
                self._cursors.cut_off(self._backing_topic, self._subscription, deadline)
                self._is_end_durable = True
        return self._is_end_durable

    def close(self) -> None:
        """Leave the queue, and call `on_close`. Acknowledgements in flight arrive at the broker first. Messages that
        this reader has not acknowledged are delivered to other readers. Raises nothing.
        """
        self._disconnect(waits=True)
        self._on_close(self)

    def _remember(self, position: Position) -> None:
        """Record that the message was acknowledged. Beyond `MOST_REMEMBERED` the oldest record is dropped."""
        self._settled[position] = None
        if len(self._settled) > MOST_REMEMBERED:
            self._settled.pop(next(iter(self._settled)))

    def _demand_connected(self) -> None:
        """Raise LostRace if the connection has ended, unless this reader has no messages and the topic is drained. In
        the latter case the library has closed the connection because no message can follow. A request is made only if
        the connection has ended and this reader has no messages; its errors are raised, except that a missing topic
        or subscription gives LostRace.
        """
        self.check_connection()
        if not self._interrupted.is_set() or self._has_finished():
            return
        raise self._lost()

    def _has_finished(self) -> bool:
        """Return True if this reader has no messages, and the broker reports that the topic is terminated and all its
        messages are acknowledged. False, without a request, if this reader has messages. False also for a missing
        topic or subscription. Raises the other errors of `Cursors.is_drained`.
        """
        if self._held or self._arrived or self._waiting:
            return False
        try:
            return self._cursors.is_drained(self._backing_topic, self._subscription, self._cursors.deadline())
        except NotFound:
            return False

    def _lost(self) -> LostRace:
        """Return the error for a connection that has ended."""
        return LostRace(
            f"{self._backing_topic}: the connection of {self._subscription!r} ended, or its cursor was moved; open a new "
            "reader",
            delay_seconds=0.0,
        )

    def _disconnect(self, *, waits: bool = False) -> None:
        """End the reader, and close its connection in a background thread. With `waits`, first close the
        consumer in this thread, so that acknowledgements in flight arrive.
        """
        self._interrupted.set()
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is None:
            return
        client, consumer = opened
        if waits:
            with contextlib.suppress(pulsar.PulsarException):
                consumer.close()
            self._connections.close_aside(client)
        else:
            self._connections.close_aside(consumer, client)
