"""Reading one topic from a position on, without a subscription that lasts: the application keeps the position.

A broker deletes what its durable subscriptions have acknowledged and its retention does not keep, whatever a reader without one
still wants, and then gives it what is next. So it is asked which ledgers it has before a reader is opened: one at a position
whose ledger is gone is refused (DataGone). That nothing was deleted before the first message nobody can tell.

A connection that breaks ends the reader. What has arrived is read all the same, since nobody owns it.
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

from controller import telemetry
from controller.dataplane.base import LogMessage, Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import is_barrier
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.encryption import is_unreadable, unreadable
from controller.dataplane.pulsar.intake import Intake
from controller.dataplane.pulsar.messages import incoming, position_of
from controller.dataplane.pulsar.stall import LOOK_SECONDS, STALL_SECONDS, StallWatch, tell_of_stall
from controller.domain.errors import (
    CleaveError,
    DataGone,
    DataPlaneUnavailable,
    InvalidInput,
    SegmentNotFound,
)
from controller.forks import OneProcess

log = telemetry.get_logger(__name__)

WHOLE_ENTRY = 2**31 - 1
"""As the index in a batch: behind every message of the entry."""


class PulsarPositionReader(OneProcess):
    """A `PositionReader`; `PulsarLogClient.open_reader_at` makes it. For one thread; arrivals come from the library's."""

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
        self._cursors, self._connections = cursors, connections
        self._backing_topic, self._prefetch_messages = backing_topic, prefetch_messages
        self._on_arrival, self._on_close = on_arrival, on_close
        self._last_arrived = self._read = after or ()
        self._arrived: deque[tuple[Position, Any]] = deque()
        self._taking = threading.RLock()  # the owner may look when it is told that something is there
        self._stall = StallWatch(stall_seconds)
        self._is_broken = False
        self._opened: tuple[pulsar.Client, pulsar.Reader, Intake] | None = None

    def attach(self, client: pulsar.Client, reader: pulsar.Reader) -> None:
        """Set the connection it reads through. Without one there is nothing to read."""
        intake = Intake(reader, self.ring)
        self._opened = (client, reader, intake)
        intake.begin()

    def _take_in(self, limit: int) -> None:
        """Have so many messages here, as far as they have arrived."""
        with self._taking:
            if self._opened is None:
                return
            intake = self._opened[2]
            while len(self._arrived) < limit and (found := intake.take(limit - len(self._arrived))):
                self._stall.heard()
                for message in found:
                    position = position_of(message.message_id())
                    if position > self._last_arrived:  # or it is of an entry that was read in part
                        self._last_arrived = position
                        self._arrived.append((position, message))

    def ring(self) -> None:
        """There may be something new. No error may reach the library's thread, since the process would end."""
        try:
            self._on_arrival()
        except Exception:
            log.exception("the callback for arrivals failed", backing_topic=self._backing_topic)

    def look(self) -> None:
        """Notice a broken connection, before the library restores it and messages may have been left out. What has come is kept."""
        opened = self._opened
        if opened is not None and not opened[1].is_connected():
            self._take_in(sys.maxsize)
            self._is_broken = True
            self._let_go()
            self.ring()

    def may_wait(self) -> bool:
        """Whether the next `read` would ask for the end of the topic, or whether the broker delivers no more."""
        self.look()
        self._take_in(1)
        return not self._arrived and (self._is_broken or self._stall.is_due)

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit`; empty when none has arrived. Terminal where the next one is encrypted, and no
        key here fits; DataPlaneUnavailable where the connection has ended, or the broker delivers no more (see `stall`).
        """
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        self.look()
        # More than is asked for: only who has all that came is told of the next.
        self._take_in(max(limit, self._prefetch_messages))
        with self._taking:
            while self._arrived and is_unreadable(self._arrived[0][1]) and is_barrier(self._arrived[0][1]):
                self._read = self._arrived.popleft()[0]
            readable = takewhile(lambda one: not is_unreadable(one[1]), self._arrived)
            taken = [*islice(readable, limit)]
            if not taken and self._arrived:
                raise unreadable(self._arrived[0][1], self._backing_topic)
            for _ in taken:
                self._arrived.popleft()
        if taken:
            self._read = taken[-1][0]
        elif self._is_broken and not self.is_at_end():
            raise DataPlaneUnavailable(
                f"{self._backing_topic}: the connection ended; open a new reader", delay_seconds=0.0
            )
        elif self._opened is not None and self._stall.is_stalled(self._is_passed_over):
            tell_of_stall(self._backing_topic)
            self._is_broken = True
            self._let_go()
            raise DataPlaneUnavailable(
                f"{self._backing_topic}: the broker delivers nothing though messages wait; open a new reader",
                delay_seconds=0.0,
            )
        return [incoming(message, position) for position, message in taken]

    def is_at_end(self) -> bool:
        """Whether the topic is terminated and read to its end."""
        self._take_in(1)
        if self._arrived:
            return False
        try:
            return self._cursors.is_at_end(self._backing_topic, self._read, self._cursors.deadline())
        except SegmentNotFound:
            raise DataGone(
                f"{self._backing_topic} was deleted before it was read to its end; begin anew where messages are left"
            ) from None

    def _is_passed_over(self) -> bool:
        """There is no subscription to look at: entries behind what was read say it. What cannot be known does not."""
        try:
            return self._cursors.has_more(self._backing_topic, self._read, Deadline(LOOK_SECONDS))
        except CleaveError:
            return False

    def close(self) -> None:
        """Read no further."""
        self._let_go()
        self._on_close(self)

    def _let_go(self) -> None:
        with self._taking:
            opened, self._opened = self._opened, None
        if opened is not None:
            client, reader, intake = opened
            with contextlib.suppress(RuntimeError):
                self._connections.close_aside(reader, intake, client)
