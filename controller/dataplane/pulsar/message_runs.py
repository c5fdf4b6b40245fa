"""Represents consecutive messages of one entry, kept as objects of the library and converted when they are
accessed.

Each access to a message of the library costs as much as receiving it. A reader needs positions, and these
follow from the first one of a *run*, so the library is accessed once or twice per entry instead of four times
per message. This module does not call a broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

from controller.dataplane.log_client import LogMessage, Position
from controller.dataplane.pulsar.messages import incoming, place_of

Entry = tuple[int, int]
"""(ledger, entry)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one entry without a gap between them, at least one. `messages` are objects of the
    library.
    """

    entry: Entry
    first_index: int
    messages: Sequence[Any]
    is_batched: bool
    """False for a message that is an entry of its own outside a batch."""

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def first(self) -> Position:
        """Position of the first message."""
        return (*self.entry, self.first_index)

    @property
    def last(self) -> Position:
        """Position of the last message."""
        return (*self.entry, self.first_index + len(self.messages) - 1)

    @property
    def last_id(self) -> Any:
        """The library's id of the last message."""
        return self.messages[-1].message_id()

    def cut(self, count: int) -> tuple[Run, Run]:
        """Return the first `count` messages, and the others; neither part may be empty."""
        return (
            Run(self.entry, self.first_index, self.messages[:count], self.is_batched),
            Run(self.entry, self.first_index + count, self.messages[count:], self.is_batched),
        )

    def singly(self) -> Iterator[Run]:
        """Yield each message as its own run."""
        for index, message in enumerate(self.messages):
            yield Run(self.entry, self.first_index + index, (message,), self.is_batched)

    def decoded(self) -> Iterator[LogMessage]:
        """Yield the messages, converted."""
        (ledger, entry), published_at_ms = self.entry, self._published_at_ms
        for index, message in enumerate(self.messages, self.first_index):
            yield incoming(message, (ledger, entry, index), published_at_ms)

    def decoded_at(self, inside: int) -> LogMessage:
        """Return the message at index `inside` of the run, converted."""
        place = (*self.entry, self.first_index + inside)
        return incoming(self.messages[inside], place, self._published_at_ms)

    @property
    def _published_at_ms(self) -> int:
        """Publication time of the entry, which is read once."""
        timestamp_ms: int = self.messages[0].publish_timestamp()
        return timestamp_ms


def runs(messages: Sequence[Any]) -> Iterator[Run]:
    """Yield runs that contain all the messages of the library, in the order of their arrival. Consecutive messages of
    one entry are in one run, so the number of runs is the smallest. A message outside a batch is a run by itself.
    Nothing is yielded for no messages.

    The library delivers an entry's messages by rising index. An entry is delivered again only through another
    connection, from its first unacknowledged message on. If the last of some messages is as many positions behind the
    first as it arrived later, all messages in between are consecutive. (A gap in a repeated entry could offset the
    repeated beginning, but a reader ends with its connection before that.)
    """
    start = 0
    while start < len(messages):
        entry, index = place_of(messages[start].message_id())
        if index < 0:
            yield Run(entry, 0, messages[start : start + 1], is_batched=False)
            start += 1
            continue
        count = _length(messages, start, entry, index)
        yield Run(entry, index, messages[start : start + count], is_batched=True)
        start += count


def _length(messages: Sequence[Any], start: int, entry: Entry, index: int) -> int:
    """Return the number of consecutive messages of `entry` that begin with `messages[start]`; at least 1. `index` is
    the batch index of that message. Checks all remaining messages first, then halves the number.
    """

    def reaches(count: int) -> bool:
        return place_of(messages[start + count - 1].message_id()) == (entry, index + count - 1)

    low, high = 1, len(messages) - start
    candidate = high
    while low < high:
        if reaches(candidate):
            low = candidate
        else:
            high = candidate - 1
        candidate = (low + high + 1) // 2
    return low


class RunQueue:
    """Runs in the order of their positions, without overlaps, and their number of messages."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self.messages = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first(self) -> Position:
        """Position of the first message; there must be one."""
        return self._runs[0].first

    def extend(self, following: Iterable[Run]) -> None:
        """Append runs that follow all others."""
        for run in following:
            self._runs.append(run)
            self.messages += len(run)

    def insert(self, run: Run) -> bool:
        """Insert a run at its place in the order of positions, which may be before other runs, and return True.
        Return False, and insert nothing, if the queue already contains one of the run's messages.
        """
        if any(queued.first <= run.last and run.first <= queued.last for queued in self._runs):
            return False
        self._runs = deque(sorted([*self._runs, run], key=lambda queued: queued.first))
        self.messages += len(run)
        return True

    def take(self, limit: int) -> list[Run]:
        """Remove runs from the front of the queue, and return them. The runs contain `limit` messages in total, or
        all messages of the queue if these are fewer. The last run is divided if necessary, and its other messages
        stay in the queue. Empty for a `limit` of 0 or an empty queue. `limit` is at least 0.
        """
        removed: list[Run] = []
        while limit and self._runs:
            run = self._runs[0]
            removed.append(self._front(min(limit, len(run))))
            limit -= len(removed[-1])
        return removed

    def take_upto(self, position: Position) -> list[Run]:
        """Remove the messages up to and including the position from the queue, and return them as runs. The position
        need not be that of a message in the queue. A run that extends beyond the position is divided, and its later
        messages stay in the queue. Empty if the queue has no message up to the position.
        """
        removed: list[Run] = []
        while self._runs and self._runs[0].first <= position:
            run = self._runs[0]
            is_whole = run.last <= position
            removed.append(self._front(len(run) if is_whole else position[2] - run.first_index + 1))
        return removed

    def _front(self, count: int) -> Run:
        """Remove and return the first `count` messages, at least 1, of the first run, which must exist. If the run
        has more, the others stay first.
        """
        run = self._runs.popleft()
        if count < len(run):
            run, remainder = run.cut(count)
            self._runs.appendleft(remainder)
        self.messages -= len(run)
        return run


class Messages(Sequence[LogMessage]):
    """The messages that a reader returns. Each message is created when it is accessed, and at each access
    again.
    """

    def __init__(self, runs_of_messages: Sequence[Run]) -> None:
        self._runs = runs_of_messages
        self._ends = [*accumulate(len(run) for run in runs_of_messages)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[LogMessage]:
        for run in self._runs:
            yield from run.decoded()

    @overload
    def __getitem__(self, at: int) -> LogMessage: ...
    @overload
    def __getitem__(self, at: slice) -> list[LogMessage]: ...
    def __getitem__(self, at: int | slice) -> LogMessage | list[LogMessage]:
        """Return the message at an index (a negative index counts from the end), or the messages of a slice,
        converted. Raises IndexError for an index outside the sequence.
        """
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        index = range(len(self))[at]
        number = bisect_right(self._ends, index)
        run = self._runs[number]
        inside = index - (self._ends[number] - len(run))
        return run.decoded_at(inside)

    def __repr__(self) -> str:
        return repr([*self])
