"""Contains the consumer whose position the application stores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from controller.client.arguments import checks_arguments
from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointConsumer as AloneConsumer
from controller.client.checkpoint_consumer import SegmentStatus
from controller.client.checkpoint_group import CheckpointGroupConsumer as GroupConsumer
from controller.domain.errors import InvalidInput
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message


@checks_arguments
class CheckpointConsumer(Consumer[AloneConsumer | GroupConsumer]):
    """Reads a topic in the order of each key, and acknowledges nothing. Created by
    `Client.checkpoint_consumer`. For one thread.
    """

    def checkpoint(self) -> Checkpoint:
        """Return the position behind every message that was returned by `receive`; received messages that are still buffered are not
        included. Take it when the application has processed these messages.
        """
        return self._checkpoint_before(())

    def _checkpoint_before(self, taken: Collection[Message]) -> Checkpoint:
        """Return the position before the messages `taken`, the last ones that `receive` has returned, and behind all
        earlier ones. Messages of an ownership that has ended are ignored. For the asynchronous consumer.
        """
        point = self._inner.checkpoint()
        positions, generations = dict(point.positions), dict(point.generations)
        firsts: dict[int, Message] = {}
        # messages of several segments are buffered if another thread paused and resumed the consumer
        for message in (*taken, *self._waiting):
            if self._holds(message):
                firsts.setdefault(message.message_id.segment_id, message)
        for segment_id, first in firsts.items():
            positions[segment_id] = first._after
            if first._origin.origin is not None:
                generations[segment_id] = first._origin.origin.generation
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
        `timeout_seconds`.
        """
        batch = self._inner.receive(timeout_seconds)
        if batch is None:
            return []
        afters = (batch.before, *(message.position for message in batch.messages))
        return [
            Message(self.topic, batch.segment_id, stored, self._schema, batch, after)
            for stored, after in zip(batch.messages, afters, strict=False)
        ]

    def _holds(self, message: Message) -> bool:
        return isinstance(self._inner, AloneConsumer) or self._inner.has(message._origin)
