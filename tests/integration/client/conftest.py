"""A topic with real logs, and the clients of this process on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from controller.client.exactly_once_table import PositionTable
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.log_client import LogMessage
from controller.devstack.serving import client_of, serving_leader
from controller.postgres_source import PostgresSource
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import Join, joining


@pytest.fixture
def source(database: str) -> Iterator[PostgresSource]:
    """Layouts from the bench's database."""
    source = PostgresSource(database)
    yield source
    source.close()


@pytest.fixture
def leader(bench: Bench) -> Iterator[str]:
    """Where a leader serves the bench's topic."""
    with serving_leader(bench.url, consumer_grace_seconds=60.0) as address:
        yield address


@pytest.fixture
def servers(leader: str) -> Iterator[Servers]:
    """A client of it."""
    servers = client_of(leader)
    yield servers
    servers.close()


@pytest.fixture
def logs(bench: Bench) -> FaultyLogs:
    """The logs of the bench, which fail on request."""
    return FaultyLogs(bench.logs)


@pytest.fixture
def topic(bench: Bench) -> None:
    """A topic with one segment of four buckets, and its subscription `billing`."""
    bench.topic_with(segments=1)


@pytest.fixture
def producer(bench: Bench, topic: None, source: PostgresSource) -> Iterator[Producer]:
    """A producer of `topic`."""
    with Producer(source, bench.logs, TOPIC) as producer:
        yield producer


@pytest.fixture
def failing_producer(bench: Bench, source: PostgresSource, logs: FaultyLogs) -> Iterator[Producer]:
    """A producer of a topic of two segments, for whose batches `logs` may fail."""
    bench.topic_with(segments=2)
    producer = Producer(source, logs, TOPIC, batch_messages=10)
    yield producer
    producer.close(flush=False)


@pytest.fixture
def join(bench: Bench, servers: Servers, producer: Producer) -> Iterator[Join]:
    """Consumers of subscription `billing`, signed off at the end."""
    with joining(partial(StreamConsumer, servers, bench.logs, TOPIC, "billing")) as join:
        yield join


@pytest.fixture
def dsn(database: str) -> str:
    """Where an application connects: to the bench's database, for want of another."""
    return sqlalchemy.make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def connect(dsn: str) -> Callable[[], Any]:
    """Connect an application to its database."""
    return lambda: psycopg2.connect(dsn)


@pytest.fixture
def table(connect: Callable[[], Any]) -> PositionTable:
    """The positions of the application."""
    table = PositionTable(connect)
    table.create()
    return table


def stored(bench: Bench, segment_id: int) -> list[LogMessage]:
    """Everything in a segment's log, read for a subscription of the test's own."""
    log = bench.log_of(segment_id)
    bench.plane.create_subscription(log, "inspection")
    bench.plane.seek(log, "inspection", 0)
    reader = bench.logs.open_reader(log, "inspection", owner="i", live_owners=(), on_arrival=lambda: None)
    try:
        found = list(reader.read(100_000))
    finally:
        reader.close()
    assert len(found) == bench.plane.backlog(log, "inspection")
    return found


def flows(bench: Bench, *segment_ids: int) -> dict[bytes, list[int]]:
    """The numbers of each key, log by log in the order given."""
    found: dict[bytes, list[int]] = {}
    for segment_id in segment_ids:
        for message in stored(bench, segment_id):
            found.setdefault(message.key or b"", []).append(int(message.payload))
    return found
