"""Contains the consumer that shares messages in no order."""

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
    """Shares the messages of a subscription with other consumers, in no order. Created by
    `Client.queue_consumer`.

    `receive` and `receive_many` are for one thread. Any thread may acknowledge messages.
    """

    _has_left = False
    """True once `close` has ended. While `close` waits, other threads may acknowledge."""

    @property
    def in_hand(self) -> int:
        """Number of messages that were received and are neither acknowledged nor returned."""
        return self._inner.in_hand

    def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Acknowledge the messages. Return False if one of them may be delivered again, here or to another
        consumer.

        Raises DataPlaneUnavailable if the result is unknown; call it again. Raises InvalidInput for a message
        of a consumer of another kind, and after `close`.
        """
        self._demand_not_left()
        return self._inner.acknowledge(*origins(messages, QueuedMessage))

    def negative_acknowledge(self, messages: Message | Sequence[Message], delay_seconds: float = 1.0) -> None:
        """Return the messages to the queue. They are delivered again after the delay, here or to another
        consumer, with a `redelivery_count` one higher. Raises the errors of `acknowledge`.
        """
        self._demand_not_left()
        for queued in origins(messages, QueuedMessage):
            self._inner.nack(queued, delay_seconds)

    def pause(self) -> None:
        """Deliver no messages until `resume`. At the next `receive` buffered messages go to other consumers.

        Received messages stay with this consumer until they are acknowledged or returned. For any thread.
        """
        super().pause()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Close the consumer. Unacknowledged messages are delivered again, to another consumer.

        With `timeout_seconds`, other threads may acknowledge received messages for four fifths of that time.
        Without, the consumer does not wait for them, and takes at most 30 seconds. From the beginning of this
        call `receive`, `pause` and `resume` raise InvalidInput, also a `receive` that waits in another
        thread; `acknowledge` and `negative_acknowledge` raise it after this call. Nothing is kept for a
        process that restarts, so `leave` has no effect. Idempotent.
        """
        super().close(timeout_seconds, leave=leave)
        self._has_left = True

    def why(self) -> tuple[QueueStatus, ...]:
        """Return for each segment of the subscription why no message of it is delivered."""
        return self._inner.why()

    def lag(self) -> tuple[BucketLag, ...]:
        """Return for each segment the number of messages that no consumer has acknowledged. Raises
        StoreUnavailable.
        """
        return self._inner.lag()

    def _read(self, most: int, timeout_seconds: float) -> list[Message]:
        """Return up to `most` messages of any segments; empty if none arrives within `timeout_seconds`."""
        messages = self._inner.receive_many(most, timeout_seconds)
        return [
            Message(self.topic, queued.segment_id, queued.message, self._schema, queued)
            for queued in messages
        ]

    def _demand_not_left(self) -> None:
        """Raise InvalidInput once `close` has ended."""
        if self._has_left:
            self._demand_open()

    def _take_back(self, message: Message) -> None:
        """Undo the receipt of a message that the application has not seen."""
        self._inner.take_back(message._origin)

    def _holds(self, message: Message) -> bool:
        return self._inner.holds(message._origin)
