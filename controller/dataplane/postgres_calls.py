"""Calls to PostgreSQL that end on time: a small pool, a deadline for each call, errors mapped once.

The embedded data plane and the client's layout source call through it. Connections are in autocommit: one
statement is one act and one round trip; `transaction` is for the acts that need more than one statement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
import psycopg2.extensions
from sqlalchemy import URL
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from controller.descriptors import readable
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    Retryable,
    Terminal,
)
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import NoAnswer, WatchedConnection, connect
from controller.postgres.pooler import SHARES_SESSIONS
from controller.postgres.sqlstates import Condition

_AWAY = (Condition.AWAY, Condition.REFUSED, Condition.DISK_FULL, Condition.RESOURCES)


class PostgresCalls(Renewed):
    """A pool of connections to one database, safe to share between threads; the first call connects. A forked process has a pool of its
    own.

    No call takes longer than `call_timeout_seconds`, except that a first connection may take 2 s, libpq's least, for
    each address of each host. `away` and `late` are raised when the server is away and when the answer did not come in
    time; in both cases the act may or may not have happened.
    """

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        *,
        call_timeout_seconds: float,
        pool_size: int = 5,
        application_name: str = "cleave-embedded",
        away: type[Retryable] = DataPlaneUnavailable,
        late: type[Retryable] = DataPlaneTimeout,
    ) -> None:
        self.call_timeout_seconds = call_timeout_seconds
        self._address = DatabaseAddress.of(url)
        self._label = self._address.label
        self._application_name = application_name
        self._away, self._late = away, late
        self._renewal = threading.Lock()
        self._pool = QueuePool(
            self._connect,  # type: ignore[arg-type]  # their protocol for DBAPI cursors is narrower
            pool_size=pool_size,
            max_overflow=0,
            timeout=call_timeout_seconds / 2,
            reset_on_return=None,  # autocommit: there is nothing to roll back, and it would cost a round trip
        )

    def _begin_in_child(self) -> None:
        self._renewal = threading.Lock()
        self._pool = self._pool.recreate()

    @contextmanager
    def statement(self, act: str) -> Iterator[psycopg2.extensions.cursor]:
        """A cursor whose every statement commits by itself; `act` says in errors what was attempted."""
        due_at = time.monotonic() + self.call_timeout_seconds
        pool = self._pool
        held: PoolProxiedConnection | None = None
        try:
            held = self._check_out(pool)
            with _raw(held).answering_by(due_at), _raw(held).cursor() as cursor:
                yield cursor
        except psycopg2.Error as error:
            why = Condition.AWAY if held is None else _raw(held).condition(error)
            if held is not None and why is not None and why.spoils_connection:
                self._renew(pool, held)
            raise self._translate(error, act, why) from error
        except PoolTimeout as error:
            raise self._late(f"{act}: no free connection to {self._label} in time; try again") from error
        except ValueError as error:  # psycopg2's answer to a NUL in a text
            raise InvalidInput(f"{act}: {error}") from error
        finally:
            if held is not None and held.is_valid:
                held.close()

    @contextmanager
    def transaction(self, act: str) -> Iterator[psycopg2.extensions.cursor]:
        """A cursor whose statements are one transaction, committed at the end and rolled back on any error."""
        with self.statement(act) as cursor:
            cursor.execute("BEGIN")
            try:
                yield cursor
            except BaseException:
                if not cursor.connection.closed:
                    cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def close(self) -> None:
        """Close what is idle; calls in progress end by themselves."""
        self._pool.dispose()

    def _connect(self) -> WatchedConnection:
        found = connect(
            self._address,
            application_name=self._application_name,
            statement_seconds=self.call_timeout_seconds,
            connect_seconds=self.call_timeout_seconds / 2,
            more_settings={
                "idle_in_transaction_session_timeout": f"{int(1000 * self.call_timeout_seconds)}ms"
            },
        )
        found.autocommit = True
        return found

    def _check_out(self, pool: QueuePool) -> PoolProxiedConnection:
        """A connection that the server has not closed while it was idle, as far as one can tell, and to the server that serves."""
        held = pool.connect()
        for _ in range(pool.size()):
            # no statement is under way, so what can be read is the end of the connection
            if not (readable(_raw(held).fileno(), timeout_seconds=0.0) or _raw(held).is_superseded):
                break
            held.invalidate()
            held = pool.connect()
        return held

    def _renew(self, pool: QueuePool, held: PoolProxiedConnection) -> None:
        """Drop a dead connection and the idle ones with it: they went to the same server."""
        held.invalidate()
        with self._renewal:
            if self._pool is pool:
                self._pool = pool.recreate()
        pool.dispose()

    def _translate(self, error: psycopg2.Error, act: str, why: Condition | None) -> CleaveError:
        reason = str(error).strip() or type(error).__name__
        if isinstance(error, NoAnswer) or why in (Condition.TOO_LATE, Condition.LOCKED):
            return self._late(
                f"{act}: no answer from {self._label} within {self.call_timeout_seconds:g} s; look before repeating"
            )
        if why is Condition.RACED:
            return self._away(f"{act}: {reason}; try again", delay_seconds=0.1)
        if why is Condition.NOT_INSTALLED:
            return Terminal(f"{act}: {self._label} has no such table ({reason}); run 'cleave migrate' on it")
        if why is Condition.READ_ONLY:
            return self._away(
                f"{act}: the server is a standby or read-only ({reason}); add target_session_attrs=read-write to "
                f"{self._label}, or retry after the fail-over"
            )
        if why is Condition.SESSION_LOST:
            return self._away(f"{act}: {reason}: {SHARES_SESSIONS}")
        if why in _AWAY:
            return self._away(f"{act}: {self._label} is away ({reason})")
        if why is Condition.VALUE:
            return InvalidInput(f"{act}: {reason}")
        return Terminal(f"{act}: {self._label} refuses it: {reason}")


def _raw(held: PoolProxiedConnection) -> WatchedConnection:
    raw: WatchedConnection = held.dbapi_connection  # type: ignore[assignment]
    return raw
