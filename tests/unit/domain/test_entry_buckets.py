"""Entry-bucket arithmetic of PIP-486."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain import entry_buckets
from controller.domain.hash_range import FULL_RANGE, MAX_HASH, RING_SIZE
from tests.unit.domain.strategies import consumer_names, cut_points, segment_hashes

split_lists: st.SearchStrategy[list[int]] = st.just([]) | cut_points(FULL_RANGE, max_size=20)


@pytest.mark.parametrize(
    ("bucket_count", "splits"),
    [(-3, ()), (0, ()), (1, ()), (2, (32768,)), (3, (21845, 43690)), (4, (16384, 32768, 49152))],
)
def test_known_equal_boundaries(bucket_count: int, splits: tuple[int, ...]) -> None:
    assert entry_buckets.equal_splits(bucket_count) == splits


def test_absurd_bucket_counts_are_clamped_to_the_ring() -> None:
    assert len(entry_buckets.equal_splits(10**12)) == RING_SIZE - 1


@given(st.integers(1, 3000))
def test_equal_boundaries_give_that_many_buckets_of_nearly_one_width(bucket_count: int) -> None:
    splits = entry_buckets.equal_splits(bucket_count)
    widths = {bucket.width for bucket in entry_buckets.bucket_ranges(splits)}

    assert len(splits) == bucket_count - 1
    assert entry_buckets.are_splits(splits)
    assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("splits", [(0,), (65536,), (5, 5), (9, 5), (-1, 4)])
def test_what_does_not_ascend_within_the_ring_is_no_boundary(splits: tuple[int, ...]) -> None:
    assert not entry_buckets.are_splits(splits)


@given(split_lists, segment_hashes)
def test_a_hash_lies_in_the_bucket_that_covers_it(splits: list[int], bucket_hash: int) -> None:
    ranges = entry_buckets.bucket_ranges(splits)

    assert ranges[entry_buckets.bucket_of(splits, bucket_hash)].contains(bucket_hash)


@given(split_lists)
def test_buckets_tile_the_ring(splits: list[int]) -> None:
    ranges = entry_buckets.bucket_ranges(splits)

    assert (ranges[0].start, ranges[-1].end) == (0, MAX_HASH)
    assert sum(bucket.width for bucket in ranges) == RING_SIZE


@given(split_lists)
def test_up_to_the_limit_each_bucket_is_owned_by_itself(splits: list[int]) -> None:
    assert entry_buckets.ownership_units(splits) == entry_buckets.bucket_ranges(splits)


@pytest.mark.parametrize(
    ("buckets", "first", "last"),
    [
        (64, "0000-03ff", "fc00-ffff"),
        (65, "0000-03ef", "f81f-ffff"),
        (128, "0000-03ff", "fc00-ffff"),
        (1024, "0000-03ff", "fc00-ffff"),
        (65536, "0000-03ff", "fc00-ffff"),
    ],
)
def test_known_units_of_equal_buckets(buckets: int, first: str, last: str) -> None:
    units = entry_buckets.ownership_units(entry_buckets.equal_splits(buckets))
    assert (len(units), str(units[0]), str(units[-1])) == (64, first, last)


@given(st.sets(st.integers(1, MAX_HASH), min_size=60, max_size=300).map(sorted))
def test_units_tile_the_ring_in_runs_of_equally_many_whole_buckets(splits: list[int]) -> None:
    buckets, units = entry_buckets.bucket_ranges(splits), entry_buckets.ownership_units(splits)

    assert (units[0].start, units[-1].end) == (0, MAX_HASH)
    assert sum(unit.width for unit in units) == RING_SIZE
    assert len(units) == min(len(buckets), entry_buckets.MOST_UNITS)
    inside = [[b for b in buckets if unit.overlaps(b)] for unit in units]
    assert [(held[0].start, held[-1].end) for held in inside] == [(unit.start, unit.end) for unit in units]
    assert max(map(len, inside)) - min(map(len, inside)) <= 1
    assert sum(map(len, inside)) == len(buckets)


@pytest.mark.parametrize(
    ("budget", "segments", "max_buckets", "expected"),
    [
        (4, 1, 1024, 4),
        (4, 2, 1024, 2),
        (4, 3, 1024, 1),
        (4, 100, 1024, 1),
        (5000, 1, 1024, 1024),
        (0, 1, 9, 1),
    ],
)
def test_budgets_are_shared_with_at_least_one_each(
    budget: int, segments: int, max_buckets: int, expected: int
) -> None:
    assert entry_buckets.buckets_for_budget(budget, segments, max_buckets) == expected


@pytest.mark.parametrize(
    ("parent", "children", "expected"), [(4, 2, 2), (3, 2, 1), (1, 2, 1), (8, 3, 2), (2, 5, 1)]
)
def test_a_split_divides_buckets_and_floors(parent: int, children: int, expected: int) -> None:
    assert entry_buckets.inherited_on_split(parent, children) == expected


def test_a_merge_adds_buckets_up_to_the_maximum() -> None:
    assert entry_buckets.merged(3, 4, 8) == 7
    assert entry_buckets.merged(8, 8, 8) == 8


@pytest.mark.parametrize(
    ("consumers", "owned"),
    [(["c", "a", "b"], {"a": range(2), "b": range(2, 5), "c": range(5, 8)}), ([], {})],
    ids=["three consumers", "no consumer"],
)
def test_known_owners_of_eight_buckets(consumers: list[str], owned: dict[str, range]) -> None:
    assert entry_buckets.owners(8, consumers) == owned


@given(st.integers(1, 40), consumer_names.filter(bool))
def test_every_bucket_has_exactly_one_owner_and_runs_are_equal(bucket_count: int, names: set[str]) -> None:
    owned = entry_buckets.owners(bucket_count, names)
    sizes = [len(run) for run in owned.values()]

    assert sorted(bucket for run in owned.values() for bucket in run) == list(range(bucket_count))
    assert max(sizes) - min(sizes) <= 1
    assert set(owned) == names
