"""Stream consumers against real logs: parents before children, one reader a segment, nothing lost on the way.

Segments have one bucket each here; how buckets are shared is in test_shared_buckets.
"""

from __future__ import annotations

from functools import partial

import pytest

from controller import client_metrics
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.domain.errors import DataPlaneUnavailable, FencedOut, SubscriptionNotFound
from controller.domain.key_hash import key_hash
from controller.domain.seek_target import EARLIEST
from controller.postgres_source import PostgresSource
from controller.services import subscription_admin
from controller.services.segment_admin import merging, splitting
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import Join, send_numbers, settle, take
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(20)]


def begin_with(bench: Bench, segments: int) -> None:
    """A topic whose segments have one bucket each."""
    bench.execute(
        "UPDATE cleave.cluster_policy SET policy = '{\"entry_bucket_budget\": 1}', row_version = row_version + 1"
    )
    bench.topic_with(segments=segments)


@pytest.fixture
def topic(bench: Bench) -> None:
    begin_with(bench, segments=1)


def segment_of(bench: Bench, key: str) -> int:
    return bench.layout.segment_for(key_hash(key).segment_hash).segment_id


send = partial(send_numbers, keys=KEYS)


def next_batch(consumer: StreamConsumer) -> Batch:
    return wait_until(lambda: consumer.receive(0.1), message=f"a batch for {consumer.name}")


def everything(name: str, *numbers: int) -> dict[str, list[tuple[str, int]]]:
    """What `take` finds when that consumer gets these numbers of every key."""
    return {key: [(name, number) for number in numbers] for key in KEYS}


def test_a_lone_consumer_gets_everything_in_order(bench: Bench, producer: Producer, join: Join) -> None:
    send(producer, 0, 1, 2)

    assert take(join("a"), count=3 * len(KEYS)) == everything("a", 0, 1, 2)
    assert bench.unread("billing") == 0


def test_nothing_to_read_is_no_batch(join: Join) -> None:
    assert join("a").receive(0.0) is None


def test_a_paused_consumer_keeps_what_it_owns_and_lets_go_of_what_others_are_to_have(
    bench: Bench, producer: Producer, join: Join
) -> None:
    bench.reshape(splitting(0))
    a = join("a")
    settle(a, until=lambda: a.segment_ids == (1, 2))
    a.pause()
    send(producer, 0)
    turns = iter(range(5))
    settle(a, until=lambda: next(turns, None) is None)
    assert {status.reason for status in a.why()} == {"paused"}
    b = join("b")
    b.pause()
    settle(a, b, until=lambda: (a.segment_ids, b.segment_ids) == ((1,), (2,)))

    a.resume()
    b.resume()

    readers = {1: "a", 2: "b"}
    assert take(a, b, count=len(KEYS)) == {key: [(readers[segment_of(bench, key)], 0)] for key in KEYS}


