"""Equal widths."""

from __future__ import annotations

from hypothesis import given

from controller.domain.hash_range import HashRange
from controller.domain.split_points.base import HashLoad
from controller.domain.split_points.midpoint import midpoint
from tests.unit.domain.strategies import hash_ranges


@given(hash_ranges(min_width=2))
def test_two_parts_are_the_halves(whole: HashRange) -> None:
    assert whole.cut_many(midpoint(whole)) == whole.halves()


def test_load_is_ignored() -> None:
    whole = HashRange(0, 99)

    assert midpoint(whole, 2, [HashLoad(HashRange(0, 9), 1000.0)]) == (50,)
