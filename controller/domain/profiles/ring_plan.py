"""The cheapest plan for a whole ring: which runs of neighbours get other boundaries, and into how many parts; and the prices of a run.

Splits 1 → k, merges n → 1 and recuts n → m are one kind of action here. Every run of up to `MAX_RUN` neighbours is
priced, and an exact dynamic program over the row of segments takes the cheapest set of disjoint runs; a segment in
none of them is kept. The ring does not wrap: the last and the first segment are no neighbours. A run with a hot
segment is scaled out, and priced by the segments that it adds. Any other run is only ever made smaller, and only if
the saving that was forgone during the remembered ticks exceeds the cost of sealing the run (`forgone_saving`); overload
counts `OVERLOAD_WEIGHT` times.

The module computes with numbers only: loads are shares of a segment's capacity, widths are shares of the ring,
costs are segment-seconds (the cost of one segment for one second). `adaptive` creates the members from an
evaluation input, and actions from the runs; it also keeps the plan within `max_segments`.
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

WHOLE_MEMORY = 0.9
"""Part of the memory after which two neighbours are joined that one segment could have carried, whatever their share of
the ring. Without it, a cost that no memory could ever reach would keep two idle segments permanently.
"""


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs from the policy, in segment-seconds, and capabilities of the data plane.

    `target`: load that a segment should carry. `reseal`: cost of sealing the whole ring. `reconnections`: cost of
    reconnecting all clients of one segment. `tick_seconds`: seconds between two ticks, of which there are at most
    `memory_ticks`. `most_parts`: maximum number of children of one action. `most_spared`: maximum number of
    segments that one action may remove. `recut`: True if several segments may become several others. `longest_run`:
    maximum number of segments that one action seals. `scarcity`: additional cost of each hot segment in a scale-out
    that adds segments or may leave a part hot. `most_places`: maximum number of consumers that a segment can serve.
    `spare_places`: number of places that no consumer needs; a place serves one consumer.
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
    scarcity: float = 0.0
    most_places: int = 1
    spare_places: int = 65_536

    @property
    def segment(self) -> float:
        """Cost of adding or removing a segment."""
        return TICKS_PER_SEGMENT * self.tick_seconds

    def reshape_cost(self, width: float, segments: int) -> float:
        """Return the cost of sealing this number of segments, which have this width together."""
        return self.reseal * width + self.reconnections * segments

    def scale_in_cost(self, width: float, segments: int, spared: int) -> float:
        """Return the cost of sealing this number of segments, which have this width together, and of having `spared`
        fewer segments afterwards. For two segments the cost of their width is at most the cost of one segment for
        the part `WHOLE_MEMORY` of the remembered time.
        """
        reseal = self.reseal * width
        if segments == 2:
            reseal = min(reseal, WHOLE_MEMORY * self.memory_ticks * self.tick_seconds)
        return reseal + self.reconnections * segments + self.segment * spared


class Run(NamedTuple):
    """Members `first` to `first + length - 1`, which become `parts` segments. `price` is the cost of sealing them;
    `cost` is what the plan minimizes: for a scale-in `price - saved`. `saved` is the forgone saving of a scale-in,
    0 for a scale-out. `fewest`: the smallest number of parts that the run may get.
    """

    first: int
    length: int
    parts: int
    cost: float
    price: float
    saved: float
    is_scale_out: bool
    fewest: int


class Candidate(NamedTuple):
    """A scale-in that was priced, performed or not: `saved` is its forgone saving, `price` its cost.
    `is_kept_apart`: a member forbids it.
    """

    first: int
    length: int
    saved: float
    price: float
    is_kept_apart: bool = False


def forgone_saving(
    ticks: Sequence[float], count: int, parts: int, price: float, tick_seconds: float
) -> float:
    """Return the largest saving, in segment-seconds, that `parts` instead of `count` segments would have brought over
    any span of ticks that ends at the present tick. The result is at least 0.

    The saving of a tick is the cost of the removed segments for `tick_seconds`. If the load of the tick exceeds
    `parts`, the cost of this overload is subtracted (`OVERLOAD_WEIGHT`). `ticks` has the sum of the members' loads at
    each tick, newest first, and must not be empty. The search in older ticks ends as soon as the loss exceeds
    `price`, the cost of the scale-in.
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


UNEVEN_DENSITY = 2.0
"""Ratio of neighbours' loads per hash above which equal widths would suit neither of them."""

