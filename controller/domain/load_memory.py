"""What is remembered of each segment's load: the rule of the store's `cleave.remember_loads`, for loads that are gone through
in this process. A backtest and the retracing of decisions go by it, and a test holds it to what PostgreSQL keeps.

A segment's memory begins with its first measured tick: it takes over what its parents remember, by the widths that it has
of them. Where it is one of the parts of a split, its share of what all of them measure takes the place of its width. A gap
of up to five minutes is bridged by the last known rates; after a longer one a memory begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.domain.hash_range import HashRange
from controller.domain.load import LoadStats
from controller.domain.situation import TICKS_OF_MEMORY

_BRIDGED_SECONDS, _BRIDGED_TICKS = 300, 5
_NEARLY_ALL = 0.8

_Rates = tuple[float, float, float, float]


class Descendant(Protocol):
    """A segment, as far as its memory goes."""

    @property
    def hash_range(self) -> HashRange: ...

    @property
    def parent_ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose memory a segment takes over: its parents, and which part of each it has by its width (0..1).

    `siblings`: the parts of the split that made it, itself among them. None where something else did, since then no sum of
    parts is the parent's load.
    """

    parent_ids: tuple[int, ...]
    widths: tuple[float, ...]
    siblings: tuple[int, ...]


def origins_of(made: Collection[int], segments: Mapping[int, Descendant]) -> dict[int, Origin]:
    """The origin of each segment that was `made` of others, as far as all of these are among `segments`."""
    children: dict[int, list[int]] = {}
    for segment_id, segment in segments.items():
        for parent in segment.parent_ids:
            children.setdefault(parent, []).append(segment_id)
    found = {}
    for segment_id in made:
        own = segments[segment_id]
        if not own.parent_ids or any(parent not in segments for parent in own.parent_ids):
            continue
        parts = children[own.parent_ids[0]]
        is_split = len(parts) > 1 and all(segments[one].parent_ids == own.parent_ids[:1] for one in parts)
        widths = (_part_of(segments[parent].hash_range, own.hash_range) for parent in own.parent_ids)
        found[segment_id] = Origin(own.parent_ids, tuple(widths), tuple(parts) if is_split else ())
    return found


@dataclass(slots=True)
class _Memory:
    """The loads of the ticks up to `last_tick`, the newest last, and for how many cuts in a row it got nearly all."""

    tick_seconds: float
    last_tick: int
    ticks: deque[LoadStats]
    strikes: int = 0

    @property
    def first_tick(self) -> int:
        return self.last_tick - len(self.ticks) + 1

    def at(self, tick: int) -> _Rates:
        """At that tick, or last before it."""
        return self.ticks[min(tick, self.last_tick) - self.last_tick - 1].rates

    def reaches(self, tick: int, tick_seconds: float) -> bool:
        """Whether so little is missing up to that tick that the last known rates bridge it."""
        longest = max(_BRIDGED_TICKS, _BRIDGED_SECONDS / tick_seconds)
        return self.tick_seconds == tick_seconds and 0 <= tick - self.last_tick <= longest


@dataclass(slots=True)
class LoadMemory:
    """The memories of one topic's segments; of each at most `most_ticks` are kept."""

    most_ticks: int = TICKS_OF_MEMORY
    known: dict[int, _Memory] = field(default_factory=dict)

    def recent_loads(self, segment_ids: Iterable[int]) -> dict[int, tuple[LoadStats, ...]]:
        """Of these segments, as far as they were measured, the ticks, the newest last."""
        return {i: tuple(self.known[i].ticks) for i in segment_ids if i in self.known}

    def strikes(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """Of these, how many splits in a row left nearly all of the load in a segment, where any did."""
        return {i: self.known[i].strikes for i in segment_ids if i in self.known and self.known[i].strikes}

    def keep(self, segment_ids: Collection[int]) -> None:
        """Forgets all others."""
        self.known = {i: memory for i, memory in self.known.items() if i in segment_ids}

    def remember(
        self,
        end_ms: int,
        measured: Mapping[int, LoadStats],
        memory_seconds: float,
        origins: Mapping[int, Origin],
    ) -> None:
        """Takes in the window that ended then (milliseconds since the Unix epoch).

        `memory_seconds` is what the policy says the ticks span. `origins`: of the segments that may take over memories,
        those at least that are active and have none yet.
        """
        tick_seconds = max(memory_seconds, TICKS_OF_MEMORY) / TICKS_OF_MEMORY
        tick = math.floor(end_ms / 1000 / tick_seconds)
        fresh = [i for i in measured if i not in self.known and i in origins]
        inherited = [(i, self._inherited(i, origins[i], measured, tick, tick_seconds)) for i in fresh]
        self.known.update((i, memory) for i, memory in inherited if memory is not None)
        for segment_id, stats in measured.items():
            memory = self.known.get(segment_id)
            if memory is None or not memory.reaches(tick, tick_seconds):
                strikes = 0 if memory is None else memory.strikes
                ticks = deque([stats], self.most_ticks)
                self.known[segment_id] = _Memory(tick_seconds, tick, ticks, strikes)
                continue
            if tick == memory.last_tick:
                memory.ticks.pop()
            held = min(tick - memory.last_tick - 1, self.most_ticks)
            if held > 0:
                memory.ticks.extend([memory.ticks[-1]] * held)
            memory.ticks.append(stats)
            memory.last_tick = tick

    def _inherited(
        self,
        segment_id: int,
        origin: Origin,
        measured: Mapping[int, LoadStats],
        tick: int,
        tick_seconds: float,
    ) -> _Memory | None:
        """What its parents remember up to the tick before; None where one of them remembers nothing recent."""
        memories = [self.known[parent] for parent in origin.parent_ids if parent in self.known]
        if len(memories) < len(origin.parent_ids):
            return None
        if not all(memory.reaches(tick, tick_seconds) for memory in memories):
            return None
        first = max(tick - self.most_ticks, *(memory.first_tick for memory in memories))
        if first >= tick:
            return None
        strikes = 0
        parts = [(width,) * 4 for width in origin.widths]
        shares = _shares(segment_id, origin.siblings, measured)
        if shares is not None:
            (width,) = origin.widths
            a, b, c, d = (width if share is None else share for share in shares)
            parts = [(a, b, c, d)]
            told = [share for share in shares if share is not None]
            if told and min(told) >= _NEARLY_ALL:
                strikes = memories[0].strikes + 1
        loads = (_added(parts, [memory.at(at) for memory in memories]) for at in range(first, tick))
        return _Memory(tick_seconds, tick - 1, deque(loads, self.most_ticks), strikes)


def _part_of(parent: HashRange, child: HashRange) -> float:
    return (min(parent.end, child.end) - max(parent.start, child.start) + 1) / parent.width


def _shares(
    segment_id: int, siblings: Collection[int], measured: Mapping[int, LoadStats]
) -> list[float | None] | None:
    """For each metric the part of what all siblings measure, None where that is nothing; None where one of them is silent, or
    there are none.
    """
    if not siblings or any(sibling not in measured for sibling in siblings):
        return None
    totals = [sum(column) for column in zip(*(measured[i].rates for i in siblings), strict=True)]
    own = measured[segment_id].rates
    return [rate / total if total > 0 else None for rate, total in zip(own, totals, strict=True)]


def _added(parts: Sequence[_Rates], rates: Sequence[_Rates]) -> LoadStats:
    a, b, c, d = (sum(part[m] * one[m] for part, one in zip(parts, rates, strict=True)) for m in range(4))
    return LoadStats(a, b, c, d)
