"""Queues, checkpoints, keyed work, exactly-once results, namespaces and asyncio hang on the same client, on each data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import psycopg2
import pytest

import pulsar_cleave as cleave
from controller.domain.errors import AlreadyStored, CleaveError, FencedOut
from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.pulsar_cleave.conftest import Shop, send
from tests.support.waiting import wait_until


def with_kind(shop: Shop, name: str, kind: SubscriptionKind, segments: int = 2) -> None:
    """The topic, with one subscription of that kind."""
    shop.bench.topic_with(segments=segments, subscriptions=(name,), kind=kind)


def test_a_queue_counts_redeliveries_and_is_settled_message_by_message(shop: Shop) -> None:
    with_kind(shop, "jobs", SubscriptionKind.QUEUE)
    send(shop, 6)

    with shop.client.queue_consumer(shop.topic, "jobs", name="mailer") as consumer:
        first = consumer.receive(60)
        assert first is not None
        assert (first.redelivery_count, first.key) == (0, f"k{int(first.value) % 3}")
        consumer.negative_acknowledge(first, delay_seconds=0.1)
        counts: dict[bytes, int] = {}
        while len(counts) < 6:
            some = consumer.receive_many(10, 60)
            assert some
            counts |= {one.data: one.redelivery_count for one in some}
            assert consumer.acknowledge(some)

    assert counts.pop(first.data) >= 1
    assert set(counts.values()) == {0}


def test_a_checkpoint_stands_behind_what_was_given_out(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    send(shop, 10)

    with shop.client.checkpoint_consumer(shop.topic) as consumer:
        begin = consumer.checkpoint()
        seen = [int(one.value) for one in (consumer.receive(60) for _ in range(4)) if one is not None]
        point = consumer.checkpoint().to_bytes()
        seen += [int(one.value) for one in consumer.receive_many(10, 60)]
        consumer.seek(begin)
        again = consumer.receive(60)
    with shop.client.checkpoint_consumer(shop.topic, cleave.Checkpoint.from_bytes(point)) as consumer:
        after = [int(one.value) for one in consumer.receive_many(10, 60)]

    assert seen == list(range(10))
    assert again is not None
    assert (again.value, after) == (b"0", [4, 5, 6, 7, 8, 9])


def test_a_member_of_a_group_keeps_what_it_was_given_out(shop: Shop) -> None:
    with_kind(shop, "indexers", SubscriptionKind.CHECKPOINT, segments=1)
    send(shop, 10)
    kept: dict[str, bytes] = {}

    def member() -> cleave.CheckpointConsumer:
        return shop.client.checkpoint_consumer(
            shop.topic, group="indexers", name="indexer-1", kept_values=lambda: list(kept.values())
        )

    with member() as consumer:
        before = [int(one.value) for one in (consumer.receive(60) for _ in range(4)) if one is not None]
        point = consumer.checkpoint()
        kept["indexer-1"] = point.to_bytes()
        consumer.kept(point)
    with member() as consumer:
        after = [int(one.value) for one in consumer.receive_many(10, 60)]

    assert (before, after) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    with pytest.raises(cleave.InvalidInput, match="give all three"):
        shop.client.checkpoint_consumer(shop.topic, group="indexers")


def test_what_fails_too_often_is_a_dead_letter_with_its_metadata(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    with shop.client.producer(shop.topic) as producer:
        producer.send(b"bad", key=b"k", properties={"trace": "1"})
        producer.send(b"good", key=b"k")
    done: list[cleave.Message] = []

    def handle(message: cleave.Message) -> None:
        if message.data == b"bad":
            raise ValueError("no such account")
        done.append(message)

    with shop.client.keyed_work(
        shop.topic,
        "billing",
        handle,
        name="billing-1",
        dead_letters=True,
        max_deliveries=2,
        first_retry_seconds=0.01,
    ) as work:
        work.run(lambda: bool(done) and not work.running)
    with shop.client.dead_letters(shop.topic, "billing") as letters:
        (letter,) = letters.receive_many(10, 30)
        letters.acknowledge(letter)

    assert [one.data for one in done] == [b"good"]
    assert (letter.message.data, letter.message.key, letter.message.properties) == (
        b"bad",
        b"k",
        {"trace": "1"},
    )
    assert letter.deliveries == 2
    assert "no such account" in str(letter.error)
    assert letter.message_id.segment_id == done[0].message_id.segment_id
    with pytest.raises(cleave.SubscriptionNotFound), shop.client.dead_letters(shop.topic, "nobody"):
        pass
    for late in (letters.receive_many, lambda: letters.acknowledge(letter)):
        with pytest.raises(cleave.InvalidInput, match="DeadLetters was closed"):
            late()


def test_a_handler_that_returns_what_nothing_runs_has_failed(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    with shop.client.producer(shop.topic) as producer:
        for payload in (b"coroutine", b"generator", b"good"):
            producer.send(payload, key="k")
    done: list[bytes] = []

    async def handle_later(_message: cleave.Message) -> None:
        raise AssertionError("nothing awaits this")

    def handle_in_steps(_message: cleave.Message) -> Iterator[None]:
        yield

    def handle(message: cleave.Message) -> object:
        act = {b"coroutine": handle_later, b"generator": handle_in_steps}.get(message.data)
        if act is not None:
            return act(message)
        done.append(message.data)
        return None

    options: dict[str, Any] = {"name": "billing-1", "dead_letters": True, "max_deliveries": 1}
    with shop.client.keyed_work(shop.topic, "billing", handle, **options) as work:
        work.run(lambda: bool(done) and not work.running)
    with shop.client.dead_letters(shop.topic, "billing") as letters:
        errors = {one.message.data: str(one.error) for one in letters.receive_many(10, 30)}

    assert done == [b"good"]
    assert errors.keys() == {b"coroutine", b"generator"}
    for kind, error in errors.items():
        assert (
            f"returned a value of type {kind.decode()}, which is never run; give an ordinary function"
            in error
        )
    with pytest.raises(
        cleave.InvalidInput, match="handle must be a function, not one that has to be awaited"
    ):
        shop.client.keyed_work(shop.topic, "billing", handle_later, **options)


def test_a_message_of_another_kind_of_consumer_is_refused(shop: Shop) -> None:
    with_kind(shop, "jobs", SubscriptionKind.QUEUE, segments=1)
    shop.bench.subscribe("billing")
    send(shop, 3)
    client, topic = shop.client, shop.topic
    handled: list[cleave.Message] = []
    with client.keyed_work(topic, "billing", handled.append, name="b") as work:
        work.run(lambda: bool(handled))

    with (
        client.stream_consumer(topic, "billing", name="a") as stream,
        client.queue_consumer(topic, "jobs", name="a") as queue,
        client.checkpoint_consumer(topic) as alone,
    ):
        given = {"QueueConsumer": queue.receive(60), "CheckpointConsumer": alone.receive(60)}
        given["KeyedWork or DeadLetters"] = handled[0]
        for_stream = (stream.acknowledge, stream.negative_acknowledge, lambda one: stream.acknowledge([one]))
        for call in for_stream:
            for kind, message in given.items():
                refusal = (
                    f"was received from {kind}; give this StreamConsumer messages that its `receive` returned"
                )
                with pytest.raises(cleave.InvalidInput, match=refusal):
                    call(message)
        of_queue = given.pop("QueueConsumer")
        send(shop, 3)
        given["StreamConsumer"] = stream.receive(60)
        for settle in (queue.acknowledge, queue.negative_acknowledge):
            for kind, message in given.items():
                with pytest.raises(
                    cleave.InvalidInput, match=f"from {kind}; give this QueueConsumer messages"
                ):
                    settle(message)
        assert queue.acknowledge(of_queue)


def connect(shop: Shop) -> Any:
    return psycopg2.connect(shop.bench.url.replace("postgresql+psycopg2", "postgresql"))


def beside_results(shop: Shop) -> cleave.PositionTable:
    """A table of positions beside a table of results."""
    with closing(connect(shop)) as database, database, database.cursor() as cursor:
        cursor.execute("CREATE TABLE result (value bytea)")
    positions = cleave.PositionTable(lambda: connect(shop))
    positions.create()
    return positions


def results(shop: Shop) -> list[int]:
    with closing(connect(shop)) as database, database.cursor() as cursor:
        cursor.execute("SELECT value FROM result")
        return sorted(int(bytes(value)) for (value,) in cursor.fetchall())


def store(cursor: Any, messages: Sequence[cleave.Message]) -> None:
    for message in messages:
        cursor.execute("INSERT INTO result VALUES (%s)", (message.data,))


def test_each_message_is_in_the_results_once(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    send(shop, 9)
    positions = beside_results(shop)
    with shop.client.stream_consumer(
        shop.topic, "billing", name="billing-1", positions=positions
    ) as consumer:
        batch = consumer.receive_many(4, 60)
        with consumer.transaction(batch) as cursor:
            store(cursor, batch)
        failing = consumer.receive_many(5, 60)
        with pytest.raises(psycopg2.DataError), consumer.transaction(failing) as cursor:
            cursor.execute(
                "INSERT INTO result SELECT 'one of them' FROM generate_series(1, 1) n WHERE 1 / (n - 1) > 0"
            )
        again = consumer.receive_many(5, 60)
        with consumer.transaction(again[:1]) as cursor:
            store(cursor, again[:1])
        with consumer.transaction(again[:1]) as cursor:  # as if the answer to the first one was lost
            store(cursor, again[:1])
        with pytest.raises(cleave.Conflict), consumer.transaction(again[2:]) as cursor:
            store(cursor, again[2:])
        rest = consumer.receive_many(5, 60)
        with consumer.transaction(rest) as cursor:
            store(cursor, rest)

    assert results(shop) == list(range(9))
    with (
        shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer,
        pytest.raises(cleave.InvalidInput, match="PositionTable"),
        consumer.transaction(rest),
    ):
        pass


def test_a_transaction_that_leaves_out_or_repeats_a_message_is_refused(shop: Shop, ends: ExitStack) -> None:
    """Or the position would count the left out message as stored, and the result of the other would be stored twice."""
    shop.bench.topic_with(segments=1)
    send(shop, 9)
    positions = beside_results(shop)
    consumer = ends.enter_context(
        shop.client.stream_consumer(shop.topic, "billing", name="billing-1", positions=positions)
    )
    messages = consumer.receive_many(9, 60)
    assert len(messages) == 9

    with pytest.raises(cleave.Conflict), consumer.transaction(messages[::2]) as cursor:
        store(cursor, messages[::2])
    assert results(shop) == []
    again = consumer.receive_many(3, 60)
    with consumer.transaction([again[1], again[0], again[1]]) as cursor:  # neither order nor repeats matter
        store(cursor, again[:2])
    with pytest.raises(cleave.Conflict), consumer.transaction(again) as cursor:  # two of them are stored
        store(cursor, again)

    store_all(shop, consumer)


def raising(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def act(*_arguments: object) -> None:
        raise error()

    return act


@pytest.fixture
def positions(shop: Shop) -> cleave.PositionTable:
    """Beside a table of results, for a topic with messages in two segments."""
    shop.bench.topic_with(segments=2)
    send(shop, 9)
    return beside_results(shop)


def store_all(shop: Shop, consumer: cleave.StreamConsumer) -> None:
    """Store what comes until every message is in the results once."""

    def turn() -> bool:
        messages = consumer.receive_many(50, 0.1)
        if messages:
            with consumer.transaction(messages) as cursor:
                store(cursor, messages)
        return results(shop) == list(range(9))

    wait_until(turn, message="each message once")


def end_connection(shop: Shop, cursor: Any) -> None:
    """Have the server end the connection of the cursor, as a time limit or a restart does."""
    pid = cursor.connection.info.backend_pid
    with closing(connect(shop)) as other, other, other.cursor() as here:
        here.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))


class BlockError(Exception):
    """An error of the application."""


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (lambda _cursor: None, cleave.StoreUnavailable),
        (lambda cursor: cursor.execute("SELECT 1"), cleave.StoreUnavailable),
        (raising(BlockError), BlockError),
        (raising(KeyboardInterrupt), KeyboardInterrupt),
    ],
    ids=["at the end", "in a statement", "error of the block", "interrupt"],
)
def test_a_transaction_whose_connection_is_lost_gives_its_messages_back(
    shop: Shop, positions: cleave.PositionTable, then: Callable[[Any], None], error: type[BaseException]
) -> None:
    options: dict[str, Any] = {"name": "billing-1", "positions": positions}
    with shop.client.stream_consumer(shop.topic, "billing", **options) as consumer:
        messages = consumer.receive_many(2, 60)

        def lose_the_connection() -> None:
            with consumer.transaction(messages) as cursor:
                store(cursor, messages)
                end_connection(shop, cursor)
                then(cursor)

        with pytest.raises(error) as raised:
            lose_the_connection()
        store_all(shop, consumer)

    if error is cleave.StoreUnavailable:
        assert "continue to receive: messages whose results are not stored are delivered again" in str(
            raised.value
        )
        assert isinstance(raised.value.__cause__, psycopg2.Error)


@pytest.mark.parametrize("error", [FencedOut, AlreadyStored])
def test_an_error_of_the_block_is_raised_whatever_its_class(
    shop: Shop, positions: cleave.PositionTable, error: type[CleaveError]
) -> None:
    """It may come from another consumer that the block uses."""
    options: dict[str, Any] = {"name": "billing-1", "positions": positions}
    with shop.client.stream_consumer(shop.topic, "billing", **options) as consumer:
        messages = consumer.receive_many(2, 60)
        with pytest.raises(error, match="of the block"), consumer.transaction(messages):
            raise error("of the block")
        store_all(shop, consumer)


def test_an_error_of_the_block_is_raised_after_a_close(shop: Shop, positions: cleave.PositionTable) -> None:
    """As by a signal handler that closes the consumer and ends the process."""
    options: dict[str, Any] = {"name": "billing-1", "positions": positions}
    with shop.client.stream_consumer(shop.topic, "billing", **options) as consumer:
        messages = consumer.receive_many(2, 60)
        with pytest.raises(SystemExit), consumer.transaction(messages), closing(consumer):
            raise SystemExit


def test_a_transaction_whose_acknowledgement_fails_holds_nothing_back(
    shop: Shop, positions: cleave.PositionTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are acknowledged later, without a further message in their bucket."""
    options: dict[str, Any] = {"name": "billing-1", "positions": positions}
    with shop.client.stream_consumer(shop.topic, "billing", **options) as consumer:
        messages = consumer.receive_many(50, 60)
        refusal = raising(lambda: cleave.DataPlaneUnavailable("injected", 0.01))
        with monkeypatch.context() as outage:
            outage.setattr(consumer._inner, "acknowledge", refusal)
            with pytest.raises(cleave.DataPlaneUnavailable), consumer.transaction(messages) as cursor:
                store(cursor, messages)
        store_all(shop, consumer)

        wait_until(
            lambda: consumer.receive_many(50, 0.1) == () and shop.bench.unread("billing") == 0,
            message="everything is acknowledged",
        )

    assert results(shop) == list(range(9))


