"""A worker and clients in a process that has more descriptors open than `select.select` knows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.stream_consumer import StreamConsumer
from controller.devstack.serving import client_of, serving_worker
from controller.postgres_source import PostgresSource
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.crowd import crowded
from tests.support.joined import send_numbers, take
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(20)]


@pytest.fixture
def crowd() -> Iterator[None]:
    """Before anything else is opened."""
    with crowded():
        yield


def test_messages_flow_through_a_split_and_past_connections_that_were_cut(crowd: None, database: str) -> None:
    """Whatever listens is told: the worker of the split, the consumer of its assignment and of messages."""
    bench = Bench(database)
    bench.topic_with(segments=1)
    with serving_worker(bench.url) as worker:
        servers = client_of(worker.address)
        consumer = StreamConsumer(servers, bench.logs, TOPIC, "billing", "a")
        for source in (HttpSource(servers), PostgresSource(database)):
            with Producer(source, bench.logs, TOPIC) as producer:
                bench.scalar(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                send_numbers(producer, 1, keys=KEYS)
            assert take(consumer, count=len(KEYS)) == {key: [("a", 1)] for key in KEYS}
            asked = bench.intend(splitting(bench.layout.active[0].segment_id)).operation.operation_id
            wait_until(
                lambda asked=asked: not bench.operation(asked).state.is_live, message="the worker splits"
            )
        consumer.close()
        servers.close()
    bench.close()
