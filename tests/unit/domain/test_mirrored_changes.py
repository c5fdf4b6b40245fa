"""What happened to a layout somebody else keeps, told from two readings of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import Conflict
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.mirrored_changes import (
    LayoutStep,
    have_children_taken_over,
    last_reshape_times,
    steps_between,
)
from controller.domain.reshape import ReshapeKind

SPLIT, MERGE, REBUCKET = ReshapeKind.SPLIT, ReshapeKind.MERGE, ReshapeKind.REBUCKET
LOW, HIGH = HashRange(0, 16383), HashRange(16384, 32767)


def two() -> SegmentLayout:
    return SegmentLayout.initial(2, now=0)


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (
            two().split(0, 1).merge(3, 1, 2).rebucket(2, 8, 3),
            (
                LayoutStep(1, SPLIT, (0,), (2, 3)),
                LayoutStep(2, MERGE, (1, 3), (4,)),
                LayoutStep(3, REBUCKET, (2,), (5,)),
            ),
        ),
        (
            two().split(0, 1).split(2, 2).prune(0).prune(2),
            (LayoutStep(1, None, (), (3,)), LayoutStep(2, None, (), (4, 5))),
        ),
    ],
    ids=["nothing was pruned", "what was pruned leaves a gap or half a story"],
)
def test_each_epoch_is_told_by_what_it_sealed_and_made(
    after: SegmentLayout, steps: tuple[LayoutStep, ...]
) -> None:
    assert steps_between(two(), after) == steps
    assert steps_between(after, after) == ()


RESHAPED = two().split(0, 10).split(1, 20).merge(2, 3, 30).rebucket(4, 8, 40)


@pytest.mark.parametrize(
    ("layout", "times"),
    [
        (two(), {}),
        (RESHAPED, {SPLIT: 20, MERGE: 30, REBUCKET: 40}),
        (RESHAPED.split(7, 50), {SPLIT: 50, MERGE: 30, REBUCKET: 40}),
        # The broker takes a pruned parent out of its children, which then name none.
        (two().split(0, 10).prune(0), {SPLIT: 10}),
        (two().merge(0, 1, 10).prune(0), {MERGE: 10}),
        (two().split(0, 10).prune(0).rebucket(2, 8, 20).prune(2), {}),
        # The times of migrated segments are 0.
        (two().split(0, 0), {}),
    ],
    ids=[
        "no act",
        "one act or more of each kind",
        "a later act",
        "two children of a pruned parent",
        "a merge with a pruned parent",
        "one child of a pruned parent",
        "times that nobody knows",
    ],
)
def test_the_last_act_of_each_kind_is_read_from_when_segments_were_made(
    layout: SegmentLayout, times: dict[ReshapeKind, int]
) -> None:
    assert last_reshape_times(layout) == times


def test_a_parent_that_is_listed_and_gone_reads_as_a_split() -> None:
    split = two().split(0, 10)
    gone = SegmentLayout.from_segments(
        split.epoch, split.next_segment_id, [s for i, s in split.segments.items() if i != 0]
    )

    assert last_reshape_times(gone) == {SPLIT: 10}


@pytest.mark.parametrize(
    ("after", "acts"),
    [
        pytest.param(two().split(0, 10).split(2, 20).prune(0).prune(2), {SPLIT: 20}, id="split twice"),
        pytest.param(
            two().split(0, 10).prune(0).rebucket(2, 8, 20).prune(2), {SPLIT: 20}, id="a half, rebucketed"
        ),
        pytest.param(two().rebucket(0, 8, 10).prune(0), {REBUCKET: 10}, id="rebucket"),
        pytest.param(two().merge(0, 1, 10).prune(0).prune(1), {MERGE: 10}, id="merge"),
    ],
)
def test_a_layout_known_before_tells_more(after: SegmentLayout, acts: dict[ReshapeKind, int]) -> None:
    """Whose parents are gone, is narrower, as wide or wider than what was there."""
    assert last_reshape_times(after, since=two()) == acts
    assert last_reshape_times(after, since=after) == {}


def test_an_older_layout_means_that_the_topic_was_made_again() -> None:
    with pytest.raises(Conflict, match="created again"):
        steps_between(two().split(0, 1), two())


def test_a_reshape_is_done_when_the_layout_shows_its_parents_sealed_for_those_ranges() -> None:
    after = two().split(0, 1).split(1, 2)

    assert not have_children_taken_over(two(), [0], [LOW, HIGH])
    assert have_children_taken_over(after, [0], [HIGH, LOW])


@pytest.mark.parametrize(
    ("parent_ids", "ranges"),
    [
        pytest.param([0, 1], [HashRange(0, 65535)], id="one of two is sealed"),
        pytest.param([0], [HashRange(0, 9), HashRange(10, 32767)], id="cut elsewhere"),
        pytest.param([7], [LOW, HIGH], id="gone"),
    ],
)
def test_a_reshape_that_can_never_be_done_is_told_from_one_that_is_not_done_yet(
    parent_ids: list[int], ranges: list[HashRange]
) -> None:
    with pytest.raises(Conflict, match="another program has reshaped"):
        have_children_taken_over(two().split(0, 1), parent_ids, ranges)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12))
def test_every_act_on_a_layout_nothing_was_pruned_of_can_be_told(acts: list[tuple[bool, int]]) -> None:
    layout, told = two(), list[tuple[int, ReshapeKind, frozenset[int]]]()
    for wants_split, number in acts:
        active = layout.active
        index = number % len(active)
        if wants_split or len(active) == 1:
            parents = [active[index].segment_id]
            layout = layout.split(parents[0], layout.epoch)
            told.append((layout.epoch, SPLIT, frozenset(parents)))
        else:
            parents = [one.segment_id for one in active[max(0, index - 1) :][:2]]
            layout = layout.merge(*parents, layout.epoch)
            told.append((layout.epoch, MERGE, frozenset(parents)))

    steps = steps_between(two(), layout)
    assert [(step.epoch, step.kind, frozenset(step.sealed_ids)) for step in steps] == told
