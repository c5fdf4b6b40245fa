"""Equal load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.hash_range import HashRange
from controller.domain.split_points.base import HashLoad
from controller.domain.split_points.midpoint import midpoint
from controller.domain.split_points.weighted import weighted

WHOLE = HashRange(1000, 1999)


def _histogram(loads: list[int]) -> list[HashLoad]:
    return [HashLoad(HashRange(WHOLE.start + i, WHOLE.start + i), load) for i, load in enumerate(loads)]


def test_the_cut_falls_where_half_of_the_load_lies() -> None:
    loads = [HashLoad(HashRange(1000, 1099), 300.0), HashLoad(HashRange(1100, 1999), 100.0)]

    assert weighted(WHOLE, 2, loads) == (1067,)


def test_load_outside_the_range_does_not_count() -> None:
    loads = [HashLoad(HashRange(0, 999), 900.0), HashLoad(HashRange(2000, 2999), 5.0)]

    assert weighted(WHOLE, 2, loads) == midpoint(WHOLE)


@pytest.mark.parametrize(
    ("reaching_over", "inside", "cut"),
    [
        (HashRange(900, 1099), HashRange(1100, 1999), 1100),
        (HashRange(1900, 2099), HashRange(1000, 1899), 1900),
    ],
)
def test_of_a_load_that_reaches_over_an_edge_only_the_inner_part_counts(
    reaching_over: HashRange, inside: HashRange, cut: int
) -> None:
    """Half of the load reaching over is inside, and as much as the rest of the range has."""
    assert weighted(WHOLE, 2, [HashLoad(reaching_over, 400.0), HashLoad(inside, 200.0)]) == (cut,)


def test_overlapping_observations_add_up() -> None:
    loads = [HashLoad(WHOLE, 100.0), HashLoad(HashRange(1000, 1499), 100.0)]

    assert weighted(WHOLE, 2, loads) == (1333,)


def test_a_single_hot_hash_is_cut_off_even_at_the_edge() -> None:
    assert weighted(WHOLE, 3, [HashLoad(HashRange(1000, 1000), 9.0)]) == (1001, 1002)
    assert weighted(WHOLE, 3, [HashLoad(HashRange(1999, 1999), 9.0)]) == (1998, 1999)


@given(st.lists(st.integers(0, 1000), min_size=1000, max_size=1000).filter(any))
def test_no_piece_exceeds_its_fair_share_by_more_than_the_hottest_hash(loads: list[int]) -> None:
    parts = 4
    pieces = WHOLE.cut_many(weighted(WHOLE, parts, _histogram(loads)))

    for piece in pieces:
        load = sum(loads[piece.start - WHOLE.start : piece.end - WHOLE.start + 1])
        assert load <= sum(loads) / parts + max(loads) + 1e-6
