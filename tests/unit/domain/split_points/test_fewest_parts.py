"""Fewest parts: by hand, and against trying every way of cutting."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.split_points.fewest_parts import Bin, fewest_cuts


def bins(*loads: float) -> list[Bin]:
    return [Bin(10 * i, load) for i, load in enumerate(loads)]


@pytest.mark.parametrize(
    ("loads", "options", "cuts"),
    [
        ((1, 1, 1, 1), {"max_load": 2}, (20,)),
        ((1, 1, 1, 1), {"max_load": 4}, ()),
        ((1, 1, 1, 1), {"max_load": 4, "at_least": 2}, (20,)),
        ((1, 9, 1, 1), {"max_load": 3}, (10, 20)),  # what is above the limit stands alone
        ((0, 0, 9, 0, 0), {"max_load": 3}, (20, 30)),  # with whatever beside it
        ((1, 1, 9, 1, 3), {"max_load": 4}, (20, 30)),
        ((1, 1, 1, 3), {"max_load": 5}, (30,)),  # and two parts are as even as they can be
        ((9, 1, 1, 1), {"max_load": 2, "at_most": 2}, (10,)),
        ((0, 0, 0), {"max_load": 1, "at_least": 2}, (10,)),
        ((5,), {"max_load": 1, "at_least": 2}, ()),
        ((0.1, 0.2, 0.3), {"max_load": 0.1 + 0.2 + 0.3}, ()),  # `sum` is less from Python 3.12 on
        ((), {"max_load": 1}, ()),
    ],
)
def test_cuts(loads: tuple[float, ...], options: dict[str, Any], cuts: tuple[int, ...]) -> None:
    assert fewest_cuts(bins(*loads), **options) == cuts


loads = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]) | st.floats(0, 5), min_size=1, max_size=7)


@given(loads, st.sampled_from([0.5, 0.9, 1.0, 3.0]), st.integers(1, 3), st.integers(2, 8))
def test_no_other_cuts_are_fewer_or_more_even(
    drawn: list[float], most: float, at_least: int, at_most: int
) -> None:
    given_bins = bins(*drawn)
    cuts = fewest_cuts(given_bins, most, at_least=at_least, at_most=at_most)
    limit = max(most, *drawn)
    fewest = next(k for k in range(1, len(drawn) + 1) if least_maximum(drawn, k) <= limit or k == len(drawn))

    assert list(cuts) == sorted(set(cuts))
    assert set(cuts) <= {one.start for one in given_bins[1:]}
    if all(load <= most for load in drawn):
        assert len(cuts) + 1 == max(min(fewest, at_most), min(at_least, len(drawn)))
    assert max(parts(drawn, [c // 10 for c in cuts])) == pytest.approx(least_maximum(drawn, len(cuts) + 1))


def parts(drawn: list[float], places: list[int]) -> list[float]:
    edges = [0, *places, len(drawn)]
    return [sum(drawn[a:b]) for a, b in pairwise(edges)]


def least_maximum(drawn: list[float], count: int) -> float:
    ways = combinations(range(1, len(drawn)), count - 1)
    return min(max(parts(drawn, list(places))) for places in ways)
