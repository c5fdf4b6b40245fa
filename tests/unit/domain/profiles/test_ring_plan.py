"""The plan of a ring: prices by hand, and the cheapest partition against trying them all."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.profiles.ring_plan import (
    MAX_RUN,
    Candidate,
    Member,
    Prices,
    Run,
    _priced_runs,
    plan_ring,
)

FREE = Prices(reseal=0.0)


def members(*loads: float, ticks: int = 45, hot: tuple[int, ...] = ()) -> list[Member]:
    return [Member(load, 1 / len(loads), [load] * ticks, hot=i in hot) for i, load in enumerate(loads)]


def planned(ring: list[Member], prices: Prices | None = None) -> list[tuple[int, int, int]]:
    plan = plan_ring(ring, prices or Prices(), lambda _: True)
    return [(run.first, run.length, run.parts) for run in plan.runs]


@pytest.mark.parametrize(
    ("ring", "prices", "parts"),
    [
        (members(51.2, hot=(0,)), Prices(), 57),
        ([Member(1.8, 1.0, [1.8], hot=True)], Prices(), 2),
        ([Member(1.8, 1.0, [1.8, 0.8], hot=True)], Prices(), 2),
        ([Member(1.8, 1.0, [1.8, 1.8, 0.1], hot=True)], Prices(), 2),
        (members(1.2, 0.8, 0.8, 0.8, hot=(0,)), Prices(target=2.0), 2),
        (members(1.2, 0.8, 0.7, 0.3, hot=(0,), ticks=1), Prices(), 2),
    ],
    ids=[
        "a burst is met by one act",
        "hot since the last tick",
        "a lower load before",
        "a higher load before",
        "two parts at least",
        "cutting anew where it is cut already is no relief",
    ],
)
def test_a_hot_segment_is_cut_into_as_many_parts_as_its_present_load_needs(
    ring: list[Member], prices: Prices, parts: int
) -> None:
    assert planned(ring, prices) == [(0, 1, parts)]


UNEVEN = [Member(1.2, 0.04, [1.2], hot=True), Member(0.5, 0.06, [0.5])]
HALVES_OF_ONE = Prices(recut=False, longest_run=2)
SCARCE = Prices(target=1.05, scarcity=7_800.0)
RUNS: dict[str, tuple[list[Member], Prices, list[tuple[int, int, int]]]] = {
    "a neighbour of like density helps out instead of one more segment": (
        [Member(1.2, 0.06, [1.2], hot=True), Member(0.5, 0.04, [0.5])],
        Prices(),
        [(0, 2, 2)],
    ),
    "a neighbour of another density does not": (UNEVEN, Prices(), [(0, 1, 2)]),
    "but does if its histogram is known": (
        [member._replace(has_histogram=True) for member in UNEVEN],
        Prices(),
        [(0, 2, 2)],
    ),
    "a split that seals less is cheaper": (
        [Member(1.3, 0.2, [1.3], hot=True), Member(0.6, 0.1, [0.6])],
        Prices(target=1.05),
        [(0, 1, 2)],
    ),
    "but a neighbour helps out where segments are scarce": (
        [Member(1.3, 0.2, [1.3], hot=True), Member(0.6, 0.1, [0.6])],
        SCARCE,
        [(0, 2, 2)],
    ),
    "unless a part may stay hot": (
        [Member(1.5, 0.2, [1.5], hot=True), Member(0.55, 0.1, [0.55])],
        SCARCE,
        [(0, 1, 2)],
    ),
    # Two segments of a ring of eight save one segment: 60 segment-s a tick, against 7,800 / 4 for the seal and 60.
    "capacity is kept while it would not have paid for the reseal": (
        members(0.4, 0.4, *[0.89] * 6, ticks=33),
        Prices(),
        [],
    ),
    "capacity is given back when it would have": (
        members(0.4, 0.4, *[0.89] * 6, ticks=34),
        Prices(),
        [(0, 2, 1)],
    ),
    "two that one could have carried for a shorter time": (members(0.4, 0.4, ticks=41), Prices(), []),
    "two that one could have carried for most of the memory become one": (
        members(0.4, 0.4, ticks=42),
        Prices(),
        [(0, 2, 1)],
    ),
    "whatever that costs": (members(0.4, 0.4, ticks=42), Prices(reseal=1e9), [(0, 2, 1)]),
    "clients add to the price": (
        members(0.4, 0.4, 0.89, 0.89, ticks=62),
        Prices(reconnections=1_000.0),
        [],
    ),
    "of three runs that save one segment the one that seals least": (
        members(0.5, 0.5, 0.5, 0.5, ticks=200),
        Prices(),
        [(0, 3, 2)],
    ),
    "a plane that cannot recut does not join four": (
        members(0.5, 0.5, 0.5, 0.5, ticks=200),
        HALVES_OF_ONE,
        [],
    ),
    "a plane that cannot recut joins two": (members(0.4, 0.4, ticks=200), HALVES_OF_ONE, [(0, 2, 1)]),
    "a short memory is that of the whole run": (
        [Member(0.2, 0.5, [0.2] * 200), Member(0.2, 0.5, [0.2] * 3)],
        Prices(),
        [],
    ),
}


@pytest.mark.parametrize(("ring", "prices", "runs"), RUNS.values(), ids=RUNS)
def test_the_runs_of_a_plan(ring: list[Member], prices: Prices, runs: list[tuple[int, int, int]]) -> None:
    assert planned(ring, prices) == runs


def test_overload_that_fewer_would_have_had_is_taken_off() -> None:
    ticks = [0.2] * 30 + [0.6] * 3 + [0.2] * 60  # 1.2 together, three ticks long: 20 x 0.2 x 60 each
    ring = [Member(0.2, 0.25, ticks), Member(0.2, 0.25, ticks), *members(0, 0.89, 0.89, 0)[1:3]]

    [candidate] = {plan_ring(ring, Prices(), lambda _: True).best_scale_ins[0]}

    assert candidate.saved == pytest.approx(93 * 60 - 3 * 20 * 0.2 * 60)


def test_looking_back_ends_where_more_than_the_price_was_lost() -> None:
    ticks = [0.2] * 10 + [4.0] + [0.0] * 1000
    ring = [Member(0.2, 0.25, ticks), Member(0.2, 0.25, ticks), *members(0, 0.89, 0.89, 0)[1:3]]

    assert plan_ring(ring, Prices(), lambda _: True).best_scale_ins[0].saved == 600


def test_what_came_nearest_is_told_with_its_price() -> None:
    plan = plan_ring(members(0.4, 0.4, 0.89, 0.89, ticks=10), Prices(), lambda _: True)

    assert plan.runs == ()
    assert plan.best_scale_ins[0] == plan.best_scale_ins[1] == Candidate(0, 2, 600.0, 2_490.0)


def test_what_is_fixed_or_does_not_meet_is_in_no_run() -> None:
    ring = members(0.2, 0.2, 0.2, ticks=200)

    assert planned([ring[0], ring[1]._replace(is_excluded=True), ring[2]]) == []
    assert plan_ring(ring, Prices(), lambda i: i == 0).runs[0][:3] == (0, 2, 1)


loads = st.sampled_from([0.0, 0.1, 0.3, 0.45, 0.6, 0.9, 1.0, 1.2, 2.5]) | st.floats(0, 4)


@st.composite
def rings(draw: st.DrawFn) -> list[Member]:
    size = draw(st.integers(1, 6))
    widths = [draw(st.sampled_from([1, 1, 2, 4])) for _ in range(size)]
    ring = []
    for width in widths:
        ticks = draw(st.lists(loads, min_size=1, max_size=6)) * draw(st.sampled_from([1, 10]))
        hot = ticks[0] > 1 and draw(st.booleans())
        fixed = draw(st.integers(0, 9)) == 0
        ring.append(Member(ticks[0], width / sum(widths), ticks, hot=hot, is_excluded=fixed))
    return ring


@given(rings(), st.sampled_from([Prices(), FREE, Prices(reseal=600.0)]))
def test_no_partition_of_the_ring_is_cheaper(ring: list[Member], prices: Prices) -> None:
    runs = [run for runs in _priced_runs(ring, prices, lambda _: True, {}) for run in runs]
    plan = plan_ring(ring, prices, lambda _: True)

    assert cost(ring, plan.runs) == pytest.approx(
        min(cost(ring, chosen) for chosen in partitions(ring, runs))
    )


@given(rings(), st.sampled_from([Prices(), FREE]))
def test_runs_are_disjoint_short_and_hold_nothing_fixed(ring: list[Member], prices: Prices) -> None:
    seen: list[int] = []
    for run in plan_ring(ring, prices, lambda _: True).runs:
        assert 1 <= run.length <= MAX_RUN
        assert run.parts >= 1
        assert run.is_scale_out == any(ring[i].hot for i in range(run.first, run.first + run.length))
        assert run.is_scale_out or (run.parts < run.length and run.saved > run.price)
        seen += range(run.first, run.first + run.length)
    assert seen == sorted(set(seen))
    assert not any(ring[i].is_excluded for i in seen)


@given(rings())
def test_a_hot_segment_is_always_relieved(ring: list[Member]) -> None:
    relieved = {
        i
        for run in plan_ring(ring, Prices(), lambda _: True).runs
        for i in range(run.first, run.first + run.length)
    }
    assert {i for i, member in enumerate(ring) if member.hot and not member.is_excluded} <= relieved


def partitions(ring: list[Member], runs: list[Run]) -> list[tuple[Run, ...]]:
    starting: list[list[Run | None]] = [[None, *(r for r in runs if r.first == i)] for i in range(len(ring))]
    found = []
    for choice in product(*starting):
        chosen = [run for run in choice if run is not None]
        ends = [run.first + run.length for run in chosen]
        if all(end <= after.first for end, after in zip(ends, chosen[1:], strict=False)):
            found.append(tuple(chosen))
    return found


def cost(ring: list[Member], runs: tuple[Run, ...]) -> float:
    within = {i for run in runs for i in range(run.first, run.first + run.length)}
    kept = [m for i, m in enumerate(ring) if i not in within and m.hot and not m.is_excluded]
    return sum(run.cost for run in runs) + sum(1e9 * (member.load - 1) for member in kept)
