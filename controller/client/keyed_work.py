"""Processes a topic's messages on several threads, each key in order. A failed message is retried while its
key is held.

`KeyedWork` takes the messages that a `StreamConsumer` receives, and calls the application's handler for each
message on one of its threads. Messages of one key are processed one after the other, messages of different
keys in parallel, across several buckets. A message without a key has no order.

If the handler raises, its message is retried after a growing delay. Its key waits meanwhile, and other keys
continue. There is no negative acknowledgement and no acknowledgement timeout, because either would break the
order of a key. A bucket is acknowledged up to the lowest message that is not done, so a crash delivers that
message and all behind it again. While a bucket has `held_limit` unsettled messages, no more messages of it
are read; other buckets continue.

Everything except the handler runs in the thread that calls `turn` or `run`, which is the consumer's thread.
The pool's threads report to it (`message_delivery`). If a bucket is to be released to another consumer, no
message of it is begun; messages in progress are finished and acknowledged, and then the bucket is released.
Unsettled messages of a lost bucket are dropped: they are neither begun nor acknowledged here.

Deliveries are counted across crashes (`delivery_reports`): the first read of a bucket makes one call to a
worker. While a bucket is in trouble the process handles one message at a time. A message that may have ended
an earlier process is handled alone.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import cast

from controller.client.arguments import checks_arguments
from controller.client.attachments import Attachment
from controller.client.background_calls import BackgroundCalls
from controller.client.closing import ClosesOnExit
from controller.client.dead_letters import DeadLetterLog
from controller.client.delivery_reports import DeliveryCounts, KnownMessage, Opening
from controller.client.keyed_schedule import KeyedSchedule, WorkItem, retry_delay_seconds
from controller.client.message_delivery import End, Handling, Outcome
from controller.client.reader_set import LOOK_SECONDS
from controller.client.retry import Backoff, Outage
from controller.client.session import OwnedBucket
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.client.work_observer import GuardedObserver, WorkObserver
from controller.dataplane.log_client import LogClient, LogMessage, Position
from controller.domain.delivery_events import DeliveryEvent
from controller.domain.errors import CleaveError, DataPlaneUnavailable
from controller.domain.formatting import shown
from controller.forks import OneProcess

_log = logging.getLogger(__name__)
ACKNOWLEDGE_SECONDS = 0.1
"""Shortest time between two acknowledgements of a bucket while its messages are being processed."""
CALM_SECONDS = 5.0
"""A bucket in trouble is healthy again after this time without a message that could begin for the
first time.
"""
_CALL_THREADS = 2
_MAX_NAMED = 3
"""Largest number of failing messages that `why()` names for each bucket."""
_SHORTEST_WAIT_SECONDS = 0.005
"""Delay before a due action that cannot be performed is checked again."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One ownership of one bucket, from its first message on."""

    batch: Batch
    """Newest batch of the bucket."""
    schedule: KeyedSchedule
    first: Position
    outage: Outage
    """Time since which no acknowledgement of the bucket has reached its log."""
    ask_at: float | None = 0.0
    """Time of the next request to a worker for the stored counts of the bucket; None during the request, and after
    it.
    """
    ask_backoff: Backoff = field(default_factory=Backoff)
    opening: Opening | None = None
    waiting: list[LogMessage] = field(default_factory=list)
    """Messages that arrived before the worker's answer."""
    no_answer_reason: str | None = None
    """Why there is no answer yet."""
    stored_counts: dict[Position, KnownMessage] = field(default_factory=dict)
    troubled_messages: int = 0
    """Number of further messages to report before they begin."""
    calm_since: float | None = None
    acknowledged: Position | None = None
    acknowledged_at: float = 0.0
    retry_at: float = 0.0
    """Time before which no acknowledgement is tried, after one that did not reach the log."""
    retry_backoff: Backoff = field(default_factory=Backoff)
    settled: list[LogMessage] = field(default_factory=list)
    """Messages that are settled and not acknowledged yet."""
    parked: list[WorkItem] = field(default_factory=list)
    """Messages that are in the dead-letter log and not acknowledged yet. They stay recorded as begun until
    then, because otherwise a crash would have them processed again.
    """

    @property
    def attachment(self) -> Attachment:
        return cast(Attachment, self.batch.origin)

    @property
    def is_full(self) -> bool:
        """True if no further batch of the bucket is to be read until a message is settled."""
        return self.schedule.is_full or len(self.waiting) >= self.schedule.limit

    @property
    def is_behind(self) -> bool:
        """True if there are settled messages to acknowledge."""
        return self.schedule.settled != self.acknowledged

    def acknowledge_at(self) -> float:
        """Return the time of the next acknowledgement (`time.monotonic` seconds): `ACKNOWLEDGE_SECONDS` after
        the last one, or at once if no unsettled message is left, or the bucket is to be released and no message
        of it is being processed. Not before `retry_at`. Infinity if there is nothing to acknowledge.
        """
        if not self.is_behind:
            return float("inf")
        is_last = not self.schedule.in_hand or (self.attachment.owned.release and not self.schedule.running)
        return self.retry_at if is_last else max(self.retry_at, self.acknowledged_at + ACKNOWLEDGE_SECONDS)

    def offer(self, message: LogMessage) -> None:
        """Add the message to the schedule. If a worker has stored delivery counts for the message, the counts are
        moved into its `WorkItem`. If the message has stored counts or the bucket is in trouble (`troubled_messages`
        above 0), a success of the message is reported to a worker too (`WorkItem.is_noted`). Failures are always
        reported.
        """
        counts = self.stored_counts.pop(message.position, None)
        item = WorkItem(message, is_noted=counts is not None or self.troubled_messages > 0)
        if counts is not None:
            item.deliveries, item.deaths, item.error = counts.deliveries, counts.deaths, counts.error
        self.schedule.offer(item)

    def update_trouble(self, now: float) -> None:
        """End the trouble of the bucket, in which messages are begun one at a time, when for more than
        CALM_SECONDS before `now` (`time.monotonic` seconds) no call found a message that could begin for the
        first time.
        """
        if not self.troubled_messages or self.schedule.has_untried:
            self.calm_since = None
        elif self.calm_since is None:
            self.calm_since = now
        elif now - self.calm_since > CALM_SECONDS:
            self.troubled_messages = 0