def test_a_transaction_that_finds_no_database_gives_its_messages_back(
    shop: Shop, positions: cleave.PositionTable
) -> None:
    options: dict[str, Any] = {"name": "billing-1", "positions": positions}
    with shop.client.stream_consumer(shop.topic, "billing", **options) as consumer:
        messages = consumer.receive_many(2, 60)
        reachable, consumer._connect = consumer._connect, raising(psycopg2.OperationalError)
        with pytest.raises(cleave.StoreUnavailable, match="OperationalError"), consumer.transaction(messages):
            pass
        consumer._connect = reachable
        store_all(shop, consumer)


def test_what_is_stored_already_takes_no_other_messages_with_it(
    shop: Shop, positions: cleave.PositionTable
) -> None:
    options: dict[str, Any] = {"name": "billing-1", "positions": positions, "batch_messages": 2}
    with shop.client.stream_consumer(shop.topic, "billing", **options) as consumer:
        found: list[cleave.Message] = []

        def turn() -> bool:
            found.extend(consumer.receive_many(2, 0.1))
            return len({one.message_id.segment_id for one in found}) == 2

        wait_until(turn, message="messages of both segments")
        first = [one for one in found if one.message_id.segment_id == found[0].message_id.segment_id]
        with consumer.transaction(first) as cursor:
            store(cursor, first)
        with consumer.transaction(found) as cursor:
            store(cursor, found)
        store_all(shop, consumer)


