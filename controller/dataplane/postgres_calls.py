"""Runs calls to PostgreSQL that end on time: with a small pool, a deadline for each call, and errors
translated in one place.

The embedded data plane and the client's layout source use it. Connections are in autocommit mode: one
statement is one action and one round trip. `transaction` is for actions that need several statements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
import psycopg2.extensions
from sqlalchemy import URL
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    Retryable,
    Terminal,
)
from controller.file_descriptors import readable
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import NoAnswer, WatchedConnection, connect
from controller.postgres.pooler import SHARES_SESSIONS
from controller.postgres.sqlstates import Condition

_UNAVAILABLE = (Condition.AWAY, Condition.REFUSED, Condition.DISK_FULL, Condition.RESOURCES)


class PostgresCalls(Renewed):
    """A pool of connections to one database. Safe to share between threads; connects at the first call. A
    forked process has its own pool.

    No call takes longer than `call_timeout_seconds`, except that a first connection may take 2 s, the minimum
    of libpq, for each address of each host. `unavailable_error` is the class of the error if the server
    cannot serve the call at present: it is unreachable, refuses the connection, lacks space or another resource,
    is a standby, or reports a deadlock or a serialization failure. `timeout_error` is the class if the server did
    not respond in time, or if another transaction held a lock for longer than the session waits. After both, the
    action may or may not have happened.
    """

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        *,
        call_timeout_seconds: float,
        pool_size: int = 5,
        application_name: str = "cleave-embedded",
        unavailable_error: type[Retryable] = DataPlaneUnavailable,
        timeout_error: type[Retryable] = DataPlaneTimeout,
    ) -> None:
        """Create the pool without connecting. `pool_size` is the largest number of connections, and so of
        calls at once. Raises InvalidInput for an invalid `url`.
        """
        self.call_timeout_seconds = call_timeout_seconds
        self._address = DatabaseAddress.of(url)
        self._label = self._address.label
        self._application_name = application_name
        self._unavailable_error, self._timeout_error = unavailable_error, timeout_error
        self._pool_lock = threading.Lock()
        self._pool = QueuePool(
            self._connect,  # type: ignore[arg-type]  # the protocol of the library for DBAPI cursors is narrower
            pool_size=pool_size,
            max_overflow=0,
            timeout=call_timeout_seconds / 2,
            # autocommit leaves nothing to roll back, and a rollback would cost a round trip
            reset_on_return=None,
        )

    def _begin_in_child(self) -> None:
        self._pool_lock = threading.Lock()
        self._pool = self._pool.recreate()

    @contextmanager
    def statement(self, purpose: str) -> Iterator[psycopg2.extensions.cursor]:
        """Yield a cursor in autocommit mode, on which each `execute` call commits by itself. After the block the
        connection returns to the pool. `purpose` begins the messages of errors. All statements of the block and the
        wait for a connection share the limit `call_timeout_seconds`.

        Raises `unavailable_error` and `timeout_error` as the class describes; `timeout_error` also if no connection
        is free within half of `call_timeout_seconds`, in which case nothing was done; InvalidInput for a value that
        PostgreSQL refuses, and for any ValueError in the block; and Terminal for any other refusal by PostgreSQL.
        Other exceptions of the block pass unchanged. An error that makes the connection unusable also replaces the
        pool.
        """
        due_at = time.monotonic() + self.call_timeout_seconds
        pool = self._pool
        connection: PoolProxiedConnection | None = None
        try:
            connection = self._check_out(pool)
            with _raw(connection).answering_by(due_at), _raw(connection).cursor() as cursor:
                yield cursor
        except psycopg2.Error as error:
            cause = Condition.AWAY if connection is None else _raw(connection).condition(error)
            if connection is not None and cause is not None and cause.spoils_connection:
                self._replace_pool(pool, connection)
            raise self._translate(error, purpose, cause) from error
        except PoolTimeout as error:
            raise self._timeout_error(
                f"{purpose}: no free connection to {self._label} in time; try again"
            ) from error
        except ValueError as error:  # psycopg2 raises it for a NUL in a text
            raise InvalidInput(f"{purpose}: {error}") from error
        finally:
            if connection is not None and connection.is_valid:
                connection.close()

    def rows(
        self, purpose: str, statement: str, parameters: Sequence[object] | Mapping[str, object] = ()
    ) -> list[Any]:
        """Execute one statement, which commits by itself, and return the rows of its result. `purpose`, the time limit
        and the errors are those of `statement`.
        """
        with self.statement(purpose) as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()

    @contextmanager
    def transaction(self, purpose: str) -> Iterator[psycopg2.extensions.cursor]:
        """Yield a cursor whose statements form one transaction. The transaction is committed at the end of the block,
        and rolled back if the block raises any exception, which then passes as in `statement`. `purpose`, the time
        limit and the errors are those of `statement`. The time limit holds for the whole transaction. After
        `unavailable_error` or `timeout_error` the transaction may be committed.
        """
        with self.statement(purpose) as cursor:
            cursor.execute("BEGIN")
            try:
                yield cursor
            except BaseException:
                if not cursor.connection.closed:
                    cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def close(self) -> None:
        """Close idle connections. Calls in progress end on their own."""
        self._pool.dispose()

    def _connect(self) -> WatchedConnection:
        """Return a connection in autocommit mode, which limits each statement and each pause within a
        transaction to `call_timeout_seconds`. Raises psycopg2.Error if the server does not
        respond in time or refuses the connection.
        """
        connection = connect(
            self._address,
            application_name=self._application_name,
            statement_seconds=self.call_timeout_seconds,
            connect_seconds=self.call_timeout_seconds / 2,
            more_settings={
                "idle_in_transaction_session_timeout": f"{int(1000 * self.call_timeout_seconds)}ms"
            },
        )
        connection.autocommit = True
        return connection

    def _check_out(self, pool: QueuePool) -> PoolProxiedConnection:
        """Take a connection from `pool`, or open one, and return it. Connections that the server has closed while
        they were idle, and connections to a server that another server has replaced, are dropped.

        Raises PoolTimeout if no connection is free within half of `call_timeout_seconds`, and psycopg2.Error if a
        connection cannot be opened.
        """
        connection = pool.connect()
        for _ in range(pool.size()):
            # No statement is in progress, so readable data means the end of the connection.
            if not (
                readable(_raw(connection).fileno(), timeout_seconds=0.0) or _raw(connection).is_superseded
            ):
                break
            connection.invalidate()
            connection = pool.connect()
        return connection

    def _replace_pool(self, pool: QueuePool, connection: PoolProxiedConnection) -> None:
        """Invalidate a dead connection, and close the idle connections of `pool`, from which the connection came,
        because they lead to the same server. Replace the pool of this object with an empty one, unless another thread
        has already replaced `pool`. Calls that are in progress on connections of the old pool are not interrupted.
        """
        connection.invalidate()
        with self._pool_lock:
            if self._pool is pool:
                self._pool = pool.recreate()
        pool.dispose()

    def _translate(self, error: psycopg2.Error, purpose: str, cause: Condition | None) -> CleaveError:
        """Return, without raising it, the error that `statement` raises for an error of PostgreSQL. `purpose` begins
        the message. `cause` is the condition that the error shows; None for an error without a known condition.

        The result is `timeout_error` if the server did not respond in time or a lock was held too long;
        `unavailable_error` for a condition that may pass; InvalidInput for a value that PostgreSQL refuses; and
        Terminal otherwise, also if the database lacks a table.
        """
        reason = str(error).strip() or type(error).__name__
        if isinstance(error, NoAnswer) or cause in (Condition.TOO_LATE, Condition.LOCKED):
            return self._timeout_error(
                f"{purpose}: no answer from {self._label} within {self.call_timeout_seconds:g} s; check the state before repeating"
            )
        if cause is Condition.RACED:
            return self._unavailable_error(f"{purpose}: {reason}; try again", delay_seconds=0.1)
        if cause is Condition.NOT_INSTALLED:
            return Terminal(
                f"{purpose}: {self._label} has no such table ({reason}); run 'cleave migrate' on it"
            )
        if cause is Condition.READ_ONLY:
            return self._unavailable_error(
                f"{purpose}: the server is a standby or read-only ({reason}); add target_session_attrs=read-write to "
                f"{self._label}, or retry after the failover"
            )
        if cause is Condition.SESSION_LOST:
            return self._unavailable_error(f"{purpose}: {reason}: {SHARES_SESSIONS}")
        if cause in _UNAVAILABLE:
            return self._unavailable_error(f"{purpose}: {self._label} is out of reach ({reason})")
        if cause is Condition.VALUE:
            return InvalidInput(f"{purpose}: {reason}")
        return Terminal(f"{purpose}: {self._label} refuses the statement: {reason}")


def _raw(connection: PoolProxiedConnection) -> WatchedConnection:
    return connection.dbapi_connection  # type: ignore[return-value]
