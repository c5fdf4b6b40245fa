"""The cheapest plan for a whole ring: which runs of neighbours are cut anew, and into how many parts.

Splits 1 → k, merges n → 1 and re-cuts n → m are one kind of act. Every run of up to `MAX_RUN` neighbours is priced, and
an exact dynamic program over the ring takes the cheapest set of disjoint runs; a segment in none of them is kept. A run
that holds a hot segment is relieved. Any other is only ever made smaller, and only when what it would have saved within
the memory pays for sealing it: regret pays for the reseal.

Numbers only: loads are shares of a segment's capacity, widths shares of the ring, costs segments kept for a second.
`adaptive` makes the members from a situation and acts from the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

MAX_RUN = 4
"""Segments that one act may seal. More than 6 were of no use in any trace; each more makes a plan dearer."""

OVERLOAD_WEIGHT = 20.0
"""A capacity's worth of load beyond capacity costs as much as so many segments."""

TICKS_PER_SEGMENT = 1.0
"""What adding or removing a segment costs, whatever its width: a segment kept for so many ticks."""

TICKS_PER_GROWTH = 10.0
"""What a relief counts for each segment it adds, so that it adds no more than are needed."""

UNEVEN_DENSITY = 2.0
"""Where neighbours' loads per hash differ by more than this factor, equal widths would be unfair to both."""

WHOLE_MEMORY = 0.9
"""Two neighbours that one could have carried for this part of the memory are joined, whatever their share of the ring: a
price that no memory could ever pay would keep two idle segments for good.
"""

_MUST = 1e9
_FUZZ = 1e-9
_ONE_HASH = 1.5 / 65_536


class Member(NamedTuple):
    """A segment as the plan sees it: `ticks` are its loads, newest first, the first of them the present one.

    `fixed`: in no run. `hot`: to be relieved. `bends`: where its load lies is known, so that neighbours of other
    density may be cut together. `kept`: in no run of several members.
    """

    load: float
    width: float
    ticks: Sequence[float]
    hot: bool = False
    fixed: bool = False
    bends: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Prices:
    """What the policy says, and what the data plane can do.

    `target`: load a segment should carry. `reseal`: of the whole ring. `reconnections`: of all clients of one
    segment. `tick_seconds`: between two of the `memory_ticks` at most. `most_parts`: children one act may have. `most_spared`: segments that one
    act may take away. `recut`: whether several segments may become several others.
    """

    target: float = 0.9
    reseal: float = 7_800.0
    reconnections: float = 0.0
    tick_seconds: float = 60.0
    memory_ticks: int = 45
    most_parts: int = 65_536
    most_spared: int = MAX_RUN
    recut: bool = True
    longest_run: int = MAX_RUN

    @property
    def segment(self) -> float:
        """Of adding or removing a segment."""
        return TICKS_PER_SEGMENT * self.tick_seconds

    def of_reseal(self, width: float, segments: int) -> float:
        """What sealing so many segments of this width together costs."""
        return self.reseal * width + self.reconnections * segments

    def of_saving(self, width: float, segments: int, spared: int) -> float:
        """What giving up so many of the segments costs."""
        reseal = self.reseal * width
        if segments == 2:
            reseal = min(reseal, WHOLE_MEMORY * self.memory_ticks * self.tick_seconds)
        return reseal + self.reconnections * segments + self.segment * spared


class Run(NamedTuple):
    """Members `first` to `first + length - 1` become `parts` segments. `saved` is the regret of a saving, 0 of a relief."""

    first: int
    length: int
    parts: int
    cost: float
    price: float
    saved: float
    is_relief: bool


class Candidate(NamedTuple):
    """A saving that is not worth its price yet, or that a `kept` member forbids."""

    first: int
    length: int
    saved: float
    price: float
    kept: bool = False


class RingPlan(NamedTuple):
    """Disjoint runs in the order of the ring, and for each member the saving that came nearest, made or not."""

    runs: tuple[Run, ...]
    nearest: dict[int, Candidate]


def plan_ring(members: Sequence[Member], prices: Prices, may_join: Callable[[int], bool]) -> RingPlan:
    """The cheapest plan. `may_join(i)`: whether members i and i + 1 meet."""
    nearest: dict[int, Candidate] = {}
    runs = _priced_runs(members, prices, may_join, nearest)
    cheapest = [0.0]
    taken: list[Run | None] = [None]
    for end in range(1, len(members) + 1):
        kept = members[end - 1]
        best = cheapest[end - 1] + (_MUST * (kept.load - 1) if kept.hot and not kept.fixed else 0.0)
        choice: Run | None = None
        for run in runs[end]:
            cost = cheapest[run.first] + run.cost
            if cost < best:
                best, choice = cost, run
        cheapest.append(best)
        taken.append(choice)
    return RingPlan(tuple(_walk(taken)), nearest)