def test_topics_of_a_namespace_are_followed(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    namespace = shop.topic.removeprefix("topic://").rpartition("/")[0]

    watch = shop.client.watch_topics(namespace)
    try:
        assert watch.topics == {shop.topic}
    finally:
        watch.close()


def test_asyncio_versions_do_the_same(shop: Shop) -> None:
    with_kind(shop, "jobs", SubscriptionKind.QUEUE, segments=1)
    bench = shop.bench
    bench.subscribe("billing")

    async def all_of_it() -> list[bytes]:
        found = []
        async with shop.client.async_producer(shop.topic) as producer:
            for number in range(3):
                await producer.send(b"%d" % number, "k", properties={"n": str(number)})
        async with shop.client.async_stream_consumer(shop.topic, "billing", name="b-1") as stream:
            for _ in range(3):
                message = await stream.receive(60)
                assert message is not None
                found.append(message.data)
                assert await stream.acknowledge(message)
        async with shop.client.async_queue_consumer(shop.topic, "jobs", name="m-1") as queue:
            async for job in queue:
                found.append(job.data)
                assert await queue.acknowledge(job)
                if len(found) == 6:
                    break
        async with shop.client.async_checkpoint_consumer(shop.topic, cleave.Start.EARLIEST) as checkpoints:
            for _ in range(3):
                message = await checkpoints.receive(60)
                assert message is not None
                found.append(message.data)
            assert (await checkpoints.checkpoint()).positions
        return found

    assert asyncio.run(all_of_it()) == [b"0", b"1", b"2"] * 3


def test_a_paused_consumer_gives_out_nothing(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    send(shop, 3)

    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer:
        assert consumer.receive(60) is not None
        consumer.pause()
        assert consumer.receive(0.05) is None
        wait_until(consumer.why, message="what the bucket waits for")
        consumer.resume()
        assert consumer.receive(60) is not None
