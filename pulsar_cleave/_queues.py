"""Consumers that share messages in no order."""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.arguments import checks_arguments
from controller.client.lag import BucketLag
from controller.client.queue_consumer import QueueConsumer as InnerConsumer
from controller.client.queue_consumer import QueueStatus
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message, origins


@checks_arguments
class QueueConsumer(Consumer[InnerConsumer]):
    """Shares the messages of a subscription with other consumers, in no order; `Client.queue_consumer` makes it.

    `receive` and `receive_many` are for one thread. Messages may be acknowledged in any thread.
    """

    @property
    def in_hand(self) -> int:
        """Number of messages that are received and neither acknowledged nor given back."""
        return self._inner.in_hand

    def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Acknowledge the messages. Return False if one of them may be delivered again, here or to another consumer.

        Raises DataPlaneUnavailable if the outcome is not known; call it again.
        """
        return self._inner.acknowledge(*origins(messages))

    def negative_acknowledge(self, messages: Message | Sequence[Message], delay_seconds: float = 1.0) -> None:
        """Have the messages delivered again after the delay, here or to another consumer. `redelivery_count` rises by 1."""
        for one in origins(messages):
            self._inner.nack(one, delay_seconds)

    def why(self) -> tuple[QueueStatus, ...]:
        """Return for each segment of the subscription why no message of it comes."""
        return self._inner.why()

    def lag(self) -> tuple[BucketLag, ...]:
        """Return for each segment the number of messages that no consumer has acknowledged. Raises StoreUnavailable."""
        return self._inner.lag()

    def _read(self, most: int, timeout_seconds: float) -> list[Message]:
        found = self._inner.receive_many(most, timeout_seconds)
        return [Message(self.topic, one.segment_id, one.message, self._schema, one) for one in found]

    def _holds(self, message: Message) -> bool:
        return self._inner.holds(message._origin)
