"""Contains messages as an application receives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from controller.client.checkpoint_consumer import CheckpointBatch
from controller.client.queue_consumer import QueuedMessage
from controller.client.stream_consumer import Batch
from controller.dataplane.log_client import LogMessage, Position
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from pulsar_cleave._schemas import Schema, decoded

Origin = TypeVar("Origin", Batch, QueuedMessage)
_GIVEN_BY: Mapping[type, str] = {
    Batch: "StreamConsumer",
    QueuedMessage: "QueueConsumer",
    CheckpointBatch: "CheckpointConsumer",
}
"""Name of the consumer class that delivers messages of an origin."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS = 253_402_300_800_000
"""The end of the year 9999, beyond which Python has no datetime."""


class MessageId(NamedTuple):
    """Identifies a message of a topic. Of two ids with the same `segment_id`, the smaller belongs to the
    earlier message.
    """

    segment_id: int
    """Segment whose log holds the message."""
    position: Position
    """Position in the log: (ledger, entry, index in the batch) on Pulsar, (timeline, offset) on embedded logs."""


class Message:
    """A received message. Immutable, safe to share between threads."""

    __slots__ = ("_after", "_origin", "_schema", "_stored", "message_id", "topic")

    topic: str
    """Full name of the topic, `topic://tenant/namespace/name`."""
    message_id: MessageId
    """Id of the message."""

    def __init__(
        self,
        topic: str,
        segment_id: int,
        stored: LogMessage,
        schema: Schema | None = None,
        origin: Any = None,
        after: Position | None = None,
    ) -> None:
        """Wrap a stored message. For the consumers.

        `origin` is the object that acknowledges the message; None if no consumer of this package can. `after`
        is the position that the message follows: of the message that was delivered before, or for a checkpoint
        consumer the position at which reading began; None for the first message of a stream consumer's
        ownership, and of a checkpoint consumer's segment.
        """
        self.topic, self.message_id = topic, MessageId(segment_id, stored.position)
        self._stored, self._schema, self._origin, self._after = stored, schema, origin, after

    @property
    def value(self) -> Any:
        """Value of the message: decoded by the consumer's schema, or the bytes if the consumer has no schema.

        Raises InvalidInput if the schema cannot decode the bytes, for instance those of a message that was
        sent with another schema.
        """
        return decoded(self._schema, self.data, f"the message {self.message_id} of {self.topic}")

    @property
    def data(self) -> bytes:
        """The bytes of the value."""
        return self._stored.payload

    @property
    def key(self) -> str | bytes | None:
        """Key of the message: `str` or `bytes` as it was sent, None for a message without a key.

        A key that another client of Pulsar sent is text, or bytes if it is not UTF-8.
        """
        key, metadata = self._stored.key, self._stored.metadata
        if key is None or (metadata is not None and metadata.is_binary_key):
            return key
        try:
            return key.decode()
        except UnicodeDecodeError:
            return key

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the message."""
        return {} if self._stored.metadata is None else dict(self._stored.metadata.properties)

    @property
    def event_time(self) -> datetime | None:
        """Event time of the message, in UTC with milliseconds; None if none was sent, or if it is before 1970
        or after 9999.
        """
        at = None if self._stored.metadata is None else self._stored.metadata.event_time_ms
        return None if at is None or not 0 <= at < _END_MS else _EPOCH + timedelta(milliseconds=at)

    @property
    def publish_time(self) -> datetime:
        """Time of publication in UTC: by the clock of the producer on Pulsar, by that of the database on
        embedded logs.
        """
        return _EPOCH + timedelta(milliseconds=self._stored.published_at_ms)

    @property
    def redelivery_count(self) -> int:
        """Number of earlier deliveries that a queue or keyed work has counted; 0 for other consumers."""
        return self._stored.deliveries - 1

    def __repr__(self) -> str:
        return f"Message({self.topic}, {self.message_id}, key={shown(self.key)})"


def origins(messages: Message | Sequence[Message], kind: type[Origin]) -> list[Origin]:
    """Return for each message, in their order, the origin by which it is acknowledged. Raises InvalidInput
    for a message of a consumer of another kind, or of none.
    """
    delivered = [messages] if isinstance(messages, Message) else messages
    for message in delivered:
        if not isinstance(message._origin, kind):
            given_by = _GIVEN_BY.get(type(message._origin), "KeyedWork or DeadLetters")
            raise InvalidInput(
                f"{message} was received from {given_by}; give this {_GIVEN_BY[kind]} messages that its `receive` returned"
            )
    return [message._origin for message in delivered]