def _walk(taken: Sequence[Run | None]) -> list[Run]:
    chosen: list[Run] = []
    end = len(taken) - 1
    while end > 0:
        run = taken[end]
        if run is None:
            end -= 1
        else:
            chosen.append(run)
            end = run.first
    return chosen[::-1]


def _priced_runs(
    members: Sequence[Member],
    prices: Prices,
    may_join: Callable[[int], bool],
    nearest: dict[int, Candidate],
) -> list[list[Run]]:
    """The runs that may be made, by the member after their last."""
    by_end: list[list[Run]] = [[] for _ in range(len(members) + 1)]
    joins = [may_join(i) for i in range(len(members) - 1)]
    for first, head in enumerate(members):
        if head.fixed:
            continue
        hot, width, ticks, bends, kept = head.hot, head.width, list(head.ticks), head.bends, False
        even, thin = True, head.load / head.width
        dense = thin
        for end in range(first + 1, min(first + prices.longest_run, len(members)) + 1):
            if end > first + 1:
                last = members[end - 1]
                if last.fixed or not joins[end - 2]:
                    break
                hot, width = hot or last.hot, width + last.width
                ticks = list(map(add, ticks, last.ticks))  # as far back as the shortest memory of them
                bends = bends and last.bends
                kept = kept or head.kept or last.kept
                density = last.load / last.width
                thin, dense = min(thin, density), max(dense, density)
                even = bends or dense <= UNEVEN_DENSITY * thin
            if hot:
                run = _relief(first, end, width, ticks, prices) if even and not kept else None
                if run is not None and not (run.parts == run.length and _is_equal(members, first, end)):
                    by_end[end].append(run)
            elif end > first + 1:
                by_end[end] += _savings(first, end, width, ticks, prices, even, kept, nearest)
    return by_end


def _is_equal(members: Sequence[Member], first: int, end: int) -> bool:
    """Whether as many cuts of equal width would change nothing."""
    widths = [members[i].width for i in range(first, end) if not members[i].bends]
    return len(widths) == end - first and max(widths) - min(widths) <= _ONE_HASH


def _relief(first: int, end: int, width: float, ticks: Sequence[float], prices: Prices) -> Run | None:
    count = end - first
    parts = min(max(_parts(ticks[0], prices), 2 if count == 1 else 1), prices.most_parts)
    if count > 1 and parts > 1 and not prices.recut:
        return None
    price = prices.of_reseal(width, count)
    added = parts - count
    cost = TICKS_PER_GROWTH * prices.tick_seconds * added + prices.segment * abs(added) + price
    return Run(first, count, parts, cost, price, 0.0, True)


def _savings(
    first: int,
    end: int,
    width: float,
    ticks: Sequence[float],
    prices: Prices,
    even: bool,
    kept: bool,
    nearest: dict[int, Candidate],
) -> list[Run]:
    """The numbers of parts, fewer than now, that pay; in `nearest` the one that came nearest for each member. None of them is
    a run where a member is `kept`.
    """
    count = end - first
    fewest = max(1, _parts(ticks[0], prices), count - prices.most_spared)
    found: list[Run] = []
    for parts in range(fewest, count):
        if parts > 1 and not (even and prices.recut):
            break
        price = prices.of_saving(width, count, count - parts)
        saved = _regret(ticks, count, parts, price, prices.tick_seconds)
        candidate = Candidate(first, count, saved, price, kept)
        for i in range(first, end):
            if i not in nearest or saved - price > nearest[i].saved - nearest[i].price:
                nearest[i] = candidate
        if saved > price and not kept:
            found.append(Run(first, count, parts, price - saved, price, saved, False))
    return found


def _regret(ticks: Sequence[float], count: int, parts: int, price: float, tick_seconds: float) -> float:
    """What `parts` instead of `count` segments would have saved at most, over any span that ends now.

    Overload they would have had is taken off. Looking back ends where more than the price is lost.
    """
    spared = tick_seconds * (count - parts)
    if max(ticks) <= parts:
        return spared * len(ticks)
    weight = tick_seconds * OVERLOAD_WEIGHT
    total = most = 0.0
    for load in ticks:
        total += spared - weight * (load - parts) if load > parts else spared
        if total > most:
            most = total
        elif total < -price:
            break
    return most


def _parts(load: float, prices: Prices) -> int:
    return math.ceil(load / prices.target - _FUZZ)
