"""What somebody closed or deleted at the data plane is put right once a client meets it: with a worker, without maintenance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.devstack.serving import client_of, serving_worker
from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.client.conftest import stored
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

BREAKS: dict[str, Callable[[Bench, str], object]] = {
    "closed": lambda bench, log: bench.plane.terminate_segment(log),
    "deleted": lambda bench, log: bench.plane.delete_segment(log),
}


@pytest.fixture
def workers(bench: Bench) -> Iterator[Servers]:
    """A client of one whole worker."""
    bench.topic_with()
    with serving_worker(bench.url) as worker, closing(client_of(worker.address)) as servers:
        yield servers


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("delay_seconds", [None, 0.05], ids=["flushed", "delayed"])
def test_a_producer_goes_on_where_its_segment_was_broken(
    bench: Bench, workers: Servers, how: str, delay_seconds: float | None
) -> None:
    source = HttpSource(workers)
    with Producer(source, bench.logs, TOPIC, batch_delay_seconds=delay_seconds) as producer:
        producer.send(b"before", "key")
        producer.flush()
        BREAKS[how](bench, bench.log_of(0))
        producer.send(b"after", "key")
        if delay_seconds is None:
            producer.flush()
        wait_until(lambda: producer.pending == 0, message="it is stored in the repaired segment")

    [segment] = bench.layout.active
    assert segment.segment_id == (1 if how == "closed" else 0)
    assert [message.payload for message in stored(bench, segment.segment_id)] == [b"after"]


def goes_on(bench: Bench, consumer: StreamConsumer | QueueConsumer) -> None:
    """The log that the consumer misses is created again, and it receives what is published there."""

    def repaired() -> bool:
        consumer.receive(0.1)
        return bench.log_of(0) in bench.plane.list_segments(TOPIC)

    wait_until(repaired, message="the log is there again")
    bench.publish(0, 1)
    assert wait_until(lambda: consumer.receive(1.0)) is not None


def test_a_consumer_goes_on_where_its_log_was_deleted(bench: Bench, workers: Servers) -> None:
    with closing(StreamConsumer(workers, bench.logs, TOPIC, "billing", "reader")) as consumer:
        bench.publish(0, 1)
        consumer.acknowledge(wait_until(lambda: consumer.receive(1.0)))
        bench.plane.delete_segment(bench.log_of(0))
        goes_on(bench, consumer)


def test_a_queue_goes_on_where_its_log_was_deleted(bench: Bench, workers: Servers) -> None:
    bench.subscribe("jobs", kind=SubscriptionKind.QUEUE)
    bench.plane.delete_segment(bench.log_of(0))
    with closing(QueueConsumer(workers, bench.logs, TOPIC, "jobs", "taker")) as consumer:
        goes_on(bench, consumer)
