"""Defines an observer of the messages that `KeyedWork` processes, for a history or for statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from controller.client.stream_consumer import Batch
from controller.dataplane.log_client import LogMessage


class WorkObserver:
    """A base class whose methods do nothing; override the methods that you need.

    `begun`, `failed` and `ended` are called in the thread that processes the message, the others in the
    consumer's thread. An exception of a method changes nothing about the messages; `KeyedWork` raises it in the
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


class GuardedObserver(WorkObserver):
    """Notifies an observer, and keeps the observer's exception until the consumer's thread raises it, so that the
    exception changes nothing about a message.
    """

    def __init__(self, observer: WorkObserver) -> None:
        self._observer = observer
        self._errors: deque[BaseException] = deque()

    def delivered(self, batch: Batch) -> None:
        self._notify(self._observer.delivered, batch)

    def begun(self, batch: Batch, message: LogMessage) -> None:
        self._notify(self._observer.begun, batch, message)

    def failed(self, batch: Batch, message: LogMessage) -> None:
        self._notify(self._observer.failed, batch, message)

    def ended(self, batch: Batch, message: LogMessage) -> None:
        self._notify(self._observer.ended, batch, message)

    def acknowledged(self, batch: Batch, messages: Sequence[LogMessage]) -> None:
        self._notify(self._observer.acknowledged, batch, messages)

    def raise_error(self) -> None:
        """Raise the first exception of the observer that was not raised yet, if there is one. Exceptions that follow it
        before this call are dropped, except interruptions such as KeyboardInterrupt. For the consumer's thread.
        """
        if self._errors:
            raise self._errors.popleft()

    def _notify(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 - `raise_error` raises it
            if not self._errors or not isinstance(error, Exception):
                self._errors.append(error)
