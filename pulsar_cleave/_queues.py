"""Consumers that share messages in no order."""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.arguments import checks_arguments
from controller.client.lag import BucketLag
from controller.client.queue_consumer import QueueConsumer as InnerConsumer
from controller.client.queue_consumer import QueuedMessage, QueueStatus
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message, origins


@checks_arguments
class QueueConsumer(Consumer[InnerConsumer]):
    """Shares the messages of a subscription with other consumers, in no order; `Client.queue_consumer` makes it.

    `receive` and `receive_many` are for one thread. Messages may be acknowledged in any thread.
    """

    _has_left = False
    """Whether `close` has ended. While `close` waits, other threads acknowledge."""

    @property
    def in_hand(self) -> int:
        """Number of messages that are received and neither acknowledged nor given back."""
        return self._inner.in_hand

    def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Acknowledge the messages. Return False if one of them may be delivered again, here or to another consumer.

        Raises DataPlaneUnavailable if the outcome is not known; call it again.
        """
        self._demand_not_left()
        return self._inner.acknowledge(*origins(messages, QueuedMessage))

    def negative_acknowledge(self, messages: Message | Sequence[Message], delay_seconds: float = 1.0) -> None:
        """Have the messages delivered again after the delay, here or to another consumer. `redelivery_count` rises by 1."""
        self._demand_not_left()
        for one in origins(messages, QueuedMessage):
            self._inner.nack(one, delay_seconds)

    def pause(self) -> None:
        """Give out no messages until `resume`. Messages that wait in the consumer go to other consumers at the next `receive`.

        Messages that were received stay with this consumer until they are acknowledged or given back. May be called from any thread.
        """
        super().pause()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Close the consumer. Messages that are not acknowledged are delivered again, to another consumer.

        With `timeout_seconds`, other threads may acknowledge what they received for four fifths of that time; without, the consumer
        waits for none, and takes 30 seconds at most. `receive`, `pause` and `resume` raise InvalidInput from the beginning of this call on,
        and a `receive` that waits in another thread ends with it; `acknowledge` and `negative_acknowledge` raise it after this call. Nothing is
        kept for a process that starts again, so `leave` has no effect. Safe to repeat.
        """
        super().close(timeout_seconds, leave=leave)
        self._has_left = True

    def why(self) -> tuple[QueueStatus, ...]:
        """Return for each segment of the subscription why no message of it comes."""
        return self._inner.why()

    def lag(self) -> tuple[BucketLag, ...]:
        """Return for each segment the number of messages that no consumer has acknowledged. Raises StoreUnavailable."""
        return self._inner.lag()

    def _read(self, most: int, timeout_seconds: float) -> list[Message]:
        found = self._inner.receive_many(most, timeout_seconds)
        return [Message(self.topic, one.segment_id, one.message, self._schema, one) for one in found]

    def _demand_not_left(self) -> None:
        if self._has_left:
            self._demand_open()

    def _holds(self, message: Message) -> bool:
        return self._inner.holds(message._origin)
