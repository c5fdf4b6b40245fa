"""A worker whose database hangs goes on at the promoted standby, and says what it waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from controller.domain.policy import PolicyOverride
from controller.store.topics import consumers, policies
from tests.integration.entrypoints.conftest import held_by
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.migrated import migrate_to_pip483
from tests.support.postgres_pair import PostgresPair
from tests.support.waiting import wait_until

DATABASE = "cleave"
GENEROUS_SECONDS = 60.0
"""Four times a lease; without deadlines the worker hangs until the frozen processes are killed."""
NEVER = 3600
NEWEST = text("SELECT max(expires_at) FROM cleave.lease WHERE holder = 'w1' AND starts_with(name, 'shard/')")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[PostgresPair]:
    """A primary with Cleave's database, and a standby that follows it."""
    with PostgresPair(tmp_path) as pair:
        migrate_to_pip483(pair.primary.create_database(DATABASE))
        pair.follow()
        yield pair


def newest_lease(bench: Bench) -> object:
    with bench.store.transaction() as tx:
        return tx.execute(NEWEST).scalar_one()


def test_a_worker_whose_primary_hangs_works_on_at_the_promoted_standby(
    pair: PostgresPair, tmp_path: Path
) -> None:
    log = tmp_path / "w1.log"
    worker = cleave_process(
        "worker", "--name", "w1", log=log, database_url=pair.url(DATABASE), worker_sweep_seconds=NEVER
    )
    with closing(Bench(pair.primary.url(DATABASE))) as before:
        before.topic_with()
        with before.store.transaction() as tx:  # a consumer without a segment has one split
            policies.set_topic(tx, before.topic_id, PolicyOverride(split_vs_rebucket_min_msg_rate_in=0))
        worker.start()
        try:
            wait_until(lambda: held_by(before, "w1"), message="the worker holds shards")
            last = newest_lease(before)
            pair.freeze()
            pair.promote()
            with closing(Bench(pair.standby.url(DATABASE))) as after:
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

    assert f"PostgreSQL at 127.0.0.1:{pair.primary.port} did not answer within" in log.read_text()
