"""Contains the producer and the consumers for asyncio: each client runs in its own thread, and its calls are
awaited.

The synchronous clients do the work. If the task that awaits `receive` is cancelled, the item that `receive`
has taken is not lost: the next `receive` returns the item, if it still belongs to this consumer. A cancelled
call of another kind may or may not have been done, as after any lost response.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from controller.client.arguments import checks_arguments
from controller.client.checkpoint import Checkpoint
from controller.client.closing import CloseTime, closed_error
from controller.dataplane.log_client import Closable
from controller.domain.errors import InvalidInput
from controller.forks import OneProcess
from pulsar_cleave._checkpoints import CheckpointConsumer
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message
from pulsar_cleave._producer import Producer
from pulsar_cleave._queues import QueueConsumer
from pulsar_cleave._streams import StreamConsumer

SLICE_SECONDS = 0.05
"""Longest time that a waiting `receive` occupies the thread at a time, so that other calls can run."""


Client = TypeVar("Client", bound=Closable)
AnyConsumer = TypeVar("AnyConsumer", bound=Consumer[Any])
Result = TypeVar("Result")


@checks_arguments
class AsyncClient(OneProcess, Generic[Client]):
    """A synchronous client and its thread, from the beginning of `async with` to its end. For one
    event loop.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        """Store `make`, which creates the client. `async with` calls `make` in the thread; it may block."""
        self._make = make
        self._client: Client | None = None
        self._is_entered = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cleave-async")
        self._closing: Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Create the synchronous client in the thread, and return this object. If the creation fails or the task is
        cancelled, this object is closed, and cannot be entered again. A client whose creation was in progress is
        closed as soon as the client exists.

        Raises the errors of `make`; InvalidInput after `close`; and Terminal in a forked process. Raises
        InvalidInput, and changes nothing, if this object is already open or being opened.
        """
        self._demand_maker()
        if self._is_entered and self._closing is None:
            raise InvalidInput(f"{type(self).__name__} is already open; make another one")
        self._is_entered = True
        try:
            await self._in_thread(self._open)
        except BaseException:
            # if the client is still being created, it is closed afterwards
            self._end(lambda client: client.close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, act: Callable[[Client], Result]) -> Result:
        """Call `act` with the synchronous client, in its thread, and return the result.

        Gives access to everything else that the client can do. Raises InvalidInput before `async with` and
        after `close`.
        """
        return await self._in_thread(lambda: act(self._opened()))

    async def close(self) -> None:
        """Close the client. If the task is cancelled, the close continues. Idempotent."""
        await self._await_end(lambda client: client.close())

    def _open(self) -> None:
        self._client = self._make()

    def _opened(self) -> Client:
        """Return the synchronous client. Raises InvalidInput before `async with`."""
        if self._client is None:
            raise InvalidInput(f"{type(self).__name__} is not open; use it in `async with`")
        return self._client

    async def _await_end(self, close: Callable[[Client], None]) -> None:
        """Close the client with `close` in the thread, and wait for the end. If the task is cancelled, the
        close continues.
        """
        await asyncio.shield(asyncio.wrap_future(self._end(close)))

    def _end(self, close: Callable[[Client], None]) -> Future[None]:
        """Begin to close the client with `close`, after the calls in progress have ended. Return the future
        of the close. A later call returns the future of the first close, and its own `close` is ignored.
        """
        if self._closing is None:
            self._closing = self._thread.submit(self._close, close)
            self._thread.shutdown(wait=False)
        return self._closing

    def _close(self, close: Callable[[Client], None]) -> None:
        """Call `close` with the client, if the client was created. Runs in the thread."""
        if self._client is not None:
            close(self._client)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        """Run the function in the client's thread, and return its result. Raises InvalidInput once the client
        is being closed.
        """
        if self._closing is not None:
            raise closed_error(type(self).__name__)
        return await asyncio.wrap_future(self._thread.submit(function))


class AsyncProducer(AsyncClient[Producer]):
    """Asynchronous version of `Producer`, for use in `async with`. Several tasks may share it. The end of the
    block stores sent messages; a block that ends with an error drops them.
    """

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._await_end(lambda producer: producer.close(flush=kind is None))

    async def send(
        self,
        value: Any,
        key: str | bytes | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
    ) -> None:
        """Asynchronous version of `Producer.send`. Messages of several tasks are sent in the order of the calls."""
        await self.call(
            lambda producer: producer.send(value, key, properties=properties, event_time=event_time)
        )

    async def flush(self) -> None:
        """Asynchronous version of `Producer.flush`."""
        await self.call(lambda producer: producer.flush())


@checks_arguments
class AsyncConsumer(AsyncClient[AnyConsumer]):
    """The common base of the asyncio consumers. Several tasks may receive at once; each item goes to one of
    them.
    """

    def __init__(self, make: Callable[[], AnyConsumer]) -> None:
        """Store `make`, which creates the consumer. `async with` calls `make` in the thread; it may block."""
        super().__init__(make)
        self._received: deque[Message] = deque()
        """Items that were received and not returned yet. The thread appends; the event loop removes."""
        self._slice = asyncio.Lock()
        """Held by the task whose `receive` waits in the thread. The slices of several tasks would delay other calls
        by their sum.
        """

    async def receive(self, timeout_seconds: float | None = None) -> Message | None:
        """Return the next item, waiting up to `timeout_seconds`, or without limit if `timeout_seconds` is None.
        Return None if no item has arrived in that time. If the task is cancelled, the item that this call has taken
        is not lost: the next call of any task returns the item, unless the item belongs to another consumer by then.

        Raises the errors of the synchronous `receive`, and InvalidInput before `async with` and after `close`.
        """
        deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        await self._in_thread(partial(self._take, 0.0))
        while True:
            with suppress(IndexError):  # another task may have taken the item
                return self._received.popleft()
            if not await self._wait_in_thread(deadline):
                return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the items one after the other, without end. Raises the errors of `receive`, InvalidInput
        after `close` among them.
        """
        while True:
            item = await self.receive()
            if item is not None:
                yield item

    async def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Asynchronous version of the consumer's `close`, with its parameters. If the task is cancelled, the close
        continues. Idempotent.
        """
        await self._await_end(lambda consumer: consumer.close(timeout_seconds, leave=leave))

    def pause(self) -> None:
        """Call the consumer's `pause`; an ordinary method, not a coroutine. Items that were received before are
        still returned. Raises InvalidInput before `async with` and after `close`.
        """
        self._opened().pause()

    def resume(self) -> None:
        """Call the consumer's `resume`; an ordinary method, not a coroutine. Raises InvalidInput before
        `async with` and after `close`.
        """
        self._opened().resume()

    async def _wait_in_thread(self, deadline: float) -> bool:
        """Wait for an item in the thread, for at most SLICE_SECONDS, while no other task does, and return True. Return
        False if `deadline` (`time.monotonic` seconds) passes before. Raises the errors of `_take`.
        """
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds <= 0:
            return False
        try:
            async with asyncio.timeout(None if math.isinf(deadline) else remaining_seconds):
                await self._slice.acquire()
        except TimeoutError:
            return False
        try:
            slice_seconds = max(0.0, min(deadline - time.monotonic(), SLICE_SECONDS))
            await self._in_thread(partial(self._take, slice_seconds))
        finally:
            self._slice.release()
        return True

    def _take(self, seconds: float) -> None:
        """Make sure, within `seconds`, that `_received` contains an item, if the consumer has one. First drop the
        items in `_received` that no longer belong to this consumer. If none is left, receive an item, waiting up to
        `seconds`, and append the item. If no item arrives in that time, `_received` stays empty.

        Runs in the thread. Raises the errors of the synchronous `receive`, and InvalidInput before `async with`.
        """
        consumer = self._opened()
        # of a copy, because the event loop may take an item during a check
        for item in [item for item in [*self._received] if not consumer._holds(item)]:
            with suppress(ValueError):  # the event loop may have taken the item
                self._received.remove(item)
        if not self._received:
            received = consumer.receive(seconds)
            if received is not None:
                self._received.append(received)


class AsyncStreamConsumer(AsyncConsumer[StreamConsumer]):
    """Asynchronous version of `StreamConsumer`, for use in `async with`. Several tasks may share it; one of
    them must keep receiving.
    """

    async def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Asynchronous version of `StreamConsumer.acknowledge`."""
        return await self.call(lambda consumer: consumer.acknowledge(messages))

    async def negative_acknowledge(self, messages: Message | Sequence[Message]) -> None:
        """Asynchronous version of `StreamConsumer.negative_acknowledge`."""
        await self.call(lambda consumer: consumer.negative_acknowledge(messages))


