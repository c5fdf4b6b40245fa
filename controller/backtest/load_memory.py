"""What is remembered of each segment's load, by the rule of the store's `cleave.remember_loads`.

A segment's memory begins with its first measured tick: it takes over what its parents remember, by the widths that it has
of them. Where it is one of the parts of a split, its share of what all of them measure takes the place of its width. A gap
of up to five minutes is bridged by the last known rates; after a longer one a memory begins anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load import LoadStats
from controller.domain.segment import Segment
from controller.domain.situation import TICKS_OF_MEMORY

_BRIDGED_SECONDS, _BRIDGED_TICKS = 300, 5
_NEARLY_ALL = 0.8

Rates = tuple[float, float, float, float]


@dataclass(slots=True)
class _Memory:
    ticks: deque[LoadStats]
    last_tick: int
    strikes: int = 0


@dataclass(frozen=True, slots=True)
class _Parents:
    """Of a segment that was not measured yet: its parents' ranges and memories, and who was made of the same one."""

    ranges: tuple[HashRange, ...]
    memories: tuple[_Memory, ...]
    siblings: tuple[int, ...]


@dataclass(slots=True)
class LoadMemory:
    """The memories of the active segments. `most_ticks`: as many are kept; `memory_seconds` is the time they span."""

    most_ticks: int
    memory_seconds: int
    known: dict[int, _Memory] = field(default_factory=dict)
    heirs: dict[int, _Parents] = field(default_factory=dict)
    ranges: dict[int, HashRange] = field(default_factory=dict)

    def recent_loads(self) -> dict[int, tuple[LoadStats, ...]]:
        """The ticks of each segment that was measured, the newest last."""
        return {segment_id: tuple(memory.ticks) for segment_id, memory in self.known.items()}

    def strikes(self) -> dict[int, int]:
        """How many splits in a row left nearly all of the load in a segment, where any did."""
        return {segment_id: memory.strikes for segment_id, memory in self.known.items() if memory.strikes}

    def observe(self, now: int, measured: Mapping[int, LoadStats]) -> None:
        """Takes in what all active segments measured up to `now`, milliseconds since the Unix epoch."""
        tick = now * TICKS_OF_MEMORY // (self._seconds * 1000)
        for segment_id in [i for i in measured if i in self.heirs]:
            self._begin(segment_id, self.heirs.pop(segment_id), measured, tick)
        for segment_id, stats in measured.items():
            memory = self.known.get(segment_id)
            if memory is None or not self._bridges(memory, tick):
                strikes = 0 if memory is None else memory.strikes
                self.known[segment_id] = _Memory(deque([stats], self.most_ticks), tick, strikes)
                continue
            if tick == memory.last_tick:
                memory.ticks.pop()
            memory.ticks.extend([memory.ticks[-1]] * (tick - memory.last_tick - 1) if memory.ticks else [])
            memory.ticks.append(stats)
            memory.last_tick = tick

    @property
    def _seconds(self) -> int:
        return max(self.memory_seconds, TICKS_OF_MEMORY)

    def _bridges(self, memory: _Memory, tick: int) -> bool:
        longest = max(_BRIDGED_TICKS, _BRIDGED_SECONDS * TICKS_OF_MEMORY / self._seconds)
        return 0 <= tick - memory.last_tick <= longest

    def _begin(
        self, segment_id: int, parents: _Parents, measured: Mapping[int, LoadStats], tick: int
    ) -> None:
        memories = parents.memories
        if not all(self._bridges(memory, tick) for memory in memories):
            return
        first = max(memory.last_tick - len(memory.ticks) + 1 for memory in memories)
        mine = [_of_width(own, self.ranges[segment_id]) for own in parents.ranges]
        parts: list[Rates] = [(width, width, width, width) for width in mine]
        strikes = 0
        if len(memories) == 1 and len(parents.siblings) > 1:
            a, b, c, d = shares = _shares(segment_id, parents.siblings, measured)
            (width,) = mine
            parts = [(_or(a, width), _or(b, width), _or(c, width), _or(d, width))]
            told = [share for share in shares if share is not None]
            if told and min(told) >= _NEARLY_ALL:
                strikes = memories[0].strikes + 1
        ticks = [
            LoadStats(*_added(parts, [_at(memory, at) for memory in memories]))
            for at in range(max(first, tick - self.most_ticks), tick)
        ]
        if ticks:
            self.known[segment_id] = _Memory(deque(ticks, self.most_ticks), tick - 1, strikes)

    def relayout(self, layout: SegmentLayout) -> None:
        """Goes on with the active segments of another layout."""
        before, heirs = self.known, self.heirs
        made = {s.segment_id: s for s in layout.active if s.segment_id not in self.ranges}
        self.known = {s.segment_id: before[s.segment_id] for s in layout.active if s.segment_id in before}
        self.heirs = {s.segment_id: heirs[s.segment_id] for s in layout.active if s.segment_id in heirs}
        for segment in made.values():
            memories = tuple(before[i] for i in segment.parent_ids if i in before)
            if memories and len(memories) == len(segment.parent_ids):
                ranges = tuple(layout.segments[i].hash_range for i in segment.parent_ids)
                self.heirs[segment.segment_id] = _Parents(ranges, memories, _siblings(layout, segment))
        self.ranges = {segment.segment_id: segment.hash_range for segment in layout.active}


def _siblings(layout: SegmentLayout, segment: Segment) -> tuple[int, ...]:
    """The parts of the split that made it; none where something else did, since then no sum of parts is the parent's."""
    children = layout.segments[segment.parent_ids[0]].child_ids
    of_one = all(
        len(layout.segments[child].parent_ids) == 1 for child in children if child in layout.segments
    )
    return children if of_one else ()


def _of_width(parent: HashRange, child: HashRange) -> float:
    return (min(parent.end, child.end) - max(parent.start, child.start) + 1) / parent.width


def _shares(
    segment_id: int, siblings: tuple[int, ...], measured: Mapping[int, LoadStats]
) -> list[float | None]:
    """For each metric the part of what the parts of a split measure; None where that is nothing, or one is silent."""
    if any(sibling not in measured for sibling in siblings):
        return [None] * 4
    totals = [sum(column) for column in zip(*(measured[i].rates for i in siblings), strict=True)]
    own = measured[segment_id].rates
    return [rate / total if total > 0 else None for rate, total in zip(own, totals, strict=True)]


def _or(share: float | None, width: float) -> float:
    return width if share is None else share


def _at(memory: _Memory, tick: int) -> LoadStats:
    """What was measured at that tick, or last before it."""
    return memory.ticks[min(tick, memory.last_tick) - memory.last_tick - 1]


def _added(parts: list[Rates], stats: list[LoadStats]) -> Rates:
    a, b, c, d = (
        sum(part[m] * one.rates[m] for part, one in zip(parts, stats, strict=True)) for m in range(4)
    )
    return a, b, c, d
