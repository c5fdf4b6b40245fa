"""Tells poolers that keep a session for a client from those that share the session between clients.

Prepared statements, settings and LISTEN belong to a session of the server. A pooler such as PgBouncer gives a client one session
for as long as the client is connected (session pooling), or another for each transaction (transaction pooling). Nothing but the
process ids of the server tells the two apart: two clients that take turns must stay in one process each.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg2

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import psycopg2.extensions

SHARES_SESSIONS = (
    "the pooler gives a client another session for each transaction (transaction pooling); set pool_mode = session for Cleave's "
    "database there, or give the address of PostgreSQL itself"
)
_ROUNDS = 10
"""While other clients are busy, two clients of a pooler that shares sessions may miss each other several times."""
_PROCESS = "SELECT pg_catalog.pg_backend_pid()"


class PoolerUnfit(psycopg2.OperationalError):
    """Cleave cannot work through the pooler as it is configured."""


class Poolers:
    """The poolers that this process has found to keep a session for a client. Thread-safe."""

    def __init__(self) -> None:
        self._kept: set[Hashable] = set()
        self.reset()

    def reset(self) -> None:
        """Begin with a free lock. For a process that was forked: a thread of its parent may have held the lock."""
        self._lock = threading.Lock()

    def demand_own_session(
        self,
        key: Hashable,
        made: psycopg2.extensions.connection,
        again: Callable[[], psycopg2.extensions.connection],
        where: str,
    ) -> None:
        """Raise PoolerUnfit if the pooler shares sessions. `key` names the pool: each is looked at until it is known once.

        `made` is in autocommit, and `again` makes another connection in the same way. Where that fails, as in a pool that is full,
        nothing is known. Connections of one process are looked at one by one, since others that work at the same time hide what
        is to be seen.
        """
        if key in self._kept:
            return
        with self._lock:
            if key in self._kept:
                return
            try:
                with closing(again()) as other:
                    is_shared = _shares(made, other)
            except psycopg2.Error:
                if made.closed:
                    raise
                return
            if is_shared:
                raise PoolerUnfit(f"the database URL leads to a pooler at {where}: {SHARES_SESSIONS}")
            self._kept.add(key)


def _shares(made: psycopg2.extensions.connection, other: psycopg2.extensions.connection) -> bool:
    """Return True if the two were seen in one session, or one of them in two.

    Of a pooler that gives away first the session that was free last, both get the same one. Of a pooler that gives its sessions
    away in turn, two statements of one client get two.
    """
    other.autocommit = True
    ours, theirs = set[int](), set[int]()
    for _ in range(_ROUNDS):
        ours |= {_process(made), _process(made)}
        theirs.add(_process(other))
        if len(ours) > 1 or len(theirs) > 1 or ours & theirs:
            return True
    return False


def _process(connection: psycopg2.extensions.connection) -> int:
    """The server process that a statement runs in."""
    with connection.cursor() as cursor:
        cursor.execute(_PROCESS)
        [(process,)] = cursor.fetchall()
    return int(process)


POOLERS = Poolers()
"""The poolers of this process."""
os.register_at_fork(after_in_child=POOLERS.reset)
