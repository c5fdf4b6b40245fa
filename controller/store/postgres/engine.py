"""Connects to PostgreSQL, and begins and ends all transactions of the store.

The composition root makes one `Store` per process and passes it on. All transactions are READ COMMITTED; row versions,
constraints and claim terms make them safe. This module knows no table: the functions of the store execute statements in a
transaction. Every statement ends by a deadline of this process, even if the server does not answer (`controller.postgres`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg2
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from controller import metrics
from controller.domain.errors import CleaveError, HeldUp, InvalidInput, LostRace, StoreUnavailable
from controller.file_descriptors import readable
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import ANSWER_SECONDS, WatchedConnection, connect
from controller.postgres.session_settings import STATEMENT_SECONDS
from controller.store.postgres.errors import load_comments, translate
from controller.store.postgres.stored_json import read_json

PING_AFTER_SECONDS = 5.0
"""Idle time in seconds after which a connection is tested before use, because a firewall may have dropped it silently."""

_SESSION = {
    "idle_in_transaction_session_timeout": "120s",
    "plan_cache_mode": "force_generic_plan",  # affects prepared statements only; others are planned for their values
}


def server_process(tx: Connection) -> int:
    """Return the id of the server process of the transaction, which is the sender of its notifications."""
    driver: Any = tx.connection.dbapi_connection
    return int(driver.server_process)


def is_pooled(tx: Connection) -> bool:
    """Return True if the transaction reaches its server through a pooler."""
    driver: Any = tx.connection.dbapi_connection
    return bool(driver.is_pooled)


def server_version(tx: Connection) -> tuple[int, str]:
    """Return the version of the server as a number, such as 150004, and as text."""
    driver: Any = tx.connection.dbapi_connection
    return int(driver.server_version), str(driver.get_parameter_status("server_version"))


def demand_answer(tx: Connection) -> None:
    """Execute a trivial statement, so that the caller's transaction ends with StoreUnavailable if the server does not answer."""
    tx.execute(text("SELECT 1"))


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Ending:
    """The end of one transaction. `is_committing` is True once the loss of the connection may leave the transaction
    committed.
    """

    is_committing: bool = False


