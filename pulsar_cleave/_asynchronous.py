"""Contains the producer and the consumers for asyncio: each runs in its own thread, and its calls are
awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from controller.client.asynchronous import SLICE_SECONDS, AsyncClient, AsyncConsumer
from controller.client.checkpoint import Checkpoint
from controller.client.closing import CloseTime
from pulsar_cleave._checkpoints import CheckpointConsumer
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message
from pulsar_cleave._producer import Producer
from pulsar_cleave._queues import QueueConsumer
from pulsar_cleave._streams import StreamConsumer

AnyConsumer = TypeVar("AnyConsumer", bound=Consumer[Any])


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


class _AsyncConsumer(AsyncConsumer[AnyConsumer, Message]):
    """The common base of the asynchronous consumers."""

    def _receive(self, consumer: AnyConsumer, seconds: float) -> Message | None:
        return consumer.receive(seconds)

    def _is_own(self, consumer: AnyConsumer, item: Message) -> bool:
        return consumer._holds(item)


class AsyncStreamConsumer(_AsyncConsumer[StreamConsumer]):
    """Asynchronous version of `StreamConsumer`, for use in `async with`. Several tasks may share it; one of
    them must keep receiving.
    """

    async def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Asynchronous version of `StreamConsumer.acknowledge`."""
        return await self.call(lambda consumer: consumer.acknowledge(messages))

    async def negative_acknowledge(self, messages: Message | Sequence[Message]) -> None:
        """Asynchronous version of `StreamConsumer.negative_acknowledge`."""
        await self.call(lambda consumer: consumer.negative_acknowledge(messages))


class AsyncQueueConsumer(_AsyncConsumer[QueueConsumer]):
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
                and await self.call(_pause_and_count)
            ):
                await asyncio.sleep(SLICE_SECONDS)
        finally:
            await super().close(
                None if timeout_seconds is None else timing.deregistration_seconds, leave=leave
            )


class AsyncCheckpointConsumer(_AsyncConsumer[CheckpointConsumer]):
    """Asynchronous version of `CheckpointConsumer`, for use in `async with`. For one task."""

    _before: Checkpoint
    """Position of the consumer before a message that is received and not returned yet."""

    async def checkpoint(self) -> Checkpoint:
        """Asynchronous version of `CheckpointConsumer.checkpoint`. The position is before a message that a
        cancelled `receive` has taken.
        """
        return await self.call(lambda consumer: self._before if self._received else consumer.checkpoint())

    async def seek(self, checkpoint: Checkpoint | bytes) -> None:
        """Asynchronous version of `CheckpointConsumer.seek`."""

        def seek(consumer: CheckpointConsumer) -> None:
            consumer.seek(checkpoint)
            self._received.clear()

        await self.call(seek)

    async def kept(self, checkpoint: Checkpoint) -> None:
        """Asynchronous version of `CheckpointConsumer.kept`."""
        await self.call(lambda consumer: consumer.kept(checkpoint))

    def _receive(self, consumer: CheckpointConsumer, seconds: float) -> Message | None:
        """Return the next message, None if there is none, and keep the position before it for `checkpoint`.
        Runs in the thread.
        """
        self._before = consumer.checkpoint()
        return consumer.receive(seconds)


def _pause_and_count(consumer: QueueConsumer) -> int:
    """Pause the consumer, which then delivers no more messages. Return the number of received messages that
    are neither acknowledged nor returned.
    """
    consumer.pause()
    return consumer.in_hand