def test_a_split_is_read_parent_first_and_the_drain_is_on_record(
    bench: Bench, producer: Producer, join: Join
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    consumer = join("a")

    first = next_batch(consumer)
    assert first.segment_id == 0
    settle(consumer, until=lambda: True)  # children wait until the parent is acknowledged
    assert consumer.acknowledge(first)

    assert take(consumer, count=len(KEYS)) == everything("a", 1)
    assert consumer.segment_ids == (1, 2)
    assert bench.scalar("SELECT array_agg(segment_id) FROM cleave.segment_drain") == [0]


def test_a_sealed_segment_that_gives_nothing_yet_is_not_taken_for_drained(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    logs.slow_reads = 2

    with StreamConsumer(servers, logs, TOPIC, "billing", "a") as consumer:
        assert take(consumer, count=len(KEYS)) == everything("a", 0)


def test_two_consumers_share_the_segments(bench: Bench, producer: Producer, join: Join) -> None:
    bench.reshape(splitting(0))
    a, b = join("a"), join("b")
    settle(a, b, until=lambda: (a.segment_ids, b.segment_ids) == ((1,), (2,)))
    send(producer, 0)

    readers = {1: "a", 2: "b"}
    assert take(a, b, count=len(KEYS)) == {key: [(readers[segment_of(bench, key)], 0)] for key in KEYS}


def test_a_segment_out_of_reach_keeps_nobody_from_the_others_and_is_told_of_when_they_have_nothing(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(1)}
    send(producer, 0, 1, 2)
    within_reach = [key for key in KEYS if segment_of(bench, key) == 2]

    with StreamConsumer(servers, logs, TOPIC, "billing", "a", patience_seconds=2.0) as consumer:
        first = take(consumer, count=3 * len(within_reach))
        with pytest.raises(DataPlaneUnavailable, match="out of reach"):
            wait_until(lambda: consumer.receive(0.1))
        logs.out_of_reach.clear()
        rest = take(consumer, count=3 * (len(KEYS) - len(within_reach)))

    assert set(first) == set(within_reach)
    assert first | rest == everything("a", 0, 1, 2)


def test_a_pause_is_no_outage(bench: Bench, servers: Servers, producer: Producer) -> None:
    """No log is read meanwhile, so none can be reached again."""
    del producer  # has begun the topic
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0)}
    with StreamConsumer(servers, logs, TOPIC, "billing", "a", patience_seconds=0.05) as consumer:
        wait_until(lambda: consumer.receive(0.0) is None and "out of reach" in consumer.why()[0].reason)

        consumer.pause()
        assert [consumer.receive(0.02) for _ in range(5)] == [None] * 5

        consumer.resume()
        with pytest.raises(DataPlaneUnavailable, match="out of reach"):
            wait_until(lambda: consumer.receive(0.1))


def test_segments_whose_logs_hang_keep_nobody_waiting_for_the_others(
    bench: Bench, servers: Servers, source: PostgresSource
) -> None:
    """A call that neither succeeds nor fails keeps its thread: more of them than one consumer opened at once before."""
    bench.topic_with(segments=9)
    logs = FaultyLogs(bench.logs)
    *hanging, healthy = sorted(segment.segment_id for segment in bench.layout.active)
    logs.hanging = {bench.log_of(segment_id) for segment_id in hanging}
    key = next(f"key-{i}" for i in range(10_000) if segment_of(bench, f"key-{i}") == healthy)
    with Producer(source, bench.logs, TOPIC) as producer:
        producer.send(b"1", key)

    with StreamConsumer(servers, logs, TOPIC, "billing", "a") as consumer:
        try:
            batch = next_batch(consumer)
            wait_until(lambda: logs.hung >= len(hanging), message="all of them hang")
            assert [message.payload for message in batch.messages] == [b"1"]
            assert consumer.acknowledge(batch)
        finally:
            logs.goes_on.set()


def test_a_segment_that_answers_nothing_keeps_nobody_waiting_for_the_others(
    bench: Bench, servers: Servers, source: PostgresSource
) -> None:
    """Once it is open: it is asked what a read has to ask, whether it is drained, and closed, aside."""
    begin_with(bench, segments=3)
    deaf, sealed, healthy = sorted(bench.layout.active, key=lambda one: one.segment_id)
    logs = FaultyLogs(bench.logs)
    with (
        Producer(source, bench.logs, TOPIC) as producer,
        StreamConsumer(servers, logs, TOPIC, "billing", "a") as consumer,
    ):
        settle(consumer, until=lambda: len(consumer.segment_ids) == 3)
        logs.deaf = {bench.log_of(deaf.segment_id), bench.log_of(sealed.segment_id)}
        try:
            bench.reshape(splitting(sealed.segment_id))
            send(producer, 0)
            mine = [key for key in KEYS if segment_of(bench, key) == healthy.segment_id]
            batch = next_batch(consumer)
            settle(consumer, until=lambda: logs.hung >= 2)  # both are asked
            assert sorted(message.key or b"" for message in batch.messages) == [
                key.encode() for key in sorted(mine)
            ]
            consumer.give_back(batch)
            again = next_batch(consumer)  # the reader was closed, and opened anew
            assert consumer.acknowledge(again)
        finally:
            logs.deaf.clear()
            logs.goes_on.set()
        taken = take(consumer, count=len(KEYS) - len(mine))
        assert sorted([*taken, *mine]) == sorted(KEYS)


