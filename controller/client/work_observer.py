"""Defines an observer of the messages that `KeyedWork` processes, for a history or for statistics."""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.stream_consumer import Batch
from controller.dataplane.log_client import LogMessage


class WorkObserver:
    """A base class whose methods do nothing; override the methods that you need.

    `begun`, `failed` and `ended` are called in the thread that processes the message, the others in the
    consumer's thread.
    """

    def delivered(self, batch: Batch) -> None:
        """Called when the messages were received. Each is begun or delivered again later, unless it has
        reached the limit of its deliveries: then it is stored as a dead letter, or held, without a call of
        `begun`.
        """

    def begun(self, batch: Batch, message: LogMessage) -> None:
        """Called before the handler."""

    def failed(self, batch: Batch, message: LogMessage) -> None:
        """Called when the handler has raised; the message is not done."""

    def ended(self, batch: Batch, message: LogMessage) -> None:
        """Called when the message is done: its handler has returned, or the message is in the dead-letter
        log.
        """

    def acknowledged(self, batch: Batch, messages: Sequence[LogMessage]) -> None:
        """Called when the data plane has accepted the acknowledgement of the messages."""
