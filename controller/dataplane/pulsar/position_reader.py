"""Reads one topic from a position, without a durable subscription, because the application stores the
position.

A broker deletes messages that its durable subscriptions have acknowledged and its retention does not keep,
even if a reader without such a subscription still needs them, and then delivers the following messages. The
broker's ledgers are therefore checked before a reader is opened: a position whose ledger is gone is refused
(DataGone). Whether messages before the first one were deleted cannot be determined.

A connection that breaks ends the reader. Messages that have arrived are still read, because they have no
owner.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Any

import pulsar

from controller.dataplane.log_client import LogMessage, Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import is_barrier
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.encryption import is_unreadable, unreadable
from controller.dataplane.pulsar.message_intake import Intake, call_on_arrival
from controller.dataplane.pulsar.messages import incoming, position_of
from controller.dataplane.pulsar.reader_stall import LOOK_SECONDS, STALL_SECONDS, StallWatch
from controller.domain.errors import (
    CleaveError,
    DataGone,
    DataPlaneUnavailable,
    SegmentNotFound,
)
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess


class PulsarPositionReader(OneProcess):
    """A `PositionReader`: reads a topic without a subscription, as long as its connection lasts. Created by
    `PulsarLogClient.open_reader_at`. For one thread; arrivals come from the library's thread.
    """

    def __init__(
        self,
        cursors: Cursors,
        connections: Connections,
        *,
        backing_topic: str,
        after: Position | None,
        prefetch_messages: int,
        on_arrival: Callable[[], None],
        on_close: Callable[[PulsarPositionReader], None],
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """Create a reader without a connection. `after` is the position of the last message that the
        application has read; None: no message. At most `prefetch_messages` messages are buffered, more if a
        `read` requests more. `stall_seconds` is the time without messages after which an idle reader checks
        if the broker still delivers. `on_arrival` is called, from any thread, when there may be news;
        `on_close` is called by `close`.
        """
        self._cursors, self._connections = cursors, connections
        self._backing_topic, self._prefetch_messages = backing_topic, prefetch_messages
        self._on_arrival, self._on_close = on_arrival, on_close
        self._last_arrived = self._read = after or ()
        self._arrived: deque[tuple[Position, Any]] = deque()
        # reentrant, because the owner may call the reader from the notification of an arrival
        self._taking = threading.RLock()
        self._stall = StallWatch(stall_seconds, backing_topic=backing_topic)
        self._is_broken = False
        self._opened: tuple[pulsar.Client, pulsar.Reader, Intake] | None = None

    def attach(self, client: pulsar.Client, reader: pulsar.Reader) -> None:
        """Set the connection. A reader without a connection has nothing to read."""
        intake = Intake(reader, self.notify_owner)
        self._opened = (client, reader, intake)
        intake.begin()

    def _take_in(self, limit: int) -> None:
        """Take messages that have arrived, until the buffer has `limit` messages. Do nothing without a connection.

        Messages up to the start position, which belong to an entry that was read in part, and repeated messages
        are dropped.
        """
        with self._taking:
            if self._opened is None:
                return
            intake = self._opened[2]
            while len(self._arrived) < limit and (messages := intake.take(limit - len(self._arrived))):
                self._stall.note_activity()
                for message in messages:
                    position = position_of(message.message_id())
                    # an earlier position belongs to an entry that was read in part
                    if position > self._last_arrived:
                        self._last_arrived = position
                        self._arrived.append((position, message))

    def notify_owner(self) -> None:
        """Call `on_arrival`, because there may be news. An error of the callback is logged."""
        call_on_arrival(self._on_arrival, self._backing_topic)

    def check_connection(self) -> None:
        """If the connection is broken, end the reader's connection and notify the owner; otherwise do nothing.
        Messages that have arrived stay readable. The connection is closed in a background thread before the library
        restores it, because a restored connection could omit messages. The next `read` that finds no message raises
        the reason.
        """
        opened = self._opened
        if opened is not None and not opened[1].is_connected():
            self._take_in(sys.maxsize)
            self._is_broken = True
            self._disconnect()
            self.notify_owner()

    def may_wait(self) -> bool:
        """Return True if the next `read` may wait for a request: if no message has arrived, and either the
        connection has ended or it is time to check for a stall.
        """
        self.check_connection()
        self._take_in(1)
        return not self._arrived and (self._is_broken or self._stall.is_due)

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages in order, at most `limit`, without waiting for arrivals. Empty if none have
        arrived, also at the end of the topic. Entries of barriers are skipped.

        Raises InvalidInput for a limit below 1; Terminal if the next message is encrypted and no key here can decrypt
        it; and DataPlaneUnavailable if the broker has stopped delivering (`reader_stall`), which ends the connection.
        If the connection has ended and all messages that arrived are read, raises DataPlaneUnavailable, unless the
        topic is terminated and read to its end (`is_at_end`, whose errors are raised): open another reader after the
        last message. An error does not advance the reader.
        """
        whole(limit, "read limit", 1)
        self.check_connection()
        # Take more than `limit`: `on_arrival` is called only after all arrived messages were taken.
        self._take_in(max(limit, self._prefetch_messages))
        with self._taking:
            while self._arrived and is_unreadable(self._arrived[0][1]) and is_barrier(self._arrived[0][1]):
                self._read = self._arrived.popleft()[0]
            readable = takewhile(lambda arrived: not is_unreadable(arrived[1]), self._arrived)
            delivered = [*islice(readable, limit)]
            if not delivered and self._arrived:
                raise unreadable(self._arrived[0][1], self._backing_topic)
            for _ in delivered:
                self._arrived.popleft()
        if delivered:
            self._read = delivered[-1][0]
        elif self._is_broken and not self.is_at_end():
            raise DataPlaneUnavailable(
                f"{self._backing_topic}: the connection ended; open a new reader", delay_seconds=0.0
            )
        elif self._opened is not None and self._stall.is_stalled(self._has_undelivered_entries):
            self._is_broken = True
            self._disconnect()
            raise DataPlaneUnavailable(
                f"{self._backing_topic}: the broker delivers nothing though messages wait; open a new reader",
                delay_seconds=0.0,
            )
        return [incoming(message, position) for position, message in delivered]

    def is_at_end(self) -> bool:
        """Return True if the topic is terminated and all its messages were read. False, without a request, if
        messages have arrived that were not read. If all entries of a terminated topic were deleted, also True for a
        reader that began without a position and has read nothing.

        Raises DataGone if the topic was deleted, or if messages that follow the last one that was read were or may
        have been deleted; DataPlaneUnavailable; DataPlaneTimeout; and the other errors of `AdminCalls.ask`.
        """
        self._take_in(1)
        if self._arrived:
            return False
        try:
            return self._cursors.is_at_end(self._backing_topic, self._read, self._cursors.deadline())
        except SegmentNotFound:
            raise DataGone(
                f"{self._backing_topic} was deleted before it was read to its end; start again at the earliest stored message"
            ) from None

    def _has_undelivered_entries(self) -> bool:
        """Return True if entries are stored behind the entry of the last read message. False if that is
        unknown, because the request failed or took longer than `LOOK_SECONDS`.
        """
        try:
            return self._cursors.has_more(self._backing_topic, self._read, Deadline(LOOK_SECONDS))
        except CleaveError:
            return False

    def close(self) -> None:
        """Close the reader."""
        self._disconnect()
        self._on_close(self)

    def _disconnect(self) -> None:
        """Close the connection, if there is one, in a background thread. Buffered messages stay readable."""
        with self._taking:
            opened, self._opened = self._opened, None
        if opened is not None:
            client, reader, intake = opened
            with contextlib.suppress(RuntimeError):
                self._connections.close_aside(reader, intake, client)
