"""Plans: what each kind of reshape builds, what it refuses with which sentence, and which reshape an action asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.decision import Decision, Merge, Rebucket, Recut, Split
from controller.domain.entry_buckets import equal_splits
from controller.domain.errors import CleaveError, InvalidLayoutChange, SegmentNotFound
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import (
    ChildPlan,
    Reshape,
    ReshapeKind,
    plan_action,
    plan_equal_split,
    plan_heal,
    plan_merge,
    plan_rebucket,
    plan_recut,
    plan_split,
)
from controller.domain.segment import Segment
from tests.unit.domain.strategies import MAX_BUCKETS, LayoutSequence, Prune, trails

ONE = SegmentLayout.initial(1, bucket_budget=7, now=0)
FOUR = SegmentLayout.initial(4, bucket_budget=12, now=0)
NARROW = SegmentLayout.initial(1, now=0).split(0, 1, at=1)
AFTER_SPLIT = FOUR.split(1, 1)
UNEVEN = replace(ONE, segments={0: replace(ONE.segments[0], bucket_splits=(10,))})


PLANS: dict[str, tuple[Callable[[], Reshape], Reshape]] = {
    "a split halves the range and floors the buckets": (
        lambda: plan_split(ONE, 0),
        Reshape(
            ReshapeKind.SPLIT,
            (0,),
            (
                ChildPlan(1, HashRange(0, 0x7FFF), equal_splits(3)),
                ChildPlan(2, HashRange(0x8000, 0xFFFF), equal_splits(3)),
            ),
        ),
    ),
    "a merge keeps its parents in the order given and adds buckets": (
        lambda: plan_merge(FOUR, 2, 1, 1024),
        Reshape(ReshapeKind.MERGE, (2, 1), (ChildPlan(4, HashRange(0x4000, 0xBFFF), equal_splits(6)),)),
    ),
    "a rebucket keeps the range": (
        lambda: plan_rebucket(FOUR, 1, 8, 8),
        Reshape(ReshapeKind.REBUCKET, (1,), (ChildPlan(4, HashRange(0x4000, 0x7FFF), equal_splits(8)),)),
    ),
    "healing keeps range and buckets": (
        lambda: plan_heal(UNEVEN, 0),
        Reshape(ReshapeKind.HEAL, (0,), (ChildPlan(1, HashRange(0, 0xFFFF), (10,)),)),
    ),
}


@pytest.mark.parametrize(("plan", "expected"), PLANS.values(), ids=PLANS)
def test_what_a_reshape_builds(plan: Callable[[], Reshape], expected: Reshape) -> None:
    assert plan() == expected


def test_a_split_lays_buckets_out_afresh_instead_of_filtering_the_parents() -> None:
    uneven = replace(ONE, segments={0: replace(ONE.segments[0], bucket_splits=(10, 20, 30))})

    assert [child.bucket_splits for child in plan_split(uneven, 0).children] == [(32768,), (32768,)]


@pytest.mark.parametrize("at", [1000, [1000], (1000,)])
def test_one_cut_point_may_come_alone_or_in_a_list(at: int | list[int]) -> None:
    assert [child.hash_range for child in plan_split(ONE, 0, at).children] == [
        HashRange(0, 999),
        HashRange(1000, 0xFFFF),
    ]


def test_several_cut_points_make_one_child_more() -> None:
    plan = plan_split(ONE, 0, [100, 200, 300])

    assert [(child.segment_id, str(child.hash_range)) for child in plan.children] == [
        (1, "0000-0063"),
        (2, "0064-00c7"),
        (3, "00c8-012b"),
        (4, "012c-ffff"),
    ]
    assert {child.bucket_splits for child in plan.children} == {()}


def test_an_equal_split_into_three_shares_buckets_by_three() -> None:
    plan = plan_equal_split(ONE, 0, 3)

    assert [child.hash_range.width for child in plan.children] == [21846, 21845, 21845]
    assert {child.bucket_splits for child in plan.children} == {equal_splits(2)}


def test_an_equal_split_in_two_is_the_midpoint_split() -> None:
    odd = ONE.split(0, 1, at=65535 - 6)

    assert plan_equal_split(odd, 1, 2) == plan_split(odd, 1)


def test_a_merge_never_exceeds_the_bucket_maximum() -> None:
    assert plan_merge(FOUR, 1, 2, 5).children[0].bucket_splits == equal_splits(5)


def test_an_uneven_segment_may_be_rebucketed_to_the_count_it_has() -> None:
    assert plan_rebucket(UNEVEN, 0, 2, 8).children[0].bucket_splits == (32768,)


def test_a_recut_moves_the_boundaries_of_neighbours_and_shares_their_buckets() -> None:
    plan = plan_recut(FOUR, [1, 2, 3], [0x5000], 1024)

    assert [str(child.hash_range) for child in plan.children] == ["4000-4fff", "5000-ffff"]
    assert {child.bucket_splits for child in plan.children} == {equal_splits(4)}


def test_a_recut_without_cut_points_joins_them_all_up_to_the_bucket_maximum() -> None:
    plan = plan_recut(FOUR, [3, 2, 1, 0], [], 10)

    assert plan.children == (ChildPlan(4, HashRange(0, 0xFFFF), equal_splits(10)),)


REFUSALS: list[tuple[str, Callable[[], Reshape]]] = [
    (r"segment 1 \(0000-0000\) covers 1 hash.*cannot be split into 2", lambda: plan_split(NARROW, 1)),
    (r"segment 1 \(0000-0000\) covers 1 hash.*cannot be split into 2", lambda: plan_split(NARROW, 1, [5])),
    (
        r"segment 1 \(0000-0000\) covers 1 hash.*cannot be split into 3",
        lambda: plan_equal_split(NARROW, 1, 3),
    ),
    (r"segment 0 \(0000-3fff\) cannot be split into 1 parts", lambda: plan_equal_split(FOUR, 0, 1)),
    (r"segment 0 \(0000-3fff\) cannot be split at 0x0000", lambda: plan_split(FOUR, 0, 0)),
    (r"segment 0 \(0000-3fff\) cannot be split at 0x4000", lambda: plan_split(FOUR, 0, 0x4000)),
    (r"segment 0 \(0000-3fff\) cannot be split at 0x0009, 0x0009", lambda: plan_split(FOUR, 0, [9, 9])),
    (r"segment 0 \(0000-3fff\) has no cut point", lambda: plan_split(FOUR, 0, [])),
    (r"segment 1 .* was sealed at epoch 1; .* \[4, 5\]", lambda: plan_split(AFTER_SPLIT, 1)),
    (r"segment 1 .* was sealed", lambda: plan_merge(AFTER_SPLIT, 0, 1, 9)),
    (r"segment 1 .* was sealed", lambda: plan_rebucket(AFTER_SPLIT, 1, 9, 9)),
    (r"segment 1 .* was sealed", lambda: plan_heal(AFTER_SPLIT, 1)),
    (r"segment 1 .* was sealed", lambda: plan_recut(AFTER_SPLIT, [0, 1], [9], 9)),
    (r"segments 0 \(0000-3fff\) and 2 \(8000-bfff\) are not adjacent", lambda: plan_merge(FOUR, 0, 2, 9)),
    (r"segments 0 .* and 3 .* are not adjacent", lambda: plan_merge(FOUR, 0, 3, 9)),
    (r"segments 2 .* and 2 .* are not adjacent", lambda: plan_merge(FOUR, 2, 2, 9)),
    (r"segment 0 .* 0 buckets; bucketCount must be in \[1, 9\]", lambda: plan_rebucket(FOUR, 0, 0, 9)),
    (r"segment 0 .* 10 buckets; bucketCount must be in \[1, 9\]", lambda: plan_rebucket(FOUR, 0, 10, 9)),
    (r"segment 0 .* has these 3 buckets already", lambda: plan_rebucket(FOUR, 0, 3, 9)),
    (r"segments 0 .* to 3 .* leave a gap", lambda: plan_recut(FOUR, [0, 1, 3], [9], 9)),
    (r"parents \[1, 1\] must be one or more different", lambda: plan_recut(FOUR, [1, 1], [0x5000], 9)),
    (r"parents \[\] must be one or more different", lambda: plan_recut(FOUR, [], [], 9)),
    (r"0, 1 cannot be cut at 0x8000", lambda: plan_recut(FOUR, [0, 1], [0x8000], 9)),
    (r"0, 1 are cut at 0x4000 already", lambda: plan_recut(FOUR, [0, 1], [0x4000], 9)),
]


UNKNOWN: list[Callable[[], Reshape]] = [
    lambda: plan_split(FOUR, 9),
    lambda: plan_merge(FOUR, 3, 9, 9),
    lambda: plan_rebucket(FOUR, 9, 2, 9),
    lambda: plan_heal(FOUR, 9),
    lambda: plan_recut(FOUR, [3, 9], [], 9),
]


@pytest.mark.parametrize(
    ("error", "sentence", "plan"),
    [
        *((InvalidLayoutChange, sentence, plan) for sentence, plan in REFUSALS),
        *((SegmentNotFound, "segment 9 is not in the layout", plan) for plan in UNKNOWN),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_never_be_right_is_refused_in_a_sentence(
    error: type[CleaveError], sentence: str, plan: Callable[[], Reshape]
) -> None:
    with pytest.raises(error, match=sentence):
        plan()


LOW, HIGH = HashRange(0, 0x1FFF), HashRange(0x2000, 0x3FFF)


@pytest.mark.parametrize(
    ("children", "sentence"),
    [
        ((), "without a successor"),
        ((ChildPlan(4, LOW),), "children 0000-1fff do not tile 0000-3fff"),
        ((ChildPlan(4, HIGH),), "do not tile"),
        ((ChildPlan(4, LOW), ChildPlan(5, HashRange(0x2001, 0x3FFF))), "do not tile"),
        ((ChildPlan(4, LOW), ChildPlan(5, HashRange(0x1FFF, 0x3FFF))), "do not tile"),
        ((ChildPlan(4, LOW), ChildPlan(5, HashRange(0x2000, 0x4000))), "do not tile"),
        ((ChildPlan(4, LOW), ChildPlan(5, HIGH), ChildPlan(6, HIGH)), "do not tile"),
        ((ChildPlan(4, LOW), ChildPlan(4, HIGH)), r"child ids \[4, 4\] .* already in use"),
        (
            (ChildPlan(4, LOW), ChildPlan(3, HIGH)),
            r"child ids \[4, 3\] .* already in use; reserve ids from 4",
        ),
        ((ChildPlan(4, LOW), ChildPlan(-1, HIGH)), "already in use"),
        ((ChildPlan(4, LOW, (7, 7)), ChildPlan(5, HIGH)), r"bucket splits \(7, 7\) of child 4"),
    ],
)
def test_a_plan_that_breaks_the_ring_or_reuses_an_id_is_refused(
    children: tuple[ChildPlan, ...], sentence: str
) -> None:
    with pytest.raises(InvalidLayoutChange, match=sentence):
        Reshape(ReshapeKind.SPLIT, (0,), children).validate_against(FOUR)


def test_a_plan_whose_parent_was_sealed_meanwhile_no_longer_fits() -> None:
    plan = plan_split(FOUR, 1)

    plan.validate_against(FOUR)
    with pytest.raises(InvalidLayoutChange, match="was sealed at epoch 1"):
        plan.validate_against(AFTER_SPLIT)


def test_reserved_ids_stay_good_when_a_later_operation_commits_first() -> None:
    """Two operations on disjoint segments reserve 4, 5 and 6, 7; the second commits first."""
    first = plan_split(FOUR, 0)
    second = replace(
        plan_split(FOUR, 3),
        children=tuple(replace(c, segment_id=c.segment_id + 2) for c in plan_split(FOUR, 3).children),
    )

    layout = FOUR.apply(second, 1).apply(first, 2)

    layout.check_invariants()
    assert (layout.next_segment_id, layout.epoch) == (8, 2)


@given(trails())
def test_every_plan_fits_the_layout_it_was_made_for(trail: LayoutSequence) -> None:
    for layout, act in zip(trail.layouts, trail.acts, strict=False):
        if not isinstance(act, Prune):
            act.validate_against(layout)
            assert all(len(child.bucket_splits) < MAX_BUCKETS for child in act.children)


@given(st.integers(2, 9), trails(max_changes=4))
def test_buckets_never_multiply_in_a_split(parts: int, trail: LayoutSequence) -> None:
    parent: Segment = max(trail.last.active, key=lambda segment: segment.hash_range.width)

    children = plan_equal_split(trail.last, parent.segment_id, parts).children

    total = sum(len(child.bucket_splits) + 1 for child in children)
    assert total <= max(parent.bucket_count, parts)


LAYOUT = SegmentLayout.initial(2, now=0)


@pytest.mark.parametrize(
    ("act", "kind", "parents", "ranges"),
    [
        (Split(0), ReshapeKind.SPLIT, (0,), ["0000-3fff", "4000-7fff"]),
        (Split(1, (0x9000, 0xA000)), ReshapeKind.SPLIT, (1,), ["8000-8fff", "9000-9fff", "a000-ffff"]),
        (Merge(0, 1), ReshapeKind.MERGE, (0, 1), ["0000-ffff"]),
        (Rebucket(0, 8), ReshapeKind.REBUCKET, (0,), ["0000-7fff"]),
        (Recut((0, 1), (0x1000,)), ReshapeKind.RECUT, (0, 1), ["0000-0fff", "1000-ffff"]),
    ],
)
def test_each_act_asks_for_its_reshape(
    act: Decision, kind: ReshapeKind, parents: tuple[int, ...], ranges: list[str]
) -> None:
    planned = plan_action(act, LAYOUT, max_buckets=16)

    assert (planned.kind, planned.parent_ids) == (kind, parents)
    assert [str(child.hash_range) for child in planned.children] == ranges
