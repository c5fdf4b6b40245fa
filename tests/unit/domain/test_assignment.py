"""Who reads what: the drain barrier, fairness, determinism, and sharing by buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.assignment import AssignedSegment, Assignment, assign, candidates
from controller.domain.entry_buckets import bucket_ranges
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from tests.unit.domain.strategies import consumer_names, layouts, layouts_with_drained

# 0 -> 1, 2 and 1 -> 3, 4: the case of apache/pulsar#26274.
CHAIN = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2)


def _ids(shares: Assignment) -> dict[str, list[int]]:
    return {name: [assigned.segment_id for assigned in share] for name, share in shares.items()}


def _descends_from(layout: SegmentLayout, segment_id: int) -> set[int]:
    parents = [i for i in layout.segments[segment_id].parent_ids if i in layout.segments]
    return set(parents).union(*(_descends_from(layout, i) for i in parents))


@given(layouts_with_drained(), consumer_names, st.booleans())
def test_a_segment_is_handed_out_only_when_all_its_ancestors_are_drained(
    case: tuple[SegmentLayout, frozenset[int]], consumers: set[str], share_buckets: bool
) -> None:
    layout, drained = case

    for share in assign(layout, drained, consumers, share_buckets=share_buckets).values():
        for assigned in share:
            assert _descends_from(layout, assigned.segment_id) <= drained
            assert layout.segments[assigned.segment_id].is_active or assigned.segment_id not in drained


@given(layouts_with_drained(), consumer_names.filter(bool))
def test_every_candidate_goes_to_exactly_one_consumer_and_shares_are_fair(
    case: tuple[SegmentLayout, frozenset[int]], consumers: set[str]
) -> None:
    layout, drained = case

    shares = _ids(assign(layout, drained, consumers))

    expected = {
        i
        for i, segment in layout.segments.items()
        if (segment.is_active or i not in drained) and _descends_from(layout, i) <= drained
    }
    handed_out = [i for share in shares.values() for i in share]
    sizes = [len(share) for share in shares.values()]
    assert sorted(handed_out) == sorted(expected)
    assert max(sizes) - min(sizes) <= 1
    assert set(shares) == consumers


@given(st.data(), layouts_with_drained(), consumer_names, st.booleans())
def test_the_order_of_the_input_plays_no_part(
    data: st.DataObject, case: tuple[SegmentLayout, frozenset[int]], consumers: set[str], share_buckets: bool
) -> None:
    layout, drained = case
    rows = data.draw(st.permutations(list(layout.segments.values())))
    shuffled = SegmentLayout.from_segments(layout.epoch, layout.next_segment_id, rows)

    assert assign(
        shuffled,
        data.draw(st.permutations(sorted(drained))),
        data.draw(st.permutations(sorted(consumers))),
        share_buckets=share_buckets,
    ) == assign(layout, drained, consumers, share_buckets=share_buckets)


@given(layouts_with_drained())
def test_there_is_always_something_to_read_so_that_draining_goes_on(
    case: tuple[SegmentLayout, frozenset[int]],
) -> None:
    assert candidates(*case)


@given(layouts())
def test_draining_what_is_handed_out_ends_with_exactly_the_active_segments(layout: SegmentLayout) -> None:
    drained: set[int] = set()
    while sealed := {s.segment_id for s in candidates(layout, drained) if not s.is_active}:
        drained |= sealed

    assert candidates(layout, drained) == layout.active


def test_a_sealed_child_waits_for_its_sealed_parent() -> None:
    assert _ids(assign(CHAIN, set(), ["a", "b"])) == {"a": [0], "b": []}


def test_draining_the_root_frees_its_children_only() -> None:
    assert _ids(assign(CHAIN, {0}, ["a", "b"])) == {"a": [1], "b": [2]}


def test_a_root_that_a_seek_filled_again_holds_back_everything_below_it() -> None:
    assert _ids(assign(CHAIN, {1}, ["a"])) == {"a": [0]}


def test_a_drained_parent_leaves_the_assignment() -> None:
    assert _ids(assign(CHAIN, {0, 1}, ["a"])) == {"a": [3, 4, 2]}


def test_an_active_segment_is_never_finished_whatever_was_reported() -> None:
    assert _ids(assign(CHAIN, {0, 2}, ["a"])) == {"a": [1, 2]}


def test_a_pruned_ancestor_counts_as_drained() -> None:
    assert _ids(assign(CHAIN.prune(0).prune(1), set(), ["a"])) == {"a": [3, 4, 2]}


def test_segments_are_dealt_in_turn_over_sorted_names() -> None:
    layout = SegmentLayout.initial(5, now=0)

    assert _ids(assign(layout, set(), ["c2", "c1"])) == {"c1": [0, 2, 4], "c2": [1, 3]}


def test_nobody_to_read_means_no_shares() -> None:
    assert assign(CHAIN, set(), []) == {}
    assert assign(CHAIN, set(), [], share_buckets=True) == {}


def test_without_sharing_surplus_consumers_idle() -> None:
    assert _ids(assign(SegmentLayout.initial(1, now=0), set(), ["a", "b", "c"])) == {
        "a": [0],
        "b": [],
        "c": [],
    }


def test_a_third_consumer_shares_the_first_of_two_segments() -> None:
    layout = SegmentLayout.initial(2, bucket_budget=4, now=0)
    low, high = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)

    assert assign(layout, set(), ["a", "b", "c"], share_buckets=True) == {
        "a": (AssignedSegment(0, low, (low, high)),),
        "b": (AssignedSegment(0, low, (low, high)),),
        "c": (AssignedSegment(1, high),),
    }


@pytest.mark.parametrize(("consumers", "idle"), [("abcd", 0), ("abcde", 1), ("abcdefg", 3)])
def test_more_consumers_than_buckets_leave_the_last_ones_idle(consumers: str, idle: int) -> None:
    shares = assign(SegmentLayout.initial(2, bucket_budget=4, now=0), set(), consumers, share_buckets=True)

    assert [name for name in sorted(shares) if not shares[name]] == list(consumers)[len(consumers) - idle :]


@given(layouts_with_drained(), consumer_names)
def test_sharing_changes_nothing_while_segments_suffice(
    case: tuple[SegmentLayout, frozenset[int]], consumers: set[str]
) -> None:
    layout, drained = case

    if len(consumers) <= len(candidates(layout, drained)):
        assert assign(layout, drained, consumers, share_buckets=True) == assign(layout, drained, consumers)


@given(layouts_with_drained(), st.integers(0, 30))
def test_surplus_consumers_are_dealt_evenly_up_to_the_bucket_counts(
    case: tuple[SegmentLayout, frozenset[int]], surplus: int
) -> None:
    layout, drained = case
    ready = candidates(layout, drained)
    names = [f"consumer-{i:03}" for i in range(len(ready) + surplus)]

    shares = assign(layout, drained, names, share_buckets=True)

    handed_out = [assigned for name in names for assigned in shares[name]]
    readers = [sum(a.segment_id == s.segment_id for a in handed_out) for s in ready]
    assert len(handed_out) == min(len(names), sum(s.bucket_count for s in ready))
    assert all(len(share) <= 1 for share in shares.values())
    assert [a.segment_id for a in handed_out] == [
        s.segment_id for s, count in zip(ready, readers, strict=True) for _ in range(count)
    ]
    for segment, count in zip(ready, readers, strict=True):
        assert 1 <= count <= segment.bucket_count
        assert count == segment.bucket_count or count >= max(readers) - 1
    for assigned in handed_out:
        segment = layout.segments[assigned.segment_id]
        shared = readers[ready.index(segment)] > 1
        assert assigned.buckets == (bucket_ranges(segment.bucket_splits) if shared else None)
