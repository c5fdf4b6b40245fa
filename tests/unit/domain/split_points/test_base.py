"""What every way of choosing cut points promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput, InvalidRange
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.split_points.base import HashLoad, SplitPoint
from controller.domain.split_points.registry import SPLIT_POINTS
from tests.unit.domain.strategies import hash_ranges

hash_loads = st.lists(st.builds(HashLoad, hash_ranges(), st.floats(0, 1e12)), max_size=8)
every_way = pytest.mark.parametrize("choose", SPLIT_POINTS.values(), ids=SPLIT_POINTS)


@every_way
@given(whole=hash_ranges(min_width=2), parts=st.integers(2, 9), loads=hash_loads)
def test_the_answer_always_cuts_the_range_into_that_many_pieces(
    choose: SplitPoint, whole: HashRange, parts: int, loads: list[HashLoad]
) -> None:
    parts = min(parts, whole.width)

    assert len(whole.cut_many(choose(whole, parts, loads))) == parts


@every_way
@pytest.mark.parametrize("parts", [0, 4])
def test_more_parts_than_hashes_are_refused(choose: SplitPoint, parts: int) -> None:
    with pytest.raises(InvalidRange, match=f"0005-0007 cannot be cut into {parts} parts"):
        choose(HashRange(5, 7), parts)


@every_way
def test_with_nothing_observed_the_full_ring_is_halved(choose: SplitPoint) -> None:
    assert choose(FULL_RANGE) == (0x8000,)


@pytest.mark.parametrize("load", [-1.0, float("nan"), float("inf")])
def test_a_load_that_is_no_quantity_is_refused(load: float) -> None:
    with pytest.raises(InvalidInput, match="is not finite and >= 0"):
        HashLoad(FULL_RANGE, load)