@checks_arguments
class KeyedWork(OneProcess, ClosesOnExit):
    """Keyed processing of one consumer's messages. For the consumer's thread, which must keep calling `turn`
    or `run`. Close it before the consumer.
    """

    def __init__(
        self,
        consumer: StreamConsumer,
        handle: Callable[[LogMessage], object],
        *,
        threads: int = 8,
        held_limit: int = 1000,
        first_retry_seconds: float = 0.1,
        longest_retry_seconds: float = 30.0,
        max_deliveries: int = 10,
        dead_letters: LogClient | None = None,
        observer: WorkObserver | None = None,
    ) -> None:
        """Prepare to call `handle` for each message of `consumer` on one of `threads` threads; `turn` begins the
        work. `handle` is an ordinary function whose work is done when it returns. After a crash some messages are
        processed twice.

        While a bucket has `held_limit` unsettled messages, no further batch of the bucket is read. Use the same value
        in all consumers of a subscription. A failed message is retried after half to all of `first_retry_seconds`;
        the delay doubles with each failure, up to `longest_retry_seconds`.

        `dead_letters` is the client of the logs. If `dead_letters` is given, a message that failed or killed its
        process `max_deliveries` times is stored in the subscription's dead-letter log, and its key continues. If
        `dead_letters` is None, a failing message is retried forever, and a message during which `max_deliveries`
        processes died is not begun again.

        `observer` is notified of the work on each message. An exception of the observer changes nothing about the
        messages; `turn` and `close` raise the first exception of the observer.
        """
        self._consumer = consumer
        self._threads, self._held_limit = threads, held_limit
        self._first_retry_seconds, self._longest_retry_seconds = first_retry_seconds, longest_retry_seconds
        self._observer = GuardedObserver(observer or WorkObserver())
        self._counts = DeliveryCounts(consumer.ask)
        letters = None if dead_letters is None else DeadLetterLog(dead_letters, consumer.ask)
        self._handling = Handling(consumer, handle, self._counts, self._observer, max_deliveries, letters)
        self._lanes: dict[Attachment, _Lane] = {}
        self._turns: deque[_Lane] = deque()
        self._busy: set[bytes] = set()
        self.running = 0
        """Number of messages that are being processed."""
        self._is_exclusive = False
        """True while a message runs alone (`WorkItem.is_alone`)."""
        self._reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cleave-work")
        self._futures: set[Future[None]] = set()
        """Work in progress on threads, including work of lost buckets."""
        self._calls = BackgroundCalls(_CALL_THREADS, "cleave-work-calls")
        consumer.stay_while(lambda: bool(self._futures))

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Repeat `turn` until `is_stopping`, which is called before each turn, returns True. A turn waits for
        work for up to a second, and takes longer while an acknowledgement waits for its log or `on_release` runs.

        Raises the errors of `turn`.
        """
        while not is_stopping():
            self.turn(LOOK_SECONDS)

    def turn(self, timeout_seconds: float) -> None:
        """Do one cycle: receive a batch, record the results of processed messages, acknowledge done messages, release
        buckets that other consumers wait for, and begin messages on free threads. If no batch was received, wait for
        more work, at most for `timeout_seconds` and at most for LOOK_SECONDS.

        Raises the errors of `StreamConsumer.receive`, after the other work of the cycle, and of
        `StreamConsumer.acknowledge`; InvalidInput after `close`; an exception of a handler that is no Exception; and
        the exceptions of the observer.
        """
        self._demand_open()
        try:
            batch = self._consumer.receive(0.0)
        except Exception:  # often of one bucket; the messages of the others go on
            self._go_on()
            raise
        if batch is not None:
            self._take(batch)
        self._go_on()
        if batch is None:
            due_seconds = max(self._due_at() - time.monotonic(), _SHORTEST_WAIT_SECONDS)
            self._consumer.wait(min(timeout_seconds, due_seconds))

    def close(self, timeout_seconds: float | None = None) -> None:
        """Begin no more messages, wait for the messages in progress, and acknowledge the messages that are done.
        Buckets that other consumers wait for are released. Close the consumer next; the consumer does not deregister
        while messages are still being processed.

        The call takes at most `timeout_seconds` (default: 30), but may take two seconds if the limit is shorter. A
        fifth of the time, and at least a second, is reserved for acknowledging, which also happens after an
        interruption (KeyboardInterrupt). Messages that are still being processed after the time are not acknowledged,
        which is logged, and are delivered again.

        Raises an exception of a handler that is no Exception, the exceptions of the observer and of `on_release`, and
        InvalidInput, before anything is closed, for a time below 0 or above a day.
        """
        timing = self._begin_close(timeout_seconds)
        try:
            while self.running and timing.left_seconds:
                self._run_reports(timing.left_seconds)
        finally:
            self._settle_until(time.monotonic() + timing.deregistration_seconds)
        self._observer.raise_error()

    def _described(self) -> str:
        return f"KeyedWork of {self._consumer.topic}"

    def _settle_until(self, deadline: float) -> None:
        """Finish the work when this object is closed: begin no more messages, acknowledge the messages that are done
        until `deadline` (`time.monotonic` seconds), and release the buckets that other consumers wait for. Report to
        a worker the buckets that were closed without a crash (`_report_closed`), and wait for the reports until
        `deadline`. Messages that are still in progress are not acknowledged; their number is logged.

        Raises an exception of a handler that is no Exception, and then acknowledges nothing, and the errors of
        `_maintain`.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        try:
            self._run_reports()
            self._maintain(deadline)
            for lane in self._lanes.values():
                self._report_closed(lane)
        finally:
            self._calls.close(max(0.0, deadline - time.monotonic()))
        if self.running:
            _log.warning("%d message(s) still in progress; they are delivered again", self.running)

    def _go_on(self) -> None:
        """Do the work of a cycle that needs no received batch: run the reports, maintain the buckets, and begin messages.

        Raises the errors of `_run_reports` and `_maintain`, and the exceptions of the observer.
        """
        self._run_reports()
        self._maintain()
        self._begin_messages()
        self._observer.raise_error()

    def _take(self, batch: Batch) -> None:
        """Notify the observer of a received batch. Add its messages to the schedule of the bucket, or, while a worker
        has not yet answered with the stored delivery counts of the bucket, to the messages that wait for the answer.
        The first batch of an ownership creates the bucket's lane, for which `_maintain` requests the counts.
        """
        attachment = cast(Attachment, batch.origin)
        lane = self._lanes.get(attachment)
        if lane is None:
            schedule = KeyedSchedule(self._busy, self._held_limit)
            outage = Outage(self._consumer.patience_seconds)
            lane = self._lanes[attachment] = _Lane(batch, schedule, batch.messages[0].position, outage)
            self._turns.append(lane)
        lane.batch = batch
        self._observer.delivered(batch)
        if lane.opening is None:
            lane.waiting += batch.messages
        else:
            for message in batch.messages:
                lane.offer(message)

    def _report(self, report: Callable[[], None]) -> None:
        """Queue `report`, to be run in the consumer's thread, and wake that thread."""
        self._reports.put(report)
        self._consumer.wake()

    def _run_reports(self, wait_seconds: float = 0.0) -> None:
        """Run the reports that threads have queued, in order, until none is left. Waits up to `wait_seconds`
        for the first report. Raises the error of a report, such as that of a handler (`_conclude`); the
        reports behind it stay queued.
        """
        with suppress(queue.Empty):
            report = self._reports.get(timeout=wait_seconds) if wait_seconds else self._reports.get_nowait()
            while True:
                report()
                report = self._reports.get_nowait()

    def _ask(self, lane: _Lane, owned: OwnedBucket) -> None:
        """Report to a worker that the reading of a bucket begins (`DeliveryCounts.opened`), and have
        `_on_opening` called in the consumer's thread with the stored counts of the bucket, or with the error.
        Runs in a background thread.
        """
        try:
            answer: Opening | Exception = self._counts.opened(owned, lane.first)
        except Exception as error:  # noqa: BLE001 - a worker of another version may answer anything
            answer = error
        self._report(partial(self._on_opening, lane, answer))

    def _on_opening(self, lane: _Lane, answer: Opening | Exception) -> None:
        """Record a worker's answer about a bucket, and schedule the messages that waited for the answer. If too many
        processes in a row began to read the bucket at the same message (`Opening.is_troubled`), the bucket is then in
        trouble: its next messages are begun one at a time.

        `answer` is the error if the request failed. The error's text then becomes a reason of the bucket
        (`no_answer_reason`), `_maintain` repeats the request after a growing delay, and the messages still wait.
        """
        if isinstance(answer, Exception):
            lane.no_answer_reason = f"cannot read the stored delivery counts: {answer}"
            lane.ask_at = time.monotonic() + lane.ask_backoff.next_seconds()
            return
        lane.opening, lane.no_answer_reason = answer, None
        lane.stored_counts = {counts.position: counts for counts in answer.messages}
        if answer.is_troubled:
            lane.troubled_messages = self._held_limit + self._consumer.batch_messages
        for message in lane.waiting:
            lane.offer(message)
        lane.waiting = []

    def _conclude(self, lane: _Lane, item: WorkItem, outcome: Outcome) -> None:
        """Record the outcome of a message that `_begin_messages` began. Must be called once for each such message,
        also if the bucket was lost meanwhile.

        A message that is done or stored in the dead-letter log is settled as soon as all earlier messages of the
        bucket are done; `_maintain` acknowledges it later. Any other message is scheduled again after a delay, and
        the later messages of its key wait; after HELD the message is not begun again. The exception of a BROKEN
        outcome is raised, after the message was scheduled.
        """
        self.running -= 1
        self._is_exclusive = False
        if outcome.end in (End.DONE, End.PARKED):
            if outcome.end is End.PARKED:
                lane.parked.append(item)
            lane.settled += lane.schedule.done(item.position)
            lane.troubled_messages = max(0, lane.troubled_messages - 1)
            return
        item.why = outcome.why
        item.failing_since = item.failing_since or datetime.now(UTC)
        lane.schedule.failed(item.position, time.monotonic() + self._delay_seconds(item, outcome.end))
        if outcome.end is End.BROKEN and outcome.error is not None:
            raise outcome.error

    def _delay_seconds(self, item: WorkItem, end: End) -> float:
        """Return the seconds until a message may be begun again (`retry_delay_seconds`): infinity after HELD, and
        the first delay after PUT_OFF.
        """
        if end is End.HELD:
            return float("inf")
        return retry_delay_seconds(
            0 if end is End.PUT_OFF else item.deliveries,
            self._first_retry_seconds,
            self._longest_retry_seconds,
            jitter=random.uniform(0.5, 1.0),  # noqa: S311 - no secret
        )

    def _maintain(self, closed_at: float | None = None) -> None:
        """Maintain each bucket: acknowledge settled messages that are due, release buckets that other
        consumers wait for once none of their messages is being processed or to be acknowledged, forget lost
        buckets, request missing counts, and update the reasons and limits of the attachments.

        Raises the errors of `_acknowledge_or_put_off` and `let_go`. While closing, acknowledgements are
        retried until `closed_at` (`time.monotonic` seconds), and DataPlaneUnavailable is ignored: messages
        that cannot be acknowledged are delivered again.
        """
        now = time.monotonic()
        for lane in list(self._lanes.values()):
            if closed_at is not None:
                with suppress(DataPlaneUnavailable):
                    self._acknowledge(lane, max(0.0, closed_at - time.monotonic()))
            elif lane.acknowledge_at() <= now:
                self._acknowledge_or_put_off(lane)
            attachment, schedule = lane.attachment, lane.schedule
            if not self._consumer.has(lane.batch):
                self._forget(lane)
            elif attachment.owned.release and not schedule.running and not lane.is_behind:
                if self._consumer.let_go(lane.batch):
                    self._report_closed(lane)
                    self._forget(lane)
            else:
                if lane.ask_at is not None and lane.ask_at <= now and not self._is_closed:
                    is_asked = self._calls.submit(partial(self._ask, lane, attachment.owned))
                    lane.ask_at = None if is_asked else now + lane.ask_backoff.next_seconds()
                lane.update_trouble(now)
                attachment.is_full = lane.is_full
                attachment.work = self._wait_reasons(lane)

    def _acknowledge_or_put_off(self, lane: _Lane) -> None:
        """Acknowledge the settled messages of the bucket (`_acknowledge`), in one attempt. If the log is out of reach,
        put the next attempt off, so that the other buckets need not wait for this one. Raises DataPlaneUnavailable
        once no attempt has reached the log for the patience of the consumer, and the other errors of `_acknowledge`.
        """
        try:
            self._acknowledge(lane, 0.0)
        except DataPlaneUnavailable as error:
            lane.retry_at = time.monotonic() + lane.retry_backoff.next_seconds()
            lane.outage.raise_if_expired(error)
        else:
            lane.retry_at = 0.0
            lane.retry_backoff.reset()
            lane.outage.end()

    def _acknowledge(self, lane: _Lane, patience_seconds: float) -> None:
        """Acknowledge the settled messages of the bucket, and notify the observer. Do nothing if no settled message
        is left to acknowledge, or the bucket does not belong to this consumer. Dead letters among the acknowledged
        messages are reported to a worker as ended, in a background thread.

        Raises DataPlaneUnavailable if the log is out of reach for `patience_seconds`. After this error, or if the
        acknowledgement is refused, the messages stay settled and not acknowledged. Also raises the errors of
        `on_release`, before the observer is notified.
        """
        upto = lane.schedule.settled
        if upto is None or not lane.is_behind or not self._consumer.owns(lane.batch):
            return
        if self._consumer.acknowledge(lane.batch, upto, patience_seconds=patience_seconds):
            self._observer.acknowledged(lane.batch, lane.settled)
            lane.acknowledged, lane.acknowledged_at, lane.settled = upto, time.monotonic(), []
            for item in [parked for parked in lane.parked if parked.position <= upto]:
                lane.parked.remove(item)
                note = partial(self._counts.note, lane.attachment.owned, item.position, DeliveryEvent.ENDED)
                self._send(partial(note, item.deliveries))

    def _report_closed(self, lane: _Lane) -> None:
        """Report to a worker, in a background thread, that the bucket was closed without a crash. Does
        nothing if no earlier process had opened the bucket at the same message or the closing was reported,
        because then the report is not needed, and while a message of the bucket is being processed.
        """
        if lane.opening is not None and lane.opening.openings > 1 and not lane.schedule.running:
            self._send(partial(self._counts.closed, lane.attachment.owned))
            lane.opening = Opening(1, lane.opening.messages)  # as the worker then counts

    def _send(self, call: Callable[[], None]) -> None:
        """Run `call`, which sends a report to a worker, in a background thread. A CleaveError of the call is
        ignored, and the report is not repeated. Does nothing after `close`.
        """

        def send() -> None:
            with suppress(CleaveError):
                call()

        self._calls.submit(send)

    def _forget(self, lane: _Lane) -> None:
        """Forget the bucket, so that no message of it is begun or acknowledged. A message in progress still
        reports, and holds its key until then.
        """
        del self._lanes[lane.attachment]
        self._turns.remove(lane)

    def _begin_messages(self) -> None:
        """Give every free thread a message, taking the buckets in rotation, until no bucket has a message
        that may begin. Skips buckets that are to be released or that may belong to another consumer, and all
        buckets while the consumer is paused or this object is closed. While any bucket is in trouble, at most
        one message of all buckets is processed at a time. A suspect (`_is_suspect`) waits until no message is
        processed, and no other message begins before the suspect ends.
        """
        now, idle_lanes = time.monotonic(), 0
        is_troubled = self._is_exclusive or any(lane.troubled_messages for lane in self._turns)
        limit = 1 if is_troubled else self._threads
        while not self._is_closed and self.running < limit and idle_lanes < len(self._turns):
            lane = self._turns[0]
            self._turns.rotate(-1)
            is_ours = not lane.attachment.owned.release and self._consumer.may_begin(lane.batch)
            item = lane.schedule.next(now) if is_ours else None
            if item is None:
                idle_lanes += 1
                continue
            idle_lanes = 0
            if self._is_suspect(item):
                limit = 1
                if self.running:
                    lane.schedule.withdraw(item.position)
                    self._turns.rotate(1)
                    return
            item.is_alone = self._is_exclusive = limit == 1
            self.running += 1
            future = self._pool.submit(self._work, lane, lane.batch, lane.attachment.owned, item)
            self._futures.add(future)
            future.add_done_callback(self._futures.discard)

    def _is_suspect(self, item: WorkItem) -> bool:
        """Return True if processes died while they handled the message, and the message may be begun again."""
        return item.deaths > 0 and not self._handling.has_reached_limit(item)

    def _work(self, lane: _Lane, batch: Batch, owned: OwnedBucket, item: WorkItem) -> None:
        """Process a message on a thread of the pool, and report the outcome."""
        self._report(partial(self._conclude, lane, item, self._handling.run(batch, owned, item)))

    def _due_at(self) -> float:
        """Return the time, in `time.monotonic` seconds, of the next work without a signal: the next acknowledgement
        or the next request for stored counts of a bucket, or, if a thread is free, the next retry of a message.
        Infinity if no such work is planned.
        """
        times = [lane.acknowledge_at() for lane in self._turns]
        times += [lane.ask_at for lane in self._turns if lane.ask_at is not None]
        if self.running < self._threads:
            times += [lane.schedule.next_due_at for lane in self._turns]
        return min(times, default=float("inf"))

    def _wait_reasons(self, lane: _Lane) -> str | None:
        """Return the reasons why messages of the bucket wait, joined by `; `, for `why()`: the limit of unsettled
        messages if it is reached, up to `_MAX_NAMED` failing messages, the trouble of the bucket, and stored counts
        that no worker has returned. Return None if no such reason applies, so that messages only wait for their turn.
        """
        reasons = [_hold_reason(item) for item in itertools.islice(lane.schedule.failing, _MAX_NAMED)]
        if lane.schedule.is_full:
            reasons.insert(
                0, f"paused with {lane.schedule.in_hand} messages in hand (limit {self._held_limit})"
            )
        if lane.troubled_messages:
            reasons.append(
                "its first messages are begun one at a time, because processes died while handling them"
            )
        if lane.no_answer_reason is not None:
            reasons.append(lane.no_answer_reason)
        return "; ".join(reasons) or None


def _hold_reason(item: WorkItem) -> str:
    """Return the text for `why()` about a failing message: its key, which is held, the time of its first failure, the
    number of the delivery, and the error.
    """
    key, since = item.message.key, item.failing_since
    subject = "a message without a key" if key is None else f"key {shown(key.decode(errors='replace'))}"
    start = "" if since is None else f" since {since.isoformat(timespec='seconds')}"
    return f"{subject} is held{start} by a failing message (delivery {item.deliveries}: {item.why})"
