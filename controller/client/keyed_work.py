"""Works on a topic's messages with several threads, each key in order: what fails is tried again with its key held.

`KeyedWork` takes what a `StreamConsumer` receives and calls the application's handler for each message on one of its threads.
Messages of one key are worked on one after the other, those of different keys side by side, of several buckets at a time. A
message without a key is worked on by itself.

A handler that raises has failed: its message is tried again, later each time, and its key waits meanwhile while other keys go on.
There is no negative acknowledgement and no time-out of one, since either would bring a key out of order. A bucket is acknowledged
up to the lowest message that is not done, and no further, so a crash delivers that one and what is behind it again.
When a bucket has `held_limit` messages in hand, nothing more is read of it until some are settled; other buckets go on.

Everything but the handler happens in the thread that calls `turn` or `run`, which is the consumer's; the pool's threads
report to it. When a bucket is to go to another consumer nothing more of it is begun; what has begun is finished and acknowledged, and
the bucket goes. What is in hand of a bucket that was lost is dropped: it is neither begun nor acknowledged here.
"""

from __future__ import annotations

import itertools
import queue
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple, Self, cast

from controller.client.attachments import Attachment
from controller.client.keyed_schedule import KeyedSchedule, WorkItem
from controller.client.stream_consumer import LOOK_SECONDS, Batch, StreamConsumer
from controller.dataplane.base import LogMessage, Position
from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

ACKNOWLEDGE_SECONDS = 0.1
"""While work goes on in a bucket it is acknowledged this often at most."""
_MOST_DOUBLINGS = 30
_MOST_SAID = 3
"""Failing messages that `why()` names of each bucket."""
_LONGEST_ERROR = 300
"""Characters of a handler's error that are kept."""
_SHORTEST_WAIT_SECONDS = 0.005
"""What is due and cannot be done just now is looked at again after this."""


class WorkObserver:
    """Told what happens to each message; override what you want to know. `begun`, `failed` and `ended` are called in the thread that
    works on it, the others in the consumer's.
    """

    def handed_out(self, batch: Batch) -> None:
        """These were received; each is begun, or delivered again later."""

    def begun(self, batch: Batch, message: LogMessage) -> None:
        """The handler is called next."""

    def failed(self, batch: Batch, message: LogMessage) -> None:
        """The handler has raised; it will be called again for this message."""

    def ended(self, batch: Batch, message: LogMessage) -> None:
        """The message is done with."""

    def acknowledged(self, batch: Batch, messages: Sequence[LogMessage]) -> None:
        """The data plane has taken the acknowledgement of these."""


class _End(StrEnum):
    """What became of a message on a thread."""

    DONE = "done"
    FAILED = "failed"
    NOT_BEGUN = "not begun"
    BROKEN = "broken"
    """By what is no failure of the handler, such as SystemExit: the consumer's thread raises it."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One ownership of one bucket."""

    batch: Batch
    """The newest of it."""
    schedule: KeyedSchedule
    acknowledged: Position | None = None
    acknowledged_at: float = 0.0
    settled: list[LogMessage] = field(default_factory=list)
    """What is settled and not acknowledged yet."""

    @property
    def held(self) -> Attachment:
        return cast(Attachment, self.batch.origin)

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


class _Report(NamedTuple):
    lane: _Lane
    item: WorkItem
    end: _End
    error: BaseException | None = None


