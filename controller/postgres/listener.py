"""Listener: waits until PostgreSQL notifies, a time passes, or a thread interrupts.

A notification only says that the tables should be read. Notifications sent while no connection listens are lost. So each connection
begins with a synthetic `resync`, after which the caller reads everything. One thread waits; `interrupt` may be called from any thread
and from signal handlers. A frozen or vanished server sends nothing, so after `SILENT_SECONDS` without data the listener tests whether
the server answers.

Triggers send most notifications, for any change of the rows (`sql/schema`):

| channel | payload | sent by the trigger function | when |
|---|---|---|---|
| `cleave_layout` | `topic:epoch` | `on_layout_change` | a layout changed |
| `cleave_leaders` | `shard` | `on_leader_change` | a worker took the lease of a shard |
| `cleave_topics` | `tenant/namespace` | `notify_of_row` | a topic became live or ceased to be, or has other properties |
| `cleave_operations` | `topic:operation` | `notify_of_row` | an operation was intended |
| `cleave_consumers` | `topic` | `on_consumer_change` | a consumer registered or left |
| | | `on_consumer_change`, `on_observed_update` | brokers list other consumers |
| | | `on_readers_changed` | another kind of consumers reads a subscription |
| `cleave_drains` | `topic` | `notify_of_row` | a parameter of a subscription's assignment changed |
| `cleave_load` | empty | `on_load_change` | load records were written |
| `cleave_policy` | `topic` | `on_topic_input` | a topic's policy changed |
| | | `on_topic_input` | a broker's own auto-scaler was turned on or off |
| | empty | `on_shared_policy` | the policy of a namespace or of the cluster changed |

Statements send the others: `cleave_drains` (`topic`) by `store/topics/drains.py` when the drained segments of a subscription have changed
or a seek is requested or ends, and by `store/topics/held_topics.py` when a topic is verified; `cleave_operations` by
`store/journal/seeks.py` when the abort of a seek is requested; and `embedded_arrivals` (the id of the log) by `dataplane/embedded` and
functions in `sql/schema`, when a log got messages or was terminated, or when a cursor of the log was moved, was released or reached the
end.

Every login may send any payload on any channel. The listener ignores payloads of another form (`postgres/notification`).
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
from controller.domain.errors import StoreUnavailable
from controller.file_descriptors import readable
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import ANSWER_SECONDS, SILENT_SECONDS, WatchedConnection, connect
from controller.postgres.notification import RESYNC, Notification

log = telemetry.get_logger(__name__)

RECONNECT_SECONDS = 1.0
_PIPE_BYTES = 65_536  # the capacity of a pipe, so that one wait reads all earlier interrupts


class Listener(Renewed):
    """A listener with its own connection on fixed channels. Connects at the first `wait`, and again in a forked process. Raises
    InvalidInput at construction for a URL that `DatabaseAddress.of` refuses.
    """

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
        """Return the notifications that arrived, without notifications that Cleave does not send. Empty if `timeout_seconds` have passed,
        or if `interrupt` was called and none has arrived.

        Without a connection, as at the first call, connects and returns the resync without waiting. If the connection is lost, connects
        again and returns the resync; connecting may take longer than `timeout_seconds`. Raises StoreUnavailable if PostgreSQL is
        unreachable or refuses to listen; the next call connects again.
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
        """Close the connection. The next `wait` connects again and returns the resync. Only the waiting thread may call this."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Make the present or the next `wait` return at once. Does nothing after `close`."""
        with (
            self._closing
        ):  # the lock keeps this from writing to a closed pipe, or to another file with its number
            if self._closed:
                return
            with contextlib.suppress(
                BlockingIOError
            ):  # the pipe is full of interrupts that the waiting thread has not read yet
                os.write(self._wake_write, b"!")

    def close(self) -> None:
        """Close the connection and the pipe. The listener cannot be used afterwards."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.disconnect()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _poll(self, connection: WatchedConnection, deadline: float) -> list[Notification] | None:
        """Wait once, at most until the deadline (`time.monotonic` seconds) or the next test of the server, and return the well-formed
        notifications. None if there is none; after an interrupt an empty list instead. Raises psycopg2.Error if the connection is
        lost or the server does not answer the test.
        """
        if not connection.notifies:
            socket, wake = connection.fileno(), self._wake_read
            test_at = self._heard_at + SILENT_SECONDS
            ready = readable(
                socket, wake, timeout_seconds=max(0.0, min(deadline, test_at) - time.monotonic())
            )
            if socket in ready:
                connection.poll()
                self._heard_at = time.monotonic()
            elif time.monotonic() >= test_at:
                connection.demand_answer()
                self._heard_at = time.monotonic()
            if wake in ready:
                os.read(wake, _PIPE_BYTES)
                return self._take(connection)
        return self._take(connection) or None

    @staticmethod
    def _take(connection: WatchedConnection) -> list[Notification]:
        """Remove the notifications that have arrived at the connection. Return the well-formed notifications; count and log the
        others.
        """
        raw, connection.notifies[:] = list(connection.notifies), []
        arrived = [Notification(notify.channel, notify.payload, notify.pid) for notify in raw]
        legible = [notification for notification in arrived if notification.is_legible]
        if len(legible) < len(arrived):
            _ignore([notification for notification in arrived if not notification.is_legible])
        return legible

    def _connect(self) -> None:
        """Connect and listen on all channels. Raises StoreUnavailable if the server is unreachable or refuses to listen."""
        try:
            connection = connect(
                self._address, application_name=self._application_name, statement_seconds=ANSWER_SECONDS
            )
            try:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    for channel in self._channels:
                        cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            except BaseException:
                connection.close()
                raise
        except psycopg2.Error as error:  # a standby refuses LISTEN
            raise StoreUnavailable(f"PostgreSQL is unreachable: {error}", RECONNECT_SECONDS) from error
        self._connection, self._heard_at = connection, time.monotonic()


def _ignore(illegible: Sequence[Notification]) -> None:
    """Count and log the notifications. A payload is external text and may be long, so the log has only its beginning."""
    for notification in illegible:
        client_metrics.IGNORED_NOTIFICATIONS.labels(notification.channel).inc()
        log.debug(
            "notification ignored",
            channel=notification.channel,
            payload=notification.payload[:100],
            sender=notification.sender,
        )
