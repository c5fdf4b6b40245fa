"""Records for `check-history` what consumers do with each message."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence

from controller.client.history import Attachment, ConsumerHistory, Message
from controller.client.queue_consumer import QueuedMessage
from controller.client.stream_consumer import Batch
from controller.client.work_observer import WorkObserver
from controller.dataplane.log_client import LogMessage, OutgoingMessage


def named(message: LogMessage | OutgoingMessage | QueuedMessage) -> Message:
    """Return producer, key and number of a message, as the producers of the tests write them."""
    producer, number = message.payload.split(b" ")
    return producer.decode(), (message.key or b"").decode(), int(number)


def write_processed(history: ConsumerHistory, messages: Sequence[Message], attachment: Attachment) -> None:
    """Record that the messages were received, and that each was processed at once."""
    history.delivered(messages, attachment)
    for message in messages:
        history.begun([message], attachment)
        history.ended([message], attachment)


class WorkHistory(WorkObserver):
    """An observer that writes a consumer's history.

    A message is `ended` when it is done, also by storing it in the dead-letter log, and `failed` when its
    handler has raised.
    """

    def __init__(self, history: ConsumerHistory, name: Callable[[LogMessage], Message]) -> None:
        """Write to `history`. `name` returns producer, key and number of a message."""
        self._history, self._name = history, name
        self._attachments: weakref.WeakKeyDictionary[object, Attachment] = weakref.WeakKeyDictionary()

    def delivered(self, batch: Batch) -> None:
        """Record that the messages were received."""
        if batch.origin not in self._attachments:
            name = f"{time.monotonic_ns():x}"
            self._attachments[batch.origin] = Attachment(batch.segment_id, str(batch.bucket), name)
        self._history.delivered(map(self._name, batch.messages), self._attachments[batch.origin])

    def begun(self, batch: Batch, message: LogMessage) -> None:
        """Record that processing of the message begins."""
        self._history.begun([self._name(message)], self._attachments[batch.origin])

    def failed(self, batch: Batch, message: LogMessage) -> None:
        """Record that the handler has raised."""
        self._history.failed([self._name(message)], self._attachments[batch.origin])

    def ended(self, batch: Batch, message: LogMessage) -> None:
        """Record that the message is done."""
        self._history.ended([self._name(message)], self._attachments[batch.origin])

    def acknowledged(self, batch: Batch, messages: Sequence[LogMessage]) -> None:
        """Record that the data plane has accepted the acknowledgement."""
        self._history.acknowledged(map(self._name, messages), self._attachments[batch.origin])