class Store(Renewed):
    """A pool of connections to one database. Thread-safe. The first transaction connects. A forked process gets its own pool."""

    rolls_back = False
    """True if all its writes are rolled back, as in a dry run."""

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        *,
        application_name: str = "cleave",
        pool_size: int = 5,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> None:
        """Create a store without connecting. `pool_size` limits the concurrent transactions. A further transaction
        waits for a free connection for at most 30 s or `statement_seconds`, whichever is shorter, and then raises
        StoreUnavailable.

        A statement or a connection attempt without an answer after `statement_seconds` fails with StoreUnavailable. A
        reachable server cancels a statement before that time (StoreUnavailable), and a wait for a lock earlier still
        (LostRace). `application_name` is the name of the sessions on the server. Raises InvalidInput for a URL that
        is not a valid PostgreSQL URL.
        """
        self.address = DatabaseAddress.of(url)
        self._comments: dict[str, str] = {}
        self._engine = create_engine(
            "postgresql+psycopg2://",
            creator=partial(
                connect,
                self.address,
                application_name=application_name,
                statement_seconds=statement_seconds,
                connect_seconds=statement_seconds,
                more_settings=_SESSION,
            ),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=min(30.0, statement_seconds),
            json_deserializer=read_json,
        )
        _replace_dead_connections(self._engine)
        _drop_unreachable_servers(self._engine)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction, which is committed at the end and rolled back on any error. Other errors of the block
        pass unchanged.

        Raises StoreUnavailable if PostgreSQL is unreachable, does not answer in time or refuses the login
        (StoreRefused), or if no connection of the pool becomes free, LostRace for deadlocks and locks held too long,
        and Conflict, InvalidInput, NotFound or InvariantViolated with the comment of a broken constraint. Raises
        InvalidInput for a value that PostgreSQL cannot store, and Terminal if the login lacks a right or the database
        an object. If the connection is lost during the COMMIT, or a statement gets no answer in time, the message of
        StoreUnavailable says that the transaction may or may not have been committed.
        """
        with self._errors_translated() as ending, self._engine.begin() as tx:
            yield tx
            ending.is_committing = not self.rolls_back

    def in_transaction(
        self,
        function: Callable[Concatenate[Connection, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        """Call the function in a transaction of its own, with the connection as its first argument, and return its result. Raises the
        errors of the function and of `transaction`.
        """
        with self.transaction() as tx:
            return function(tx, *arguments, **keywords)

    def in_single_statement(
        self,
        function: Callable[Concatenate[Connection, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        """Call the function, which executes exactly one statement, in a transaction of its own (`single_statement`), with the connection
        as its first argument, and return its result. Raises the errors of the function and of `single_statement`.
        """
        with self.single_statement() as tx:
            return function(tx, *arguments, **keywords)

    @contextmanager
    def single_statement(self) -> Iterator[Connection]:
        """Open a connection for exactly one statement, which is a transaction of its own and takes one round trip
        instead of three. The statement is committed when it succeeds; an error that the block raises later does not
        roll the statement back.

        A second statement would be a second transaction, so statements that belong together use `transaction`. Raises
        the errors of `transaction`; a statement whose connection is lost may have been committed.
        """
        with self._errors_translated() as ending, self._engine.connect() as tx:
            ending.is_committing = True
            # SQLAlchemy's isolation level AUTOCOMMIT would set the default of the session, which costs two round trips.
            driver: Any = tx.connection.dbapi_connection
            driver.autocommit = True
            try:
                yield tx
            finally:
                if not driver.closed:
                    driver.autocommit = False

    @contextmanager
    def _errors_translated(self) -> Iterator[_Ending]:
        """Raise the errors of the driver and of the pool that the block raises as errors of Cleave (see
        `transaction`), and count lost races in the metric. A ValueError for text that PostgreSQL cannot store becomes
        InvalidInput. Other errors pass unchanged. The block sets `is_committing` of the yielded object.
        """
        ending = _Ending()
        try:
            yield ending
        except DBAPIError as error:
            translated = translate(error, self._constraint_comments, may_be_committed=ending.is_committing)
            count_race(translated)
            raise translated from error
        except (
            PendingRollbackError
        ) as error:  # the caller caught the loss of the connection within the transaction
            raise StoreUnavailable(
                "the connection to PostgreSQL was lost in the middle of a transaction; read the state again and retry"
            ) from error
        except LostRace as error:
            count_race(error)
            raise
        except PoolTimeout as error:
            raise StoreUnavailable(
                "all connections of the pool are in use; raise pool_size or retry"
            ) from error
        except ValueError as error:
            if "NUL (0x00)" in str(error) or isinstance(error, UnicodeEncodeError):
                raise InvalidInput(
                    "text holds a character that PostgreSQL cannot store; remove NUL and surrogates"
                ) from error
            raise

    def dispose(self) -> None:
        """Close the idle connections. Connections in use close when they are returned."""
        self._engine.dispose()

    def _begin_in_child(self) -> None:
        """Give a forked process a pool of its own, without closing the connections of the parent process."""
        self._engine.dispose(close=False)

    def _constraint_comments(self) -> dict[str, str]:
        """Return the comments of constraints by name. The first call loads the comments in a transaction of its own, and later calls
        return them again. Empty if the database reports an error or no connection is free; the next call tries again.
        """
        if not self._comments:
            try:
                with self._engine.begin() as tx:
                    self._comments = load_comments(tx)
            except (DBAPIError, PoolTimeout):
                return {}
        return self._comments


def count_race(error: CleaveError) -> None:
    """Count the error in the metric of lost races if it is a LostRace other than HeldUp, which loses no work.

    An error that ends its transaction passes through `Store.transaction`, which calls this function. A caller that returns the error
    instead calls this function itself.
    """
    if isinstance(error, LostRace) and not isinstance(error, HeldUp):
        metrics.LOST_RACES.labels(error.what).inc()


def _drop_unreachable_servers(engine: Engine) -> None:
    """Make the engine invalidate a connection after an error which shows that the connection's server is unreachable
    or has become a standby, or that the session is lost. So later connections reach the primary. The error itself is
    raised as usual.
    """

    @event.listens_for(engine, "handle_error")
    def on_error(context: ExceptionContext) -> None:
        error, connection = context.original_exception, context.connection
        if connection is not None and not connection.invalidated and isinstance(error, psycopg2.Error):
            driver = connection.connection.dbapi_connection
            if isinstance(driver, WatchedConnection) and driver.is_spoilt_by(error):
                context.is_disconnect = True


def _replace_dead_connections(engine: Engine) -> None:
    """Make the engine test each pooled connection before use: whether the socket is closed or readable, and whether
    the server was replaced. A connection that was idle for `PING_AFTER_SECONDS` must also answer a ping.

    A server that stops closes its sockets, which is visible without a round trip. If a connection fails the test, all
    idle connections are dropped (InvalidatePoolError), because they go to the same server, and another connection is
    opened. The user of the pool gets an error only if no connection can be opened.
    """

    @event.listens_for(engine, "checkin")
    def on_checkin(_connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def on_checkout(connection: Any, record: Any, _proxy: Any) -> None:
        idle_since = record.info.get("idle_since")
        if idle_since is None:  # a connection that was just opened
            return
        if (
            _is_closed_or_readable(connection)
            or connection.is_superseded
            or not (time.monotonic() - idle_since < PING_AFTER_SECONDS or _answers(engine, connection))
        ):
            record.info.pop("idle_since")
            raise InvalidatePoolError("the server closed the connection while it was idle, or was replaced")


def _is_closed_or_readable(connection: Any) -> bool:
    """Return True if the socket is closed or readable. An idle connection has no request in progress, so readable data is the end of
    the server or a notice, and either requires another connection.
    """
    return connection.closed or bool(readable(connection.fileno(), timeout_seconds=0.0))


def _answers(engine: Engine, connection: Any) -> bool:
    """Return True if the server answers a ping within `ANSWER_SECONDS`."""
    try:
        with connection.answering_by(time.monotonic() + ANSWER_SECONDS):
            return engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False
