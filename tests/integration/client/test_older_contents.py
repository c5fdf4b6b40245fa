"""Consumers of embedded logs that became shorter, as after a lost primary or a restore: what is written there next reaches all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.exactly_once_table import PositionTable
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.servers import Servers
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.services.segment_admin import splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.older_contents import OlderContents
from tests.support.waiting import wait_until

AGAIN = [b"again %d" % number for number in range(5)]


@pytest.fixture(params=[5, 10], ids=["shorter", "grown again"])
def extra(request: pytest.FixtureRequest) -> list[bytes]:
    """What is written to the log that became shorter: as much as it lost, or more."""
    return [*AGAIN, *(b"later %d" % number for number in range(request.param - 5))]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def send(producer: Producer, payloads: Iterable[bytes], key: str = "key") -> None:
    for payload in payloads:
        producer.send(payload, key)
    producer.flush()


def take(consumer: Any, count: int) -> tuple[list[bytes], list[Any]]:
    """At least so many messages, and their batches."""
    found: list[bytes] = []
    batches = []

    def complete() -> bool:
        batch = consumer.receive(0.1)
        if batch is not None:
            found.extend(message.payload for message in batch.messages)
            batches.append(batch)
        return len(found) >= count

    wait_until(complete, message=f"{count} messages")
    return found, batches


def reason(consumer: Any) -> str:
    (status,) = consumer.why()
    return str(status.reason)


def stream(servers: Servers, bench: Bench, name: str = "a", **options: Any) -> StreamConsumer:
    return StreamConsumer(servers, bench.logs, TOPIC, "billing", name, **options)


class TestStreams:
    def test_what_the_log_lost_is_not_acknowledged_in_place_of_what_is_written_next(
        self, bench: Bench, servers: Servers, producer: Producer, stack: ExitStack, extra: list[bytes]
    ) -> None:
        send(producer, numbers(0, 15))
        consumer = stack.enter_context(stream(servers, bench))
        _, [first] = take(consumer, 15)
        assert consumer.acknowledge(first, first.messages[11].position)
        older = OlderContents(bench.url)
        send(producer, numbers(15, 20))
        _, [lost] = take(consumer, 5)
        older.restore()
        send(producer, extra)
        bench.reshape(splitting(0))

        assert not consumer.acknowledge(lost)
        found, batches = take(consumer, 3 + len(extra))

        assert found == [*numbers(12, 15), *extra]
        assert bench.unread("billing") == len(found), "nothing of it counts as read before it is acknowledged"
        assert bench.scalar("SELECT count(*) FROM cleave.segment_drain") == 0
        assert all(consumer.acknowledge(batch) for batch in batches)
        assert bench.unread("billing") == 0

    def test_an_idle_consumer_receives_what_is_written_next_and_says_what_happened(
        self, bench: Bench, servers: Servers, producer: Producer, stack: ExitStack
    ) -> None:
        send(producer, numbers(0, 15))
        consumer = stack.enter_context(stream(servers, bench))
        _, [first] = take(consumer, 15)
        assert consumer.acknowledge(first)
        older = OlderContents(bench.url)
        send(producer, numbers(15, 20))
        _, [lost] = take(consumer, 5)
        assert consumer.acknowledge(lost)
        older.restore()
        said = f"the log became shorter: position 20 is beyond the end 15 of {bench.log_of(0)}; reading continues at 15"

        def reasons() -> list[str]:
            assert consumer.receive(0.1) is None
            return [one.reason for one in consumer.why()]

        wait_until(lambda: said in reasons(), message="the consumer's reason")
        wait_until(
            lambda: reasons() and bench.rows("SELECT FROM inspect.buckets WHERE reason = :said", said=said),
            message="the leader's reason",
        )
        send(producer, AGAIN)
        found, [batch] = take(consumer, 5)
        assert found == AGAIN
        assert consumer.acknowledge(batch)
        assert said not in [one.reason for one in consumer.why()]

    def test_each_bucket_is_read_again_by_its_own_consumer(
        self, bench: Bench, servers: Servers, producer: Producer, stack: ExitStack, extra: list[bytes]
    ) -> None:
        keys = [f"key-{number}" for number in range(12)]
        consumers = [stack.enter_context(stream(servers, bench, name)) for name in ("a", "b")]
        wait_until(
            lambda: (
                [one.receive(0.05) for one in consumers] and all(len(one.buckets) == 2 for one in consumers)
            ),
            message="two buckets for each",
        )

        def sent(payload: bytes) -> set[bytes]:
            for key in keys:
                producer.send(payload + b" " + key.encode(), key)
            producer.flush()
            return {payload + b" " + key.encode() for key in keys}

        def received(count: int) -> tuple[list[bytes], list[tuple[StreamConsumer, Batch]]]:
            found: list[bytes] = []
            batches: list[tuple[StreamConsumer, Batch]] = []

            def complete() -> bool:
                for one in consumers:
                    batch = one.receive(0.05)
                    if batch is not None:
                        found.extend(message.payload for message in batch.messages)
                        batches.append((one, batch))
                return len(found) >= count

            wait_until(complete, message=f"{count} messages")
            return found, batches

        sent(b"kept")
        assert all(one.acknowledge(batch) for one, batch in received(12)[1])
        older = OlderContents(bench.url)
        sent(b"lost")
        in_hand = received(12)[1]
        older.restore()
        wanted = [payload for one in extra for payload in sent(one)]

        assert not any(one.acknowledge(batch) for one, batch in in_hand)
        found, batches = received(len(wanted))
        assert sorted(found) == sorted(wanted)
        assert all(one.acknowledge(batch) for one, batch in batches)
        assert bench.unread("billing") == 0


class TestPositionTables:
    def test_each_message_of_the_logs_history_is_in_the_results_once(
        self,
        bench: Bench,
        servers: Servers,
        producer: Producer,
        stack: ExitStack,
        table: PositionTable,
        connect: Callable[[], Any],
        extra: list[bytes],
    ) -> None:
        """The results hold messages 12 to 14, which the log still has, and 15 to 19, which it lost."""
        application = stack.enter_context(closing(connect()))
        send(producer, numbers(0, 15))
        consumer = stack.enter_context(stream(servers, bench, positions=table))
        _, [first] = take(consumer, 15)
        consumer.commit(first, application)
        application.commit()
        assert consumer.acknowledge(first, first.messages[11].position)
        older = OlderContents(bench.url)
        send(producer, numbers(15, 20))
        _, [lost] = take(consumer, 5)
        consumer.commit(lost, application)
        application.commit()
        assert consumer.acknowledge(lost)
        older.restore()
        send(producer, extra)

        found, batches = take(consumer, len(extra))

        assert found == extra
        for batch in batches:
            consumer.commit(batch, application)
            application.commit()
            assert consumer.acknowledge(batch)
        assert bench.unread("billing") == 0

    def test_what_was_stored_before_logs_had_timelines_is_not_handed_out_again(
        self,
        bench: Bench,
        servers: Servers,
        producer: Producer,
        stack: ExitStack,
        table: PositionTable,
        connect: Callable[[], Any],
    ) -> None:
        application = stack.enter_context(closing(connect()))
        send(producer, numbers(0, 15))
        with stream(servers, bench, positions=table) as consumer:
            _, [first] = take(consumer, 15)
            consumer.commit(first, application)
            application.commit()
        bench.execute("UPDATE public.cleave_position SET position = position[2:2]")
        send(producer, numbers(15, 17))

        heir = stack.enter_context(stream(servers, bench, "heir", positions=table))
        found, [batch] = take(heir, 2)

        assert found == numbers(15, 17)
        heir.commit(batch, application)
        application.commit()
        assert heir.acknowledge(batch)


class TestCheckpoints:
    def test_a_consumer_goes_on_where_the_history_of_the_log_does(
        self, bench: Bench, servers: Servers, producer: Producer, stack: ExitStack, extra: list[bytes]
    ) -> None:
        send(producer, numbers(0, 15))
        consumer = stack.enter_context(CheckpointConsumer(servers, bench.logs, TOPIC, Start.EARLIEST))
        older = OlderContents(bench.url)
        send(producer, numbers(15, 20))
        take(consumer, 20)
        kept = consumer.checkpoint().to_bytes()
        older.restore()

        wait_until(
            lambda: (consumer.receive(0.1), reason(consumer))[1].endswith("reading continues at 15"),
            message="the consumer's reason",
        )
        send(producer, extra)
        assert take(consumer, len(extra))[0] == extra
        assert reason(consumer) in ("no data", "waits for the next `receive`")
        heir = stack.enter_context(CheckpointConsumer(servers, bench.logs, TOPIC, kept))
        assert take(heir, len(extra))[0] == extra

    def test_a_group_goes_on_where_the_history_of_the_log_does(
        self, bench: Bench, servers: Servers, producer: Producer, stack: ExitStack, extra: list[bytes]
    ) -> None:
        bench.subscribe("group", kind=SubscriptionKind.CHECKPOINT)
        values: list[bytes] = []
        send(producer, numbers(0, 15))
        older = OlderContents(bench.url)
        with CheckpointGroupConsumer(servers, bench.logs, TOPIC, "group", "a", lambda: values) as member:
            send(producer, numbers(15, 20))
            take(member, 20)
            values.append(member.checkpoint().to_bytes())
        older.restore()

        heir = stack.enter_context(
            CheckpointGroupConsumer(servers, bench.logs, TOPIC, "group", "b", lambda: values)
        )
        wait_until(
            lambda: (heir.receive(0.1), [one.reason for one in heir.why() if "shorter" in one.reason])[1],
            message="the member's reason",
        )
        send(producer, extra)

        assert take(heir, len(extra))[0] == extra
        point = heir.checkpoint()
        values.append(point.to_bytes())
        heir.kept(point)
        assert point.positions[0] is not None
        assert heir._group_position is not None
        assert heir._group_position.positions[0] == point.positions[0]


def test_a_queue_gives_out_what_is_written_next(
    bench: Bench, servers: Servers, producer: Producer, stack: ExitStack, extra: list[bytes]
) -> None:
    bench.subscribe("jobs", kind=SubscriptionKind.QUEUE)
    send(producer, numbers(0, 15))
    consumer = stack.enter_context(QueueConsumer(servers, bench.logs, TOPIC, "jobs", "a"))

    def received(count: int) -> list[Any]:
        found: list[Any] = []
        wait_until(
            lambda: found.extend(consumer.receive_many(100, 0.1)) or len(found) >= count,
            message=f"{count} messages",
        )
        return found

    assert consumer.acknowledge(*received(15))
    older = OlderContents(bench.url)
    send(producer, numbers(15, 20))
    in_hand = received(5)
    older.restore()

    assert not consumer.acknowledge(*in_hand)
    wait_until(
        lambda: (consumer.receive_many(1, 0.1), reason(consumer))[1].endswith("reading continues at 15"),
        message="the consumer's reason",
    )
    send(producer, extra)
    found = received(len(extra))
    assert [one.payload for one in found] == extra
    assert consumer.acknowledge(*found)
    assert bench.unread("jobs") == 0
