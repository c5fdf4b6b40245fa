"""Clients awaited: what a cancelled call leaves behind. The consumers are scripted, so that a call ends when the test says so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from functools import wraps
from typing import Any

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch
from controller.domain.errors import InvalidInput, StoreUnavailable
from pulsar_cleave import AsyncCheckpointConsumer, AsyncQueueConsumer
from pulsar_cleave._asynchronous import AsyncConsumer
from tests.support.waiting import wait_until


class Scripted:
    """A consumer with items to give out; while it is held back, `receive` waits."""

    def __init__(self, *items: str) -> None:
        self.items = deque(items)
        self.own = set(items)
        self.before_check: Callable[[], None] = lambda: None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waits = threading.Event()
        self.closed = 0
        self.threads: set[int] = set()

    def receive(self, _seconds: float) -> str | None:
        self.threads.add(threading.get_ident())
        self.waits.set()
        assert self.goes_on.wait(30.0)
        return self.items.popleft() if self.items else None

    def _holds(self, item: str) -> bool:
        self.before_check()
        return item in self.own

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        self.closed += 1
        self.closed_with = timeout_seconds, leave

    def pause(self) -> None:
        self.goes_on.clear()

    def resume(self) -> None:
        self.goes_on.set()


class AsyncScripted(AsyncConsumer[Any]):
    """A consumer whose items are texts."""


def awaited(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a coroutine function. The test fails after a minute."""

    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60.0))

    return run


