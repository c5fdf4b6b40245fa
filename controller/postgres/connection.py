"""Connects to PostgreSQL. Every wait for the server ends by a deadline of this process.

The store's pool, listeners, data-plane calls, clients and migrations get their connections from `connect`, with the settings that
their statements need (`session_settings`). libpq limits the attempt to connect, including authentication, for each address of each host. The
watchdog limits every statement. The time-outs of the server come before that of the watchdog, so that a reachable server rolls a slow
statement back. The kernel limits the wait for a vanished host (`tcp_user_timeout`).
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, cast

import psycopg2
import psycopg2.extensions

from controller.domain.errors import Terminal
from controller.forks import Process, current
from controller.postgres import session_settings
from controller.postgres.address import DatabaseAddress
from controller.postgres.pooler import POOLERS, PoolerUnfit
from controller.postgres.sqlstates import Condition, condition
from controller.postgres.watchdog import WATCHDOG, Guard

CONNECT_SECONDS = 10
CONNECT_SECONDS_EACH = 3
"""Limits in seconds of an attempt to connect to one address, including authentication: for a single host, and for each of several
hosts. The `connect_timeout` of the URL takes precedence.
"""
SILENT_SECONDS = 3.0
"""Seconds without data after which a listening connection tests whether the server answers."""
ANSWER_SECONDS = 3.0
"""Limit in seconds of a statement that only tests whether the server answers."""
_LEAST_CONNECT_SECONDS = 2
"""Minimum of libpq's connect time-out, which is in whole seconds. libpq uses 2 for smaller values."""
_VANISHED = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",  # milliseconds without an acknowledgement; the kernel's default is about 15 minutes
}
_OF_THE_CONNECTION = (psycopg2.OperationalError, psycopg2.InterfaceError)
"""Errors that the driver raises without a SQLSTATE if it has lost the connection."""
_WRITABLE = ("read-write", "primary")
_REFUSES_OPTIONS = re.compile(r"unsupported startup parameter(?: in options)?: ")
"""English message of PgBouncer for startup parameters that its configuration does not ignore."""
_serving: dict[tuple[tuple[str, str], ...], tuple[str, str]] = {}
"""The server that accepted the last connection, by the servers of the address. A frozen host delays each attempt, so the last server
is tried first if the address demands a writable server.
"""
_refusing_options: set[tuple[tuple[str, str], ...]] = set()
"""Servers, as an address names them, that refuse libpq's `options`."""
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
    """Limit in seconds of each statement, commit and rollback. `connect` sets the limit."""
    due_at: float = math.inf
    """Time in `time.monotonic` seconds at which every statement ends, even if its own limit is not reached."""
    chosen_from: tuple[tuple[str, str], ...] = ()
    """The servers of the address, if there are several."""
    maker: Process | None = None
    """The process that has connected. In a forked process statements raise Terminal, and closing sends nothing to the server."""
    server_process: int = 0
    """Id of the server process of the session. Through a pooler, the driver has another id."""

    @property
    def is_pooled(self) -> bool:
        """True if the connection goes through a pooler."""
        return self.server_process != self.info.backend_pid

    @property
    def server(self) -> str:
        """Host and port of the server, for messages."""
        return f"{self.info.host}:{self.info.port}"

    def condition(self, error: psycopg2.Error) -> Condition | None:
        """Return the condition that an error of this connection indicates. None if the statement itself is wrong."""
        if self.closed or (error.pgcode is None and isinstance(error, _OF_THE_CONNECTION)):
            return Condition.AWAY
        return condition(error.pgcode, on_standby=self.info.parameter_status("in_hot_standby") == "on")

    @property
    def is_superseded(self) -> bool:
        """True if the last connection that this process opened to the address went to another server, as after a fail-over. False for an
        address with one server.

        The server of this connection may be a primary that was frozen during its own replacement.
        """
        if not self.chosen_from:
            return False
        with _serving_lock:
            serving = _serving.get(self.chosen_from)
        return serving is not None and serving != _entry_of(self)

    def is_spoilt_by(self, error: psycopg2.Error) -> bool:
        """Return True if work after the error needs another connection."""
        condition_of_error = self.condition(error)
        return condition_of_error is not None and condition_of_error.spoils_connection

    @contextmanager
    def answering_by(self, due_at: float) -> Iterator[None]:
        """End every statement of the block by `due_at`, in `time.monotonic` seconds: a statement without an answer raises NoAnswer, and the
        connection is cut. Blocks of one connection cannot be nested.
        """
        self.due_at = due_at
        try:
            yield
        finally:
            self.due_at = math.inf

    def demand_answer(self) -> None:
        """Raise psycopg2.Error unless the server answers a trivial statement: NoAnswer if the server does not answer within
        `ANSWER_SECONDS`, or if the connection is superseded (`is_superseded`). Needs autocommit.
        """
        if self.is_superseded:
            raise NoAnswer(f"PostgreSQL at {self.server} has been replaced by another server")
        with self.answering_by(time.monotonic() + ANSWER_SECONDS), self.cursor() as cursor:
            cursor.execute("SELECT 1")

    @property
    def is_foreign(self) -> bool:
        """True in a process that was forked from the process that has connected."""
        return self.maker is not current()

    def close(self) -> None:
        """Close the connection. Does nothing in a process that was forked from the process that has connected."""
        if not self.is_foreign:
            super().close()

    def commit(self) -> None:
        """Commit. Raises NoAnswer if the server does not answer in time; then the transaction may or may not be committed. Raises
        Terminal in a forked process.
        """
        with _Wait(self):
            super().commit()

    def rollback(self) -> None:
        """Roll back. Does nothing in a process that was forked from the process that has connected. Raises NoAnswer if the server does
        not answer in time.
        """
        if self.is_foreign:
            return
        with _Wait(self):
            super().rollback()


