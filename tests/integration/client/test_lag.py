"""How far behind a subscription is, as a consumer asks its worker."""

from __future__ import annotations

from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.domain.entry_buckets import bucket_of, bucket_ranges
from controller.domain.key_hash import key_hash
from controller.postgres_source import PostgresSource
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(50)]


def produce(bench: Bench, source: PostgresSource) -> None:
    with Producer(source, bench.logs, TOPIC) as producer:
        for key in KEYS:
            producer.send(b"payload", key)


def expected(bench: Bench) -> dict[tuple[int, str], int]:
    """Of each bucket of an active segment, from the keys alone."""
    found = {
        (segment.segment_id, str(bucket)): 0
        for segment in bench.layout.active
        for bucket in bucket_ranges(segment.bucket_splits)
    }
    for key in KEYS:
        hashes = key_hash(key)
        segment = bench.layout.segment_for(hashes.segment_hash)
        bucket = bucket_ranges(segment.bucket_splits)[bucket_of(segment.bucket_splits, hashes.bucket_hash)]
        found[segment.segment_id, str(bucket)] += 1
    return found


def test_each_bucket_is_counted_and_falls_with_what_is_acknowledged(
    bench: Bench, source: PostgresSource, servers: Servers
) -> None:
    bench.topic_with(segments=2)
    produce(bench, source)
    counts = expected(bench)

    with StreamConsumer(servers, bench.logs, TOPIC, "billing", "a") as consumer:
        batch = wait_until(lambda: consumer.receive(0.1), message="a batch")
        before = {(one.segment_id, one.bucket): one.messages for one in consumer.lag()}
        assert before == counts
        assert consumer.acknowledge(batch)
        counts[batch.segment_id, str(batch.bucket)] -= len(batch.messages)
        after = consumer.lag()

    assert {(one.segment_id, one.bucket): one.messages for one in after} == counts
    assert {one.owners for one in after} == {("a",)}


def test_a_queue_is_counted_by_segment(bench: Bench, source: PostgresSource, servers: Servers) -> None:
    bench.topic_with(segments=2, subscriptions=("jobs",), kind=SubscriptionKind.QUEUE)
    produce(bench, source)
    counts: dict[int, int] = {}
    for (segment_id, _), messages in expected(bench).items():
        counts[segment_id] = counts.get(segment_id, 0) + messages

    with QueueConsumer(servers, bench.logs, TOPIC, "jobs", "a") as consumer:
        job = wait_until(lambda: consumer.receive(0.1), message="a message")
        assert consumer.acknowledge(job)
        counts[job.segment_id] -= 1
        found = consumer.lag()

    assert {one.segment_id: one.messages for one in found} == counts
    assert {(one.bucket, one.owners, one.error) for one in found} == {(None, (), None)}