def test_a_bucket_whose_reader_does_not_close_is_the_others_when_it_has(
    bench: Bench, servers: Servers, source: PostgresSource
) -> None:
    """The word to the leader follows the closing, and all else is read meanwhile."""
    begin_with(bench, segments=2)
    logs = FaultyLogs(bench.logs)
    with (
        Producer(source, bench.logs, TOPIC) as producer,
        StreamConsumer(servers, logs, TOPIC, "billing", "a") as one,
    ):
        settle(one, until=lambda: len(one.segment_ids) == 2)
        logs.deaf = {bench.log_of(segment.segment_id) for segment in bench.layout.active}
        with StreamConsumer(servers, bench.logs, TOPIC, "billing", "b") as other:
            try:
                settle(one, other, until=lambda: len(one.segment_ids) == 1 and logs.hung > 0)
                [kept] = one.segment_ids
                logs.deaf.discard(bench.log_of(kept))
                send(producer, 0)
                batch = next_batch(one)
                assert {message.key for message in batch.messages} == {
                    key.encode() for key in KEYS if segment_of(bench, key) == kept
                }
                assert one.acknowledge(batch)
                assert other.segment_ids == ()
            finally:
                logs.deaf.clear()
                logs.goes_on.set()
            assert next_batch(other).segment_id != kept


def test_a_segment_changes_hands_only_when_its_messages_are_acknowledged(
    bench: Bench, producer: Producer, join: Join
) -> None:
    bench.reshape(splitting(0))
    a = join("a")
    settle(a, until=lambda: a.segment_ids == (1, 2))
    send(producer, 0)
    batches = [next_batch(a), next_batch(a)]
    b = join("b")
    turns = iter(range(10))
    settle(a, b, until=lambda: next(turns, None) is None)
    assert a.segment_ids == (1, 2)
    send(producer, 1)
    for batch in batches:
        assert a.acknowledge(batch)

    readers = {1: "a", 2: "b"}
    assert take(a, b, count=len(KEYS)) == {key: [(readers[segment_of(bench, key)], 1)] for key in KEYS}


