"""Connections to PostgreSQL and the one place where a transaction begins and ends.

The composition root makes one `Store` a process and hands it down. READ COMMITTED throughout: safety comes from row
versions, constraints and claim terms. Nothing here knows a table: the functions of the store do the work inside a
transaction. Every statement ends by a deadline of this process, whatever the server does (`controller.postgres`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg2
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from controller import metrics
from controller.descriptors import readable
from controller.domain.errors import CleaveError, HeldUp, InvalidInput, LostRace, StoreUnavailable
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import ANSWER_SECONDS, WatchedConnection, connect
from controller.store.postgres.constraints import load_sentences, translate
from controller.store.postgres.stored_json import read_json

PING_AFTER_SECONDS = 5.0
"""A connection that was idle for longer is tested before use: a firewall on the way may have dropped it silently."""

STATEMENT_SECONDS = 60.0
"""The longest wait for a statement of a process that states no other limit."""
BULK_STATEMENT_SECONDS = 600.0
"""The longest wait for a statement of a process that reads or writes the rows of the whole fleet at once."""
_SESSION = {
    "idle_in_transaction_session_timeout": "120s",
    "plan_cache_mode": "force_generic_plan",  # for prepared statements only: others are planned for their values
}


def server_process(tx: Connection) -> int:
    """The server process that the transaction runs in: the sender of its notifications."""
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


class Store(Renewed):
    """A pool of connections to one database. Cheap to make: the first transaction connects. A forked process has a pool of its own."""

    rolls_back = False
    """Whether nothing that is written by it stays: a dry run's does not."""

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        *,
        application_name: str = "cleave",
        pool_size: int = 5,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> None:
        """`pool_size` limits the transactions in progress at once; one more waits, at most 30 s.

        A statement that has no answer after `statement_seconds` is given up. A live server ends the statement sooner, and
        a wait for a lock sooner still.
        """
        self.address = DatabaseAddress.of(url)
        self._sentences: dict[str, str] = {}
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
        _leave_servers_that_are_away(self._engine)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on any error.

        Raises StoreUnavailable when PostgreSQL is away or does not answer in time, LostRace for deadlocks and locks held too long,
        and a broken constraint's sentence as Conflict, InvalidInput, NotFound or InvariantViolated.
        """
        with self._errors_translated(), self._engine.begin() as tx:
            yield tx

    @contextmanager
    def single_statement(self) -> Iterator[Connection]:
        """For exactly one statement: it is a transaction by itself, in one round trip instead of three.

        A second statement would be a second transaction, so whatever must hold together goes to `transaction`.
        Raises as `transaction` does.
        """
        with self._errors_translated(), self._engine.connect() as tx:
            # Not SQLAlchemy's isolation level AUTOCOMMIT, which sets the session's default and costs two round trips.
            driver: Any = tx.connection.dbapi_connection
            driver.autocommit = True
            try:
                yield tx
            finally:
                if not driver.closed:
                    driver.autocommit = False

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            translated = translate(error, self._sentence_book)
            count_race(translated)
            raise translated from error
        except PendingRollbackError as error:  # a part of the transaction bore the loss of its connection
            raise StoreUnavailable(
                "the connection to PostgreSQL was lost in the middle of a transaction; read the state again and retry"
            ) from error
        except LostRace as error:
            count_race(error)
            raise
        except PoolTimeout as error:
            raise StoreUnavailable(
                "every connection of the pool is in use; raise pool_size or wait"
            ) from error
        except ValueError as error:
            if "NUL (0x00)" in str(error) or isinstance(error, UnicodeEncodeError):
                raise InvalidInput(
                    "text holds a character PostgreSQL cannot store; leave out NUL and surrogates"
                ) from error
            raise

    def dispose(self) -> None:
        """Close the idle connections; those in use close when given back."""
        self._engine.dispose()

    def _begin_in_child(self) -> None:
        self._engine.dispose(close=False)

    def _sentence_book(self) -> dict[str, str]:
        """Comments of constraints by name, read at the first broken one; empty while the server is away."""
        if not self._sentences:
            try:
                with self._engine.begin() as tx:
                    self._sentences = load_sentences(tx)
            except DBAPIError:
                return {}
        return self._sentences


def count_race(error: CleaveError) -> None:
    """Count it if it is one: whoever finds that what it read has moved ends its transaction for that, so all of them come by here.
    Who answers with it instead counts it, too. Being held up loses nothing.
    """
    if isinstance(error, LostRace) and not isinstance(error, HeldUp):
        metrics.LOST_RACES.labels(error.what).inc()


def _leave_servers_that_are_away(engine: Engine) -> None:
    """Drop the connections to a server that is away or turns out to be a standby, so that the next ones find the primary."""

    @event.listens_for(engine, "handle_error")
    def look(context: ExceptionContext) -> None:
        error, held = context.original_exception, context.connection
        if held is not None and not held.invalidated and isinstance(error, psycopg2.Error):
            driver = held.connection.dbapi_connection
            if isinstance(driver, WatchedConnection) and driver.is_spoilt_by(error):
                context.is_disconnect = True


def _replace_dead_connections(engine: Engine) -> None:
    """Test a connection before it is used: its socket each time, and by a round trip when it was idle for long.

    A server that stops closes each socket, which is seen without a round trip. When one connection is dead, every idle
    one is dropped, since they went to the same server.
    """

    @event.listens_for(engine, "checkin")
    def note(_connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def look(connection: Any, record: Any, _proxy: Any) -> None:
        idle_since = record.info.get("idle_since")
        if idle_since is None:  # just made
            return
        if (
            _has_word_from_server(connection)
            or connection.is_superseded
            or not (time.monotonic() - idle_since < PING_AFTER_SECONDS or _answers(engine, connection))
        ):
            record.info.pop("idle_since")
            raise InvalidatePoolError("the server closed the connection while it was idle, or was replaced")


def _has_word_from_server(connection: Any) -> bool:
    """Nothing was asked, so anything to read is the server's end, or a notice, and either calls for a new
    connection.
    """
    return connection.closed or bool(readable(connection.fileno(), timeout_seconds=0.0))


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        with connection.answering_by(time.monotonic() + ANSWER_SECONDS):
            return engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False
