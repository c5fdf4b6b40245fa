"""Reading a layout: the active ring, look-up, ancestry, merge depth, and the laws themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvariantViolated, SegmentNotFound
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState
from controller.domain.segment_graph import COUNTED_MERGES
from tests.support.ancestry import merge_depth_by_ancestry
from tests.support.lineages import lineage_of_merges
from tests.support.work import steps
from tests.unit.domain.strategies import (
    LayoutSequence,
    Prune,
    layouts,
    perform,
    segment_hashes,
    trails,
)

DIAMOND = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2).split(2, 3).merge(4, 5, 4)
THREE_MERGES = SegmentLayout.initial(4, now=0).merge(0, 1, 1).merge(2, 3, 2).merge(4, 5, 3)


@given(layouts(), segment_hashes)
def test_look_up_agrees_with_a_linear_search(layout: SegmentLayout, segment_hash: int) -> None:
    covering = [s for s in layout.segments.values() if s.is_active and s.hash_range.contains(segment_hash)]

    assert [layout.segment_for(segment_hash)] == covering


@given(layouts(), segment_hashes)
def test_what_was_sealed_is_found_by_a_hash_in_the_order_it_was_made(
    layout: SegmentLayout, segment_hash: int
) -> None:
    whole = [s for _, s in sorted(layout.segments.items()) if s.hash_range.contains(segment_hash)]

    assert list(layout.sealed_for(segment_hash)) == [s for s in whole if not s.is_active]


@given(layouts())
def test_the_ends_of_every_active_range_are_found(layout: SegmentLayout) -> None:
    for segment in layout.active:
        assert layout.segment_for(segment.hash_range.start) is segment
        assert layout.segment_for(segment.hash_range.end) is segment


@pytest.mark.parametrize(
    ("layout", "segment_hash", "sentence"),
    [
        (DIAMOND, -1, "covers hash -1 at epoch 4"),
        (DIAMOND, 65536, "covers hash 65536 at epoch 4"),
        (SegmentLayout(7, 3, {}), 0, "covers hash 0 at epoch 7"),
    ],
    ids=["below the ring", "above the ring", "no segments"],
)
def test_a_hash_off_the_ring_or_of_no_segment_is_covered_by_nothing(
    layout: SegmentLayout, segment_hash: int, sentence: str
) -> None:
    with pytest.raises(SegmentNotFound, match=sentence):
        layout.segment_for(segment_hash)


def test_the_active_segments_are_sorted_once() -> None:
    assert [segment.segment_id for segment in DIAMOND.active] == [3, 7, 6]
    assert DIAMOND.active is DIAMOND.active


def test_an_unknown_segment_is_named() -> None:
    with pytest.raises(SegmentNotFound, match="segment 99 is not in the layout at epoch 4"):
        DIAMOND.segment(99)


def test_lineage_counts_a_shared_ancestor_once() -> None:
    assert DIAMOND.ancestors(7) == {0, 1, 2, 4, 5}
    assert DIAMOND.descendants(1) == {3, 4, 7}
    assert DIAMOND.lineage(4) == (0, 1, 4, 7)
    assert DIAMOND.lineage(0) == (0, 1, 2, 3, 4, 5, 6, 7)


@given(layouts())
def test_ancestors_and_descendants_are_each_others_mirror(layout: SegmentLayout) -> None:
    for segment_id in layout.segments:
        assert all(segment_id in layout.descendants(older) for older in layout.ancestors(segment_id))
        assert all(segment_id in layout.ancestors(younger) for younger in layout.descendants(segment_id))


def test_merging_two_lineages_of_one_merge_each_gives_three() -> None:
    assert [THREE_MERGES.segment(i).merge_depth for i in (0, 4, 5, 6)] == [0, 1, 1, 3]


def test_a_shared_merge_ancestor_counts_once() -> None:
    layout = SegmentLayout.initial(2, now=0).merge(0, 1, 1).split(2, 2).merge(3, 4, 3)

    assert layout.segment(5).merge_depth == merge_depth_by_ancestry(layout, 5) == 2


def test_pruning_erodes_the_count_over_ancestry_but_not_the_stored_depth() -> None:
    layout = SegmentLayout.initial(2, now=0).merge(0, 1, 1).prune(0)

    assert merge_depth_by_ancestry(layout, 2) == 0
    assert layout.segment(2).merge_depth == 1
    assert layout.split(2, 3).segment(3).merge_depth == 1


def _merged_and_split_again(times: int) -> SegmentLayout:
    """So many merges one above the other."""
    layout = SegmentLayout.initial(2, now=0)
    for _ in range(times):
        left, right = layout.active
        layout = layout.merge(left.segment_id, right.segment_id, 1)
        layout = layout.split(layout.active[0].segment_id, 1)
    return layout


def test_beyond_what_is_told_apart_a_depth_rises_with_each_merge_still() -> None:
    layout = _merged_and_split_again(COUNTED_MERGES + 5)
    layout.check_invariants()

    deepest = layout.active[0].segment_id
    assert (
        layout.segment(deepest).merge_depth == merge_depth_by_ancestry(layout, deepest) == COUNTED_MERGES + 5
    )


def test_lineages_of_many_merges_are_told_apart_up_to_the_bound() -> None:
    """Two of 40 merges each join: 81 by Pulsar's count, of which those up to the bound are told apart."""
    layout = SegmentLayout.initial(4, now=0)
    for low in (0, 2):
        for _ in range(40):
            left, right = layout.active[low : low + 2]
            layout = layout.merge(left.segment_id, right.segment_id, 1)
            layout = layout.split(layout.active[low].segment_id, 1)
    layout = layout.merge(layout.active[1].segment_id, layout.active[2].segment_id, 1)
    layout.check_invariants()

    joined = layout.active[1].segment_id
    assert merge_depth_by_ancestry(layout, joined) == 81
    assert layout.segment(joined).merge_depth == COUNTED_MERGES + 1


