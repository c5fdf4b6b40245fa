"""A worker whose database hangs goes on at the promoted standby, and says what it waited for; one that is led to a standby waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from controller.domain.policy import PolicyOverride
from controller.store.topics import consumers, policies
from tests.integration.conftest import held_by
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.migrated import migrate_to_pip483
from tests.support.replicated_postgres import Address, ReplicatedPostgres, execute
from tests.support.waiting import wait_until

DATABASE = "cleave"
GENEROUS_SECONDS = 60.0
"""Four times a lease; without deadlines the worker hangs until the frozen processes are killed."""
NEVER = 3600
NEWEST = text("SELECT max(expires_at) FROM cleave.lease WHERE holder = 'w1' AND starts_with(name, 'shard/')")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedPostgres]:
    """A primary with Cleave's database, and a standby that follows it."""
    with ReplicatedPostgres(tmp_path / "servers") as cluster:
        migrate_to_pip483(cluster.primary.create_database(DATABASE))
        cluster.add_standby(synchronous=False)
        yield cluster


def newest_lease(bench: Bench) -> object:
    with bench.store.transaction() as tx:
        return tx.execute(NEWEST).scalar_one()


def test_a_worker_whose_primary_hangs_works_on_at_the_promoted_standby(
    cluster: ReplicatedPostgres, tmp_path: Path
) -> None:
    log = tmp_path / "w1.log"
    worker = cleave_process(
        "worker",
        "--name",
        "w1",
        log=log,
        database_url=cluster.url(DATABASE, Address.HOSTS),
        worker_sweep_seconds=NEVER,
    )
    with closing(Bench(cluster.primary_url(DATABASE))) as before:
        before.topic_with()
        with before.store.transaction() as tx:  # a consumer without a segment has one split
            policies.set_topic(tx, before.topic_id, PolicyOverride(split_vs_rebucket_min_msg_rate_in=0))
        worker.start()
        try:
            wait_until(lambda: held_by(before, "w1"), message="the worker holds shards")
            last = newest_lease(before)
            hung = cluster.primary.port
            cluster.wait_replayed()
            cluster.freeze_primary()
            cluster.promote()
            with closing(Bench(cluster.primary_url(DATABASE))) as after:
                wait_until(
                    lambda: newest_lease(after) != last,
                    timeout_seconds=GENEROUS_SECONDS,
                    message="the worker renews its leases at the promoted standby",
                )
                with after.store.transaction() as tx:
                    for name in ("a", "b"):
                        consumers.register(tx, after.topic_id, "billing", name)
                wait_until(
                    lambda: len(after.layout.active) == 2,
                    timeout_seconds=GENEROUS_SECONDS,
                    message="the worker hears of the consumers and splits for them",
                )
        finally:
            worker.stop()

    assert f"PostgreSQL at 127.0.0.1:{hung} did not answer within" in log.read_text()


LET_GO = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'cleave' AND application_name LIKE 'cleave%'"


def refused_writes(log: Path) -> set[str]:
    """Events of the log that say the server is a standby."""
    lines = [line for line in log.read_text().splitlines() if "is a standby or read-only" in line]
    return {line.split("]")[1].split("error=")[0].strip() for line in lines}


def test_a_worker_whose_address_leads_to_a_standby_says_so_in_lines_and_waits_for_the_primary(
    cluster: ReplicatedPostgres, tmp_path: Path
) -> None:
    """As after a fail-over, until the address leads to the promoted server."""
    assert cluster.standby is not None
    url, log, late_log = cluster.url(DATABASE, Address.PROXY), tmp_path / "w1.log", tmp_path / "w2.log"
    options = {"database_url": url, "embedded_url": url, "worker_sweep_seconds": 1}
    worker = cleave_process("worker", "--name", "w1", log=log, **options)
    late = cleave_process("worker", "--name", "w2", log=late_log, **options)
    with closing(Bench(cluster.primary_url(DATABASE))) as bench:
        bench.topic_with()
        worker.start()
        try:
            wait_until(lambda: held_by(bench, "w1"), message="the worker holds shards")
            cluster.wait_replayed()
            cluster.relay.point_to(cluster.standby.port)
            execute(cluster.primary, LET_GO)
            late.start()
            wait_until(lambda: len(refused_writes(log)) > 2, message="several loops met the standby")
            wait_until(
                lambda: late_log.exists() and refused_writes(late_log), message="worker cannot start yet"
            )
            last = newest_lease(bench)

            cluster.relay.point_to(cluster.primary.port)

            wait_until(
                lambda: newest_lease(bench) != last and held_by(bench, "w2"),
                timeout_seconds=GENEROUS_SECONDS,
                message="both workers work at the primary",
            )
        finally:
            worker.stop()
            late.stop()

    for said in (log.read_text(), late_log.read_text()):
        assert "Traceback" not in said
