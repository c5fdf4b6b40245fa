"""What becomes of one message on a thread of `KeyedWork`: it is handled, and noted before and after where it is in trouble.

A message that comes for the first time in a healthy bucket is only handled. One that failed before, or that is in a bucket in trouble,
is noted before it begins, so that a death is charged to it; see `delivery_counts`. A message during whose handling `max_deliveries`
processes died is not begun again: its key is held.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from controller.client.delivery_counts import DeliveryCounts, DeliveryEvent
from controller.client.keyed_schedule import WorkItem
from controller.client.patience import patiently
from controller.client.session import OwnedBucket
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.client.work_observer import WorkObserver
from controller.dataplane.base import LogMessage
from controller.domain.errors import CleaveError

_NOTING_SECONDS = 2.0
"""How long a worker is asked to note an end. After that the delivery stays noted as begun, and may count as a death."""
_LONGEST_ERROR = 300
"""Characters of a handler's error that are kept."""


class End(StrEnum):
    """What became of a message on a thread."""

    DONE = "done"
    FAILED = "failed"
    PUT_OFF = "put off"
    """It was not begun, and may be in a moment."""
    HELD = "held"
    """It is not to be begun again."""
    BROKEN = "broken"
    """By what is no failure of the handler, such as SystemExit: the consumer's thread raises it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`why` says what stands in its way, where it is not done."""

    end: End
    why: str | None = None
    error: BaseException | None = None


class Handling:
    """For the pool's threads."""

    def __init__(
        self,
        consumer: StreamConsumer,
        handle: Callable[[LogMessage], None],
        counts: DeliveryCounts,
        observer: WorkObserver,
        max_deliveries: int,
    ) -> None:
        self._consumer, self._handle, self._counts = consumer, handle, counts
        self._observer, self._max_deliveries = observer, max_deliveries

    def run(self, batch: Batch, owned: OwnedBucket, item: WorkItem) -> Outcome:
        """One delivery. Raises nothing. The bucket may have been lost since it was given out: a process may be stopped anywhere."""
        try:
            if item.deaths >= self._max_deliveries:
                return Outcome(End.HELD, f"{item.error}, {item.deaths} times; it is not begun again")
            if item.is_noted:
                self._counts.note(owned, item.position, DeliveryEvent.BEGUN, item.deliveries + 1)
            if not self._consumer.may_begin(batch):
                return Outcome(End.PUT_OFF, "the bucket may be another consumer's by now")
            return self._handled(batch, owned, item)
        except CleaveError as error:
            return Outcome(End.PUT_OFF, f"it cannot be noted before it is begun: {error}")
        except BaseException as error:  # noqa: BLE001 - for the consumer's thread to raise
            return Outcome(End.BROKEN, one_line(error), error)

    def _handled(self, batch: Batch, owned: OwnedBucket, item: WorkItem) -> Outcome:
        item.deliveries += 1
        self._observer.begun(batch, item.message)
        try:
            self._handle(item.message)
        except Exception as error:  # noqa: BLE001 - the application's
            self._observer.failed(batch, item.message)
            item.is_noted = True
            self._note_end(owned, item, DeliveryEvent.FAILED, one_line(error))
            return Outcome(End.FAILED, one_line(error))
        self._observer.ended(batch, item.message)
        if item.is_noted:
            self._note_end(owned, item, DeliveryEvent.ENDED)
        return Outcome(End.DONE)

    def _note_end(
        self, owned: OwnedBucket, item: WorkItem, event: DeliveryEvent, error: str | None = None
    ) -> None:
        with suppress(CleaveError):
            patiently(
                lambda: self._counts.note(owned, item.position, event, item.deliveries, error),
                seconds=_NOTING_SECONDS,
            )


def one_line(error: BaseException) -> str:
    """An error as it is told and kept."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]