def _pulsars_merge_depth(layout: SegmentLayout, segment_id: int) -> int:
    """The set of merges in the ancestry by plain recursion, missing ancestors skipped."""

    def merges(of: int) -> set[int]:
        if of not in layout.segments:
            return set()
        parents = layout.segments[of].parent_ids
        return set().union({of} if len(parents) >= 2 else (), *map(merges, parents))

    return len(merges(segment_id))


@given(trails(prune=False))
def test_the_stored_depth_is_pulsars_number_while_nothing_was_pruned(trail: LayoutSequence) -> None:
    for segment_id in trail.last.segments:
        depth = trail.last.segment(segment_id).merge_depth
        assert depth == merge_depth_by_ancestry(trail.last, segment_id)
        assert depth == _pulsars_merge_depth(trail.last, segment_id)


@given(trails())
def test_with_pruning_the_stored_depth_lies_between_the_eroded_and_the_whole_count(
    trail: LayoutSequence,
) -> None:
    unpruned = trail.layouts[0]
    for act in trail.acts:
        if not isinstance(act, Prune):
            unpruned = perform(unpruned, act, 0)

    for segment_id in trail.last.segments:
        eroded = _pulsars_merge_depth(trail.last, segment_id)
        whole = _pulsars_merge_depth(unpruned, segment_id)
        assert eroded <= trail.last.segment(segment_id).merge_depth <= whole


@given(trails())
def test_a_segments_depth_never_changes_and_never_falls_from_parent_to_child(trail: LayoutSequence) -> None:
    known: dict[int, int] = {}
    for layout in trail.layouts:
        for segment_id, segment in layout.segments.items():
            assert known.setdefault(segment_id, segment.merge_depth) == segment.merge_depth
            assert all(
                known[i] + (len(segment.parent_ids) >= 2) <= segment.merge_depth for i in segment.parent_ids
            )


def test_an_empty_layout_of_a_deleted_topic_is_lawful() -> None:
    SegmentLayout(9, 4, {}).check_invariants()


