"""Contains the consumer whose position the application stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from controller.client.arguments import checks_arguments
from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch, SegmentStatus
from controller.client.checkpoint_consumer import CheckpointConsumer as AloneConsumer
from controller.client.checkpoint_group import CheckpointGroupConsumer as GroupConsumer
from controller.dataplane.log_client import Position
from controller.domain.errors import InvalidInput
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message
from pulsar_cleave._schemas import Schema

Value = TypeVar("Value")


@checks_arguments
class CheckpointConsumer(Consumer[AloneConsumer | GroupConsumer]):
    """Reads a topic in the order of each key, and acknowledges nothing. Created by
    `Client.checkpoint_consumer`. For one thread.
    """

    def __init__(self, inner: AloneConsumer | GroupConsumer, topic: str, schema: Schema | None) -> None:
        """Wrap the inner consumer. For `Client`."""
        super().__init__(inner, topic, schema)
        self._before: dict[int, tuple[Mapping[int, Position | None], Mapping[int, int]]] = {}
        """By segment id, the position and the generation before the first buffered batch of the segment's ownership, as
        parts of a checkpoint (`_only`).
        """

    def checkpoint(self) -> Checkpoint:
        """Return the position behind every message that was returned by `receive`; received messages that are still buffered are not
        included. Take it when the application has processed these messages.
        """
        point = self._inner.checkpoint()
        positions, generations = dict(point.positions), dict(point.generations)
        firsts: dict[int, Message] = {}
        for message in self._waiting:  # of several segments if another thread paused and resumed the consumer
            if self._holds(message):
                firsts.setdefault(message.message_id.segment_id, message)
        for segment_id, first in firsts.items():
            positions.pop(segment_id, None)
            generations.pop(segment_id, None)
            origin = first._origin.origin
            if first._after is not None:
                positions[segment_id] = first._after
                generations |= {} if origin is None else {segment_id: origin.generation}
            else:  # no message of the batch was returned, so the position before the batch counts
                position, generation = self._before[segment_id]
                positions |= position
                generations |= generation
        return replace(
            point, positions=positions, generations=generations, done=point.done.difference(firsts)
        )

    def seek(self, checkpoint: Checkpoint | bytes) -> None:
        """Continue at the checkpoint, like a consumer that starts there. Raises InvalidInput for a member of
        a group, and after `close`; for a checkpoint from which the consumer cannot continue, DataGone,
        Conflict or InvalidInput, and the position is unchanged.
        """
        self._demand_open()
        if isinstance(self._inner, GroupConsumer):
            raise InvalidInput("a member of a group cannot seek; replace all stored values by older values")
        self._inner.restore(checkpoint)
        self._waiting.clear()

    def kept(self, checkpoint: Checkpoint) -> None:
        """Inform a group that this member's checkpoint is stored. Until then the member releases no segment
        of which the checkpoint contains messages that it has received. Raises InvalidInput if this consumer
        is not a member of a group, and after `close`; Conflict for a checkpoint of another topic; the errors
        of `on_wanted`, which is called if other members wait for segments that the checkpoint does not cover.
        """
        self._demand_open()
        if isinstance(self._inner, AloneConsumer):
            raise InvalidInput(
                "this consumer is not a member of a group; create it with group= and kept_values="
            )
        self._inner.kept(checkpoint)

    def why(self) -> tuple[SegmentStatus, ...]:
        """Return for each segment that is not read to its end why no message of it is delivered. A member of
        a group raises StoreUnavailable if no worker responds.
        """
        return self._inner.why()

    def _read(self, most: int, timeout_seconds: float) -> list[Message]:  # noqa: ARG002 - the batch has its own size
        """Return the messages of the next batch, whatever `most` is; empty if none arrives within
        `timeout_seconds`. Keeps the position before the batch for `checkpoint`, unless messages of the same ownership
        are buffered: the batch then follows the last of these messages.
        """
        point = self._inner.checkpoint()
        batch = self._inner.receive(timeout_seconds)
        if batch is None:
            return []
        segment_id = batch.segment_id
        # messages are buffered if another thread paused and resumed the consumer
        last = next((message for message in reversed(self._waiting) if _is_followed(message, batch)), None)
        if last is None:
            self._before[segment_id] = (
                _only(segment_id, point.positions),
                _only(segment_id, point.generations),
            )
        first_after = None if last is None else last.message_id.position
        before = (first_after, *(message.position for message in batch.messages))
        return [
            Message(self.topic, segment_id, stored, self._schema, batch, after)
            for stored, after in zip(batch.messages, before, strict=False)
        ]

    def _holds(self, message: Message) -> bool:
        return isinstance(self._inner, AloneConsumer) or self._inner.has(message._origin)


def _is_followed(message: Message, batch: CheckpointBatch) -> bool:
    """Return True if the batch continues the ownership of the segment that the buffered message came from."""
    return message.message_id.segment_id == batch.segment_id and message._origin.origin is batch.origin


def _only(segment_id: int, values: Mapping[int, Value]) -> dict[int, Value]:
    """Return the mapping of the segment alone; empty if `values` does not contain the segment."""
    return {segment_id: values[segment_id]} if segment_id in values else {}