class AsyncQueueConsumer(AsyncConsumer[QueueConsumer]):
    """Asynchronous version of `QueueConsumer`, for use in `async with`. Several tasks may share it."""

    async def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Asynchronous version of `QueueConsumer.acknowledge`."""
        return await self.call(lambda consumer: consumer.acknowledge(messages))

    async def negative_acknowledge(
        self, messages: Message | Sequence[Message], delay_seconds: float = 1.0
    ) -> None:
        """Asynchronous version of `QueueConsumer.negative_acknowledge`."""
        await self.call(lambda consumer: consumer.negative_acknowledge(messages, delay_seconds))

    async def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Asynchronous version of `QueueConsumer.close`. With `timeout_seconds`, other tasks may acknowledge
        received messages meanwhile.
        """
        timing = CloseTime(timeout_seconds)
        try:
            while (
                timeout_seconds is not None
                and self._closing is None
                and timing.left_seconds
                and await self.call(self._pause_and_count)
            ):
                await asyncio.sleep(SLICE_SECONDS)
        finally:
            await super().close(
                None if timeout_seconds is None else timing.deregistration_seconds, leave=leave
            )

    def _pause_and_count(self, consumer: QueueConsumer) -> int:
        """Pause the consumer, which then delivers no more messages, and undo the receipt of messages that a cancelled
        `receive` has taken. Return the number of messages that tasks have received and not settled. Runs in the
        thread.
        """
        consumer.pause()
        with suppress(IndexError):  # a task may take a message meanwhile
            while self._received:
                consumer._take_back(self._received.popleft())
        return consumer.in_hand


class AsyncCheckpointConsumer(AsyncConsumer[CheckpointConsumer]):
    """Asynchronous version of `CheckpointConsumer`, for use in `async with`. For one task."""

    async def checkpoint(self) -> Checkpoint:
        """Asynchronous version of `CheckpointConsumer.checkpoint`. The position is before a message that a
        cancelled `receive` has taken.
        """
        return await self.call(lambda consumer: consumer._checkpoint_before([*self._received]))

    async def seek(self, checkpoint: Checkpoint | bytes) -> None:
        """Asynchronous version of `CheckpointConsumer.seek`."""

        def seek(consumer: CheckpointConsumer) -> None:
            consumer.seek(checkpoint)
            self._received.clear()

        await self.call(seek)

    async def kept(self, checkpoint: Checkpoint) -> None:
        """Asynchronous version of `CheckpointConsumer.kept`."""
        await self.call(lambda consumer: consumer.kept(checkpoint))
