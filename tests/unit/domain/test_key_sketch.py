"""Sketches: bins tile the range, and every hash counts in the bin that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import HashRange
from controller.domain.key_sketch import MOST_BINS, as_bins, bin_count, bin_starts, count_hashes
from tests.unit.domain.strategies import hash_ranges


@given(hash_ranges(), st.data())
def test_a_hash_counts_in_the_bin_that_holds_it(hash_range: HashRange, data: st.DataObject) -> None:
    hashes = data.draw(st.lists(st.integers(hash_range.start, hash_range.end), max_size=20))
    counts = count_hashes(hash_range, hashes)
    starts = bin_starts(hash_range, bin_count(hash_range))
    ends = [*(start - 1 for start in starts[1:]), hash_range.end]

    assert starts[0] == hash_range.start
    assert len(counts) == len(starts) == min(MOST_BINS, hash_range.width)
    assert counts == [sum(a <= h <= b for h in hashes) for a, b in zip(starts, ends, strict=True)]


def test_a_hash_of_another_segment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="hash 8 is not in 0000-0007"):
        count_hashes(HashRange(0, 7), [8])


def test_the_load_lies_as_the_sketch_says_and_evenly_where_it_says_nothing() -> None:
    assert as_bins(HashRange(0, 7), (3, 1), 2.0) == [(0, 1.5), (4, 0.5)]
    assert as_bins(HashRange(0, 7), (0, 0), 2.0) == [(0, 1.0), (4, 1.0)]
