"""The remembered loads of each segment: the rule of the database function `cleave.remember_loads`, for loads that this
process reads in sequence. A backtest and the replay from history use it, and a test compares it with what PostgreSQL
stores.

A segment's memory begins with its first measured tick. The segment takes over what its parents remember, in proportion
to the widths that it has of them. If the segment is one of the parts of a split, its share of the load that all parts
measure replaces its width. A gap of up to five minutes or five ticks, whichever is longer, is filled with the last
known rates; after a longer gap the memory starts from the beginning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.domain.evaluation_input import TICKS_OF_MEMORY
from controller.domain.hash_range import HashRange
from controller.domain.load_record import LoadStats

_BRIDGED_SECONDS, _BRIDGED_TICKS = 300, 5
_NEARLY_ALL = 0.8

_Rates = tuple[float, float, float, float]


class Descendant(Protocol):
    """A segment with the properties that its memory needs."""

    @property
    def hash_range(self) -> HashRange: ...

    @property
    def parent_ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The parents whose memory a segment takes over, and the part of each parent that the segment covers by its width
    (0..1).

    `siblings`: the parts of the split that created the segment, including itself. Empty if another action created it,
    because then the parts do not add up to the parent's load.
    """

    parent_ids: tuple[int, ...]
    widths: tuple[float, ...]
    siblings: tuple[int, ...]


def origins_of(segment_ids: Collection[int], segments: Mapping[int, Descendant]) -> dict[int, Origin]:
    """Return the origin of each segment of `segment_ids`, by the segment's id. A segment is left out if it has no
    parents, or if `segments` lacks one of its parents.

    `segments` must contain every segment of `segment_ids`; otherwise KeyError is raised. The siblings in an origin
    are the children of the split that `segments` contains; the origin of a segment that no split created has no
    siblings.
    """
    children: dict[int, list[int]] = {}
    for segment_id, segment in segments.items():
        for parent in segment.parent_ids:
            children.setdefault(parent, []).append(segment_id)
    origins = {}
    for segment_id in segment_ids:
        segment = segments[segment_id]
        if not segment.parent_ids or any(parent not in segments for parent in segment.parent_ids):
            continue
        parts = children[segment.parent_ids[0]]
        is_split = len(parts) > 1 and all(
            segments[part].parent_ids == segment.parent_ids[:1] for part in parts
        )
        widths = (_part_of(segments[parent].hash_range, segment.hash_range) for parent in segment.parent_ids)
        origins[segment_id] = Origin(segment.parent_ids, tuple(widths), tuple(parts) if is_split else ())
    return origins


@dataclass(slots=True)
class _Memory:
    """The loads of the ticks up to `last_tick`, the newest last, and the number of consecutive cuts after which the
    segment got nearly all of the load. A tick is a number: the time since the Unix epoch divided by `tick_seconds`.
    """

    tick_seconds: float
    last_tick: int
    ticks: deque[LoadStats]
    strikes: int = 0

    @property
    def first_tick(self) -> int:
        return self.last_tick - len(self.ticks) + 1

    def at(self, tick: int) -> _Rates:
        """Return the rates at the tick; for a tick after the last, the rates at the last. The tick must not be before the
        first.
        """
        return self.ticks[min(tick, self.last_tick) - self.last_tick - 1].rates

    def reaches(self, tick: int, tick_seconds: float) -> bool:
        """Return True if the tick length is unchanged and the gap before `tick` is short enough to fill with the last
        known rates. Return False for a tick before the last.
        """
        longest = max(_BRIDGED_TICKS, _BRIDGED_SECONDS / tick_seconds)
        return self.tick_seconds == tick_seconds and 0 <= tick - self.last_tick <= longest


