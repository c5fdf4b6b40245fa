"""Detects poolers that share sessions between clients.

Prepared statements, settings and LISTEN belong to a session of the server. A pooler such as PgBouncer assigns a client one session
while the client is connected (session pooling), or one session per transaction (transaction pooling). Only the process ids of the
server distinguish the two: with session pooling, each of two alternating clients stays in one process.
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
    "the pooler uses another session for each transaction (transaction pooling); set pool_mode = session for Cleave's "
    "database in the pooler, or give the address of PostgreSQL itself"
)
_ROUNDS = 10
"""Number of comparisons. If other clients are busy, two clients of a pooler may use different sessions several times in a row."""
_PROCESS = "SELECT pg_catalog.pg_backend_pid()"


class PoolerUnfit(psycopg2.OperationalError):
    """Cleave cannot work through the pooler as it is configured."""


class Poolers:
    """Pools for which this process has verified session pooling. Thread-safe."""

    def __init__(self) -> None:
        self._kept: set[Hashable] = set()
        self.reset()

    def reset(self) -> None:
        """Create a free lock, for a forked process: a thread of the parent process may have held the lock.

        The verified pools stay verified.
        """
        self._lock = threading.Lock()

    def demand_own_session(
        self,
        key: Hashable,
        connection: psycopg2.extensions.connection,
        connect_again: Callable[[], psycopg2.extensions.connection],
        where: str,
    ) -> None:
        """Raise PoolerUnfit if the pooler shares sessions. `key` identifies the pool. A pool is tested until it was verified once.
        `where` names the pooler in the message.

        `connection` is in autocommit mode, and `connect_again` opens another connection in the same way. If that or a statement of the test
        fails, for example because the pool is full, the test is inconclusive and nothing is raised. Connections of one process are tested
        one at a time, because concurrent connections would falsify the result. Raises psycopg2.Error if the test has closed `connection`.
        """
        if key in self._kept:
            return
        with self._lock:
            if key in self._kept:
                return
            try:
                with closing(connect_again()) as other:
                    is_shared = _shares(connection, other)
            except psycopg2.Error:
                if connection.closed:
                    raise
                return
            if is_shared:
                raise PoolerUnfit(f"the database URL leads to a pooler at {where}: {SHARES_SESSIONS}")
            self._kept.add(key)


def _shares(connection: psycopg2.extensions.connection, other: psycopg2.extensions.connection) -> bool:
    """Return True if both connections used one session, or one connection used two sessions. Executes up to
    30 statements, and sets `other` to autocommit.

    If a pooler assigns the most recently freed session first, both connections get the same session. If a
    pooler assigns its sessions in turn, two statements of one connection get two sessions.
    """
    other.autocommit = True
    own_processes, other_processes = set[int](), set[int]()
    for _ in range(_ROUNDS):
        own_processes |= {_process(connection), _process(connection)}
        other_processes.add(_process(other))
        if len(own_processes) > 1 or len(other_processes) > 1 or own_processes & other_processes:
            return True
    return False


def _process(connection: psycopg2.extensions.connection) -> int:
    """Return the id of the server process that executes a statement of the connection."""
    with connection.cursor() as cursor:
        cursor.execute(_PROCESS)
        [(process,)] = cursor.fetchall()
    return int(process)


POOLERS = Poolers()
"""The verified pools of this process."""
os.register_at_fork(after_in_child=POOLERS.reset)
