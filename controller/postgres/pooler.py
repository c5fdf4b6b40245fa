"""Tells poolers that keep a session for a client from those that share the session between clients.

Prepared statements, settings and LISTEN belong to a session of the server. A pooler such as PgBouncer gives a client one session
for as long as the client is connected (session pooling), or another for each transaction (transaction pooling). Nothing but the
process ids of the server tells the two apart: while one client holds a transaction open, the session of another must stay its own.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg2

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg2.extensions

SHARES_SESSIONS = (
    "the pooler gives a client another session for each transaction (transaction pooling); set pool_mode = session for Cleave's "
    "database there, or give the address of PostgreSQL itself"
)
_ROUNDS = 3
"""While other clients are busy, a client of a pooler that shares sessions may get the same one several times."""
_PROCESS = "SELECT pg_catalog.pg_backend_pid()"


class PoolerUnfit(psycopg2.OperationalError):
    """Cleave cannot work through the pooler as it is configured."""


def demand_own_session(
    made: psycopg2.extensions.connection, again: Callable[[], psycopg2.extensions.connection], where: str
) -> bool:
    """Return True if the connection, which is in autocommit, keeps its session while another one works and is in a transaction.

    `again` makes another connection in the same way; where that fails, as in a pool that is full, the answer is False: it
    is not known. Raises PoolerUnfit if the pooler shares sessions.
    """
    try:
        with closing(again()) as other:
            is_shared = _shares(made, other)
    except psycopg2.Error:
        if made.closed:
            raise
        return False
    if is_shared:
        raise PoolerUnfit(f"the database URL leads to a pooler at {where}: {SHARES_SESSIONS}")
    return True


def _shares(made: psycopg2.extensions.connection, other: psycopg2.extensions.connection) -> bool:
    """Return True if the two were seen in one session, or one of them in two."""
    ours = _process(made)
    for _ in range(_ROUNDS):
        other.autocommit = True  # the session that is free again is the first to be given away
        if _process(other) == ours:
            return True
        other.autocommit = False
        if _process(other) == ours or _process(made) != ours:
            return True
        other.rollback()
    return False


def _process(connection: psycopg2.extensions.connection) -> int:
    """The server process that the next statement runs in. Without autocommit, a transaction stays open in it."""
    with connection.cursor() as cursor:
        cursor.execute(_PROCESS)
        [(process,)] = cursor.fetchall()
    return int(process)
