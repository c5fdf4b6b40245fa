"""The cheapest plan for a whole ring: which runs of neighbours get other boundaries, and into how many parts.

Splits 1 → k, merges n → 1 and recuts n → m are one kind of action here. Every run of up to `MAX_RUN` neighbours is
priced, and an exact dynamic program over the ring takes the cheapest set of disjoint runs; a segment in none of them
is kept. A run with a hot segment is scaled out. Any other run is only ever made smaller, and only if the saving that
was forgone within the memory exceeds the cost of sealing the run.

The module computes with numbers only: loads are shares of a segment's capacity, widths are shares of the ring, costs
are segments kept for a second. `adaptive` creates the members from an evaluation input, and actions from the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

MAX_RUN = 4
"""Maximum number of segments that one action seals. More than 6 had no benefit in any trace, and each additional segment
makes a plan more expensive to compute.
"""

OVERLOAD_WEIGHT = 20.0
"""Number of segments whose cost equals the cost of an overload as large as one segment's capacity."""

TICKS_PER_SEGMENT = 1.0
"""Cost of adding or removing a segment, whatever its width: ticks for which a segment is kept."""

TICKS_PER_GROWTH = 10.0
"""Cost of each segment that a scale-out adds, in ticks for which a segment is kept, so that it adds no more than
necessary.
"""

UNEVEN_DENSITY = 2.0
"""Ratio of neighbours' loads per hash above which equal widths would suit neither of them."""

WHOLE_MEMORY = 0.9
"""Part of the memory after which two neighbours are joined that one segment could have carried, whatever their share of
the ring. Without it, a cost that no memory could ever reach would keep two idle segments permanently.
"""

_MUST = 1e9
_FUZZ = 1e-9
_ONE_HASH = 1.5 / 65_536


class Member(NamedTuple):
    """A segment as the plan's input: `ticks` are its loads, newest first, of which the first is the present load.

    `fixed`: in no run. `hot`: must be scaled out. `bends`: the distribution of its load is known, so that neighbours
    of other density may be cut together. `kept`: in no run of several members.
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
    """Costs from the policy, and capabilities of the data plane.

    `target`: load that a segment should carry. `reseal`: cost of sealing the whole ring. `reconnections`: cost of
    reconnecting all clients of one segment. `tick_seconds`: seconds between two ticks, of which there are at most
    `memory_ticks`. `most_parts`: maximum number of children of one action. `most_spared`: maximum number of segments
    that one action may remove. `recut`: True if several segments may become several others.
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
        """Cost of adding or removing a segment."""
        return TICKS_PER_SEGMENT * self.tick_seconds

    def reshape_cost(self, width: float, segments: int) -> float:
        """Return the cost of sealing this many segments, of this width together."""
        return self.reseal * width + self.reconnections * segments

    def scale_in_cost(self, width: float, segments: int, spared: int) -> float:
        """Return the cost of giving up `spared` of the segments."""
        reseal = self.reseal * width
        if segments == 2:
            reseal = min(reseal, WHOLE_MEMORY * self.memory_ticks * self.tick_seconds)
        return reseal + self.reconnections * segments + self.segment * spared


class Run(NamedTuple):
    """Members `first` to `first + length - 1`, which become `parts` segments. `saved` is the forgone saving of a
    scale-in, 0 for a scale-out.
    """

    first: int
    length: int
    parts: int
    cost: float
    price: float
    saved: float
    is_scale_out: bool


class Candidate(NamedTuple):
    """A scale-in whose saving does not exceed its cost yet, or that a `kept` member forbids."""

    first: int
    length: int
    saved: float
    price: float
    kept: bool = False


class RingPlan(NamedTuple):
    """Disjoint runs in the order of the ring, and for each member the scale-in that was closest to its cost, made or
    not.
    """

    runs: tuple[Run, ...]
    nearest: dict[int, Candidate]


def plan_ring(members: Sequence[Member], prices: Prices, may_join: Callable[[int], bool]) -> RingPlan:
    """Return the cheapest plan. `may_join(i)`: True if members i and i + 1 touch."""
    nearest: dict[int, Candidate] = {}
    runs = _priced_runs(members, prices, may_join, nearest)
    cheapest = [0.0]
    choices: list[Run | None] = [None]
    for end in range(1, len(members) + 1):
        last_member = members[end - 1]
        best = cheapest[end - 1] + (
            _MUST * (last_member.load - 1) if last_member.hot and not last_member.fixed else 0.0
        )
        choice: Run | None = None
        for run in runs[end]:
            cost = cheapest[run.first] + run.cost
            if cost < best:
                best, choice = cost, run
        cheapest.append(best)
        choices.append(choice)
    return RingPlan(tuple(_walk(choices)), nearest)


