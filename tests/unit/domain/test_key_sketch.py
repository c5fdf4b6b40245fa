"""Sketches: bins tile the range, and every hash counts in the bin that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import HashRange
from controller.domain.key_sketch import (
    MOST_BINS,
    add_counts,
    as_bins,
    bin_count,
    bin_starts,
    count_hashes,
    share_within,
)
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


@given(hash_ranges(), st.data())
def test_counts_of_single_hashes_make_the_same_sketch(hash_range: HashRange, data: st.DataObject) -> None:
    hashes = data.draw(st.lists(st.integers(0, 65_535), max_size=20))
    bins = [0.0] * bin_count(hash_range)
    add_counts(bins, hash_range, [(one, 1, 1) for one in hashes])

    assert bins == count_hashes(hash_range, [one for one in hashes if hash_range.contains(one)])


@given(hash_ranges(), st.data())
def test_a_count_over_many_hashes_is_even_and_only_what_is_inside_counts(
    hash_range: HashRange, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, 65_535))
    width = data.draw(st.integers(1, 65_536 - first))
    bins, hashes = [0.0] * bin_count(hash_range), [0.0] * bin_count(hash_range)
    add_counts(bins, hash_range, [(first, width, width)])
    add_counts(hashes, hash_range, [(one, 1, 1) for one in range(first, first + width)])

    assert bins == pytest.approx(hashes)


def test_the_load_lies_as_the_sketch_says_and_evenly_where_it_says_nothing() -> None:
    assert as_bins(HashRange(0, 7), (3, 1), 2.0) == [(0, 1.5), (4, 0.5)]
    assert as_bins(HashRange(0, 7), (0, 0), 2.0) == [(0, 1.0), (4, 1.0)]


@pytest.mark.parametrize(
    ("part", "share"),
    [
        (HashRange(0, 15), 1.0),
        (HashRange(0, 7), 0.75),
        (HashRange(4, 15), 0.625),
        (HashRange(2, 9), 0.65625),  # half of the first bin and of the third
        (HashRange(12, 99), None),  # one bin, and nobody knows where in it
        (HashRange(5, 6), None),
    ],
)
def test_a_part_has_the_load_of_its_bins_and_within_one_nobody_knows(
    part: HashRange, share: float | None
) -> None:
    assert share_within(HashRange(0, 15), (6, 6, 3, 1), part) == share


def test_where_bins_are_hashes_each_part_is_known() -> None:
    assert share_within(HashRange(8, 11), (1, 0, 3, 0), HashRange(10, 10)) == 0.75


@given(hash_ranges(), st.data())
def test_parts_that_tile_a_range_share_out_all_of_it(hash_range: HashRange, data: st.DataObject) -> None:
    sketch = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=bin_count(hash_range)))
    cut = data.draw(st.integers(hash_range.start, hash_range.end))
    low = HashRange(hash_range.start, cut)
    shares = [share_within(hash_range, sketch, low)]
    if cut < hash_range.end:
        shares.append(share_within(hash_range, sketch, HashRange(cut + 1, hash_range.end)))
    if None not in shares:
        assert sum(filter(None, shares)) == pytest.approx(1.0)