def changed(layout: SegmentLayout, segment_id: int, /, **change: Any) -> SegmentLayout:
    """Return the layout with one segment changed."""
    segments = {**layout.segments, segment_id: replace(layout.segments[segment_id], **change)}
    return SegmentLayout(layout.epoch, layout.next_segment_id, segments)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (changed(DIAMOND, 3, hash_range=HashRange(0, 5)), "leave a gap or overlap"),
        (changed(DIAMOND, 3, hash_range=HashRange(0, 0x5000)), "leave a gap or overlap"),
        (changed(DIAMOND, 3, hash_range=HashRange(1, 0x3FFF)), "uncovered below"),
        (changed(DIAMOND, 6, hash_range=HashRange(0xC000, 0xFFFE)), "uncovered above"),
        (changed(DIAMOND, 3, segment_id=33), "stored under id 3"),
        (changed(DIAMOND, 3, sealed_epoch=3), "recorded as sealed"),
        (changed(DIAMOND, 3, sealed_at_ms=3), "recorded as sealed"),
        (changed(DIAMOND, 3, child_ids=(9,)), "has children"),
        (changed(DIAMOND, 2, sealed_epoch=None), "incomplete seal"),
        (changed(DIAMOND, 2, sealed_epoch=0), "has epochs 1 to 0"),
        (changed(DIAMOND, 2, sealed_epoch=5), "has epochs 1 to 5, at layout epoch 4"),
        (changed(DIAMOND, 3, bucket_splits=(9, 9)), "bucket splits"),
        (changed(DIAMOND, 7, merge_depth=0), "is below its 1 merges"),
        (changed(DIAMOND, 0, merge_depth=1), "depth falls"),
        (changed(DIAMOND, 1, child_ids=(3,)), "does not list child"),
        (changed(DIAMOND, 4, parent_ids=()), "does not list parent"),
        (changed(DIAMOND, 4, parent_ids=(1, 8), merge_depth=1), "younger than its child"),
        (changed(DIAMOND, 4, hash_range=HashRange(0xF000, 0xF001)), "does not overlap its parent"),
        (changed(THREE_MERGES, 6, merge_depth=2), r"depth 2 of 6 .* is below its 3 merges"),
        (SegmentLayout(DIAMOND.epoch, 7, DIAMOND.segments), "segment id 7 >= next id 7"),
    ],
)
def test_a_broken_law_is_named(broken: SegmentLayout, law: str) -> None:
    with pytest.raises(InvariantViolated, match=law):
        broken.check_invariants()


def test_a_ring_without_active_segments_breaks_a_law() -> None:
    sealed = replace(DIAMOND.segments[0], child_ids=())
    assert sealed.state is SegmentState.SEALED

    with pytest.raises(InvariantViolated, match="no segment is active"):
        SegmentLayout(4, 8, {0: sealed}).check_invariants()


@given(st.data(), layouts())
def test_the_constructor_takes_rows_as_they_are_in_any_order(
    data: st.DataObject, layout: SegmentLayout
) -> None:
    rows = data.draw(st.permutations(list(layout.segments.values())))

    rebuilt = SegmentLayout.from_segments(layout.epoch, layout.next_segment_id, rows)

    assert rebuilt == layout
    assert rebuilt.active == layout.active


def test_checking_the_laws_takes_steps_in_proportion_to_the_segments() -> None:
    short, long = (lineage_of_merges(rounds) for rounds in (100, 400))

    assert steps(long.check_invariants) < 4.5 * steps(short.check_invariants)


def test_checking_links_compares_ids_in_proportion_to_the_links() -> None:
    """A migrated topic: each of the old logs is a parent of each of the new segments."""
    layout = migrated(30)
    Compared.count = 0
    layout.check_invariants()

    assert Compared.count <= 10 * 30 * 30


class Compared(int):
    """An id that counts how often it is compared for equality."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_pulsars_merge_depths_are_counted_together_in_proportion_to_the_segments() -> None:
    short, long = (lineage_of_merges(rounds) for rounds in (100, 400))

    assert long.merge_depths_by_ancestry() == {i: s.merge_depth for i, s in long.segments.items()}
    assert steps(long.merge_depths_by_ancestry) < 4.5 * steps(short.merge_depths_by_ancestry)


@given(trails())
def test_counted_together_or_alone_pulsars_merge_depths_are_the_same(trail: LayoutSequence) -> None:
    for layout in trail.layouts:
        alone = {i: merge_depth_by_ancestry(layout, i) for i in layout.segments}
        assert layout.merge_depths_by_ancestry() == alone


def migrated(partitions: int) -> SegmentLayout:
    """The first layout of a topic made of a partitioned one (PIP-475)."""
    ids = [Compared(i) for i in range(2 * partitions)]
    old, new = ids[:partitions], ids[partitions:]
    sealed = [
        Segment(i, FULL_RANGE, SegmentState.SEALED, child_ids=tuple(new), sealed_epoch=0, sealed_at_ms=0)
        for i in old
    ]
    ranges = zip(new, FULL_RANGE.divide(partitions), strict=True)
    active = [Segment(i, r, parent_ids=tuple(old), merge_depth=1) for i, r in ranges]
    return SegmentLayout.from_segments(0, 2 * partitions, (*sealed, *active))