_HOT_SEGMENT_COST = 1e9
"""Cost of keeping a hot segment unchanged, for each capacity of load above its own. The cost exceeds that of every
run, so that a hot segment is always acted on if a run with it exists, the hottest first.
"""
_WIDTH_TOLERANCE = 1.5 / 65_536
"""Difference of widths, as shares of the ring, up to which widths are equal: one hash."""
_ROUNDING = 1e-9
"""Excess over a whole number of parts that counts as a rounding error."""


class Member(NamedTuple):
    """A segment as the plan's input: `ticks` are its loads, newest first, of which the first is the present load. `width`
    is its share of the ring.

    `is_excluded`: in no run. `is_kept_apart`: in no run of several members. `hot`: must be scaled out.
    `has_histogram`: the distribution of its load is known, so that neighbours of other density may be cut together.
    `places`: number of consumers that it can serve.
    """

    load: float
    width: float
    ticks: Sequence[float]
    hot: bool = False
    is_excluded: bool = False
    has_histogram: bool = False
    is_kept_apart: bool = False
    places: int = 0


class RingPlan(NamedTuple):
    """The chosen runs, disjoint and in the order of the members, and, by the index of each member, the best scale-in
    that was priced: the scale-in with the largest saving beyond its cost, chosen or not. Members that no priced
    scale-in contains are absent from `best_scale_ins`.
    """

    runs: tuple[Run, ...]
    best_scale_ins: dict[int, Candidate]


def plan_ring(
    members: Sequence[Member], prices: Prices, is_adjacent_to_next: Callable[[int], bool]
) -> RingPlan:
    """Return the plan with the lowest total cost. The plan consists of disjoint runs of members; a member in no run
    is left unchanged. `members` are in the order of their ranges. `is_adjacent_to_next(i)`: True if no gap separates
    the members i and i + 1.

    A hot member that is in no run costs `_HOT_SEGMENT_COST` for each capacity of load above its own, unless the
    member is excluded. Any other member without a run costs nothing. Without members, and if no run lowers the cost,
    the plan has no runs.
    """
    best_scale_ins: dict[int, Candidate] = {}
    runs = _priced_runs(members, prices, is_adjacent_to_next, best_scale_ins)
    cheapest = [0.0]
    choices: list[Run | None] = [None]
    for end in range(1, len(members) + 1):
        last_member = members[end - 1]
        best = cheapest[end - 1] + (
            _HOT_SEGMENT_COST * (last_member.load - 1)
            if last_member.hot and not last_member.is_excluded
            else 0.0
        )
        choice: Run | None = None
        for run in runs[end]:
            cost = cheapest[run.first] + run.cost
            if cost < best:
                best, choice = cost, run
        cheapest.append(best)
        choices.append(choice)
    return RingPlan(tuple(_walk(choices)), best_scale_ins)


def _walk(choices: Sequence[Run | None]) -> list[Run]:
    """Return the chosen runs in the order of the members. `choices[i]` is the run that ends the best plan for the first i
    members; None if member i - 1 is in no run of this plan.
    """
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
    is_adjacent_to_next: Callable[[int], bool],
    best_scale_ins: dict[int, Candidate],
) -> list[list[Run]]:
    """Return the runs that may be made, by the index after their last member: for a run with a hot member its
    scale-out, unless it would change nothing; for any other run of several members the scale-ins whose saving exceeds
    their cost. The best scale-in of each member, worthwhile or not, is added to `best_scale_ins`.

    A run contains at most `longest_run` members, no excluded member and no gap, and a member that is kept apart is in
    no run with others. Unless all members have histograms, members whose densities differ by more than the factor
    `UNEVEN_DENSITY` are not scaled out together, and are scaled in to one segment only.
    """
    by_end: list[list[Run]] = [[] for _ in range(len(members) + 1)]
    are_adjacent = [is_adjacent_to_next(i) for i in range(len(members) - 1)]
    for first, first_member in enumerate(members):
        if first_member.is_excluded:
            continue
        hot, width, ticks, has_histogram, is_kept_apart = (
            first_member.hot,
            first_member.width,
            list(first_member.ticks),
            first_member.has_histogram,
            False,
        )
        is_even, lowest_density = True, first_member.load / first_member.width
        highest_density = lowest_density
        for end in range(first + 1, min(first + prices.longest_run, len(members)) + 1):
            if end > first + 1:
                last_member = members[end - 1]
                if last_member.is_excluded or not are_adjacent[end - 2]:
                    break
                hot, width = hot or last_member.hot, width + last_member.width
                ticks = list(map(add, ticks, last_member.ticks))  # only as far back as the shortest memory
                has_histogram = has_histogram and last_member.has_histogram
                is_kept_apart = is_kept_apart or first_member.is_kept_apart or last_member.is_kept_apart
                density = last_member.load / last_member.width
                lowest_density, highest_density = min(lowest_density, density), max(highest_density, density)
                is_even = has_histogram or highest_density <= UNEVEN_DENSITY * lowest_density
            if hot:
                run = (
                    _scale_out(members[first:end], first, width, ticks, prices)
                    if is_even and not is_kept_apart
                    else None
                )
                if run is not None and not (run.parts == run.length and _is_equal(members, first, end)):
                    by_end[end].append(run)
            elif end > first + 1:
                by_end[end] += _scale_ins(
                    first, end, width, ticks, prices, is_even, is_kept_apart, best_scale_ins
                )
    return by_end


