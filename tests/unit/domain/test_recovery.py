"""Layouts rebuilt from logs: after any history of reshapes, from a journal of any earlier time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.recovery import RecoveryPlan, SegmentLog, plan_recovery
from tests.support.drawn import cases

NOW = 1_700_000_000_000


@dataclass(frozen=True)
class History:
    """Layouts of one topic, the oldest first, and the log of every segment that ever was."""

    layouts: tuple[SegmentLayout, ...]
    logs: dict[int, SegmentLog]

    def recovery_from(self, journal: SegmentLayout, missing: Collection[int] = ()) -> RecoveryPlan:
        """What the journal of an earlier time makes of the logs as they are at the end."""
        known = {i: self.logs[i] for i in journal.segments}
        found = [log for i, log in sorted(self.logs.items()) if i not in journal.segments]
        return plan_recovery(journal, known, found, NOW, missing=missing)


def log_of(layout: SegmentLayout, segment_id: int, token: str) -> SegmentLog:
    """The log as its operation created it."""
    segment = layout.segment(segment_id)
    return SegmentLog(
        segment_id,
        segment.hash_range,
        f"topic-segment-{segment.hash_range}-{segment_id}",
        is_closed=False,
        has_carried_messages=False,
        token=token,
        epoch=segment.created_epoch,
        parent_ids=segment.parent_ids,
        bucket_splits=segment.bucket_splits,
    )


def after(layout: SegmentLayout, logs: dict[int, SegmentLog], later: SegmentLayout) -> dict[int, SegmentLog]:
    """The logs after one reshape: the parents closed, the children there and written to."""
    made = {i: log_of(later, i, f"op-{later.epoch}") for i in later.segments.keys() - layout.segments.keys()}
    closed = {i for i, one in later.segments.items() if not one.is_active}
    return {
        **{i: replace(one, is_closed=i in closed) for i, one in logs.items()},
        **{i: replace(one, has_carried_messages=True) for i, one in made.items()},
    }


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Splits, merges and new buckets, in any order."""
    layouts = [SegmentLayout.initial(draw(st.integers(1, 3)), now=NOW)]
    logs = {i: log_of(layouts[0], i, "op-create") for i in layouts[0].segments}
    for _ in range(draw(st.integers(0, 6))):
        layout = layouts[-1]
        at = draw(st.integers(0, len(layout.active) - 1))
        segment = layout.active[at]
        kind = draw(st.sampled_from(["split", "merge", "rebucket"]))
        if kind == "merge" and at + 1 < len(layout.active):
            later = layout.merge(segment.segment_id, layout.active[at + 1].segment_id, NOW)
        elif kind == "rebucket" or segment.hash_range.width < 4:
            later = layout.rebucket(segment.segment_id, segment.bucket_count + 1, NOW)
        else:
            later = layout.split(segment.segment_id, NOW)
        logs = after(layout, logs, later)
        layouts.append(later)
    return History(tuple(layouts), logs)


def shape(layout: SegmentLayout) -> list[tuple[int, HashRange]]:
    """Who is active where."""
    return [(one.segment_id, one.hash_range) for one in layout.active]


@given(histories(), st.data())
@settings(max_examples=cases(60, 600))
def test_a_journal_of_any_earlier_time_finds_the_present_layout(
    history: History, data: st.DataObject
) -> None:
    journal = data.draw(st.sampled_from(history.layouts))
    present = history.layouts[-1]

    plan = history.recovery_from(journal)

    assert plan.problems == ()
    assert plan.is_needed == (journal is not present)
    if plan.is_needed:
        assert shape(plan.layout) == shape(present)
        assert plan.layout.next_segment_id >= present.next_segment_id
        assert plan.layout.epoch > present.epoch
        for one in present.segments.values():
            recovered = plan.layout.segment(one.segment_id)
            assert (recovered.parent_ids, recovered.bucket_splits) == (one.parent_ids, one.bucket_splits)
            assert recovered.state is one.state
            assert recovered.created_at_ms == NOW


@given(histories(), st.data())
@settings(max_examples=cases(60, 600))
def test_what_was_read_and_pruned_meanwhile_is_not_missed(history: History, data: st.DataObject) -> None:
    """The oldest sealed segments are gone, as garbage collection takes them: ancestors first."""
    journal = data.draw(st.sampled_from(history.layouts))
    present = history.layouts[-1]
    sealed = sorted(i for i, one in present.segments.items() if not one.is_active)
    gone: set[int] = set()
    for i in sealed[: data.draw(st.integers(0, len(sealed)))]:
        if present.ancestors(i) <= gone:
            gone.add(i)
    pruned = History(history.layouts, without(history.logs, gone, journal))

    missing = gone & journal.segments.keys()

    plan = pruned.recovery_from(journal, missing)

    assert (plan.problems, plan.pruned) == ((), tuple(sorted(missing)))
    if plan.is_needed:
        assert shape(plan.layout) == shape(present)
        assert plan.layout.epoch > present.epoch + len(gone)  # each prune made one


