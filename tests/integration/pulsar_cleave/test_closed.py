"""A consumer that was closed says so: each call after `close`, and a `receive` that waits meanwhile. On each data plane."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import pulsar_cleave as cleave
from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.pulsar_cleave.conftest import Shop, send

Consumer = cleave.StreamConsumer | cleave.QueueConsumer | cleave.CheckpointConsumer


@pytest.fixture
def consumers(shop: Shop, ends: ExitStack) -> dict[str, Consumer]:
    """One consumer of each kind of a topic with 9 messages."""
    bench, client, topic = shop.bench, shop.client, shop.topic
    bench.topic_with(segments=1)
    for name, kind in (("jobs", SubscriptionKind.QUEUE), ("indexers", SubscriptionKind.CHECKPOINT)):
        bench.subscribe(name, kind=kind)
    send(shop, 9)
    found: dict[str, Consumer] = {
        "stream": client.stream_consumer(topic, "billing", name="a"),
        "queue": client.queue_consumer(topic, "jobs", name="a"),
        "checkpoint": client.checkpoint_consumer(topic),
        "group": client.checkpoint_consumer(topic, group="indexers", name="a", kept_values=list),
    }
    for one in found.values():
        ends.callback(one.close)
    return found


def received(consumer: Consumer) -> cleave.Message:
    message = consumer.receive(60)
    assert message is not None
    return message


def calls_of_all(one: Consumer) -> Iterator[Callable[[], Any]]:
    yield from (lambda: one.receive(0), one.receive, lambda: one.receive_many(3, 0))
    yield from (lambda: next(iter(one)), one.__enter__, one.pause, one.resume)


def closed(consumer: object) -> Any:
    return pytest.raises(
        cleave.InvalidInput, match=f"^{type(consumer).__name__} was closed; make another one$"
    )


def test_each_call_after_close_says_so(consumers: dict[str, Consumer]) -> None:
    stream, queue = consumers["stream"], consumers["queue"]
    checkpoint, member = consumers["checkpoint"], consumers["group"]
    assert isinstance(stream, cleave.StreamConsumer)
    assert isinstance(queue, cleave.QueueConsumer)
    assert isinstance(checkpoint, cleave.CheckpointConsumer)
    assert isinstance(member, cleave.CheckpointConsumer)
    of_stream, of_queue, point = received(stream), received(queue), checkpoint.checkpoint()
    received(checkpoint)  # others of its batch wait in the consumer
    where = checkpoint.checkpoint()

    for one in consumers.values():
        with pytest.raises(cleave.InvalidInput, match="give 0 or more"):
            one.close(-1)  # closes nothing
        one.resume()
        one.close()
        one.close()
        for call in calls_of_all(one):
            with closed(one):
                call()
    for consumer, message in ((stream, of_stream), (queue, of_queue)):
        for settle in (consumer.acknowledge, consumer.negative_acknowledge):
            with closed(consumer):
                settle(message)
    with closed(stream), stream.transaction(of_stream):
        raise AssertionError
    with closed(checkpoint):
        checkpoint.seek(point)
    with closed(member):
        member.kept(point)
    assert checkpoint.checkpoint() == where


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint", "group"])
def test_a_receive_that_waits_ends_when_another_thread_closes(
    consumers: dict[str, Consumer], kind: str
) -> None:
    consumer, looked = consumers[kind], threading.Event()
    inner: Any = consumer._inner
    look = inner._poll_or_raise

    def noted() -> Any:
        found = look()
        if found is None:
            looked.set()
        return found

    inner._poll_or_raise = noted

    def receive_all() -> None:
        for message in consumer:
            if isinstance(consumer, cleave.StreamConsumer | cleave.QueueConsumer):
                consumer.acknowledge(message)

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(receive_all)
        assert looked.wait(60)
        consumer.close()
        with closed(consumer):
            waiting.result(60)


def test_messages_of_a_queue_are_acknowledged_while_close_waits(consumers: dict[str, Consumer]) -> None:
    queue = consumers["queue"]
    assert isinstance(queue, cleave.QueueConsumer)
    message = received(queue)
    refused = threading.Event()

    def work() -> bool:
        while not refused.is_set():
            try:
                queue.receive(0)
            except cleave.InvalidInput:
                refused.set()
        return queue.acknowledge(message)

    queue.pause()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(work)
        queue.close(60)
        assert answer.result(60)
    assert queue.in_hand == 0


def test_closed_work_and_dead_letters_say_so(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    send(shop, 1)

    def fail(_message: cleave.Message) -> None:
        raise ValueError("no such account")

    options: dict[str, Any] = {"dead_letters": True, "max_deliveries": 1}
    work = shop.client.keyed_work(shop.topic, "billing", fail, name="a", **options)
    with pytest.raises(cleave.InvalidInput, match="give 0 or more"):
        work.close(-1)
    letters: Any = None
    while letters is None:
        work.turn(0.1)
        try:
            with shop.client.dead_letters(shop.topic, "billing") as letters:
                (letter,) = letters.receive_many(1, 60)
        except cleave.NotFound:
            continue
    work.close()
    work.close()

    calls = (lambda: work.turn(0), lambda: work.run(lambda: False), work.__enter__, work.pause, work.resume)
    for call in calls:
        with closed(work):
            call()
    for ended in (lambda: letters.receive_many(1), lambda: letters.acknowledge(letter)):
        with closed(letters):
            ended()