async def cancelled_while_it_receives(consumer: AsyncConsumer[Any], scripted: Scripted) -> None:
    """A receive is cancelled after the consumer was asked and before it answers; then it answers."""
    scripted.waits.clear()
    scripted.goes_on.clear()
    receiving = asyncio.create_task(consumer.receive())
    await asyncio.to_thread(scripted.waits.wait, 30.0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    scripted.goes_on.set()


@awaited
async def test_what_a_cancelled_receive_has_taken_is_given_out_by_the_next() -> None:
    scripted = Scripted("1", "2")
    async with AsyncScripted(lambda: scripted) as consumer:
        await cancelled_while_it_receives(consumer, scripted)

        assert [await consumer.receive(), await consumer.receive()] == ["1", "2"]
        assert await consumer.receive(0.0) is None
    assert len(scripted.threads) == 1


@awaited
async def test_what_is_anothers_by_then_is_not_given_out() -> None:
    scripted = Scripted("1", "2")
    async with AsyncScripted(lambda: scripted) as consumer:
        await cancelled_while_it_receives(consumer, scripted)
        scripted.own.remove("1")

        assert await consumer.receive() == "2"


@awaited
async def test_an_item_that_another_task_takes_while_it_is_checked_is_no_error() -> None:
    scripted = Scripted("1", "2")
    async with AsyncScripted(lambda: scripted) as consumer:
        await cancelled_while_it_receives(consumer, scripted)

        # runs in the thread, as the other task does in the event loop
        scripted.before_check = consumer._received.clear

        assert await consumer.receive() == "2"


@awaited
async def test_tasks_that_receive_at_once_get_each_item_once() -> None:
    numbers = [str(number) for number in range(50)]
    found: list[str] = []

    async def take(consumer: AsyncScripted) -> None:
        while (item := await consumer.receive(0.2)) is not None:
            found.append(item)

    async with AsyncScripted(lambda: Scripted(*numbers)) as consumer:
        await asyncio.gather(*(take(consumer) for _ in range(5)))
    assert sorted(found) == sorted(numbers)


@awaited
async def test_other_calls_have_their_turn_while_one_waits() -> None:
    async with AsyncScripted(Scripted) as consumer:
        waiting = asyncio.create_task(consumer.receive())
        assert await consumer.call(lambda scripted: scripted.closed) == 0
        await consumer.call(lambda scripted: (scripted.items.append("1"), scripted.own.add("1")))
        assert await waiting == "1"


class Idle(Scripted):
    """A consumer without items that waits as long as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = self.slices = 0

    def receive(self, seconds: float) -> None:
        if seconds:
            self.slices += 1
            time.sleep(seconds)
        else:
            self.polls += 1


@awaited
async def test_other_calls_and_short_receives_wait_for_one_slice_however_many_tasks_receive() -> None:
    scripted = Idle()
    async with AsyncScripted(lambda: scripted) as consumer:
        idle = [asyncio.create_task(consumer.receive()) for _ in range(40)]
        await asyncio.to_thread(wait_until, lambda: scripted.slices >= 2 and scripted.polls == 40)

        before = scripted.slices
        assert await consumer.call(lambda scripted: scripted.slices) <= before + 1
        before = scripted.slices
        assert await consumer.receive(0.01) is None
        assert scripted.slices <= before + 5
        for task in idle:
            task.cancel()
        await asyncio.gather(*idle, return_exceptions=True)


@awaited
async def test_one_after_the_other() -> None:
    found = []
    async with AsyncScripted(lambda: Scripted("1", "2", "3")) as consumer:
        async for item in consumer:
            found.append(item)
            if len(found) == 3:
                break
    assert found == ["1", "2", "3"]


@awaited
async def test_a_client_whose_opening_was_cancelled_is_closed_when_it_is_made() -> None:
    scripted, begun, goes_on = Scripted(), threading.Event(), threading.Event()

    def make() -> Scripted:
        begun.set()
        assert goes_on.wait(30.0)
        return scripted

    opening = asyncio.create_task(AsyncScripted(make).__aenter__())
    await asyncio.to_thread(begun.wait, 30.0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    goes_on.set()

    await asyncio.to_thread(wait_until, lambda: scripted.closed == 1)


@awaited
async def test_an_open_client_is_not_opened_again() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted("1"))
        return made[-1]

    async with AsyncScripted(make) as consumer:
        with pytest.raises(InvalidInput, match="AsyncScripted is already open; make another one"):
            await consumer.__aenter__()
        assert await consumer.receive() == "1"
    assert [scripted.closed for scripted in made] == [1]
    with pytest.raises(InvalidInput, match="AsyncScripted was closed; make another one"):
        await consumer.__aenter__()
    assert len(made) == 1


@awaited
async def test_a_client_that_is_being_opened_is_not_opened_again() -> None:
    made: list[Scripted] = []
    begun, goes_on = threading.Event(), threading.Event()

    def make() -> Scripted:
        made.append(Scripted("1"))
        begun.set()
        assert goes_on.wait(30.0)
        return made[-1]

    consumer = AsyncScripted(make)
    opening = asyncio.create_task(consumer.__aenter__())
    await asyncio.to_thread(begun.wait, 30.0)
    again = asyncio.create_task(consumer.__aenter__())
    await asyncio.wait([again], timeout=0.0)
    goes_on.set()
    with pytest.raises(InvalidInput, match="already open"):
        await again
    await opening
    assert await consumer.receive() == "1"
    await consumer.close()
    assert [scripted.closed for scripted in made] == [1]


@awaited
async def test_closing_goes_on_when_it_is_cancelled_and_is_done_once() -> None:
    scripted = Scripted("1")
    consumer = await AsyncScripted(lambda: scripted).__aenter__()
    scripted.goes_on.clear()
    scripted.waits.clear()
    receiving = asyncio.create_task(consumer.receive())
    await asyncio.to_thread(scripted.waits.wait, 30.0)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    scripted.goes_on.set()

    assert await receiving == "1"
    await consumer.close()
    assert scripted.closed == 1
    with pytest.raises(InvalidInput, match="closed"):
        await consumer.receive()


@awaited
async def test_what_could_not_be_made_is_told_and_leaves_nothing() -> None:
    def fail() -> Scripted:
        raise StoreUnavailable("no worker")

    with pytest.raises(StoreUnavailable):
        async with AsyncScripted(fail):
            raise AssertionError("unreachable")
    with pytest.raises(InvalidInput, match="not open"):
        AsyncScripted(Scripted).pause()


class ScriptedPlaces(Scripted):
    """With checkpoints that count what was received."""

    def __init__(self, *items: str) -> None:
        super().__init__(*items)
        self.count = 0

    def receive(self, seconds: float) -> CheckpointBatch | None:  # type: ignore[override]
        if super().receive(seconds) is None:
            return None
        self.count += 1
        return CheckpointBatch(self.count, (), None)

    def _checkpoint_before(self, messages: Collection[object]) -> Checkpoint:
        return Checkpoint(1, "topic://t/n/x", self.count - len(messages), {}, frozenset())

    def seek(self, checkpoint: Checkpoint) -> None:
        self.count = checkpoint.epoch

    def _holds(self, _batch: CheckpointBatch) -> bool:
        return True


@awaited
async def test_a_checkpoint_is_before_what_a_cancelled_receive_has_taken() -> None:
    scripted = ScriptedPlaces("1", "2", "3")
    async with AsyncCheckpointConsumer(lambda: scripted) as consumer:  # type: ignore[arg-type, return-value]
        assert await consumer.receive() == CheckpointBatch(1, (), None)
        await cancelled_while_it_receives(consumer, scripted)

        kept = await consumer.checkpoint()
        assert kept.epoch == 1
        assert await consumer.receive() == CheckpointBatch(2, (), None)
        assert (await consumer.checkpoint()).epoch == 2
        await cancelled_while_it_receives(consumer, scripted)
        await consumer.seek(kept)
        assert (await consumer.checkpoint()).epoch == 1


class ScriptedQueue(Scripted):
    """With a count of the items that were received and not returned."""

    in_hand = 0

    def receive(self, seconds: float) -> str | None:
        item = super().receive(seconds)
        self.in_hand += item is not None
        return item

    def _take_back(self, item: str) -> None:
        self.in_hand -= 1
        self.items.appendleft(item)


@awaited
async def test_a_close_does_not_wait_for_what_a_cancelled_receive_has_taken() -> None:
    scripted = ScriptedQueue("1", "2")
    async with AsyncQueueConsumer(lambda: scripted) as consumer:  # type: ignore[arg-type, return-value]
        await cancelled_while_it_receives(consumer, scripted)
        begun = time.monotonic()
        await consumer.close(30.0)
        assert time.monotonic() - begun < 10.0
    assert [*scripted.items] == ["1", "2"]
