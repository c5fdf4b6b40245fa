"""Segments that go while consumers come and leaders change: nobody waits for what is gone, nobody reads anything again."""

from __future__ import annotations

from contextlib import closing

from controller.client.producer import Producer
from controller.client.stream_consumer import StreamConsumer
from controller.devstack.serving import client_of, serving_leader
from controller.postgres_source import PostgresSource
from controller.services.garbage_collector import collect
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(20)]


def send(producer: Producer, number: int) -> None:
    for key in KEYS:
        producer.send(b"%d" % number, key)
    producer.flush()


def take(*consumers: StreamConsumer, count: int) -> set[tuple[bytes, bytes]]:
    """So many messages, each key and payload once."""
    found: list[tuple[bytes, bytes]] = []

    def turn() -> bool:
        for consumer in consumers:
            batch = consumer.receive(0.02)
            if batch is not None and consumer.acknowledge(batch):
                found.extend((message.key or b"", message.payload) for message in batch.messages)
        return len(found) >= count

    wait_until(turn, message=f"{count} messages")
    assert len(found) == len(set(found)) == count
    return set(found)


def test_a_pruned_parent_is_done_for_who_joins_and_for_a_leader_that_takes_over(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    producer = Producer(source, bench.logs, TOPIC)
    with (
        serving_leader(bench.url, consumer_grace_seconds=60.0) as address,
        closing(client_of(address)) as servers,
    ):
        first = StreamConsumer(servers, bench.logs, TOPIC, "billing", "a")
        send(producer, 0)
        assert len(take(first, count=len(KEYS))) == len(KEYS)
        bench.reshape(splitting(0))
        send(producer, 1)
        assert {number for _, number in take(first, count=len(KEYS))} == {b"1"}
        first.close(leave=False)

    assert collect(bench.store, bench.planes, retention_minutes=0).segments == {TOPIC: (0,)}
    send(producer, 2)
    # It restores a's session from its row.
    with (
        serving_leader(bench.url, consumer_grace_seconds=60.0) as address,
        closing(client_of(address)) as servers,
    ):
        bench.settle()
        joined = StreamConsumer(servers, bench.logs, TOPIC, "billing", "b")
        again = StreamConsumer(servers, bench.logs, TOPIC, "billing", "a")
        assert {number for _, number in take(again, joined, count=len(KEYS))} == {b"2"}
        again.close()
        joined.close()
    producer.close()
    assert sorted(bench.layout.segments) == [1, 2]
    assert bench.unread("billing") == 0
