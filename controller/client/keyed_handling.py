"""What becomes of one message on a thread of `KeyedWork`: it is handled, and noted before and after where it is in trouble.

A message that comes for the first time in a healthy bucket is only handled. One that failed before, or that is in a bucket in trouble,
is noted before it begins, so that a death is charged to it; see `delivery_counts`.

With a dead-letter log a message that was delivered `max_deliveries` times in vain is put there, and its key goes on. Without one, what
fails is tried for ever, and a message during whose handling so many processes died is not begun again: its key is held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from inspect import isasyncgen, isawaitable, iscoroutine, isgenerator

from controller.client.dead_letters import DeadLetterLog, Origin
from controller.client.delivery_counts import DeliveryCounts
from controller.client.keyed_schedule import WorkItem
from controller.client.patience import patiently
from controller.client.session import OwnedBucket
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.client.work_observer import WorkObserver
from controller.dataplane.base import LogMessage
from controller.domain.deliveries import DeliveryEvent
from controller.domain.errors import CleaveError, InvalidInput

_NOTING_SECONDS = 2.0
"""How long a worker is asked to note an end. After that the delivery stays noted as begun, and may count as a death."""
_LONGEST_ERROR = 300
"""Characters of a handler's error that are kept."""
_log = logging.getLogger(__name__)


class End(StrEnum):
    """What became of a message on a thread."""

    DONE = "done"
    PARKED = "parked"
    """It is in the dead-letter log."""
    FAILED = "failed"
    PUT_OFF = "put off"
    """It was not begun, and may be in a moment."""
    STUCK = "stuck"
    """It is not to be begun again, and cannot be put away just now."""
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
        handle: Callable[[LogMessage], object],
        counts: DeliveryCounts,
        observer: WorkObserver,
        max_deliveries: int,
        dead_letters: DeadLetterLog | None,
    ) -> None:
        self._consumer, self._handle, self._counts = consumer, handle, counts
        self._observer, self._max_deliveries, self._dead_letters = observer, max_deliveries, dead_letters

    def run(self, batch: Batch, owned: OwnedBucket, item: WorkItem) -> Outcome:
        """One delivery. Raises nothing. The bucket may have been lost since it was given out: a process may be stopped anywhere."""
        try:
            if self._is_over(item):
                return self._put_away(batch, item)
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
            _demand_handled(self._handle(item.message._replace(deliveries=item.deliveries)))
        except Exception as error:  # noqa: BLE001 - the application's
            self._observer.failed(batch, item.message)
            item.is_noted = True
            self._note_end(owned, item, DeliveryEvent.FAILED, one_line(error))
            item.error = one_line(error)
            return self._put_away(batch, item) if self._is_over(item) else Outcome(End.FAILED, item.error)
        self._observer.ended(batch, item.message)
        if item.is_noted:
            self._note_end(owned, item, DeliveryEvent.ENDED)
        return Outcome(End.DONE)

    def _is_over(self, item: WorkItem) -> bool:
        """Whether it is not to be begun again."""
        count = item.deaths if self._dead_letters is None else item.deliveries
        return count >= self._max_deliveries

    def _put_away(self, batch: Batch, item: WorkItem) -> Outcome:
        """Into the dead-letter log, where there is one. It is acknowledged afterwards."""
        if self._dead_letters is None:
            why = f"{item.error}, {item.deaths} times; it is not begun again, and there is no dead-letter log to put it into"
            return Outcome(End.HELD, why)
        if not self._consumer.owns(batch):
            return Outcome(End.PUT_OFF, "the bucket may be another consumer's by now")
        origin = Origin(
            topic=self._consumer.topic,
            subscription=self._consumer.subscription,
            segment_id=batch.segment_id,
            position=item.position,
            published_at_ms=item.message.published_at_ms,
            deliveries=item.deliveries,
            error=item.error,
            consumer=self._consumer.name,
            parked_at_ms=time.time_ns() // 1_000_000,
        )
        try:
            self._dead_letters.put(origin, item.message)
        except CleaveError as error:
            return Outcome(End.STUCK, f"{item.error}; it cannot be put into the dead-letter log: {error}")
        _log.warning(
            "%s, segment %d, message %s: put into the dead-letter log after %d deliveries: %s",
            self._consumer.topic,
            batch.segment_id,
            item.position,
            item.deliveries,
            item.error,
        )
        self._observer.ended(batch, item.message)
        return Outcome(End.PARKED)

    def _note_end(
        self, owned: OwnedBucket, item: WorkItem, event: DeliveryEvent, error: str | None = None
    ) -> None:
        with suppress(CleaveError):
            patiently(
                lambda: self._counts.note(owned, item.position, event, item.deliveries, error),
                seconds=_NOTING_SECONDS,
            )


def _demand_handled(result: object) -> None:
    """Raise InvalidInput if the handler returned work that is still to be run, such as a coroutine: the message is not handled."""
    if not (isawaitable(result) or isgenerator(result) or isasyncgen(result)):
        return
    if iscoroutine(result):
        result.close()  # or Python warns that it was never awaited
    raise InvalidInput(
        f"the handler returned a value of type {type(result).__name__}, which nothing runs; give an ordinary function that has handled "
        "the message when it returns"
    )


def one_line(error: BaseException) -> str:
    """An error as it is told and kept."""
    text = f"{type(error).__name__}: {error}".replace("\0", " ").encode(errors="replace").decode()
    return " ".join(text.split())[:_LONGEST_ERROR]
