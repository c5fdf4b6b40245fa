"""An application that knows nothing of Cleave, on a real broker: its load lands, and its consumers split the topic."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pulsar
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from controller.bootstrap import (
    Application,
    application,
    build_collector,
    build_consumer_watch,
    build_worker,
    pulsar_access,
)
from controller.domain.operation import Origin
from controller.services import topic_admin
from controller.settings import Settings
from controller.store.journal.operations import Request
from tests.support.brokers import SharedBroker
from tests.support.pulsar_namespaces import make_namespace
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 90.0


class Stoppable(Protocol):
    """Runs until it is told to stop."""

    def run(self) -> None:
        """Until then."""

    def stop(self) -> None:
        """Now."""


@contextmanager
def running(*processes: Stoppable) -> Iterator[None]:
    """Each in a thread, as in its own process."""
    threads = [threading.Thread(target=one.run) for one in processes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in processes:
            one.stop()
        for thread in threads:
            thread.join()


class Cluster:
    """One topic on a real broker, and an application's processes that read it as they would any topic."""

    def __init__(self, app: Application, broker: SharedBroker) -> None:
        access = pulsar_access(app.settings)
        assert access is not None
        self.app, self._url = app, broker.service_url
        self.topic = f"topic://{make_namespace(access, f'load-{secrets.token_hex(4)}')}/orders"
        self._clients: list[pulsar.Client] = []

    def create(self, segments: int) -> None:
        """The topic, intended; the worker makes it."""
        request = Request("create", Origin.MANUAL, "tester", "test", 60.0)
        topic_admin.create_topic(
            self.app.store, self.app.planes, self.topic, request, data_plane="pulsar", segments=segments
        )
        wait_until(self.logs, timeout_seconds=PATIENCE_SECONDS, message="the topic is there")

    def logs(self) -> list[str]:
        """Backing topics of the ACTIVE segments; empty while there is no layout."""
        statement = """
            SELECT s.backing_topic FROM cleave.segment s JOIN cleave.topic t USING (topic_id)
             WHERE t.name = :name AND s.state = 'ACTIVE' ORDER BY s.range_start
        """
        with self.app.store.transaction() as tx:
            return list(tx.execute(text(statement), {"name": self.topic}).scalars())

    def process(self) -> pulsar.Client:
        """A process of the application; closed at the end."""
        self._clients.append(pulsar.Client(self._url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)))
        return self._clients[-1]

    def close(self) -> None:
        """End the application."""
        for client in self._clients:
            client.close()


@pytest.fixture
def cluster(database: str, pulsar_broker: SharedBroker, tmp_path: Path) -> Iterator[Cluster]:
    """Cleave on the shared broker, reading pages as for a large fleet."""
    settings = Settings(
        database_url=database,
        landing_url=str(tmp_path),
        pulsar_admin_url=pulsar_broker.admin_url,
        pulsar_service_url=pulsar_broker.service_url,
        pulsar_pages_from_segments=0,
        pulsar_page_seconds=30.0,
        collect_consumers_interval_seconds=0.2,
        call_timeout_seconds=20.0,
    )
    with application(settings) as app:
        cluster = Cluster(app, pulsar_broker)
        yield cluster
        cluster.close()


def subscribe(client: pulsar.Client, logs: list[str], kind: pulsar.ConsumerType) -> None:
    """As an application does that names nothing but the subscription."""
    client.subscribe(logs, "app", consumer_type=kind)


def test_a_second_process_of_an_application_splits_its_topic(cluster: Cluster) -> None:
    with running(build_worker(cluster.app)):
        cluster.create(segments=1)
    [log] = cluster.logs()
    subscribe(cluster.process(), [log], pulsar.ConsumerType.Failover)
    subscribe(cluster.process(), [log], pulsar.ConsumerType.Failover)

    assert build_consumer_watch(cluster.app).round().changed
    with cluster.app.store.transaction() as tx:
        assert tx.exec_driver_sql("SELECT count(*) FROM cleave.consumer").scalar_one() == 0
        observed = tx.exec_driver_sql(
            "SELECT subscription, subscription_type, consumers, in_decisions FROM inspect.observed_consumers"
        )
        assert [tuple(row) for row in observed] == [("app", "Failover", 2, "counts")]

    with running(build_worker(cluster.app)):
        wait_until(
            lambda: len(cluster.logs()) == 2, timeout_seconds=PATIENCE_SECONDS, message="the topic has split"
        )
    with cluster.app.store.transaction() as tx:
        decided = tx.exec_driver_sql(
            "SELECT decisions #>> '{0,reason}' FROM cleave.decision WHERE decisions <> '[]'"
        )
        assert list(decided.scalars()) == ["consumer-count"]
    assert cluster.app.planes["pulsar"].list_subscriptions(cluster.logs()[1]) == ["app"]


def test_the_workers_of_a_queue_are_seen_and_split_nothing(cluster: Cluster) -> None:
    watch = build_consumer_watch(cluster.app)
    with running(build_worker(cluster.app)):
        cluster.create(segments=1)
        for _ in range(3):
            subscribe(cluster.process(), cluster.logs(), pulsar.ConsumerType.Shared)
        assert watch.round().changed

        def is_evaluated() -> bool:
            with cluster.app.store.transaction() as tx:
                lag = "SELECT min(input_version - consumer_version) FROM cleave.evaluation"
                return bool(tx.exec_driver_sql(lag).scalar_one() == 0)

        wait_until(is_evaluated, timeout_seconds=PATIENCE_SECONDS, message="the worker has looked")
        assert len(cluster.logs()) == 1


def test_what_is_produced_and_consumed_lands_as_counters_of_its_segments(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running(build_worker(cluster.app)):
        cluster.create(segments=2)
    logs, process = cluster.logs(), cluster.process()
    consumer = process.subscribe(logs, "app", consumer_type=pulsar.ConsumerType.Failover)
    for log, count in zip(logs, (2, 5), strict=True):
        producer = process.create_producer(log, batching_enabled=False)
        for _ in range(count):
            producer.send(b"x" * 100)
    for _ in range(7):
        consumer.acknowledge(consumer.receive(timeout_millis=20_000))

    tick = build_collector(cluster.app).tick()

    assert (tick.watched, tick.sampled, tick.failed_planes) == (2, 2, ())
    assert tick.path is not None
    rows = pq.ParquetFile(tmp_path / tick.path).read().sort_by("segment_id").to_pylist()
    assert [(row["backing_topic"], row["msg_in"], row["msg_out"]) for row in rows] == [
        (logs[0], 2, 2),
        (logs[1], 5, 5),
    ]
    assert all(row["byte_in"] == row["byte_out"] >= 100 * row["msg_in"] for row in rows)
    assert len({row["source"] for row in rows}) == 1
