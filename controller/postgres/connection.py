"""Connections whose every wait for the server ends by a deadline of this process.

The one place that connects to PostgreSQL: the store's pool, listeners, data-plane calls, clients and migrations all
have their connections from `connect`. libpq bounds the attempt to connect, authentication included, for each address of
each host; the watchdog bounds every statement; the server's own timeouts come before the watchdog's, so that a live
server rolls a slow statement back. The kernel bounds a host that vanished (`tcp_user_timeout`).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

import psycopg2
import psycopg2.extensions

from controller.domain.errors import Terminal
from controller.forks import Process, current
from controller.postgres.address import DatabaseAddress
from controller.postgres.watchdog import WATCHDOG, Guard

CONNECT_SECONDS = 10
CONNECT_SECONDS_EACH = 3
"""Time for the attempt to connect to one address, authentication included: to the only host, and to each of several. The
URL's `connect_timeout` wins.
"""
SILENT_SECONDS = 3.0
"""A listening connection that heard nothing for this long asks the server for an answer."""
ANSWER_SECONDS = 3.0
"""Time for the answer to a statement that only tests whether the server serves."""
_LEAST_CONNECT_SECONDS = 2
"""libpq counts connect time-outs in whole seconds and takes less than 2 for 2."""
_VANISHED = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",  # milliseconds without an acknowledgement; the kernel's own is a quarter of an hour
}
_DRIVERS = "-c datestyle=ISO"
"""The driver demands it, and would set it by a statement that nothing watches."""
_WRITABLE = ("read-write", "primary")
_serving: dict[tuple[tuple[str, str], ...], tuple[str, str]] = {}
"""The server that accepted the last connection, by the servers to choose from. A host that is frozen costs each attempt
its time, so the one that served last is tried first.
"""
_serving_lock = threading.Lock()


def _begin_in_child() -> None:
    global _serving_lock  # noqa: PLW0603
    _serving_lock = threading.Lock()


os.register_at_fork(after_in_child=_begin_in_child)


class NoAnswer(psycopg2.OperationalError):
    """The server did not answer in time and the connection was cut. The statement may or may not have taken effect."""


class WatchedConnection(psycopg2.extensions.connection):
    """A connection to one server. Statements, commits and rollbacks raise NoAnswer after `statement_seconds`."""

    statement_seconds: float = math.inf
    due_at: float = math.inf
    """`time.monotonic` seconds at which any statement ends, however short its own wait was."""
    chosen_from: tuple[tuple[str, str], ...] = ()
    """The servers of the address, if there are several."""
    maker: Process | None = None
    """The process that has connected. In a forked process statements raise Terminal, and nothing that ends is told to the server."""

    @property
    def server(self) -> str:
        """Host and port of the server, for messages."""
        return f"{self.info.host}:{self.info.port}"

    @property
    def is_read_only_server(self) -> bool:
        """True for a standby, and for a server that was set read-only."""
        told = self.info.parameter_status
        return "on" in (told("in_hot_standby"), told("default_transaction_read_only"))

    @property
    def is_superseded(self) -> bool:
        """True if this process has since connected to another server of the same address, as after a fail-over.

        The server of this connection may be a primary that was frozen during its own replacement.
        """
        if not self.chosen_from:
            return False
        with _serving_lock:
            serving = _serving.get(self.chosen_from)
        return serving is not None and serving != _entry_of(self)

    @contextmanager
    def answering_by(self, due_at: float) -> Iterator[None]:
        """Have every statement of the block end by `due_at`, in `time.monotonic` seconds."""
        self.due_at = due_at
        try:
            yield
        finally:
            self.due_at = math.inf

    def demand_answer(self) -> None:
        """Raise psycopg2.Error unless the server answers in `ANSWER_SECONDS` and is not superseded. Needs autocommit."""
        if self.is_superseded:
            raise NoAnswer(f"PostgreSQL at {self.server} has been replaced by another server")
        with self.answering_by(time.monotonic() + ANSWER_SECONDS), self.cursor() as cursor:
            cursor.execute("SELECT 1")

    @property
    def is_foreign(self) -> bool:
        """True in a process that was forked from the one that has connected."""
        return self.maker is not current()

    def close(self) -> None:
        """Close, unless another process uses the connection."""
        if not self.is_foreign:
            super().close()

    def commit(self) -> None:
        """Commit. Raises NoAnswer."""
        with _Wait(self):
            super().commit()

    def rollback(self) -> None:
        """Roll back, unless another process uses the connection. Raises NoAnswer."""
        if self.is_foreign:
            return
        with _Wait(self):
            super().rollback()


class _Wait(Guard):
    """A guard as a context manager, written out since it stands around every statement."""

    __slots__ = ("began",)

    def __init__(self, connection: WatchedConnection) -> None:
        self.connection, self.cut = connection, False
        self.began = time.monotonic()
        deadline, due_at = self.began + connection.statement_seconds, connection.due_at
        self.deadline = min(due_at, deadline)

    def __enter__(self) -> None:
        connection = cast(WatchedConnection, self.connection)
        if connection.maker is not current():
            raise Terminal(
                f"this connection to PostgreSQL at {connection.server} was made before a fork and is used in process {current().pid}: end "
                "a transaction before the fork, or begin one after it"
            )
        WATCHDOG.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        WATCHDOG.discard(self)
        if self.cut and isinstance(error, psycopg2.Error):
            server = cast(WatchedConnection, self.connection).server
            waited = max(0.0, self.deadline - self.began)
            raise NoAnswer(f"PostgreSQL at {server} did not answer within {waited:.3g} s") from error


class _WatchedCursor(psycopg2.extensions.cursor):
    """A cursor whose statements are waits of its connection."""

    __slots__ = ()

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - psycopg2's name
        with _Wait(cast(WatchedConnection, self.connection)):
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        with _Wait(cast(WatchedConnection, self.connection)):
            super().executemany(query, vars_list)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        with _Wait(cast(WatchedConnection, self.connection)):
            super().copy_expert(sql, file, size)


def connect(
    address: DatabaseAddress,
    *,
    application_name: str,
    statement_seconds: float,
    connect_seconds: float = math.inf,
    session: str = "",
) -> WatchedConnection:
    """Connect to the first server of the address that accepts. `session` is added to libpq's `options`.

    `connect_seconds` limits the attempt at each address of each host below the default. Raises psycopg2.OperationalError.
    """
    several = len(address.servers) > 1
    default = CONNECT_SECONDS_EACH if several else CONNECT_SECONDS
    limit = max(_LEAST_CONNECT_SECONDS, int(min(default, connect_seconds)))
    wanted = address
    if several and address.parameters.get("target_session_attrs") in _WRITABLE:
        wanted = _last_serving_first(address)
    parameters = {"connect_timeout": str(limit), **_VANISHED, **wanted.parameters}
    options = " ".join(filter(None, (parameters.pop("options", ""), session, _DRIVERS)))
    made = psycopg2.connect(
        connection_factory=WatchedConnection,
        cursor_factory=_WatchedCursor,
        **{**parameters, "application_name": application_name, "options": options},
    )
    made.statement_seconds, made.maker = statement_seconds, current()
    if several:
        made.chosen_from = address.servers
        _note_serving(made)
    return made


def _last_serving_first(address: DatabaseAddress) -> DatabaseAddress:
    with _serving_lock:
        last = _serving.get(address.servers)
    if last is None or "hostaddr" in address.parameters:  # which is a list in the order of the hosts
        return address
    return address.starting_with(last)


def _note_serving(made: WatchedConnection) -> None:
    entry = _entry_of(made)
    if entry is not None:
        with _serving_lock:
            _serving[made.chosen_from] = entry


def _entry_of(made: WatchedConnection) -> tuple[str, str] | None:
    """The server of the connection, as its address names the server."""
    host, port = made.info.host, str(made.info.port)
    return next((entry for entry in made.chosen_from if entry in ((host, port), (host, ""))), None)
