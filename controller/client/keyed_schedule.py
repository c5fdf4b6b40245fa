"""Decides which message of a bucket is processed next by several threads: each key in order, different keys
in parallel; and how long a failed message waits.

Pure: no threads, no clock, no I/O. Messages are offered in the order of their positions. `next` returns the
earliest message that is due and whose key is not being processed; `done` and `failed` record its result, and
`withdraw` undoes `next`. A failed message holds its key until it is done. Messages up to `settled` may be
acknowledged, and no others.

Invariants (tests/unit/client/test_keyed_schedule_laws.py): a message begins only when its predecessor of the
same key is done; no position is settled before all earlier positions are; the limit is kept if nothing is
offered while the schedule is full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from controller.dataplane.log_client import LogMessage, Position

_MOST_DOUBLINGS = 30


def retry_delay_seconds(
    deliveries: int, first_seconds: float, longest_seconds: float, *, jitter: float
) -> float:
    """Return the seconds that a failed message waits until its next delivery: `first_seconds` after the first of its
    `deliveries`, and twice as long after each further one, up to `longest_seconds`; then multiplied by `jitter`, which
    is between 0.5 and 1.
    """
    doublings = max(0, min(deliveries - 1, _MOST_DOUBLINGS))
    return jitter * min(first_seconds * 2.0**doublings, longest_seconds)


@dataclass(slots=True, eq=False)
class WorkItem:
    """An unsettled message. For the thread that owns the schedule, and during processing for the thread that
    processes the message.
    """

    message: LogMessage
    deliveries: int = 0
    """Number of deliveries that have begun, including those of earlier processes as far as known."""
    deaths: int = 0
    """Number of processes that died during a delivery."""
    is_noted: bool = False
    """True if a success of the message is reported to a worker too, as every failure is; with `is_alone`,
    also the beginnings of its deliveries.
    """
    is_alone: bool = False
    """True if the process handles no other message during the present delivery, so that a death of the process
    is due to this message.
    """
    is_tried: bool = False
    """True once `KeyedSchedule.failed` was called for the message."""
    error: str | None = None
    """Error of the last delivery that failed, perhaps in an earlier process; None if none is known."""
    why: str | None = None
    """Why the message is not done; None if it only waits for its turn."""
    failing_since: datetime | None = None
    is_done: bool = False
    """True once `KeyedSchedule.done` was called for the message."""

    @property
    def position(self) -> Position:
        """Position of the message in the log."""
        return self.message.position


class KeyedSchedule:
    """The schedule of one ownership of one bucket."""

    def __init__(self, busy: set[bytes], limit: int) -> None:
        """Create an empty schedule.

        `busy` contains the keys that this process is processing, of all buckets; the schedules change it. The
        set is shared, because a bucket that was lost and came back may still have earlier work in progress.
        The schedule is full with `limit` unsettled messages (at least 1).
        """
        self._busy, self.limit = busy, limit
        self._window: deque[WorkItem] = deque()
        self._items: dict[Position, WorkItem] = {}
        self._failing: dict[Position, WorkItem] = {}
        self._flows: dict[bytes, deque[WorkItem]] = {}
        self._heads: list[tuple[Position, WorkItem]] = []  # heap of messages that may begin, one of each key
        # heap of messages that wait for another attempt
        self._delayed: list[tuple[float, Position, WorkItem]] = []
        self.running = 0
        """Number of messages that are being processed."""
        self.settled: Position | None = None
        """Last position that may be acknowledged, with all before it."""

    @property
    def in_hand(self) -> int:
        """Number of messages from the lowest unsettled message on, including done messages: what a crash
        would deliver again.
        """
        return len(self._window)

    @property
    def is_full(self) -> bool:
        """True if no message should be offered until a message is settled."""
        return len(self._window) >= self.limit

    @property
    def next_due_at(self) -> float:
        """Time at which the next delayed message may be retried, in the unit of `failed`; infinity if there
        is none.
        """
        return self._delayed[0][0] if self._delayed else float("inf")

    @property
    def has_untried(self) -> bool:
        """True if a message that was never begun may begin, or waits only for its key, which another bucket's
        message holds. A message behind a failing message of its key does not count.
        """
        return any(not item.is_tried for _, item in self._heads)

    @property
    def failing(self) -> Collection[WorkItem]:
        """Messages that hold their keys because an attempt failed, the longest held first."""
        return self._failing.values()

    def offer(self, item: WorkItem) -> None:
        """Add the next message of the bucket, whose position is behind all that were offered before. The
        message waits for the earlier messages of its key; a message without a key waits for none.

        Accepts the message even if the schedule is full.
        """
        self._window.append(item)
        self._items[item.position] = item
        key = item.message.key
        if key is not None:
            flow = self._flows.setdefault(key, deque())
            flow.append(item)
            if len(flow) > 1:
                return
        heapq.heappush(self._heads, (item.position, item))

    def next(self, now: float) -> WorkItem | None:
        """Return the message with the lowest position that may begin at `now`, and mark the message as running and
        its key as busy. Return None if no message may begin. The caller then processes the message and calls `done`
        or `failed`, or calls `withdraw`.

        A message may begin if it is neither running nor done, its retry is due, all earlier messages of its key are
        done, and its key is not busy with a message of this or another bucket. `now` has the unit of `due_at` in
        `failed`.
        """
        while self._delayed and self._delayed[0][0] <= now:
            _, position, item = heapq.heappop(self._delayed)
            heapq.heappush(self._heads, (position, item))
        busy_heads: list[tuple[Position, WorkItem]] = []
        while self._heads and self._heads[0][1].message.key in self._busy:
            busy_heads.append(heapq.heappop(self._heads))
        candidate = self._heads[0][1] if self._heads else None
        if candidate is not None:
            heapq.heappop(self._heads)
            self._begin(candidate)
        for head in busy_heads:
            heapq.heappush(self._heads, head)
        return candidate

    def withdraw(self, position: Position) -> None:
        """Undo `next` for the running message at `position`, whose processing was not begun: its key is no longer
        busy, and a later `next` may return the message again. Raises KeyError for a position that was not offered or
        is settled.
        """
        heapq.heappush(self._heads, (position, self._end(position)))

    def done(self, position: Position) -> Iterable[LogMessage]:
        """Mark the running message at `position` as done, so that the next message of its key may begin.

        Return the messages that become settled by this call, in order of their positions: all done messages before
        the first message that is not done, except messages that were settled before. The result is empty while an
        earlier message is not done. The position of the last settled message becomes `settled`. Raises KeyError for a
        position that was not offered or is settled.
        """
        item = self._end(position)
        item.is_done = True
        self._failing.pop(position, None)
        key = item.message.key
        if key is not None:
            flow = self._flows[key]
            flow.popleft()
            if flow:
                heapq.heappush(self._heads, (flow[0].position, flow[0]))
            else:
                del self._flows[key]
        settled = []
        while self._window and self._window[0].is_done:
            item = self._window.popleft()
            del self._items[item.position]
            self.settled = item.position
            settled.append(item.message)
        return settled

    def failed(self, position: Position, due_at: float) -> None:
        """Mark the running message at `position` as waiting, to be retried at `due_at`, in the unit of `now` in
        `next`; infinity: never. The key is no longer busy for other buckets, but no later message of the key in this
        bucket begins before the message is done. If the item has a reason `why`, the message is then in `failing`.
        Raises KeyError for a position that was not offered or is settled.
        """
        item = self._end(position)
        if item.why is not None:
            self._failing[position] = item
        item.is_tried = True
        heapq.heappush(self._delayed, (due_at, position, item))

    def _begin(self, item: WorkItem) -> None:
        """Count the message as running, and mark its key as busy."""
        self.running += 1
        if item.message.key is not None:
            self._busy.add(item.message.key)

    def _end(self, position: Position) -> WorkItem:
        """Count the running message at `position` as ended, mark its key as not busy, and return the message's item.
        The caller decides when the next message of the key begins. Raises KeyError for a position that was not offered or
        is settled.
        """
        item = self._items[position]
        self.running -= 1
        if item.message.key is not None:
            self._busy.discard(item.message.key)
        return item