def without(
    logs: dict[int, SegmentLog], gone: Collection[int], journal: SegmentLayout
) -> dict[int, SegmentLog]:
    """The logs that are left: of the journal's segments a report says that the log is missing."""
    return {
        i: replace(one, is_closed=True) if i in gone else one
        for i, one in logs.items()
        if i not in gone or i in journal.segments
    }


def split_of(layout: SegmentLayout) -> dict[int, SegmentLog]:
    """The children of a split of the first segment, which the journal does not have."""
    later = layout.split(layout.active[0].segment_id, NOW)
    return {i: log_of(later, i, "lost") for i in later.segments.keys() - layout.segments.keys()}


ONE = SegmentLayout.initial(1, now=NOW)
OPEN = {0: log_of(ONE, 0, "op-create")}
CLOSED = {0: replace(OPEN[0], is_closed=True)}


def test_children_that_nobody_used_and_whose_parent_is_open_are_left_alone() -> None:
    assert not plan_recovery(ONE, OPEN, list(split_of(ONE).values()), NOW).is_needed


def test_a_used_child_of_an_open_parent_contradicts_itself_without_its_siblings() -> None:
    used = replace(split_of(ONE)[1], has_carried_messages=True)

    [problem] = plan_recovery(ONE, OPEN, [used], NOW).problems

    assert "still accepts appends" in problem


def test_a_used_child_shows_that_its_reshape_took_effect_though_the_parent_went_back_in_time() -> None:
    children = split_of(ONE)
    used = [replace(children[1], has_carried_messages=True), children[2]]

    plan = plan_recovery(ONE, OPEN, used, NOW)

    assert plan.problems == ()
    assert (plan.sealed, plan.to_terminate) == ((0,), (OPEN[0].backing_topic,))
    assert [one.segment_id for one in plan.layout.active] == [1, 2]


def test_used_children_of_an_open_parent_take_over_only_its_own_range() -> None:
    two = SegmentLayout.initial(2, now=NOW)
    logs = {i: log_of(two, i, "op-create") for i in two.segments}
    merged = replace(log_of(two.merge(0, 1, NOW), 2, "op-merge"), has_carried_messages=True)

    assert plan_recovery(two, logs, [merged], NOW).to_terminate == tuple(
        sorted(one.backing_topic for one in logs.values())
    )
    of_the_first = replace(merged, parent_ids=(0,))
    assert "still accepts appends" in plan_recovery(two, logs, [of_the_first], NOW).problems[0]


def test_two_operations_on_one_parent_the_one_that_was_used_counts() -> None:
    """A split that was given up may have left logs, older or younger than those of the one that took effect."""
    used = {i: replace(one, has_carried_messages=True) for i, one in split_of(ONE).items()}
    left = {
        i + 2: replace(one, segment_id=i + 2, token="left", backing_topic=f"left-{i}")
        for i, one in used.items()
    }
    for unused in (left, {i: replace(one, has_carried_messages=False) for i, one in left.items()}):
        plan = plan_recovery(ONE, CLOSED, [*used.values(), *unused.values()], NOW)
        is_used = any(one.has_carried_messages for one in unused.values())
        assert bool(plan.problems) == is_used
        assert is_used or sorted(plan.added) == sorted(used)
        assert plan.layout.next_segment_id == 5


def test_two_operations_on_each_of_two_parents_are_told_apart() -> None:
    two = SegmentLayout.initial(2, now=NOW)
    split = two.split(0, NOW).split(1, NOW)
    open_logs = {i: log_of(two, i, "op-create") for i in (0, 1)}
    used = [
        replace(log_of(split, i, f"split-of-{parent}"), has_carried_messages=True)
        for parent, children in ((0, (2, 3)), (1, (4, 5)))
        for i in children
    ]
    left = [
        replace(
            one,
            segment_id=one.segment_id + 4,
            token=f"left-{one.token}",
            backing_topic=f"left-{one.segment_id}",
        )
        for one in used
    ]

    plan = plan_recovery(two, open_logs, used, NOW)
    assert plan.to_terminate == tuple(sorted(one.backing_topic for one in open_logs.values()))

    closed = {i: replace(one, is_closed=True) for i, one in open_logs.items()}
    unused = [replace(one, has_carried_messages=False) for one in left]
    plan = plan_recovery(two, closed, [*used, *unused], NOW)
    assert plan.problems == ()
    assert sorted(plan.added) == [2, 3, 4, 5]
    assert len(plan_recovery(two, closed, [*used, *left], NOW).problems) == 4