class _Wait(Guard):
    """A context manager that limits the statement in its block. At the deadline of the connection the watchdog shuts the connection
    down, and the block raises NoAnswer. In a forked process, entering the block raises Terminal.

    It is written as a class for speed, because every statement uses it.
    """

    __slots__ = ("began",)

    def __init__(self, connection: WatchedConnection) -> None:
        self.connection, self.cut = connection, False
        self.began = time.monotonic()
        deadline, due_at = self.began + connection.statement_seconds, connection.due_at
        self.deadline = min(due_at, deadline)

    def __enter__(self) -> None:
        connection = cast(WatchedConnection, self.connection)
        if connection.is_foreign:
            raise Terminal(
                f"this connection to PostgreSQL at {connection.server} was opened before a fork and is used in process {current().pid}; "
                "end the transaction before the fork, or begin the transaction after the fork"
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
    """A cursor whose statements are limited by the deadline of its connection."""

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
    more_settings: Mapping[str, str] = MappingProxyType({}),
) -> WatchedConnection:
    """Connect to the first server of the address that accepts, with the settings of `session_settings` and `more_settings` in force.
    Autocommit is off. `statement_seconds` (finite) limits each statement (see `WatchedConnection`).

    `connect_seconds` limits the attempt at each address of each host, if it is less than the default; the minimum is 2 s, and
    `connect_timeout` of the URL takes precedence. With several servers and `target_session_attrs` read-write or primary, the accepting
    server is tried first at the next call.

    Raises psycopg2.Error: OperationalError if no server accepts, PoolerUnfit for an unsuitable pooler, NoAnswer if a statement that begins
    the session gets no answer in time, another error for a setting that the server refuses.
    """
    limit = _connect_limit(address, connect_seconds)
    settings = session_settings.settings(statement_seconds, more_settings)

    def attempt() -> WatchedConnection:
        connection = _connected(address, application_name, limit, session_settings.as_options(settings))
        connection.statement_seconds, connection.maker = statement_seconds, current()
        return connection

    connection = attempt()
    try:
        _begin_session(connection, address, settings, attempt)
    except BaseException:
        connection.close()
        raise
    if len(address.servers) > 1:
        connection.chosen_from = address.servers
        _note_serving(connection)
    return connection


def _connect_limit(address: DatabaseAddress, connect_seconds: float) -> int:
    """Return the limit in seconds of an attempt to connect to one address: the default, or `connect_seconds` if that is less; at least
    `_LEAST_CONNECT_SECONDS`.
    """
    default = CONNECT_SECONDS_EACH if len(address.servers) > 1 else CONNECT_SECONDS
    return max(_LEAST_CONNECT_SECONDS, int(min(default, connect_seconds)))


