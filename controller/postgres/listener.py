"""Listener: blocks until PostgreSQL notifies, a time passes, or a thread interrupts.

A notification only says that the tables should be read. Notifications sent while no connection listens are lost. So every new connection,
the first one included, begins with a synthetic `resync`, upon which the caller reads everything. One thread
waits; `interrupt` may be called from any thread and from signal handlers. A server that is frozen or that vanished
sends nothing, so a listener that heard nothing for `SILENT_SECONDS` asks the server for an answer.

Nearly all are sent by triggers, whoever changed the rows (`sql/schema`):

| channel | payload | sent by the trigger function | when |
|---|---|---|---|
| `cleave_layout` | `topic:epoch` | `on_layout_change` | a layout changed |
| `cleave_leaders` | `shard` | `on_leader_change` | a worker took the lease of a shard |
| `cleave_topics` | `tenant/namespace` | `on_topics_of_namespace` | a topic became live or ceased to be, or has other properties |
| `cleave_operations` | `topic:operation` | `on_operation_intended` | an operation was intended |
| `cleave_consumers` | `topic` | `on_consumer_change` | a consumer registered or left |
| | | `on_observed_rows`, `on_observed_update` | brokers list other consumers |
| `cleave_load` | empty | `on_load_change` | load records were written |
| `cleave_policy` | `topic` | `on_topic_policy` | a topic's policy changed |
| | | `on_mirror_paused` | a broker's own auto-scaler was turned on or off |
| | empty | `on_namespace_policy`, `on_cluster_policy` | the policy of a namespace or of the cluster changed |

Two more are sent by statements: `cleave_drains` (`topic`) by `store/topics/drains.py` when what a subscription has read to its
end has changed, and `embedded_arrivals` (the log's id) by `dataplane/embedded` when a log got messages or was closed.

Every login may send any payload on any of them. The listener drops what none of these would send (`postgres/notification`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psycopg2
from psycopg2 import sql
from sqlalchemy import URL

from controller import client_metrics, telemetry
from controller.descriptors import readable
from controller.domain.errors import StoreUnavailable
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import ANSWER_SECONDS, SILENT_SECONDS, WatchedConnection, connect
from controller.postgres.notification import RESYNC, Notification

log = telemetry.get_logger(__name__)

RECONNECT_SECONDS = 1.0
_PIPE_BYTES = 65_536  # all a pipe holds, so that one wait takes every interrupt before it


class Listener(Renewed):
    """A connection of its own that listens on fixed channels; connects at the first `wait`, and again in a forked process."""

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        channels: Sequence[str],
        *,
        application_name: str = "cleave-listener",
    ) -> None:
        self._address = DatabaseAddress.of(url)
        self._channels = tuple(channels)
        self._application_name = application_name
        self._heard_at = 0.0
        self._closed = False
        self._begin_in_child()

    def _begin_in_child(self) -> None:
        self._connection: WatchedConnection | None = None
        self._closing = threading.RLock()  # a signal handler may interrupt the thread that holds it
        if self._closed:
            return
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, timeout_seconds: float) -> list[Notification]:
        """What arrived, at least one unless the time passed or `interrupt` was called.

        Raises StoreUnavailable when PostgreSQL cannot be reached; the next call tries again and, once it
        succeeds, returns the resync.
        """
        if self._connection is None:
            self._connect()
            return [Notification(RESYNC, "")]
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                arrived = self._poll(self._connection, deadline)
            except psycopg2.Error:
                self.disconnect()
                self._connect()
                return [Notification(RESYNC, "")]
            if arrived is not None:
                return arrived
            if time.monotonic() >= deadline:
                return []

    def disconnect(self) -> None:
        """End the connection. The next `wait` connects again and begins with the resync. For the waiting thread."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Make the present or the next `wait` return at once; after `close` nothing happens."""
        with self._closing:  # or it would write to a closed pipe, or to what has its number by now
            if self._closed:
                return
            with contextlib.suppress(
                BlockingIOError
            ):  # the pipe is full of wake-ups that nobody has read yet
                os.write(self._wake_write, b"!")

    def close(self) -> None:
        """Give the connection and the pipe back; the listener is of no use afterwards."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.disconnect()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _poll(self, live: WatchedConnection, deadline: float) -> list[Notification] | None:
        """Legible notifications, an empty list after an interrupt, None when none came until the deadline or the next question."""
        if not live.notifies:
            socket, wake = live.fileno(), self._wake_read
            asks_at = self._heard_at + SILENT_SECONDS
            ready = readable(
                socket, wake, timeout_seconds=max(0.0, min(deadline, asks_at) - time.monotonic())
            )
            if socket in ready:
                live.poll()
                self._heard_at = time.monotonic()
            elif time.monotonic() >= asks_at:
                live.demand_answer()
                self._heard_at = time.monotonic()
            if wake in ready:
                os.read(wake, _PIPE_BYTES)
                return self._take(live)
        return self._take(live) or None

    @staticmethod
    def _take(live: WatchedConnection) -> list[Notification]:
        taken, live.notifies[:] = list(live.notifies), []
        arrived = [Notification(one.channel, one.payload, one.pid) for one in taken]
        legible = [one for one in arrived if one.is_legible]
        if len(legible) < len(arrived):
            _ignore([one for one in arrived if not one.is_legible])
        return legible

    def _connect(self) -> None:
        try:
            live = connect(
                self._address, application_name=self._application_name, statement_seconds=ANSWER_SECONDS
            )
            live.autocommit = True
            with live.cursor() as cursor:
                for channel in self._channels:
                    cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except psycopg2.Error as error:  # a standby refuses LISTEN
            raise StoreUnavailable(f"PostgreSQL is unreachable: {error}", RECONNECT_SECONDS) from error
        self._connection, self._heard_at = live, time.monotonic()


def _ignore(illegible: Sequence[Notification]) -> None:
    """Count them. The payload is outside text and may be long, so the log has its beginning."""
    for one in illegible:
        client_metrics.IGNORED_NOTIFICATIONS.labels(one.channel).inc()
        log.debug("notification ignored", channel=one.channel, payload=one.payload[:100], sender=one.sender)