def test_a_fence_that_stopped_half_way_is_completed() -> None:
    two = SegmentLayout.initial(2, now=NOW)
    merged = two.merge(0, 1, NOW)
    logs = {i: log_of(two, i, "op-create") for i in (0, 1)}
    logs[0] = replace(logs[0], is_closed=True)

    plan = plan_recovery(two, logs, [log_of(merged, 2, "lost")], NOW)

    assert plan.to_terminate == (logs[1].backing_topic,)
    assert plan.sealed == (0, 1)


def test_a_segment_is_not_pruned_before_its_ancestors_nor_while_it_is_active() -> None:
    split = ONE.split(0, NOW).split(1, NOW)
    logs = {i: log_of(split, i, "op") for i in split.segments}

    assert plan_recovery(split, logs, [], NOW, missing=[1, 2]).pruned == ()
    plan = plan_recovery(split, logs, [], NOW, missing=[0, 1, 2])
    assert (plan.pruned, plan.is_needed) == ((0, 1), True)


def test_two_logs_of_one_id_are_not_told_apart() -> None:
    other = replace(OPEN[0], backing_topic="another", hash_range=HashRange(0, 9), token="lost")

    assert "share segment id 0" in plan_recovery(ONE, OPEN, [other], NOW).problems[0]


def test_a_gap_in_the_ring_is_a_problem() -> None:
    child = split_of(ONE)[1]

    plan = plan_recovery(ONE, CLOSED, [replace(child, has_carried_messages=True)], NOW)

    assert "uncovered" in plan.problems[0]


def test_a_topic_of_which_the_journal_knows_nothing() -> None:
    two = SegmentLayout.initial(2, now=NOW)
    logs = [log_of(two, i, "lost") for i in (0, 1)]

    plan = plan_recovery(SegmentLayout.from_segments(0, 0, ()), {}, logs, NOW)

    assert (shape(plan.layout), plan.problems) == (shape(two), ())


def test_no_id_of_any_log_is_given_out_again() -> None:
    used = [replace(one, has_carried_messages=True) for one in split_of(ONE).values()]

    plan = plan_recovery(ONE, CLOSED, used, NOW, highest_id=77)

    assert plan.layout.next_segment_id == 78


def test_what_is_left_of_a_split_that_was_given_up_replaces_nothing_a_second_time() -> None:
    """Its parent is sealed because of another split, which the journal has."""
    split = ONE.split(0, NOW)
    logs = {**{i: log_of(split, i, "op-split") for i in (1, 2)}, **CLOSED}
    left = [
        replace(one, segment_id=i + 2, token="left", backing_topic=f"left-{i}")
        for i, one in split_of(ONE).items()
    ]

    assert not plan_recovery(split, logs, left, NOW).is_needed
    used = [replace(one, has_carried_messages=True) for one in left]
    problems = plan_recovery(split, logs, used, NOW).problems
    assert [("other logs replaced its parents" in one) for one in problems] == [True, True]


def test_what_is_active_is_not_replaced_while_it_takes_appends_though_the_parents_are_gone() -> None:
    split = ONE.split(0, NOW)
    journal = SegmentLayout.from_segments(split.epoch, split.next_segment_id, split.active)
    logs = {i: log_of(split, i, "op-split") for i in (1, 2)}
    found = replace(log_of(split, 1, "lost"), segment_id=7, backing_topic="seven", has_carried_messages=True)
    orphan = replace(found, parent_ids=(5,))

    assert "still accepts appends" in plan_recovery(journal, logs, [orphan], NOW).problems[0]
    logs[1] = replace(logs[1], is_closed=True)
    assert plan_recovery(journal, logs, [orphan], NOW).problems == ()


def test_merges_of_parents_side_by_side_are_counted_together() -> None:
    """A depth below the merges in the ancestry breaks a law of the layout, and would hold the topic for ever."""
    journal = SegmentLayout.initial(3, now=NOW)
    layouts = [journal, journal.merge(0, 1, NOW)]
    layouts.append(layouts[-1].split(2, NOW))
    layouts.append(layouts[-1].merge(4, 5, NOW))
    layouts.append(layouts[-1].merge(3, 6, NOW))
    logs = {i: log_of(journal, i, "op-create") for i in journal.segments}
    for before, later in pairwise(layouts):
        logs = after(before, logs, later)

    plan = History(tuple(layouts), logs).recovery_from(journal)

    assert plan.problems == ()
    assert plan.layout.segment(7).merge_depth == layouts[-1].segment(7).merge_depth == 3