def _walk(choices: Sequence[Run | None]) -> list[Run]:
    chosen: list[Run] = []
    end = len(choices) - 1
    while end > 0:
        run = choices[end]
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
    """Return the runs that may be made, by the index after their last member."""
    by_end: list[list[Run]] = [[] for _ in range(len(members) + 1)]
    joins = [may_join(i) for i in range(len(members) - 1)]
    for first, head in enumerate(members):
        if head.fixed:
            continue
        hot, width, ticks, bends, kept = head.hot, head.width, list(head.ticks), head.bends, False
        is_even, lowest_density = True, head.load / head.width
        highest_density = lowest_density
        for end in range(first + 1, min(first + prices.longest_run, len(members)) + 1):
            if end > first + 1:
                last = members[end - 1]
                if last.fixed or not joins[end - 2]:
                    break
                hot, width = hot or last.hot, width + last.width
                ticks = list(map(add, ticks, last.ticks))  # only as far back as the shortest memory
                bends = bends and last.bends
                kept = kept or head.kept or last.kept
                density = last.load / last.width
                lowest_density, highest_density = min(lowest_density, density), max(highest_density, density)
                is_even = bends or highest_density <= UNEVEN_DENSITY * lowest_density
            if hot:
                run = _scale_out(first, end, width, ticks, prices) if is_even and not kept else None
                if run is not None and not (run.parts == run.length and _is_equal(members, first, end)):
                    by_end[end].append(run)
            elif end > first + 1:
                by_end[end] += _scale_ins(first, end, width, ticks, prices, is_even, kept, nearest)
    return by_end


def _is_equal(members: Sequence[Member], first: int, end: int) -> bool:
    """Return True if the same number of cuts of equal width would change nothing."""
    widths = [members[i].width for i in range(first, end) if not members[i].bends]
    return len(widths) == end - first and max(widths) - min(widths) <= _ONE_HASH


def _scale_out(first: int, end: int, width: float, ticks: Sequence[float], prices: Prices) -> Run | None:
    count = end - first
    parts = min(max(_parts(ticks[0], prices), 2 if count == 1 else 1), prices.most_parts)
    if count > 1 and parts > 1 and not prices.recut:
        return None
    price = prices.reshape_cost(width, count)
    added = parts - count
    cost = TICKS_PER_GROWTH * prices.tick_seconds * added + prices.segment * abs(added) + price
    return Run(first, count, parts, cost, price, 0.0, True)


def _scale_ins(
    first: int,
    end: int,
    width: float,
    ticks: Sequence[float],
    prices: Prices,
    even: bool,
    kept: bool,
    nearest: dict[int, Candidate],
) -> list[Run]:
    """Return the runs with fewer parts whose saving exceeds the cost. `nearest` gets the scale-in that was closest to
    its cost, for each member. With a `kept` member there is no run.
    """
    count = end - first
    fewest = max(1, _parts(ticks[0], prices), count - prices.most_spared)
    runs: list[Run] = []
    for parts in range(fewest, count):
        if parts > 1 and not (even and prices.recut):
            break
        price = prices.scale_in_cost(width, count, count - parts)
        saved = _forgone_saving(ticks, count, parts, price, prices.tick_seconds)
        candidate = Candidate(first, count, saved, price, kept)
        for i in range(first, end):
            if i not in nearest or saved - price > nearest[i].saved - nearest[i].price:
                nearest[i] = candidate
        if saved > price and not kept:
            runs.append(Run(first, count, parts, price - saved, price, saved, False))
    return runs


def _forgone_saving(
    ticks: Sequence[float], count: int, parts: int, price: float, tick_seconds: float
) -> float:
    """Return the largest saving that `parts` instead of `count` segments would have brought over any span that ends at
    the present tick.

    The cost of the overload that fewer segments would have had is subtracted. The search ends when the loss exceeds
    the price.
    """
    spared = tick_seconds * (count - parts)
    if max(ticks) <= parts:
        return spared * len(ticks)
    weight = tick_seconds * OVERLOAD_WEIGHT
    total = best = 0.0
    for load in ticks:
        total += spared - weight * (load - parts) if load > parts else spared
        if total > best:
            best = total
        elif total < -price:
            break
    return best


def _parts(load: float, prices: Prices) -> int:
    return math.ceil(load / prices.target - _FUZZ)