def _connected(
    address: DatabaseAddress, application_name: str, limit: int, options: str
) -> WatchedConnection:
    """Connect with the options, or without them if a pooler refuses them; then `_begin_session` sets them. `limit` is the connect time-out
    in seconds, which `connect_timeout` of the URL replaces. Raises psycopg2.OperationalError.

    Later connections to servers that refused the options do not try the options again.
    """
    ordered = address
    if len(address.servers) > 1 and address.parameters.get("target_session_attrs") in _WRITABLE:
        ordered = _last_serving_first(address)
    parameters = {"connect_timeout": str(limit), **_VANISHED, **ordered.parameters}
    parameters |= {"application_name": application_name, "client_encoding": "UTF8"}
    own = parameters.pop("options", "")
    if address.servers not in _refusing_options:
        try:
            return _dial({**parameters, "options": f"{own} {options}"})
        except psycopg2.OperationalError as error:
            if not _REFUSES_OPTIONS.search(str(error)):
                raise
    connection = _dial({**parameters, "options": ""})  # without the empty value, libpq would use PGOPTIONS
    _refusing_options.add(address.servers)
    return connection


def _dial(parameters: Mapping[str, str]) -> WatchedConnection:
    """Connect with these libpq parameters. The connection has no limits yet; `connect` sets them. Raises psycopg2.OperationalError."""
    connection: WatchedConnection = psycopg2.connect(
        connection_factory=WatchedConnection, cursor_factory=_WatchedCursor, **parameters
    )
    return connection


def _begin_session(
    connection: WatchedConnection,
    address: DatabaseAddress,
    settings: Mapping[str, str],
    connect_again: Callable[[], WatchedConnection],
) -> None:
    """Set the settings of the session, including settings of the URL that a pooler may have ignored, and turn autocommit off.
    `connect_again` opens another connection as `connection` was opened, for the test of a pooler.

    Raises PoolerUnfit for a pooler that shares sessions, or that ignores an option of the URL which is not a setting, and if
    standard_conforming_strings is off in the session; psycopg2.Error for a setting that the server refuses, or if the server does not
    answer within `ANSWER_SECONDS`.
    """
    if connection.info.parameter_status("standard_conforming_strings") == "off":
        raise PoolerUnfit(  # the driver quotes values for the setting at the start of the connection
            f"the database sets standard_conforming_strings to off, and the pooler at {connection.server} lets no connection start "
            "otherwise; run ALTER DATABASE ... RESET standard_conforming_strings, and restart the pooler"
        )
    connection.autocommit = True  # a rollback would undo settings that a transaction makes
    with connection.answering_by(time.monotonic() + min(connection.statement_seconds, ANSWER_SECONDS)):
        connection.server_process = session_settings.settle(connection, settings)
        if connection.is_pooled:
            session_settings.apply_options(connection, address.parameters.get("options", ""), settings)
    if connection.is_pooled:
        _demand_own_session(connection, address, connect_again)
    connection.autocommit = False


def _demand_own_session(
    connection: WatchedConnection, address: DatabaseAddress, connect_again: Callable[[], WatchedConnection]
) -> None:
    """Raise PoolerUnfit if the pooler shares sessions between clients. `connect_again` opens the second connection of the test; if that
    fails, nothing is raised. Raises the errors of `Poolers.demand_own_session`.
    """

    def other() -> WatchedConnection:
        second = connect_again()
        second.due_at = connection.due_at = time.monotonic() + min(
            connection.statement_seconds, ANSWER_SECONDS
        )
        return second

    pool = (address.servers, address.parameters.get("user"), address.parameters.get("dbname"))
    try:
        POOLERS.demand_own_session(pool, connection, other, connection.server)
    finally:
        connection.due_at = math.inf


def _last_serving_first(address: DatabaseAddress) -> DatabaseAddress:
    """Return the address with the server that accepted the last connection as the first server to try. Return the address unchanged if
    no connection was made yet, or if the address gives `hostaddr`.
    """
    with _serving_lock:
        last = _serving.get(address.servers)
    if last is None or "hostaddr" in address.parameters:  # hostaddr is a list in the order of the hosts
        return address
    return address.starting_with(last)


def _note_serving(connection: WatchedConnection) -> None:
    """Record the server of the connection as the last one that accepted a connection of the address. Does nothing if the address does not
    name that server.
    """
    entry = _entry_of(connection)
    if entry is not None:
        with _serving_lock:
            _serving[connection.chosen_from] = entry


def _entry_of(connection: WatchedConnection) -> tuple[str, str] | None:
    """Return the server of the connection, as the address names the server. None if the address does not name the server."""
    host, port = connection.info.host, str(connection.info.port)
    return next((entry for entry in connection.chosen_from if entry in ((host, port), (host, ""))), None)