def test_a_segment_that_is_to_change_hands_is_read_no_further(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """Or under a steady stream it would never be given up."""
    bench.reshape(splitting(0))
    b = join("b")
    settle(b, until=lambda: b.segment_ids == (1, 2))
    send(producer, 0)
    in_hand = {batch.segment_id: batch for batch in (next_batch(b), next_batch(b))}
    a = join("a")
    settle(a, b, until=lambda: len(b.buckets) == 1)
    [(kept, _)] = b.buckets
    [given] = {1, 2} - {kept}
    send(producer, 1)
    assert next_batch(b).segment_id == kept
    settle(b, until=lambda: True)

    assert b.acknowledge(in_hand[given])

    assert next_batch(a).segment_id == given


def test_a_newcomer_waits_for_the_parent_and_then_gets_a_child_of_its_own(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """The case Pulsar 5 answers with a minute of silence (apache/pulsar#26434)."""
    send(producer, 0)
    a = join("a")
    in_hand = next_batch(a)
    b = join("b")
    bench.reshape(splitting(0))
    send(producer, 1)
    settle(a, b, until=lambda: True)

    assert a.acknowledge(in_hand)

    readers = {1: "a", 2: "b"}
    assert take(a, b, count=len(KEYS)) == {key: [(readers[segment_of(bench, key)], 1)] for key in KEYS}


def test_what_a_leaving_consumer_did_not_acknowledge_goes_to_the_others(
    producer: Producer, join: Join
) -> None:
    a = join("a")
    send(producer, 0)
    next_batch(a)
    b = join("b")
    a.close()

    assert take(b, count=len(KEYS)) == everything("b", 0)


def test_a_consumer_given_up_for_dead_is_cut_off(bench: Bench, producer: Producer, join: Join) -> None:
    """Its row goes, another takes over; what it acknowledges afterwards is refused."""
    a = join("a")
    send(producer, 0)
    in_hand = next_batch(a)
    b = join("b")
    bench.execute("DELETE FROM cleave.consumer WHERE name = 'a'")

    assert take(b, count=len(KEYS)) == everything("b", 0)
    assert not a.acknowledge(in_hand)


def test_a_consumer_that_was_given_up_takes_part_again_when_it_comes_back(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    settle(a, until=lambda: a.segment_ids == (0,))
    before = bench.scalar("SELECT registered_at FROM cleave.consumer")
    bench.execute("DELETE FROM cleave.consumer WHERE name = 'a'")
    wait_until(
        lambda: bench.scalar(
            "SELECT count(*) FROM cleave.consumer WHERE registered_at > :before", before=before
        ),
        message="it has registered again",
    )
    send(producer, 0)

    assert take(a, count=len(KEYS)) == everything("a", 0)


def test_a_restarted_consumer_resumes_and_the_one_it_replaces_must_stop(
    producer: Producer, join: Join
) -> None:
    stale = join("a")
    send(producer, 0)
    next_batch(stale)

    assert take(join("a"), count=len(KEYS)) == everything("a", 0)
    send(producer, 1)
    with pytest.raises(FencedOut):
        wait_until(lambda: stale.receive(0.1))


def test_a_seek_back_delivers_again_and_outdates_what_is_in_hand(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    send(producer, 0)
    in_hand = next_batch(a)
    bench.plane.seek(bench.log_of(0), "billing", 0)

    assert not a.acknowledge(in_hand)
    assert take(a, count=len(KEYS)) == everything("a", 0)


def test_lost_connections_are_a_pause_and_no_more(bench: Bench, producer: Producer, join: Join) -> None:
    a = join("a")
    send(producer, 0)
    assert take(a, count=len(KEYS))
    bench.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    send(producer, 1)

    assert take(a, count=len(KEYS)) == everything("a", 1)


def test_a_long_family_is_read_generation_by_generation(bench: Bench, producer: Producer, join: Join) -> None:
    for number, planner in enumerate((splitting(0), merging(1, 2), splitting(3))):
        send(producer, number)
        bench.reshape(planner)
    send(producer, 3)

    assert take(join("a"), count=4 * len(KEYS)) == everything("a", 0, 1, 2, 3)


def test_a_subscription_made_later_reads_everything_that_is_there_generation_by_generation(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    for number, planner in enumerate((splitting(0), merging(1, 2), splitting(3))):
        send(producer, number)
        bench.reshape(planner)
    bench.subscribe("late")
    send(producer, 3)

    with StreamConsumer(servers, bench.logs, TOPIC, "late", "a") as consumer:
        assert take(consumer, count=4 * len(KEYS)) == everything("a", 0, 1, 2, 3)


def test_a_subscription_from_latest_reads_what_is_published_from_then_on_until_it_is_sought_back(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    bench.subscribe("late", from_latest=True)
    send(producer, 2)

    with StreamConsumer(servers, bench.logs, TOPIC, "late", "a") as consumer:
        assert take(consumer, count=len(KEYS)) == everything("a", 2)
    bench.finish(
        subscription_admin.seek_subscription(
            bench.store, TOPIC, "late", EARLIEST, bench.request(), release_seconds=0.0
        )
    )
    with StreamConsumer(servers, bench.logs, TOPIC, "late", "a") as consumer:
        assert take(consumer, count=3 * len(KEYS)) == everything("a", 0, 1, 2)


def test_consuming_without_a_subscription_is_refused(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    with pytest.raises(SubscriptionNotFound, match="has no live subscription nobody; create it"):
        StreamConsumer(servers, bench.logs, TOPIC, "nobody", "a")


def test_what_is_received_and_acknowledged_is_counted_once(producer: Producer, join: Join) -> None:
    received = client_metrics.CONSUMER_MESSAGES.labels("stream")
    acknowledged = client_metrics.CONSUMER_ACKNOWLEDGED.labels("stream")
    before = received._value.get(), acknowledged._value.get()

    def counted() -> tuple[float, float]:
        return received._value.get() - before[0], acknowledged._value.get() - before[1]

    for number in range(5):
        producer.send(b"%d" % number, KEYS[0])
    producer.flush()
    a = join("a")
    batch = next_batch(a)
    assert counted() == (5, 0)

    for upto, settled in ((1, 2), (3, 4), (1, 4), (4, 5), (4, 5)):
        assert a.acknowledge(batch, batch.messages[upto].position)
        assert counted() == (5, settled)
