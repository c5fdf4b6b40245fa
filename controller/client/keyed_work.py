"""Works on a topic's messages with several threads, each key in order: what fails is tried again with its key held.

`KeyedWork` takes what a `StreamConsumer` receives and calls the application's handler for each message on one of its threads.
Messages of one key are worked on one after the other, those of different keys side by side, of several buckets at a time. A
message without a key is worked on by itself.

A handler that raises has failed: its message is tried again, later each time, and its key waits meanwhile while other keys go on.
There is no negative acknowledgement and no time-out of one, since either would bring a key out of order. A bucket is acknowledged
up to the lowest message that is not done, and no further, so a crash delivers that one and what is behind it again.
When a bucket has `held_limit` messages in hand, nothing more is read of it until some are settled; other buckets go on.

Everything but the handler happens in the thread that calls `turn` or `run`, which is the consumer's; the pool's threads
report to it (`keyed_handling`). When a bucket is to go to another consumer nothing more of it is begun; what has begun is finished and
acknowledged, and the bucket goes. What is in hand of a bucket that was lost is dropped: it is neither begun nor acknowledged here.

Deliveries are counted over crashes (`delivery_counts`): the reading of a bucket begins with one call to a worker. While a bucket is in
trouble the process works on one message at a time.
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
from controller.client.aside import AsideCalls
from controller.client.attachments import Attachment
from controller.client.closing import ClosedByWith
from controller.client.dead_letters import DeadLetterLog
from controller.client.delivery_counts import DeliveryCounts, KnownMessage, Opening
from controller.client.keyed_handling import End, Handling, Outcome
from controller.client.keyed_schedule import KeyedSchedule, WorkItem
from controller.client.patience import Backoff
from controller.client.rounds import LOOK_SECONDS
from controller.client.session import OwnedBucket
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.client.work_observer import WorkObserver
from controller.dataplane.base import LogClient, LogMessage, Position
from controller.domain.deliveries import DeliveryEvent
from controller.domain.errors import CleaveError, DataPlaneUnavailable
from controller.domain.shown import shown
from controller.forks import OneProcess

_log = logging.getLogger(__name__)
ACKNOWLEDGE_SECONDS = 0.1
"""While work goes on in a bucket it is acknowledged this often at most."""
CALM_SECONDS = 5.0
"""A bucket in trouble of which nothing was left to begin for the first time for so long is in trouble no more."""
_FIRST_ASK_SECONDS, _LONGEST_ASK_SECONDS = 0.05, 2.0
_CALL_THREADS = 2
_MOST_DOUBLINGS = 30
_MOST_SAID = 3
"""Failing messages that `why()` names of each bucket."""
_SHORTEST_WAIT_SECONDS = 0.005
"""What is due and cannot be done just now is looked at again after this."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One ownership of one bucket, from its first message on."""

    batch: Batch
    """The newest of it."""
    schedule: KeyedSchedule
    first: Position
    ask_at: float | None = 0.0
    """When a worker is to be asked what it knows of the bucket; None while it is asked, and after."""
    ask_backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_ASK_SECONDS, _LONGEST_ASK_SECONDS))
    opening: Opening | None = None
    waiting: list[LogMessage] = field(default_factory=list)
    """What came before the answer."""
    unheard: str | None = None
    """Why there is no answer yet."""
    known: dict[Position, KnownMessage] = field(default_factory=dict)
    troubled_messages: int = 0
    """So many more are to be noted before they begin."""
    calm_since: float | None = None
    acknowledged: Position | None = None
    acknowledged_at: float = 0.0
    settled: list[LogMessage] = field(default_factory=list)
    """What is settled and not acknowledged yet."""
    parked: list[WorkItem] = field(default_factory=list)
    """What is in the dead-letter log, and not acknowledged yet: it stays noted until then, or it would be handled again after a crash."""

    @property
    def held(self) -> Attachment:
        return cast(Attachment, self.batch.origin)

    @property
    def is_full(self) -> bool:
        return self.schedule.is_full or len(self.waiting) >= self.schedule.limit

    @property
    def is_behind(self) -> bool:
        """Whether there is something to acknowledge."""
        return self.schedule.settled != self.acknowledged

    def acknowledge_at(self) -> float:
        """When it is time to acknowledge: soon, and at once when nothing is left to wait for."""
        if not self.is_behind:
            return float("inf")
        is_last = not self.schedule.in_hand or (self.held.owned.release and not self.schedule.running)
        return 0.0 if is_last else self.acknowledged_at + ACKNOWLEDGE_SECONDS

    def offer(self, message: LogMessage) -> None:
        """Into the schedule, with what is known of it."""
        known = self.known.pop(message.position, None)
        item = WorkItem(message, is_noted=known is not None or self.troubled_messages > 0)
        if known is not None:
            item.deliveries, item.deaths, item.error = known.deliveries, known.deaths, known.error
        self.schedule.offer(item)

    def look_for_trouble(self, now: float) -> None:
        """Whether it is still in trouble."""
        if not self.troubled_messages or self.schedule.has_untried:
            self.calm_since = None
        elif self.calm_since is None:
            self.calm_since = now
        elif now - self.calm_since > CALM_SECONDS:
            self.troubled_messages = 0


