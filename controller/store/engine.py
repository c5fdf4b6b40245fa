"""Connections to PostgreSQL and the one place where a transaction begins and ends.

Whoever composes a process makes one ``Store`` and hands it down. READ COMMITTED throughout: safety comes from
row versions, constraints and claim terms. What the functions of the store do inside a transaction is theirs;
nothing here knows a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from controller.domain.errors import InvalidInput, StoreUnavailable
from controller.store.constraints import load_sentences, translate

LOCK_TIMEOUT_SECONDS = 30
"""A lock nobody gives up within this long is reported as a lost race, never waited for."""

_SESSION = (
    f"-c timezone=UTC -c lock_timeout={LOCK_TIMEOUT_SECONDS}s "
    "-c idle_in_transaction_session_timeout=120s -c default_transaction_isolation=read\\ committed"
)
_DEAD_PEER = {"connect_timeout": 10, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}


def store_url(url: str | URL) -> URL:
    """The URL to connect by: any ``postgresql``, ``postgres`` or ``postgresql+driver`` form, driven by psycopg2."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InvalidInput(
            "the database URL cannot be read; write postgresql://user:password@host:port/database"
        ) from error
    if parsed.drivername.partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidInput(f"{parsed.drivername}:// is not PostgreSQL; give a postgresql:// database URL")
    return parsed.set(drivername="postgresql+psycopg2")


class Store:
    """A pool of connections to one database. Cheap to make: the first transaction connects."""

    def __init__(self, url: str | URL, *, application_name: str = "cleave", pool_size: int = 5) -> None:
        """``pool_size`` bounds the transactions in progress at once; one more waits, at most 30 s."""
        self.url = store_url(url)
        self._sentences: dict[str, str] = {}
        self._engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args={"application_name": application_name, "options": _SESSION, **_DEAD_PEER},
        )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on any error.

        Raises StoreUnavailable when PostgreSQL is away, LostRace for deadlocks and locks held too long,
        and a broken constraint's sentence as Conflict, InvalidInput, NotFound or InvariantViolated.
        """
        try:
            with self._engine.begin() as tx:
                yield tx
        except DBAPIError as error:
            raise translate(error, self._sentence_book()) from error
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

    def _sentence_book(self) -> dict[str, str]:
        """Comments of constraints by name, read at the first error; empty while the server is away."""
        if not self._sentences:
            try:
                with self._engine.begin() as tx:
                    self._sentences = load_sentences(tx)
            except DBAPIError:
                return {}
        return self._sentences
