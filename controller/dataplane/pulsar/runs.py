"""Messages of one entry that follow upon each other, kept as the library has them, and made ours when somebody looks at one.

Each question to a message of the library costs as much as taking it in. A reader needs places, and these follow from the first one of
a *run*: so it asks once or twice for each entry, and not four times for each message. Nothing here talks to a broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

from controller.dataplane.base import LogMessage, Position
from controller.dataplane.pulsar.messages import incoming, place_of

Entry = tuple[int, int]
"""(ledger, entry)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one entry without a gap between them, at least one. `messages` are the library's own."""

    entry: Entry
    first_index: int
    messages: Sequence[Any]
    is_batched: bool
    """False for a message that is an entry of its own, and no batch of one either."""

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def first(self) -> Position:
        """The place of its first message."""
        return (*self.entry, self.first_index)

    @property
    def last(self) -> Position:
        """The place of its last one."""
        return (*self.entry, self.first_index + len(self.messages) - 1)

    @property
    def last_id(self) -> Any:
        """The library's id of its last message."""
        return self.messages[-1].message_id()

    def cut(self, count: int) -> tuple[Run, Run]:
        """So many from its front, and the others; neither may be empty."""
        return (
            Run(self.entry, self.first_index, self.messages[:count], self.is_batched),
            Run(self.entry, self.first_index + count, self.messages[count:], self.is_batched),
        )

    def singly(self) -> Iterator[Run]:
        """Each message as a run of its own."""
        for at, message in enumerate(self.messages):
            yield Run(self.entry, self.first_index + at, (message,), self.is_batched)

    def decoded(self) -> Iterator[LogMessage]:
        """The messages as ours."""
        (ledger, entry), published_at_ms = self.entry, self._published_at_ms
        for index, message in enumerate(self.messages, self.first_index):
            yield incoming(message, (ledger, entry, index), published_at_ms)

    def decoded_at(self, inside: int) -> LogMessage:
        """One of them as ours."""
        place = (*self.entry, self.first_index + inside)
        return incoming(self.messages[inside], place, self._published_at_ms)

    @property
    def _published_at_ms(self) -> int:
        """Told once for an entry."""
        told: int = self.messages[0].publish_timestamp()
        return told


def runs(messages: Sequence[Any]) -> Iterator[Run]:
    """The library's messages in the order of their arrival, as few runs as there can be.

    The library gives out an entry's messages by rising index. One that comes again does so through another connection, from the first
    of it that is not acknowledged on. So where the last of some messages lies as many places behind the first as it came, all between
    do. (A gap in an entry that comes again could make up for its beginning anew; a reader ends with its connection before.)
    """
    at = 0
    while at < len(messages):
        entry, index = place_of(messages[at].message_id())
        if index < 0:
            yield Run(entry, 0, messages[at : at + 1], is_batched=False)
            at += 1
            continue
        count = _length(messages, at, entry, index)
        yield Run(entry, index, messages[at : at + count], is_batched=True)
        at += count


def _length(messages: Sequence[Any], at: int, entry: Entry, index: int) -> int:
    """How many of them, from `at` on, follow upon each other in the entry. The rest is tried first, then halves."""

    def reaches(count: int) -> bool:
        return place_of(messages[at + count - 1].message_id()) == (entry, index + count - 1)

    low, high = 1, len(messages) - at
    tried = high
    while low < high:
        if reaches(tried):
            low = tried
        else:
            high = tried - 1
        tried = (low + high + 1) // 2
    return low


class RunQueue:
    """Runs in order of their places, which share none, and how many messages they hold."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self.messages = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first(self) -> Position:
        """The place of the first message; there must be one."""
        return self._runs[0].first

    def extend(self, behind: Iterable[Run]) -> None:
        """Runs that follow upon all that is here."""
        for run in behind:
            self._runs.append(run)
            self.messages += len(run)

    def insert(self, run: Run) -> bool:
        """A run that may belong before others; False, and nothing, where some of it is here already."""
        if any(there.first <= run.last and run.first <= there.last for there in self._runs):
            return False
        self._runs = deque(sorted([*self._runs, run], key=lambda one: one.first))
        self.messages += len(run)
        return True

    def take(self, limit: int) -> list[Run]:
        """At most so many messages from the front, at least 0."""
        taken: list[Run] = []
        while limit and self._runs:
            run = self._runs[0]
            taken.append(self._front(min(limit, len(run))))
            limit -= len(taken[-1])
        return taken

    def take_upto(self, position: Position) -> list[Run]:
        """All up to and including this place."""
        taken: list[Run] = []
        while self._runs and self._runs[0].first <= position:
            run = self._runs[0]
            whole = run.last <= position
            taken.append(self._front(len(run) if whole else position[2] - run.first_index + 1))
        return taken

    def _front(self, count: int) -> Run:
        """So many messages of the first run."""
        run = self._runs.popleft()
        if count < len(run):
            run, rest = run.cut(count)
            self._runs.appendleft(rest)
        self.messages -= len(run)
        return run


class Messages(Sequence[LogMessage]):
    """What a reader hands out: each message is made when it is asked for, and anew each time."""

    def __init__(self, taken: Sequence[Run]) -> None:
        self._runs = taken
        self._ends = [*accumulate(len(run) for run in taken)]

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
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        index = range(len(self))[at]
        number = bisect_right(self._ends, index)
        run = self._runs[number]
        inside = index - (self._ends[number] - len(run))
        return run.decoded_at(inside)

    def __repr__(self) -> str:
        return repr([*self])
