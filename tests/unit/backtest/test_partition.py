"""Contiguous partitions, held against trying them all."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backtest.partition import cuts, fewest_parts, running_sums, smallest_maxima

rows = st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any)


def all_maxima(weights: list[int], parts: int) -> list[int]:
    """The largest part of every partition into at most so many."""
    return [
        max(sum(weights[a:b]) for a, b in pairwise((0, *inner, len(weights))))
        for count in range(1, min(parts, len(weights)) + 1)
        for inner in combinations(range(1, len(weights)), count - 1)
    ]


@given(rows, st.integers(1, 9))
def test_the_smallest_maximum_is_what_trying_all_finds(weights: list[int], most: int) -> None:
    low, high = smallest_maxima(running_sums(np.array(weights, dtype=float)), most)

    best = [min(all_maxima(weights, parts)) for parts in range(1, most + 1)]
    assert high.tolist() == pytest.approx(best)
    assert all(bound <= exact for bound, exact in zip(low, best, strict=True))


@given(rows, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_a_sweep_makes_the_fewest_parts(weights: list[int], limits: list[int]) -> None:
    below = running_sums(np.array(weights, dtype=float))

    found = fewest_parts(below, np.array(limits, dtype=float), len(weights))

    for limit, parts in zip(limits, found.tolist(), strict=True):
        clipped = [min(weight, limit) for weight in weights]  # one that is above the limit stands alone
        fitting = [n for n in range(1, len(weights) + 1) if min(all_maxima(clipped, n)) <= limit]
        assert parts >= fitting[0]
        assert parts == len(cuts(below, limit)) + 1
        if max(weights) <= limit:
            assert parts == fitting[0]


def test_more_parts_than_asked_for_are_told_apart_only_as_too_many() -> None:
    below = running_sums(np.ones(10))

    assert fewest_parts(below, np.array([1.0, 5.0]), 3).tolist() == [4, 2]
