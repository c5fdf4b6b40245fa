"""A journal that goes back in time while the logs stay: the database is copied, and later the copy replaces it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import psycopg2

from controller.dataplane.base import LogState
from controller.devstack.postgres import PostgresServer
from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from controller.domain.segment import segment_descriptor
from controller.services import deletion_sweeper, garbage_collector
from controller.services.operation_runner import run_due
from controller.services.reconciler import reconcile_topics
from controller.store.postgres.engine import Store
from tests.support.bench import Bench

_DISCONNECT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
)


@dataclass
class Backups:
    """Copies of a bench's journal; the logs on its data plane stay as they are."""

    server: PostgresServer
    bench: Bench
    made: list[str]

    def take(self) -> str:
        """Copy the present journal, and return the copy's URL."""
        name = f"cleave_backup_{secrets.token_hex(4)}"
        self.bench.store.dispose()
        database = self.bench.store.address.parameters["dbname"]
        self._disconnect(database)
        url = self.server.create_database(name, template=database)
        self.made.append(name)
        return url

    def restore(self, url: str) -> None:
        """Continue with the journal at that URL."""
        self.bench.store.dispose()
        self.bench.store = Store(url, application_name="bench")

    def remove(self) -> None:
        """Drop the copies."""
        for name in self.made:
            self.server.drop_database(name)

    def _disconnect(self, database: str) -> None:
        admin = self.server.url("postgres").replace("+psycopg2", "")
        with psycopg2.connect(admin) as connection, connection.cursor() as cursor:
            cursor.execute(_DISCONNECT, (database,))


def maintain(bench: Bench, rounds: int = 3) -> None:
    """Run everything that deletes logs, as maintenance does, without waiting for deadlines or pauses."""
    for _ in range(rounds):
        reconcile_topics(bench.store, bench.planes)
        while run_due(bench.context("maintenance")):
            pass
        garbage_collector.collect(bench.store, bench.planes, retention_minutes=0)
        while run_due(bench.context("maintenance")):
            pass
        bench.execute("UPDATE cleave.deletion_entry SET not_before = '-infinity' WHERE closed_at IS NULL")
        deletion_sweeper.sweep(bench.store, bench.planes)


def unread_by_log(bench: Bench, subscription: str = "billing") -> dict[str, int]:
    """Return the number of unread messages of each log that has some."""
    backlogs = {
        log: bench.plane.backlog(log, subscription) or 0
        for log in bench.plane.list_segments(bench.topic_name)
    }
    return {log: count for log, count in backlogs.items() if count}


def open_logs(bench: Bench) -> list[str]:
    """Return the logs that accept appends."""
    logs = bench.plane.list_segments(bench.topic_name)
    return [log for log in logs if bench.plane.segment_state(log) is LogState.OPEN]


def lost_child(bench: Bench) -> str:
    """Create a log of a split that the journal lacks, with 3 messages, while its parent still accepts appends. Return its name."""
    log = bench.plane.backing_topic(bench.topic_name, segment_descriptor(HashRange(0, 0x7FFF), 7))
    bench.plane.create_segment(log, ["billing"], LogOrigin("lost", 1, (0,), ()))
    bench.append(log, 3)
    return log