@checks_arguments
class KeyedWork(OneProcess, ClosedByWith):
    """For the consumer's thread, which goes on calling `turn` or `run`. Close it before the consumer."""

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
        """`handle` is called on `threads` threads and has done its work when it returns: an ordinary function. Some message is handled
        twice after a crash.

        With `held_limit` messages of a bucket in hand no further batch of it is read; give it the same value in all consumers of a
        subscription. A failed message is tried again after half to all of `first_retry_seconds`, which doubles up to
        `longest_retry_seconds`.

        With `dead_letters`, the client of the logs, a message that failed or killed `max_deliveries` times is put into the
        subscription's dead-letter log, and its key goes on. Without, what fails is tried for ever, and a message during whose handling so
        many processes died is not begun again.
        """
        self._consumer = consumer
        self._threads, self._held_limit = threads, held_limit
        self._first_retry_seconds, self._longest_retry_seconds = first_retry_seconds, longest_retry_seconds
        self._observer = observer or WorkObserver()
        self._counts = DeliveryCounts(consumer.ask)
        letters = None if dead_letters is None else DeadLetterLog(dead_letters, consumer.ask)
        self._handling = Handling(consumer, handle, self._counts, self._observer, max_deliveries, letters)
        self._lanes: dict[Attachment, _Lane] = {}
        self._turns: deque[_Lane] = deque()
        self._busy: set[bytes] = set()
        self._running = 0
        self._reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cleave-work")
        self._at_work: set[Future[None]] = set()
        """What threads have, also when nobody hears their reports any more."""
        self._calls = AsideCalls(_CALL_THREADS, "cleave-work-calls")
        consumer.stay_while(lambda: bool(self._at_work))

    @property
    def running(self) -> int:
        """Messages that threads have now."""
        return self._running

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Go on until `is_stopping`, which is asked once a second and more often. Raises as `turn`."""
        while not is_stopping():
            self.turn(LOOK_SECONDS)

    def turn(self, timeout_seconds: float) -> None:
        """One round: receive, acknowledge what is done, begin what can be begun; when there is nothing to do, wait for at most so
        long. Raises as `StreamConsumer.receive`, and what is raised by a handler that is no Exception.
        """
        self._demand_open()
        batch = self._consumer.receive(0.0)
        if batch is not None:
            self._take(batch)
        self._hear()
        self._tend()
        self._begin()
        if batch is None:
            due_seconds = max(self._due_at() - time.monotonic(), _SHORTEST_WAIT_SECONDS)
            self._consumer.wait(min(timeout_seconds, due_seconds))

    def close(self, timeout_seconds: float | None = None) -> None:
        """Begin nothing more, wait for what has begun, and acknowledge what is done. Close the consumer next: it does not leave while
        something is still being worked on.

        It takes `timeout_seconds` (30) at most, of which a fifth, and no less than a second, is for acknowledging alone; that is done
        when this is interrupted, too.
        """
        timing = self._begin_close(timeout_seconds)
        try:
            while self._running and timing.left_seconds:
                self._hear(timing.left_seconds)
        finally:
            self._settle_until(time.monotonic() + timing.goodbye_seconds)

    def _described(self) -> str:
        return f"KeyedWork of {self._consumer.topic}"

    def _settle_until(self, deadline: float) -> None:
        """Acknowledge what is done, and say what has ended in good order."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        try:
            self._hear()
            self._tend(deadline)
            for lane in self._lanes.values():
                self._say_closed(lane)
        finally:
            self._calls.close(max(0.0, deadline - time.monotonic()))
        if self._running:
            _log.warning("%d message(s) are still being worked on, and come again", self._running)

    def _take(self, batch: Batch) -> None:
        """A batch that was received, into the schedule of its bucket."""
        held = cast(Attachment, batch.origin)
        lane = self._lanes.get(held)
        if lane is None:
            schedule = KeyedSchedule(self._busy, self._held_limit)
            lane = self._lanes[held] = _Lane(batch, schedule, batch.messages[0].position)
            self._turns.append(lane)
        lane.batch = batch
        self._observer.handed_out(batch)
        if lane.opening is None:
            lane.waiting += batch.messages
        else:
            for message in batch.messages:
                lane.offer(message)

    def _report(self, report: Callable[[], None]) -> None:
        """Have it done in the consumer's thread."""
        self._reports.put(report)
        self._consumer.wake()

    def _hear(self, wait_seconds: float = 0.0) -> None:
        """What the threads have reported; waits for the first one."""
        with suppress(queue.Empty):
            report = self._reports.get(timeout=wait_seconds) if wait_seconds else self._reports.get_nowait()
            while True:
                report()
                report = self._reports.get_nowait()

    def _ask(self, lane: _Lane, owned: OwnedBucket) -> None:
        """On a thread for calls: what is known of a bucket."""
        try:
            answer: Opening | Exception = self._counts.opened(owned, lane.first)
        except Exception as error:  # noqa: BLE001 - a worker of another version may answer anything
            answer = error
        self._report(partial(self._on_opening, lane, answer))

    def _on_opening(self, lane: _Lane, answer: Opening | Exception) -> None:
        if isinstance(answer, Exception):
            lane.unheard = f"no worker says what is known of its deliveries: {answer}"
            lane.ask_at = time.monotonic() + lane.ask_backoff.next_seconds()
            return
        lane.opening, lane.unheard = answer, None
        lane.known = {one.position: one for one in answer.messages}
        if answer.is_troubled:
            lane.troubled_messages = self._held_limit + self._consumer.batch_messages
        for message in lane.waiting:
            lane.offer(message)
        lane.waiting = []

    def _conclude(self, lane: _Lane, item: WorkItem, outcome: Outcome) -> None:
        """What became of a message, of a bucket that may be lost by now."""
        self._running -= 1
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
        if end is End.HELD:
            return float("inf")
        doublings = 0 if end is End.PUT_OFF else max(0, min(item.deliveries - 1, _MOST_DOUBLINGS))
        delay_seconds = min(self._first_retry_seconds * 2.0**doublings, self._longest_retry_seconds)
        return random.uniform(0.5, 1.0) * delay_seconds  # noqa: S311 - no secret

    def _tend(self, closed_at: float | None = None) -> None:
        """Acknowledge what is settled, let go of what others wait for, forget what is lost, and say what is held. While closing this
        is tried no longer than until `closed_at`, and what cannot be acknowledged comes again.
        """
        now = time.monotonic()
        for lane in list(self._lanes.values()):
            if closed_at is not None:
                with suppress(DataPlaneUnavailable):
                    self._acknowledge(lane, max(0.0, closed_at - time.monotonic()))
            elif lane.acknowledge_at() <= now:
                self._acknowledge(lane)
            held, schedule = lane.held, lane.schedule
            if not self._consumer.has(lane.batch):
                self._forget(lane)
            elif held.owned.release and not schedule.running and not lane.is_behind:
                self._say_closed(lane)
                self._consumer.let_go(lane.batch)
                self._forget(lane)
            else:
                if lane.ask_at is not None and lane.ask_at <= now and not self._is_closed:
                    lane.ask_at = None
                    self._calls.submit(partial(self._ask, lane, held.owned))
                lane.look_for_trouble(now)
                held.is_full = lane.is_full
                held.work = self._said_of(lane)

    def _acknowledge(self, lane: _Lane, patience_seconds: float | None = None) -> None:
        upto = lane.schedule.settled
        if upto is None or not lane.is_behind or not self._consumer.owns(lane.batch):
            return
        if self._consumer.acknowledge(lane.batch, upto, patience_seconds=patience_seconds):
            self._observer.acknowledged(lane.batch, lane.settled)
            lane.acknowledged, lane.acknowledged_at, lane.settled = upto, time.monotonic(), []
            for item in [one for one in lane.parked if one.position <= upto]:
                lane.parked.remove(item)
                note = partial(self._counts.note, lane.held.owned, item.position, DeliveryEvent.ENDED)
                self._say(partial(note, item.deliveries))

    def _say_closed(self, lane: _Lane) -> None:
        """Its work has ended in good order; of interest only where it began where another's had begun."""
        if lane.opening is not None and lane.opening.openings > 1 and not lane.schedule.running:
            self._say(partial(self._counts.closed, lane.held.owned))

    def _say(self, call: Callable[[], None]) -> None:
        """To a worker, aside. What is not heard of it is forgotten when the bucket is opened anew."""

        def say() -> None:
            with suppress(CleaveError):
                call()

        self._calls.submit(say)

    def _forget(self, lane: _Lane) -> None:
        """Nothing more of it is begun or acknowledged. What still runs of it reports later, and holds its key until then."""
        del self._lanes[lane.held]
        self._turns.remove(lane)

    def _begin(self) -> None:
        """Give every free thread a message, the buckets in turns. While one of them is in trouble, one message at a time."""
        now, idle = time.monotonic(), 0
        most = 1 if any(lane.troubled_messages for lane in self._turns) else self._threads
        while not self._is_closed and self._running < most and idle < len(self._turns):
            lane = self._turns[0]
            self._turns.rotate(-1)
            is_ours = not lane.held.owned.release and self._consumer.may_begin(lane.batch)
            item = lane.schedule.next(now) if is_ours else None
            if item is None:
                idle += 1
                continue
            idle = 0
            self._running += 1
            working = self._pool.submit(self._work, lane, lane.batch, lane.held.owned, item)
            self._at_work.add(working)
            working.add_done_callback(self._at_work.discard)

    def _work(self, lane: _Lane, batch: Batch, owned: OwnedBucket, item: WorkItem) -> None:
        """On a thread of the pool."""
        self._report(partial(self._conclude, lane, item, self._handling.run(batch, owned, item)))

    def _due_at(self) -> float:
        """When there is something to do even if nobody wakes this thread, `time.monotonic` seconds."""
        times = [lane.acknowledge_at() for lane in self._turns]
        times += [lane.ask_at for lane in self._turns if lane.ask_at is not None]
        if self._running < self._threads:
            times += [lane.schedule.next_due_at for lane in self._turns]
        return min(times, default=float("inf"))

    def _said_of(self, lane: _Lane) -> str | None:
        """Why messages of the bucket wait, for `why()`; None where they only wait for their turn."""
        said = [_held(item) for item in itertools.islice(lane.schedule.failing, _MOST_SAID)]
        if lane.schedule.is_full:
            said.insert(0, f"paused with {lane.schedule.in_hand} messages in hand (limit {self._held_limit})")
        if lane.troubled_messages:
            said.append("its first messages are begun one at a time, since processes died over them")
        if lane.unheard is not None:
            said.append(lane.unheard)
        return "; ".join(said) or None


def _held(item: WorkItem) -> str:
    key, since = item.message.key, item.failing_since
    what = "a message without a key" if key is None else f"key {shown(key.decode(errors='replace'))}"
    when = "" if since is None else f" since {since.isoformat(timespec='seconds')}"
    return f"{what} is held{when} by a failing message (delivery {item.deliveries}: {item.why})"