class KeyedWork:
    """For the consumer's thread, which goes on calling `turn` or `run`. Close it before the consumer."""

    def __init__(
        self,
        consumer: StreamConsumer,
        handle: Callable[[LogMessage], None],
        *,
        threads: int = 8,
        held_limit: int = 1000,
        first_retry_seconds: float = 0.1,
        longest_retry_seconds: float = 30.0,
        observer: WorkObserver | None = None,
    ) -> None:
        """`handle` is called on `threads` threads and has done its work when it returns. Some message is handled twice after a
        crash.

        With `held_limit` messages of a bucket in hand no further batch of it is read. A failed message is tried again after
        half to all of `first_retry_seconds`, which doubles up to `longest_retry_seconds`.
        """
        if threads < 1 or held_limit < 1:
            raise InvalidInput(f"{threads} threads, {held_limit} held messages: give 1 or more of each")
        self._consumer, self._handle = consumer, handle
        self._threads, self._held_limit = threads, held_limit
        self._first_retry_seconds, self._longest_retry_seconds = first_retry_seconds, longest_retry_seconds
        self._observer = observer or WorkObserver()
        self._lanes: dict[Attachment, _Lane] = {}
        self._turns: deque[_Lane] = deque()
        self._busy: set[bytes] = set()
        self._running = 0
        self._is_closing = False
        self._reports: queue.SimpleQueue[_Report] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cleave-work")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        batch = self._consumer.receive(0.0)
        if batch is not None:
            self._take(batch)
        self._hear()
        self._tend()
        self._begin()
        if batch is None:
            due_seconds = max(self._due_at() - time.monotonic(), _SHORTEST_WAIT_SECONDS)
            self._consumer.wait(min(timeout_seconds, due_seconds))

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Begin nothing more, wait at most so long for what has begun, and acknowledge what is done. Close the consumer next."""
        self._is_closing = True
        deadline = time.monotonic() + timeout_seconds
        try:
            while self._running and time.monotonic() < deadline:
                self._hear(max(0.0, deadline - time.monotonic()))
            self._tend()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, batch: Batch) -> None:
        """A batch that was received, into the schedule of its bucket."""
        held = cast(Attachment, batch.origin)
        lane = self._lanes.get(held)
        if lane is None:
            lane = self._lanes[held] = _Lane(batch, KeyedSchedule(self._busy, self._held_limit))
            self._turns.append(lane)
        lane.batch = batch
        self._observer.handed_out(batch)
        for message in batch.messages:
            lane.schedule.offer(WorkItem(message))

    def _hear(self, wait_seconds: float = 0.0) -> None:
        """What the threads have reported; waits for the first one."""
        try:
            report = self._reports.get(timeout=wait_seconds) if wait_seconds else self._reports.get_nowait()
            while True:
                self._conclude(report)
                report = self._reports.get_nowait()
        except queue.Empty:
            return

    def _conclude(self, report: _Report) -> None:
        lane, item = report.lane, report.item
        self._running -= 1
        now = time.monotonic()
        if report.end is _End.DONE:
            lane.settled += lane.schedule.done(item.position)
        elif report.end is _End.FAILED:
            item.error = _one_line(report.error)
            item.failing_since = item.failing_since or datetime.now(UTC)
            lane.schedule.failed(item.position, now + self._delay_seconds(item.deliveries))
        else:
            lane.schedule.failed(item.position, now)
        if report.end is _End.BROKEN and report.error is not None:
            raise report.error

    def _delay_seconds(self, deliveries: int) -> float:
        doubled = self._first_retry_seconds * 2.0 ** min(deliveries - 1, _MOST_DOUBLINGS)
        return random.uniform(0.5, 1.0) * min(doubled, self._longest_retry_seconds)  # noqa: S311 - no secret

    def _tend(self) -> None:
        """Acknowledge what is settled, let go of what others wait for, forget what is lost, and say what is held."""
        now = time.monotonic()
        for lane in list(self._lanes.values()):
            if self._is_closing or lane.acknowledge_at() <= now:
                self._acknowledge(lane)
            held, schedule = lane.held, lane.schedule
            if not self._consumer.has(lane.batch):
                self._forget(lane)
            elif held.owned.release and not schedule.running:
                self._consumer.let_go(lane.batch)
                self._forget(lane)
            else:
                held.is_full = schedule.is_full
                held.work = self._said_of(lane)

    def _acknowledge(self, lane: _Lane) -> None:
        upto = lane.schedule.settled
        if upto is None or not lane.is_behind or not self._consumer.may_begin(lane.batch):
            return
        if self._consumer.acknowledge(lane.batch, upto):
            self._observer.acknowledged(lane.batch, lane.settled)
            lane.acknowledged, lane.acknowledged_at, lane.settled = upto, time.monotonic(), []

    def _forget(self, lane: _Lane) -> None:
        """Nothing more of it is begun or acknowledged. What still runs of it reports later, and holds its key until then."""
        del self._lanes[lane.held]
        self._turns.remove(lane)

    def _begin(self) -> None:
        """Give every free thread a message, the buckets in turns."""
        now, idle = time.monotonic(), 0
        while not self._is_closing and self._running < self._threads and idle < len(self._turns):
            lane = self._turns[0]
            self._turns.rotate(-1)
            is_ours = not lane.held.owned.release and self._consumer.may_begin(lane.batch)
            item = lane.schedule.next(now) if is_ours else None
            if item is None:
                idle += 1
                continue
            idle = 0
            self._running += 1
            self._pool.submit(self._work, lane, lane.batch, item)

    def _work(self, lane: _Lane, batch: Batch, item: WorkItem) -> None:
        """On a thread of the pool. The bucket may have been lost since: a process may be stopped at any place."""
        try:
            if self._consumer.may_begin(batch):
                report = self._handled(lane, batch, item)
            else:
                report = _Report(lane, item, _End.NOT_BEGUN)
        except BaseException as error:  # noqa: BLE001 - for the consumer's thread to raise
            report = _Report(lane, item, _End.BROKEN, error)
        self._reports.put(report)
        self._consumer.wake()

    def _handled(self, lane: _Lane, batch: Batch, item: WorkItem) -> _Report:
        item.deliveries += 1
        self._observer.begun(batch, item.message)
        try:
            self._handle(item.message)
        except Exception as error:  # noqa: BLE001 - the application's
            self._observer.failed(batch, item.message)
            return _Report(lane, item, _End.FAILED, error)
        self._observer.ended(batch, item.message)
        return _Report(lane, item, _End.DONE)

    def _due_at(self) -> float:
        """When there is something to do even if nobody wakes this thread, `time.monotonic` seconds."""
        times = [lane.acknowledge_at() for lane in self._turns]
        if self._running < self._threads:
            times += [lane.schedule.next_due_at for lane in self._turns]
        return min(times, default=float("inf"))

    def _said_of(self, lane: _Lane) -> str | None:
        """Why messages of the bucket wait, for `why()`; None where they only wait for their turn."""
        said = [_held(item) for item in itertools.islice(lane.schedule.failing, _MOST_SAID)]
        if lane.schedule.is_full:
            said.insert(0, f"paused with {lane.schedule.in_hand} messages in hand (limit {self._held_limit})")
        return "; ".join(said) or None


def _one_line(error: BaseException | None) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]


def _held(item: WorkItem) -> str:
    key, since = item.message.key, item.failing_since
    what = "a message without a key" if key is None else f"key {shown(key.decode(errors='replace'))}"
    when = "" if since is None else f" since {since.isoformat(timespec='seconds')}"
    return f"{what} is held{when} by a failing message (delivery {item.deliveries}: {item.error})"
