"""The memory of loads, computed anew as `cleave.remember_loads` did: the loads of each segment tick by tick.

A window appends a tick to every segment it has rates of, the sealed ones included. A gap of up to five minutes, or five
ticks, is bridged by the last rates; after a longer one a memory begins anew. A new segment takes over what its parents
remember, by the widths that it has of them; the parts of a split that are all in the window by the shares they really have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.domain.hash_range import HashRange
from controller.domain.load import METRICS, LoadStats
from controller.domain.situation import TICKS_OF_MEMORY

_BRIDGED_SECONDS, _BRIDGED_TICKS = 300, 5

Rates = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SegmentLife:
    """A segment and its time; `sealed_at` None while it is active. Instants are milliseconds since the Unix epoch."""

    hash_range: HashRange
    parent_ids: tuple[int, ...]
    created_at: int
    sealed_at: int | None

    def is_active_at(self, instant: int) -> bool:
        """Whether it was."""
        return self.created_at <= instant and (self.sealed_at is None or instant < self.sealed_at)


@dataclass(slots=True)
class _Memory:
    tick_seconds: float
    last_tick: int
    ticks: list[Rates]

    @property
    def first_tick(self) -> int:
        return self.last_tick - len(self.ticks) + 1

    def at(self, tick: int) -> Rates:
        """At that tick, or last before it."""
        return self.ticks[min(tick, self.last_tick) - self.first_tick]


@dataclass
class Memories:
    """The memories of one topic's segments; `segments` are all that it ever had."""

    segments: Mapping[int, SegmentLife]
    known: dict[int, _Memory] = field(default_factory=dict)

    def recent_loads(self) -> dict[int, tuple[LoadStats, ...]]:
        """The ticks of each segment, the newest last."""
        return {i: tuple(LoadStats(*rates) for rates in memory.ticks) for i, memory in self.known.items()}

    def remember(
        self, end_ms: int, applied_at: int, measured: Mapping[int, LoadStats], memory_seconds: float
    ) -> None:
        """Takes in a window that ended then and was merged at `applied_at`."""
        tick_seconds = max(memory_seconds, TICKS_OF_MEMORY) / TICKS_OF_MEMORY
        tick = int(end_ms / 1000 // tick_seconds)
        given = {i: stats.rates for i, stats in measured.items() if i in self.segments}
        inherited = {
            i: found
            for i in given
            if i not in self.known
            and self.segments[i].is_active_at(applied_at)
            and (found := self._inherited(i, given, tick, tick_seconds))
        }
        self.known |= {i: _Memory(tick_seconds, tick - 1, ticks) for i, ticks in inherited.items()}
        for i, rates in given.items():
            self.known[i] = self._appended(i, rates, tick, tick_seconds)

    def _appended(self, i: int, rates: Rates, tick: int, tick_seconds: float) -> _Memory:
        memory = self.known.get(i)
        if memory is None or not self._is_bridged(memory, tick, tick_seconds):
            return _Memory(tick_seconds, tick, [rates])
        gap = tick - memory.last_tick
        kept = memory.ticks[:-1] if gap == 0 else memory.ticks
        held = [memory.ticks[-1]] * (min(gap, TICKS_OF_MEMORY) - 1)
        return _Memory(tick_seconds, tick, [*kept, *held, rates][-TICKS_OF_MEMORY:])

    @staticmethod
    def _is_bridged(memory: _Memory, tick: int, tick_seconds: float) -> bool:
        longest = max(_BRIDGED_TICKS, _BRIDGED_SECONDS / tick_seconds)
        return memory.tick_seconds == tick_seconds and 0 <= tick - memory.last_tick <= longest

    def _inherited(self, i: int, given: Mapping[int, Rates], tick: int, tick_seconds: float) -> list[Rates]:
        """What its parents remember up to the tick before; empty where one of them remembers nothing recent."""
        own = self.segments[i]
        parents = [
            (self.segments[parent].hash_range, memory)
            for parent in own.parent_ids
            if parent in self.segments and (memory := self.known.get(parent)) is not None
        ]
        if len(parents) < len(own.parent_ids) or not parents:
            return []
        if not all(self._is_bridged(memory, tick, tick_seconds) for _, memory in parents):
            return []
        first = max(tick - TICKS_OF_MEMORY, *(memory.first_tick for _, memory in parents))
        parts = [_overlap(whole, own.hash_range) / whole.width for whole, _ in parents]
        shares = self._shares(i, given) if len(parents) == 1 else [None] * len(METRICS)
        return [
            tuple(
                sum(
                    memory.at(at)[metric] * (part if share is None else share)
                    for part, (_, memory) in zip(parts, parents, strict=True)
                )
                for metric, share in enumerate(shares)
            )
            for at in range(first, tick)
        ]

    def _shares(self, i: int, given: Mapping[int, Rates]) -> list[float | None]:
        """Of each metric the part that this one of its parent's children measured; None where that is not known."""
        [parent] = self.segments[i].parent_ids
        siblings = {n: life for n, life in self.segments.items() if parent in life.parent_ids}
        apart = all(life.parent_ids == (parent,) for life in siblings.values())
        if len(siblings) < 2 or not apart or any(n not in given for n in siblings):
            return [None] * len(METRICS)
        totals = [sum(given[n][metric] for n in siblings) for metric in range(len(METRICS))]
        return [rate / total if total > 0 else None for rate, total in zip(given[i], totals, strict=True)]


def _overlap(one: HashRange, other: HashRange) -> int:
    return min(one.end, other.end) - max(one.start, other.start) + 1
