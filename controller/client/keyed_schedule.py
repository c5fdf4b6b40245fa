"""What may be worked on next of one bucket, by several threads at once: each key in order, different keys side by side.

Pure: it has no threads and no clock, and calls nobody. Messages are offered in the order of their positions. `next` gives out the
earliest one whose key nobody works on, and whose time has come; `done` and `failed` say what became of it. A failed message keeps
its key until it is done. Everything before `lowest_unsettled` may be acknowledged, and nothing else.

The laws (tests/unit/client/test_keyed_schedule_laws.py): of one key a message begins only when its predecessor is done; no position
is settled while one before it is not; no more than the limit is in hand, if nothing is offered while it is full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controller.dataplane.base import LogMessage, Position


class WorkState(StrEnum):
    """Of one message in hand."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(slots=True, eq=False)
class WorkItem:
    """One message in hand. For the thread that has the schedule, and while it runs for the thread that works on it."""

    message: LogMessage
    deliveries: int = 0
    """How often work on it has begun, in earlier processes too where that is known."""
    deaths: int = 0
    """How often its process died meanwhile."""
    is_noted: bool = False
    """A worker knows of its deliveries, or is to be told of them before they begin."""
    is_tried: bool = False
    """It has been begun since it was offered."""
    error: str | None = None
    """How the last handling of it ended, where not well."""
    why: str | None = None
    """Why it is not done yet; None where it only waits for its turn."""
    failing_since: datetime | None = None
    state: WorkState = WorkState.WAITING

    @property
    def position(self) -> Position:
        """Where it lies."""
        return self.message.position


class KeyedSchedule:
    """Of one ownership of one bucket."""

    def __init__(self, busy: set[bytes], limit: int) -> None:
        """`busy` are the keys that this process works on, of whatever bucket: shared, since a bucket that was lost and came back
        finds work of before still going on. `limit`: with so many in hand it is full (>= 1).
        """
        self._busy, self.limit = busy, limit
        self._window: deque[WorkItem] = deque()
        self._items: dict[Position, WorkItem] = {}
        self._failing: dict[Position, WorkItem] = {}
        self._flows: dict[bytes, deque[WorkItem]] = {}
        self._heads: list[tuple[Position, WorkItem]] = []  # heap of those that may begin, one of each key
        self._delayed: list[tuple[float, Position, WorkItem]] = []  # heap of those that wait for another try
        self._running = 0
        self.settled: Position | None = None
        """Everything up to and including this may be acknowledged."""

    @property
    def lowest_unsettled(self) -> Position | None:
        """The first message that is not done; None when all are."""
        return self._window[0].position if self._window else None

    @property
    def in_hand(self) -> int:
        """Messages from the lowest unsettled one on, those that are done included: what a crash would deliver again."""
        return len(self._window)

    @property
    def is_full(self) -> bool:
        """Nothing more should be offered until something is settled."""
        return len(self._window) >= self.limit

    @property
    def running(self) -> int:
        """Messages that are being worked on."""
        return self._running

    @property
    def next_due_at(self) -> float:
        """When the next delayed message may be tried again; infinity where there is none."""
        return self._delayed[0][0] if self._delayed else float("inf")

    @property
    def has_untried(self) -> bool:
        """Whether there is a message that may be begun and never was; one behind a failing message may not."""
        return any(not item.is_tried for _, item in self._heads)

    @property
    def failing(self) -> Collection[WorkItem]:
        """Messages that hold their keys because they are not done after a try, the longest held first."""
        return self._failing.values()

    def offer(self, item: WorkItem) -> None:
        """Take in the next message of the bucket; behind all that were offered before."""
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
        """The earliest message that may be begun; it is running then. None when there is none at this time."""
        while self._delayed and self._delayed[0][0] <= now:
            _, position, item = heapq.heappop(self._delayed)
            heapq.heappush(self._heads, (position, item))
        passed: list[tuple[Position, WorkItem]] = []
        while self._heads and self._heads[0][1].message.key in self._busy:
            passed.append(heapq.heappop(self._heads))
        found = self._heads[0][1] if self._heads else None
        if found is not None:
            heapq.heappop(self._heads)
            self._begin(found)
        for one in passed:
            heapq.heappush(self._heads, one)
        return found

    def done(self, position: Position) -> Iterable[LogMessage]:
        """The running message is done with, and its key's next one may begin. Answers what is settled by that, in order."""
        item = self._end(position)
        item.state = WorkState.DONE
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
        while self._window and self._window[0].state is WorkState.DONE:
            item = self._window.popleft()
            del self._items[item.position]
            self.settled = item.position
            settled.append(item.message)
        return settled

    def failed(self, position: Position, due_at: float) -> None:
        """The running message is not done, and to be tried again then. Nothing else of its key begins before."""
        item = self._end(position)
        if item.why is not None:
            self._failing[position] = item
        item.state = WorkState.WAITING
        heapq.heappush(self._delayed, (due_at, position, item))

    def _begin(self, item: WorkItem) -> None:
        item.state, item.is_tried = WorkState.RUNNING, True
        self._running += 1
        if item.message.key is not None:
            self._busy.add(item.message.key)

    def _end(self, position: Position) -> WorkItem:
        item = self._items[position]
        self._running -= 1
        if item.message.key is not None:
            self._busy.discard(item.message.key)
        return item
