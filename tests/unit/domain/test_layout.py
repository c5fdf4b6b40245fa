"""The laws of a layout under any run of changes, and the known shape of each change."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import CleaveError, InvalidLayoutChange, SegmentNotFound
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import ChildPlan, plan_equal_split, plan_recut
from controller.domain.segment import Segment, SegmentState
from tests.support.lineages import lineage_of_merges
from tests.support.work import steps
from tests.unit.domain.strategies import LayoutSequence, Prune, layouts, trails


@given(trails())
def test_whatever_happens_the_active_ranges_tile_the_ring(trail: LayoutSequence) -> None:
    for layout in trail.layouts:
        layout.check_invariants()
        covered = [h for s in layout.active for h in (s.hash_range.start, s.hash_range.end + 1)]
        assert covered[0] == 0
        assert covered[-1] == RING_SIZE
        assert covered[1:-1:2] == covered[2:-1:2]


@given(trails())
def test_each_change_raises_the_epoch_by_exactly_one(trail: LayoutSequence) -> None:
    assert [layout.epoch for layout in trail.layouts] == list(range(len(trail.acts) + 1))


@given(trails())
def test_ids_are_never_reused(trail: LayoutSequence) -> None:
    seen = set(trail.layouts[0].segments)
    for before, after in zip(trail.layouts, trail.layouts[1:], strict=False):
        born = after.segments.keys() - before.segments.keys()
        assert not born & seen
        assert all(before.next_segment_id <= segment_id < after.next_segment_id for segment_id in born)
        seen |= born


@given(trails())
def test_a_sealed_segment_never_becomes_active_again(trail: LayoutSequence) -> None:
    sealed: set[int] = set()
    for layout in trail.layouts:
        assert not sealed & {segment.segment_id for segment in layout.active}
        sealed |= {i for i, segment in layout.segments.items() if not segment.is_active}


@given(trails())
def test_a_change_leaves_the_layout_it_started_from_as_it_was(trail: LayoutSequence) -> None:
    copies = [pickle.loads(pickle.dumps(layout)) for layout in trail.layouts]

    for act, layout in zip(trail.acts, trail.layouts, strict=False):
        _ = layout.prune(act.segment_id) if isinstance(act, Prune) else layout.apply(act, 99)

    assert list(trail.layouts) == copies


@given(trails(prune=False))
def test_parents_are_exactly_the_sealed_segments_a_child_overlaps(trail: LayoutSequence) -> None:
    for act, after in zip(trail.acts, trail.layouts[1:], strict=False):
        assert not isinstance(act, Prune)
        for child in act.children:
            overlapped = {
                i for i in act.parent_ids if after.segments[i].hash_range.overlaps(child.hash_range)
            }
            assert set(after.segments[child.segment_id].parent_ids) == overlapped


@given(layouts(prune=False))
def test_every_hash_of_a_segment_passes_to_its_children(layout: SegmentLayout) -> None:
    for segment in layout.segments.values():
        if not segment.is_active:
            children = sorted(layout.segments[i].hash_range for i in segment.child_ids)
            heirs = [c for c in children if c.overlaps(segment.hash_range)]
            assert heirs == children
            assert children[0].start <= segment.hash_range.start
            assert children[-1].end >= segment.hash_range.end


@given(st.data(), layouts())
def test_merging_the_halves_of_a_split_gives_back_the_range(
    data: st.DataObject, layout: SegmentLayout
) -> None:
    wide = [segment for segment in layout.active if segment.hash_range.width > 1]
    parent = data.draw(st.sampled_from(wide))

    halved = layout.split(parent.segment_id, 1)
    low, high = halved.segments[parent.segment_id].child_ids
    first, second = data.draw(st.permutations([low, high]))
    whole = halved.merge(first, second, 2)

    assert whole.segments[halved.next_segment_id].hash_range == parent.hash_range
    assert len(whole.active) == len(layout.active)


@pytest.mark.parametrize(
    ("segments", "widths", "buckets"),
    [(1, {65536}, 4), (3, {21845, 21846}, 1), (2, {32768}, 2), (65536, {1}, 1)],
)
def test_known_first_layouts(segments: int, widths: set[int], buckets: int) -> None:
    layout = SegmentLayout.initial(segments, now=77)

    layout.check_invariants()
    assert {segment.hash_range.width for segment in layout.active} == widths
    assert {segment.bucket_count for segment in layout.active} == {buckets}
    assert [segment.segment_id for segment in layout.active] == list(range(segments))
    assert {segment.created_at_ms for segment in layout.active} == {77}
    assert (layout.epoch, layout.next_segment_id) == (0, segments)


@pytest.mark.parametrize("segments", [0, -1, 65537])
def test_a_topic_starts_with_one_segment_a_hash_at_most(segments: int) -> None:
    with pytest.raises(InvalidLayoutChange, match=f"start with {segments} segments; give 1 to 65536"):
        SegmentLayout.initial(segments, now=0)


def test_a_split_seals_the_parent_and_stamps_everybody() -> None:
    layout = SegmentLayout.initial(1, now=5).split(0, 1000)

    assert (layout.epoch, layout.next_segment_id) == (1, 3)
    assert layout.segments[0] == Segment(
        0,
        HashRange(0, 0xFFFF),
        SegmentState.SEALED,
        child_ids=(1, 2),
        created_at_ms=5,
        sealed_epoch=1,
        sealed_at_ms=1000,
        bucket_splits=(16384, 32768, 49152),
    )
    assert layout.segments[2] == Segment(
        2,
        HashRange(0x8000, 0xFFFF),
        parent_ids=(0,),
        created_epoch=1,
        created_at_ms=1000,
        bucket_splits=(32768,),
    )


def test_a_merge_lists_its_parents_in_the_order_given() -> None:
    layout = SegmentLayout.initial(2, now=0).merge(1, 0, 9)

    assert layout.segments[2].parent_ids == (1, 0)
    assert layout.segments[2].merge_depth == 1
    assert [layout.segments[i].child_ids for i in (0, 1)] == [(2,), (2,)]


def test_a_rebucket_rolls_over_to_one_successor() -> None:
    layout = SegmentLayout.initial(1, now=0).rebucket(0, 8, 9)

    assert [(s.segment_id, s.bucket_count, s.parent_ids) for s in layout.active] == [(1, 8, (0,))]
    assert layout.segments[0].child_ids == (1,)


def test_the_default_bucket_maximum_is_pulsars() -> None:
    with pytest.raises(InvalidLayoutChange, match=r"must be in \[1, 1024\]"):
        SegmentLayout.initial(1, now=0).rebucket(0, 1025, 9)


def test_a_recut_of_three_into_two_links_whoever_overlaps() -> None:
    first = SegmentLayout.initial(3, now=0)
    layout = first.apply(plan_recut(first, [0, 1, 2], [30000]), 1)

    assert layout.segments[3].parent_ids == (0, 1)
    assert layout.segments[4].parent_ids == (1, 2)
    assert [layout.segments[i].child_ids for i in range(3)] == [(3,), (3, 4), (4,)]
    assert (layout.epoch, layout.segment(3).merge_depth, layout.segment(4).merge_depth) == (1, 1, 1)


def test_a_reshape_that_does_not_fit_is_refused() -> None:
    layout = SegmentLayout.initial(2, now=0)

    with pytest.raises(InvalidLayoutChange, match="do not tile"):
        layout.reshape([0], [ChildPlan(2, HashRange(0, 0x3FFF))], now=1)


def test_pruning_forgets_the_segment_and_every_link_to_it() -> None:
    layout = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2).prune(1)

    layout.check_invariants()
    assert layout.epoch == 3
    assert layout.segments[0].child_ids == (2,)
    assert layout.segments[3].parent_ids == layout.segments[4].parent_ids == ()
    assert layout.next_segment_id == 5


@pytest.mark.parametrize(
    ("segment_id", "error", "message"),
    [
        (0, InvalidLayoutChange, r"segment 0 \(0000-ffff\) is active and cannot be pruned"),
        (4, SegmentNotFound, "segment 4"),
    ],
    ids=["active", "unknown"],
)
def test_only_a_sealed_segment_is_pruned(segment_id: int, error: type[CleaveError], message: str) -> None:
    with pytest.raises(error, match=message):
        SegmentLayout.initial(1, now=0).prune(segment_id)


def test_a_recut_of_many_into_many_takes_steps_in_proportion_to_them() -> None:
    def moved_by_one(count: int) -> SegmentLayout:
        layout = SegmentLayout.initial(count, now=0)
        cuts = [segment.hash_range.start + 1 for segment in layout.active]
        return layout.apply(plan_recut(layout, range(count), cuts), 1)

    assert len(moved_by_one(50).active) == 51
    assert steps(lambda: moved_by_one(200)) < 4.5 * steps(lambda: moved_by_one(50))


def test_a_split_into_many_counts_the_merges_of_its_lineage_once() -> None:
    def into(parts: int) -> int:
        long = lineage_of_merges(200)
        return steps(lambda: long.apply(plan_equal_split(long, 600, parts), 1))

    assert into(64) < 2 * into(2)
