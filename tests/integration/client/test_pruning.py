"""Segments that go while consumers come and leaders change: nobody waits for what is gone, nobody reads anything again."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from controller.client.producer import Producer
from controller.client.stream_consumer import StreamConsumer
from controller.devstack.serving import client_of, serving_leader
from controller.postgres_source import PostgresSource
from controller.services.garbage_collector import collect
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.joined import send_numbers, take

KEYS = [f"key-{i}" for i in range(20)]


send = partial(send_numbers, keys=KEYS)


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
        assert take(first, count=len(KEYS)) == {key: [("a", 0)] for key in KEYS}
        bench.reshape(splitting(0))
        send(producer, 1)
        assert take(first, count=len(KEYS)) == {key: [("a", 1)] for key in KEYS}
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
        found = take(again, joined, count=len(KEYS))
        assert {key: [number for _, number in of_key] for key, of_key in found.items()} == {
            key: [2] for key in KEYS
        }
        again.close()
        joined.close()
    producer.close()
    assert sorted(bench.layout.segments) == [1, 2]
    assert bench.unread("billing") == 0
