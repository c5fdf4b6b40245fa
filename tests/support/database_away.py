"""A database that is away: its server refuses connections to it, and ends those of the applications under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url


@contextmanager
def away(database: str, *applications: str) -> Iterator[None]:
    """Nobody can connect, and the connections of these applications are lost."""
    url = make_url(database)
    name = url.database
    engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as elsewhere:
        elsewhere.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        try:
            elsewhere.execute(
                text(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                    " WHERE datname = :name AND application_name = ANY (:applications)"
                ),
                {"name": name, "applications": list(applications)},
            )
            yield
        finally:
            elsewhere.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
    engine.dispose()
