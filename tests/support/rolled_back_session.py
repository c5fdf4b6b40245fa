"""A session of another program, whose transaction is never committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
import psycopg2.extensions

from controller.postgres.address import DatabaseAddress


@contextmanager
def rolled_back_session(database: str) -> Iterator[psycopg2.extensions.cursor]:
    """Yield a cursor of a connection of its own. The transaction is rolled back after the block."""
    connection = psycopg2.connect(DatabaseAddress.of(database).uri)
    try:
        yield connection.cursor()
    finally:
        connection.close()