def _scale_out(
    members: Sequence[Member], first: int, width: float, ticks: Sequence[float], prices: Prices
) -> Run | None:
    """Return the run that gives the members, of which the first has the index `first`, as many parts as their present
    load needs at the target: at least 2 for a single member, at most `most_spared` fewer than the members, enough for
    the places that consumers need, and at most `most_parts`. None if several members need more parts than the data
    plane can make of them. `width` is the share of the ring that the members have together; `ticks` has the sum of
    their loads at each remembered tick, the present tick first.
    """
    count = len(members)
    places = sum(member.places for member in members)
    parts_for_places = math.ceil((places - prices.spare_places) / prices.most_places)
    fewest = max(2 if count == 1 else 1, count - prices.most_spared, parts_for_places)
    parts = min(max(_parts_needed(ticks[0], prices), fewest), prices.most_parts)
    if count > 1 and (parts < fewest or (parts > 1 and not prices.recut)):
        return None
    price = prices.reshape_cost(width, count)
    added = parts - count
    cost = TICKS_PER_GROWTH * prices.tick_seconds * added + prices.segment * abs(added) + price
    if prices.scarcity and (added > 0 or _may_stay_hot(members, width / parts, prices.target)):
        cost += prices.scarcity * sum(member.hot for member in members)
    return Run(first, count, parts, cost, price, 0.0, True, fewest)


def _may_stay_hot(members: Sequence[Member], width: float, target: float) -> bool:
    """Return True if a part of this width exceeds the target load where the members' load is densest. False if all
    members have a histogram, because their cuts follow the load.
    """
    if all(member.has_histogram for member in members):
        return False
    return max(member.load / member.width for member in members) * width > target


def _scale_ins(
    first: int,
    end: int,
    width: float,
    ticks: Sequence[float],
    prices: Prices,
    is_even: bool,
    is_kept_apart: bool,
    best_scale_ins: dict[int, Candidate],
) -> list[Run]:
    """Return the worthwhile scale-ins of the members from index `first` to before `end`: a run for each smaller
    number of parts that carries the present load and whose saving exceeds its cost. The result is empty if there is
    no such number, or with `is_kept_apart`. At most `most_spared` segments are removed.

    Each scale-in is also compared with the stored scale-in of each of its members. The scale-in replaces the stored
    one in `best_scale_ins` if its saving minus its cost is greater. This is done whether or not the scale-in is
    worthwhile, and with `is_kept_apart` too.

    `is_even`: False if the members may be joined into one part only, as is also the case if `prices.recut` is False.
    `width` is the share of the ring that the members have together. `ticks` has the sum of the members' loads at each
    remembered tick, the present tick first.
    """
    count = end - first
    fewest = max(1, _parts_needed(ticks[0], prices), count - prices.most_spared)
    runs: list[Run] = []
    for parts in range(fewest, count):
        if parts > 1 and not (is_even and prices.recut):
            break
        price = prices.scale_in_cost(width, count, count - parts)
        saved = forgone_saving(ticks, count, parts, price, prices.tick_seconds)
        candidate = Candidate(first, count, saved, price, is_kept_apart)
        for i in range(first, end):
            if i not in best_scale_ins or saved - price > best_scale_ins[i].saved - best_scale_ins[i].price:
                best_scale_ins[i] = candidate
        if saved > price and not is_kept_apart:
            runs.append(Run(first, count, parts, price - saved, price, saved, False, fewest))
    return runs


def _parts_needed(load: float, prices: Prices) -> int:
    """Return the number of segments that carry the load if each has at most the target load; 0 without load."""
    return math.ceil(load / prices.target - _ROUNDING)


def _is_equal(members: Sequence[Member], first: int, end: int) -> bool:
    """Return True if the members from index `first` to before `end` have equal widths, and not all of them have a
    histogram: then they are cut into parts of equal width, and the same number of parts would change nothing.
    """
    widths = [member.width for member in members[first:end]]
    has_histograms = all(member.has_histogram for member in members[first:end])
    return not has_histograms and max(widths) - min(widths) <= _WIDTH_TOLERANCE
