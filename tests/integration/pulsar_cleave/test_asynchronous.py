"""The client awaited: receives that are cancelled while a segment is split, and the end of a queue consumer that tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pulsar_cleave as cleave
from controller.services.segment_admin import splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.pulsar_cleave.conftest import Shop

KEYS = [f"key-{i}" for i in range(10)]
Found = dict[str, list[int]]


async def send(producer: cleave.AsyncProducer, *numbers: int) -> None:
    for number in numbers:
        for key in KEYS:
            await producer.send(b"%d" % number, key)
    await producer.flush()


async def cancelling(
    consumer: cleave.AsyncStreamConsumer | cleave.AsyncCheckpointConsumer, seconds: float, found: Found
) -> AsyncIterator[cleave.Message | None]:
    """Messages of receives that are cancelled after the time, None for each that is, until all are found."""
    while sum(map(len, found.values())) < 3 * len(KEYS):
        message = None
        with suppress(TimeoutError):
            message = await asyncio.wait_for(consumer.receive(), seconds)
            assert message is not None
            found.setdefault(str(message.key), []).append(int(message.value))
        yield message


async def read_stream(consumer: cleave.AsyncStreamConsumer, found: Found) -> None:
    async for message in cancelling(consumer, 0.01, found):
        if message is not None:
            assert await consumer.acknowledge(message)


async def read_checkpoints(consumer: cleave.AsyncCheckpointConsumer, found: Found) -> None:
    """Every third receive that was cancelled is followed by a seek to where the consumer is."""
    cancelled = 0
    async for message in cancelling(consumer, 0.05, found):
        cancelled += message is None
        if message is None and cancelled % 3 == 0:
            await consumer.seek(await consumer.checkpoint())


def test_messages_go_through_a_split_while_receives_are_cancelled(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    by_stream: Found = {}
    by_checkpoint: Found = {}

    async def main() -> None:
        async with (
            shop.client.async_producer(shop.topic) as producer,
            shop.client.async_stream_consumer(shop.topic, "billing", name="a") as stream,
            shop.client.async_checkpoint_consumer(shop.topic, cleave.Start.EARLIEST) as reader,
        ):
            await send(producer, 0, 1)
            await asyncio.to_thread(shop.bench.reshape, splitting(0))
            await send(producer, 2)
            await read_stream(stream, by_stream)
            await read_checkpoints(reader, by_checkpoint)

    asyncio.run(asyncio.wait_for(main(), 120.0))

    assert by_stream == by_checkpoint == {key: [0, 1, 2] for key in KEYS}


def test_a_task_acknowledges_what_it_has_in_hand_while_the_queue_consumer_closes(shop: Shop) -> None:
    bench = shop.bench
    bench.topic_with(segments=1, subscriptions=("jobs",), kind=SubscriptionKind.QUEUE)

    async def main() -> bool:
        async with shop.client.async_producer(shop.topic) as producer:
            await producer.send(b"0")
        async with shop.client.async_queue_consumer(shop.topic, "jobs", name="m") as queue:
            message = await queue.receive(60.0)
            assert message is not None
            closing = asyncio.create_task(queue.close(60.0))
            await asyncio.sleep(0)  # the close begins
            acknowledged = await queue.acknowledge(message)
            await closing
            return acknowledged

    assert asyncio.run(asyncio.wait_for(main(), 120.0))
