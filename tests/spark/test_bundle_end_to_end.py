"""From brokers to proposals: collected over HTTP, aggregated on Spark with the loader's own login, split on the broker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from controller.bundles.broker_reports import ReportArea
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.services import balancer as bundle_balancer
from controller.bundles.services.aggregation import BundleAggregation, aggregate
from controller.bundles.services.balancer import ApplySettings
from controller.bundles.services.collector import BundleCollector
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store.namespaces import BalancingMode
from controller.clock import SystemClock
from controller.store.postgres.engine import Store
from spark_jobs.bundle_figures import ReportWindow
from tests.support.bundle_brokers import CLUSTER, Bench, staged_bench
from tests.support.store_driver import StoreDriver

NAMESPACE = "acme/shop"
HALF = 0x80000000


class BundlePipeline:
    """Brokers, collector, files, and a database with a loader."""

    def __init__(self, database: str, directory: Path, bench: Bench) -> None:
        self.bench, self.driver, self.directory = bench, StoreDriver(database), directory
        self.login = f"loader_{secrets.token_hex(4)}"
        self.driver.sql(f"CREATE ROLE {self.login} LOGIN PASSWORD 'x' IN ROLE cleave_spark_loader")
        self.loader = Store(make_url(database).set(username=self.login, password="x"))
        self.area = ReportArea(str(directory))
        self.collector = BundleCollector(
            bench.reader, self.area, name="c", interval_seconds=60, clock=SystemClock()
        )

    def run(self) -> BundleAggregation:
        """A tick, and a run over it."""
        tick = self.collector.tick()
        window = ReportWindow(tick.instant_ms + 60_000)
        return aggregate(self.loader, self.area, "local[2]", window, run_id=f"run-{tick.instant_ms}")

    def close(self) -> None:
        self.loader.dispose()
        self.driver.sql(f"DROP ROLE {self.login}")
        self.driver.store.dispose()


@pytest.fixture
def line(spark: SparkSession, database: str, tmp_path: Path) -> Iterator[BundlePipeline]:
    with staged_bench(deadline_seconds=60.0) as bench:  # nobody is silent here
        line = BundlePipeline(database, tmp_path, bench)
        yield line
        line.close()


def test_a_hot_bundle_is_split_and_the_next_run_sees_the_parts(line: BundlePipeline) -> None:
    cluster = line.bench.cluster
    cluster.add(NAMESPACE, HALF)
    for number in range(20):
        cluster.publish(f"persistent://{NAMESPACE}/orders-{number}", 2.0)
    topics = sum(cluster.bundle_of(topic).lower == 0 for topic in cluster.topics)

    assert line.run().written == 2 + 1 + 1 + 2  # bundles, boundaries, namespace, brokers
    settings = {"max_topics": 4, "rules": "modular"}
    driver, key = line.driver, (CLUSTER, NAMESPACE)
    driver.do(bundle_namespaces.set_split_settings, *key, settings, actor="ann", seen_row_version=1)
    driver.do(bundle_namespaces.set_mode, *key, BalancingMode.AUTOMATIC, actor="ann", seen_row_version=2)
    second = line.run()
    cycle = bundle_balancer.propose(
        driver.store,
        line.bench.reader,
        line.area,
        settings=BalanceSettings(),
        request_key="run-1",
        decided_by="tester",
    )
    acts = bundle_balancer.apply(
        driver.store,
        line.bench.acts,
        cluster=CLUSTER,
        cycle_id=cycle.cycle_id,
        settings=ApplySettings(),
        claimant="tester",
    )
    third = line.run()

    assert (second.applied, cycle.splits, len(acts)) == (True, 2, 2)
    assert third.applied
    found = driver.sql(
        "SELECT lower_bound, upper_bound, topic_count, broker FROM cleave.bundle_load ORDER BY 1"
    )
    assert [row[:2] for row in found] == [(b.lower, b.upper) for b in cluster.lists[NAMESPACE].bundles]
    assert sum(row[2] for row in found if row[0] < HALF) == topics
    assert {row[3] for row in found} == set(cluster.brokers)
    assert bundle_balancer.replay(driver.do(bundle_cycles.get_cycle, cycle.cycle_id)).is_same


def test_a_repeat_and_a_run_without_reports_change_nothing(line: BundlePipeline) -> None:
    line.bench.cluster.add(NAMESPACE)
    first = line.run()
    window = ReportWindow(first.window_end_ms)

    again = aggregate(line.loader, line.area, "local[2]", window, run_id="other")
    later = ReportWindow(first.window_end_ms + 3_600_000)
    empty = aggregate(line.loader, line.area, "local[2]", later, run_id="later")

    assert [(run.applied, run.written) for run in (again, empty)] == [(False, 0), (False, 0)]
