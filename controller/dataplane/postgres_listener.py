"""A thread that listens to PostgreSQL notifications and calls back.

A notification is a doorbell, never the truth: its receiver reads the tables. After every connection, the first one
included, `on_gap` is called, since notifications may have been missed. A server that is frozen or that vanished sends
nothing, so a listener that heard nothing for `SILENT_SECONDS` asks the server for an answer.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence

import psycopg2
from psycopg2 import sql
from sqlalchemy import URL

from controller import telemetry
from controller.descriptors import readable
from controller.forks import OneProcess
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import ANSWER_SECONDS, SILENT_SECONDS, WatchedConnection, connect
from controller.postgres.notification import Notification
from controller.repeating import Repeating

log = telemetry.get_logger(__name__)

_RETRY_SECONDS = 0.5


class PostgresListener(OneProcess):
    """Listens from `start` to `close`. The callbacks run in its thread and must not block. The listener connects again after a callback that raises."""

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        channels: Sequence[str],
        *,
        on_notification: Callable[[int], None],
        on_gap: Callable[[], None],
    ) -> None:
        """`on_notification` gets the id that a payload begins with. A notification without an id is ignored: any login may send it."""
        self._address = DatabaseAddress.of(url)
        self._channels = tuple(channels)
        self._on_notification, self._on_gap = on_notification, on_gap
        self._wake_read, self._wake_write = os.pipe()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postgres-listener", daemon=True)

    def start(self) -> None:
        """Begin; returns at once. What happened before the first `on_gap` may be missed, as after any gap."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening and wait for the thread; safe to repeat."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._wake_write, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        Repeating(
            self._follow,
            self._closing,
            log,
            "notifications not heard",
            longest_pause_seconds=_RETRY_SECONDS,
            expected=(psycopg2.Error, OSError),
            says_once=True,
        ).run()

    def _follow(self) -> float:
        """Listen on one connection until it is lost, or the listener is closed."""
        with contextlib.closing(self._connect()) as listening:
            self._on_gap()
            self._listen(listening)
        return 0.0

    def _connect(self) -> WatchedConnection:
        found = connect(self._address, application_name="cleave-listener", statement_seconds=ANSWER_SECONDS)
        found.autocommit = True
        with found.cursor() as cursor:
            for channel in self._channels:
                cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return found

    def _listen(self, listening: WatchedConnection) -> None:
        while not self._closing.is_set():
            if not readable(listening.fileno(), self._wake_read, timeout_seconds=SILENT_SECONDS):
                listening.demand_answer()
            listening.poll()
            arrived, listening.notifies = list(listening.notifies), []
            for one in arrived:
                first_id = Notification(one.channel, one.payload).first_id
                if first_id is not None:
                    self._on_notification(first_id)
