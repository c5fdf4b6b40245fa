"""Goods to places: the greatest weight, against trying everything."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from controller.domain.transportation_problem import heaviest

Case = tuple[list[int], list[int], list[dict[int, int]], int]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    places = draw(st.integers(1, 4))
    goods = draw(st.integers(0, 3))
    supplies = draw(st.lists(st.integers(0, 2), min_size=goods, max_size=goods))
    wanted = st.dictionaries(st.integers(0, places - 1), st.integers(1, 9))
    return (
        supplies,
        draw(st.lists(st.integers(0, 2), min_size=places, max_size=places)),
        draw(st.lists(wanted, min_size=goods, max_size=goods)),
        draw(st.integers(0, 3)),
    )


def _fits(counts: list[int], rooms: list[int], pool: int) -> bool:
    over = [max(0, count - room) for count, room in zip(counts, rooms, strict=True)]
    return max(over) <= 1 and sum(over) <= pool


def _greatest(supplies: list[int], rooms: list[int], weights: list[dict[int, int]], pool: int) -> int:
    pieces = [wanted for supply, wanted in zip(supplies, weights, strict=True) for _ in range(supply)]
    best = 0
    for ways in product(*([None, *wanted] for wanted in pieces)):
        counts = [sum(way == place for way in ways) for place in range(len(rooms))]
        if _fits(counts, rooms, pool):
            best = max(
                best, sum(wanted[way] for wanted, way in zip(pieces, ways, strict=True) if way is not None)
            )
    return best


@given(_cases())
@example(([1, 1], [1, 1], [{0: 5, 1: 4}, {0: 5}], 0))  # the second drives the first to its other place
@example(([2, 2], [1, 1], [{0: 3}, {0: 2, 1: 1}], 1))  # the place in the pool goes where it is worth most
@example(([1, 1], [1], [{0: 1}, {0: 9}], 0))  # the lighter one stays behind
def test_nothing_weighs_more_than_what_is_sent(case: Case) -> None:
    supplies, rooms, weights, pool = case

    sent = heaviest(supplies, rooms, weights, pool=pool)

    counts = [sum(ways.get(place, 0) for ways in sent) for place in range(len(rooms))]
    assert _fits(counts, rooms, pool)
    for ways, supply, wanted in zip(sent, supplies, weights, strict=True):
        assert sum(ways.values()) <= supply
        assert set(ways) <= set(wanted)
    weight = sum(
        wanted[place] * amount
        for ways, wanted in zip(sent, weights, strict=True)
        for place, amount in ways.items()
    )
    assert weight == _greatest(supplies, rooms, weights, pool)


def test_nothing_to_send() -> None:
    assert heaviest([], [], []) == []
    assert heaviest([3], [0], [{0: 1}]) == [{}]
