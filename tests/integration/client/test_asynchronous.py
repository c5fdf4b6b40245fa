"""The clients awaited, on real logs with a real leader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from controller.client.asynchronous import (
    AsyncCheckpointConsumer,
    AsyncProducer,
    AsyncStreamConsumer,
)
from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.base import LogMessage
from controller.services import topic_admin
from controller.services.segment_admin import splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.page_examples import run_example

KEYS = [f"key-{i}" for i in range(10)]


Found = dict[bytes, list[int]]


def note(found: Found, messages: Sequence[LogMessage]) -> None:
    for message in messages:
        found.setdefault(message.key or b"", []).append(int(message.payload))


async def send(producer: AsyncProducer, *numbers: int) -> None:
    for number in numbers:
        for key in KEYS:
            await producer.send(b"%d" % number, key)
    await producer.flush()


async def read_all(consumer: AsyncStreamConsumer, found: Found, count: int) -> None:
    while sum(map(len, found.values())) < count:
        with suppress(TimeoutError):
            batch = await asyncio.wait_for(consumer.receive(), 0.01)
            assert batch is not None
            note(found, batch.messages)
            assert await consumer.acknowledge(batch)


async def read_all_at(consumer: AsyncCheckpointConsumer, found: Found, count: int) -> None:
    """Every third receive that was cancelled is followed by a restore."""
    cancelled = 0
    while sum(map(len, found.values())) < count:
        try:
            batch = await asyncio.wait_for(consumer.receive(), 0.05)
            assert batch is not None
            note(found, batch.messages)
        except TimeoutError:
            cancelled += 1
            if cancelled % 3 == 0:
                await consumer.restore(await consumer.checkpoint())


def test_messages_go_through_a_split_while_receives_are_cancelled(bench: Bench, servers: Servers) -> None:
    bench.topic_with(segments=1)
    by_stream: Found = {}
    by_checkpoint: Found = {}

    async def main() -> None:
        async with (
            AsyncProducer(lambda: Producer(HttpSource(servers), bench.logs, TOPIC)) as producer,
            AsyncStreamConsumer(lambda: StreamConsumer(servers, bench.logs, TOPIC, "billing", "a")) as stream,
            AsyncCheckpointConsumer(
                lambda: CheckpointConsumer(servers, bench.logs, TOPIC, Start.EARLIEST)
            ) as reader,
        ):
            await send(producer, 0, 1)
            await asyncio.to_thread(bench.reshape, splitting(0))
            await send(producer, 2)
            await read_all(stream, by_stream, 3 * len(KEYS))
            await read_all_at(reader, by_checkpoint, 3 * len(KEYS))

    asyncio.run(asyncio.wait_for(main(), 60.0))

    assert by_stream == by_checkpoint == {key.encode(): [0, 1, 2] for key in KEYS}
    assert bench.unread("billing") == 0


def test_the_example_of_the_page(bench: Bench, servers: Servers) -> None:
    bench.topic_with(segments=1, subscriptions=())
    bench.finish(
        topic_admin.create_subscription(
            bench.store, TOPIC, "jobs", bench.request(), kind=SubscriptionKind.QUEUE
        )
    )
    sent: list[bytes] = []

    async def send_mail(payload: bytes) -> None:
        sent.append(payload)

    async def stopping() -> None:
        while bench.unread("jobs"):
            await asyncio.sleep(0.05)

    run_example(
        "how-to/use-asyncio.md",
        topic=TOPIC,
        servers=servers,
        logs=bench.logs,
        send_mail=send_mail,
        stopping=stopping,
    )

    assert sorted(sent) == sorted(b"order %d" % number for number in range(10))
