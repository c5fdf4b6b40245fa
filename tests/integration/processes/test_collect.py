"""`cleave collect` as a real process in front of a broker: counters land, consumers are seen, and it leaves when told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.staged_brokers import StagedBroker, Topic
from tests.support.store_driver import StoreDriver, backing_topic
from tests.support.waiting import wait_until

LOG = backing_topic("topic://t/n/a", "0000-ffff-0")


@pytest.fixture
def driver(database: str) -> Iterator[StoreDriver]:
    """A topic of one segment, said to be on Pulsar."""
    driver = StoreDriver(database)
    driver.create()
    driver.sql("UPDATE cleave.topic SET data_plane = 'pulsar', row_version = row_version + 1")
    yield driver
    driver.store.dispose()


def test_it_samples_and_watches_consumers_until_it_is_told_to_leave(
    driver: StoreDriver, database: str, tmp_path: Path
) -> None:
    def consumers() -> list[int]:
        return [int(row[0]) for row in driver.sql("SELECT consumers FROM cleave.observed_subscription")]

    with StagedBroker() as broker:
        attached = [{"consumerName": name, "address": f"/{name}"} for name in ("pod-1", "pod-2")]
        broker.stats[LOG] = {"subscriptions": {"app": {"type": "Failover", "consumers": attached}}}
        broker.topics[LOG] = Topic(3, {"app": 2})
        environment = {
            **os.environ,
            "CLEAVE_DATABASE_URL": database,
            "CLEAVE_PULSAR_ADMIN_URL": broker.url,
            "CLEAVE_PULSAR_PAGES_FROM_SEGMENTS": "0",
            "CLEAVE_LANDING_URL": str(tmp_path),
            "CLEAVE_COLLECT_INTERVAL_SECONDS": "0.5",
            "CLEAVE_COLLECT_CONSUMERS_INTERVAL_SECONDS": "0.2",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "controller.commands.cli", "collect"], env=environment
        )
        try:
            wait_until(lambda: consumers() == [2], message="both consumers are seen")
            wait_until(lambda: len(list(tmp_path.rglob("*.parquet"))) >= 2, message="two ticks land")
            attached.pop()
            wait_until(lambda: consumers() == [1], message="one has left")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