@dataclass(slots=True)
class LoadMemory:
    """The memories of one topic's segments, by segment id in `known`; each keeps at most `most_ticks` ticks."""

    most_ticks: int = TICKS_OF_MEMORY
    known: dict[int, _Memory] = field(default_factory=dict)

    def recent_loads(self, segment_ids: Iterable[int]) -> dict[int, tuple[LoadStats, ...]]:
        """Return the remembered ticks of these segments, the newest last; segments that were never measured are left
        out.
        """
        return {i: tuple(self.known[i].ticks) for i in segment_ids if i in self.known}

    def strikes(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """Return the number of consecutive splits that left nearly all of the load in one part, by segment id.
        Segments without a strike are left out.
        """
        return {i: self.known[i].strikes for i in segment_ids if i in self.known and self.known[i].strikes}

    def keep(self, segment_ids: Collection[int]) -> None:
        """Remove the memories of all segments that are not among `segment_ids`."""
        self.known = {i: memory for i, memory in self.known.items() if i in segment_ids}

    def remember(
        self,
        end_ms: int,
        measured: Mapping[int, LoadStats],
        memory_seconds: float,
        origins: Mapping[int, Origin],
    ) -> None:
        """Add one window of measured rates to the memories of the segments. `measured` has the rates by segment id;
        `end_ms` is the end of the window in milliseconds since the Unix epoch. Segments that are not in `measured`
        keep their memories unchanged. A second call for the same tick replaces the rates of the first call.

        A measured segment without a memory first takes over the memories of its parents, if `origins` has its origin
        and the parents' memories are recent. A gap of up to five minutes or five ticks, whichever is longer, is
        filled with the last rates. After a longer gap, for a tick before the last one, or after a change of the tick
        length, the memory starts again with these rates and keeps its strikes.

        `memory_seconds`: time that `TICKS_OF_MEMORY` ticks span according to the policy; a tick lasts at least 1
        second. `origins`: the origins of segments, by segment id; it must contain the active segments that have
        parents and no memory.
        """
        tick_seconds = max(memory_seconds, TICKS_OF_MEMORY) / TICKS_OF_MEMORY
        tick = math.floor(end_ms / 1000 / tick_seconds)
        without_memory = [i for i in measured if i not in self.known and i in origins]
        inherited = [(i, self._inherit(i, origins[i], measured, tick, tick_seconds)) for i in without_memory]
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
            missing = min(tick - memory.last_tick - 1, self.most_ticks)
            if missing > 0:
                memory.ticks.extend([memory.ticks[-1]] * missing)
            memory.ticks.append(stats)
            memory.last_tick = tick

    def _inherit(
        self,
        segment_id: int,
        origin: Origin,
        measured: Mapping[int, LoadStats],
        tick: int,
        tick_seconds: float,
    ) -> _Memory | None:
        """Return the memory that the segment takes over from its parents, up to the tick before `tick`. Nothing is
        stored. The result goes back as far as all parents remember, but at most `most_ticks` ticks.

        The load of each tick is the sum of the parents' loads, each multiplied by the part of the parent's range that
        the segment covers. After a split whose parts are all in `measured`, the segment's share of the load measured
        for all parts replaces the part of the range, in each metric that has load.

        The strikes are 0, with one exception. If the segment's share after a split is nearly all of the load, in each
        metric that has load, the strikes are those of the parent plus one.

        The result is None if a parent has no memory, has a memory with another tick length, or has a memory that is
        not recent enough (`_Memory.reaches`), and if the parents remember no common tick before `tick`.
        """
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
            measured_shares = [share for share in shares if share is not None]
            if measured_shares and min(measured_shares) >= _NEARLY_ALL:
                strikes = memories[0].strikes + 1
        loads = (_weighted_sum(parts, [memory.at(at) for memory in memories]) for at in range(first, tick))
        return _Memory(tick_seconds, tick - 1, deque(loads, self.most_ticks), strikes)


def _part_of(parent: HashRange, child: HashRange) -> float:
    """Return the part (0..1) of the parent's range that the child covers. The ranges overlap."""
    return (min(parent.end, child.end) - max(parent.start, child.start) + 1) / parent.width


def _shares(
    segment_id: int, siblings: Collection[int], measured: Mapping[int, LoadStats]
) -> list[float | None] | None:
    """Return, for each metric, the segment's share (0..1) of the load that was measured for all `siblings`, which include
    the segment; None for a metric without load. Return None if a sibling is not in `measured`, or if there are no
    siblings.
    """
    if not siblings or any(sibling not in measured for sibling in siblings):
        return None
    totals = [sum(column) for column in zip(*(measured[i].rates for i in siblings), strict=True)]
    own = measured[segment_id].rates
    return [rate / total if total > 0 else None for rate, total in zip(own, totals, strict=True)]


def _weighted_sum(parts: Sequence[_Rates], rates: Sequence[_Rates]) -> LoadStats:
    """Return the sum over all i of `rates[i]`, each metric multiplied by its factor in `parts[i]`."""
    a, b, c, d = (sum(part[m] * rate[m] for part, rate in zip(parts, rates, strict=True)) for m in range(4))
    return LoadStats(a, b, c, d)
