"""Processes one message on a thread of `KeyedWork`, and reports a message in trouble before and after its
processing.

The first delivery of a message in a healthy bucket is not reported. A message that failed before, or whose
bucket is in trouble, is reported after its processing. It is also reported before its processing begins if
the process handles nothing else meanwhile, so that a death of the process is charged to it
(`delivery_reports`).

With a dead-letter log, a message that was delivered `max_deliveries` times without success is stored there,
and its key continues. Without a dead-letter log, a failing message is retried forever, and a message during
which `max_deliveries` processes died is not begun again: its key is held.
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
from controller.client.delivery_reports import DeliveryCounts
from controller.client.keyed_schedule import WorkItem
from controller.client.retry import retry_for
from controller.client.session import OwnedBucket
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.client.work_observer import GuardedObserver
from controller.dataplane.log_client import LogMessage
from controller.domain.delivery_events import DeliveryEvent
from controller.domain.errors import CleaveError, InvalidInput

_NOTING_SECONDS = 2.0
"""Longest time to retry the report of an end. If the report fails, the delivery stays recorded as begun, and
may count as a death.
"""
_LONGEST_ERROR = 300
"""Largest number of characters that are kept of a handler's error."""
_log = logging.getLogger(__name__)


class End(StrEnum):
    """The result of processing a message on a thread."""

    DONE = "done"
    PARKED = "parked"
    """The message is in the dead-letter log."""
    FAILED = "failed"
    PUT_OFF = "put off"
    """The message was not begun, and may be begun shortly."""
    STUCK = "stuck"
    """The message must not be begun again, and cannot be stored in the dead-letter log at present."""
    HELD = "held"
    """The message must not be begun again."""
    BROKEN = "broken"
    """The processing ended with an exception that is not a failure of the handler, such as SystemExit. The
    consumer's thread raises it.
    """


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of processing a message. `why` is the reason why the message is not done; None if it is
    done. `error` is the exception after BROKEN, otherwise None.
    """

    end: End
    why: str | None = None
    error: BaseException | None = None


class Handling:
    """Processes messages for one consumer. For the pool's threads."""

    def __init__(
        self,
        consumer: StreamConsumer,
        handle: Callable[[LogMessage], object],
        counts: DeliveryCounts,
        observer: GuardedObserver,
        max_deliveries: int,
        dead_letters: DeadLetterLog | None,
    ) -> None:
        """Process messages with `handle`. With `dead_letters` a message that has reached the limit
        (`has_reached_limit`) is stored there; without, it is held.
        """
        self._consumer, self._handle, self._counts = consumer, handle, counts
        self._observer, self._max_deliveries, self._dead_letters = observer, max_deliveries, dead_letters

    def has_reached_limit(self, item: WorkItem) -> bool:
        """Return True if the message must not be begun again, because its deliveries, or without a
        dead-letter log its deaths, have reached the maximum.
        """
        count = item.deaths if self._dead_letters is None else item.deliveries
        return count >= self._max_deliveries

    def run(self, batch: Batch, owned: OwnedBucket, item: WorkItem) -> Outcome:
        """Deliver the message once, and return the outcome. Raises nothing. DONE: the handler returned. FAILED: the
        handler raised an Exception, or returned unfinished work such as a coroutine. BROKEN: any other exception,
        such as SystemExit, which the outcome contains. PUT_OFF: the handler was not called, because the report of the
        beginning failed, or because the consumer was paused or may have lost the bucket since the message was chosen.

        A message that has reached the delivery limit is not delivered. That message, and a message that reaches the
        limit by failing, is stored as a dead letter (`_store_dead_letter`: PARKED, STUCK or PUT_OFF); without a
        dead-letter log its outcome is HELD. A failure is always reported to a worker. If `item.is_noted`, a success
        is reported too. If also `item.is_alone`, the beginning is reported before the handler is called.
        """
        try:
            if self.has_reached_limit(item):
                return self._store_dead_letter(batch, item)
            if item.is_noted and item.is_alone:
                try:
                    self._counts.note(owned, item.position, DeliveryEvent.BEGUN, item.deliveries + 1)
                except CleaveError as error:
                    return Outcome(End.PUT_OFF, f"cannot report the delivery before it begins: {error}")
            if not self._consumer.may_begin(batch):
                return Outcome(End.PUT_OFF, "the bucket may belong to another consumer")
            return self._handled(batch, owned, item)
        except BaseException as error:  # noqa: BLE001 - the consumer's thread raises it
            return Outcome(End.BROKEN, one_line(error), error)

    def _handled(self, batch: Batch, owned: OwnedBucket, item: WorkItem) -> Outcome:
        """Call the handler with the message, and return DONE, FAILED, or the result of `_store_dead_letter`. Before
        the call the delivery is counted in `item.deliveries`, which the handler finds in the message, and the
        observer is notified, as after the call. After DONE, the success is reported to a worker if `item.is_noted`.

        After an Exception of the handler, or if the handler returned unfinished work, the error is stored in
        `item.error`, and the failure is reported to a worker. The message is stored as a dead letter if it has then
        reached the delivery limit. A report that fails is given up after `_NOTING_SECONDS`. Raises any other
        exception of the handler.
        """
        item.deliveries += 1
        self._observer.begun(batch, item.message)
        try:
            _demand_handled(self._handle(item.message._replace(deliveries=item.deliveries)))
        except Exception as error:  # noqa: BLE001 - an exception of the application
            self._observer.failed(batch, item.message)
            item.is_noted = True
            self._note_end(owned, item, DeliveryEvent.FAILED, one_line(error))
            item.error = one_line(error)
            return (
                self._store_dead_letter(batch, item)
                if self.has_reached_limit(item)
                else Outcome(End.FAILED, item.error)
            )
        self._observer.ended(batch, item.message)
        if item.is_noted:
            self._note_end(owned, item, DeliveryEvent.ENDED)
        return Outcome(End.DONE)

    def _store_dead_letter(self, batch: Batch, item: WorkItem) -> Outcome:
        """Store the message in the dead-letter log, log a warning, notify the observer that the message has ended,
        and return PARKED. The message is not acknowledged yet; the caller does that.

        Return HELD if there is no dead-letter log, and PUT_OFF if the bucket may belong to another consumer; nothing
        is stored in both cases. Return STUCK after a CleaveError of the dead-letter log; the message may be stored
        nevertheless, and is stored again by the next attempt. Raises any other exception.
        """
        if self._dead_letters is None:
            reason = f"{item.error}; {item.deaths} processes died, so the message is not begun again; configure a dead-letter log to store it"
            return Outcome(End.HELD, reason)
        if not self._consumer.owns(batch):
            return Outcome(End.PUT_OFF, "the bucket may belong to another consumer")
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
            return Outcome(
                End.STUCK, f"{item.error}; cannot store the message in the dead-letter log: {error}"
            )
        _log.warning(
            "%s, segment %d, message %s: stored in the dead-letter log after %d deliveries: %s",
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
        """Report the end of a delivery to a worker, and retry for `_NOTING_SECONDS`. Errors are ignored."""
        with suppress(CleaveError):
            retry_for(
                lambda: self._counts.note(owned, item.position, event, item.deliveries, error),
                seconds=_NOTING_SECONDS,
            )


def _demand_handled(result: object) -> None:
    """Raise InvalidInput if `result`, which the handler returned, is unfinished work: an awaitable object, a
    generator or an asynchronous generator. The delivery then counts as failed. A coroutine is closed.
    """
    if not (isawaitable(result) or isgenerator(result) or isasyncgen(result)):
        return
    if iscoroutine(result):
        result.close()  # otherwise Python warns that the coroutine was never awaited
    raise InvalidInput(
        f"the handler returned a value of type {type(result).__name__}, which is never run; give an ordinary function that has handled "
        "the message when it returns"
    )


def one_line(error: BaseException) -> str:
    """Return type and text of the error as one line of at most `_LONGEST_ERROR` characters, for reports."""
    text = f"{type(error).__name__}: {error}".replace("\0", " ").encode(errors="replace").decode()
    return " ".join(text.split())[:_LONGEST_ERROR]
