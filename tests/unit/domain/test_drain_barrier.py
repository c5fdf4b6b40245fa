"""The drain barrier: which segments may be delivered, of a layout in which some segments are drained; and which gates may be opened by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain import drain_barrier
from controller.domain.assignment import Assignment, assign
from controller.domain.drain_barrier import GatePlan, candidates
from controller.domain.layout import SegmentLayout
from tests.unit.domain.strategies import layouts, layouts_with_drained

# 0 -> 1, 2 and 1 -> 3, 4: the case of apache/pulsar#26274.
CHAIN = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2)

Drained = tuple[SegmentLayout, frozenset[int]]


def _ids(shares: Assignment) -> dict[str, list[int]]:
    """The segments of each consumer, each once."""
    return {name: list(dict.fromkeys(unit.segment_id for unit in share)) for name, share in shares.items()}


@given(layouts_with_drained())
def test_without_the_barrier_all_but_what_is_drained_is_handed_out(case: Drained) -> None:
    layout, drained = case

    ready = candidates(layout, drained, parents_block=False)

    assert {s.segment_id for s in ready} == {
        i for i, segment in layout.segments.items() if segment.is_active or i not in drained
    }


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


ASSIGNED = {
    "a sealed child waits for its sealed parent": (CHAIN, set(), {"a": [0], "b": []}),
    "draining the root frees its children only": (CHAIN, {0}, {"a": [1], "b": [2]}),
    "a root that a seek filled again holds back everything below it": (CHAIN, {1}, {"a": [0]}),
    "a drained parent leaves the assignment": (CHAIN, {0, 1}, {"a": [3, 4, 2]}),
    "an active segment is never finished, whatever was reported": (CHAIN, {0, 2}, {"a": [1, 2]}),
    "a pruned ancestor counts as drained": (CHAIN.prune(0).prune(1), set(), {"a": [3, 4, 2]}),
}


@pytest.mark.parametrize(("layout", "drained", "segments"), ASSIGNED.values(), ids=ASSIGNED)
def test_segments_are_assigned_once_their_parents_are_drained(
    layout: SegmentLayout, drained: set[int], segments: dict[str, list[int]]
) -> None:
    assert _ids(assign(layout, drained, [*segments])) == segments


def test_where_lag_matters_more_than_order_children_do_not_wait() -> None:
    assert _ids(assign(CHAIN, {0}, ["a"], parents_block=False)) == {"a": [3, 1, 4, 2]}
    assert _ids(assign(CHAIN, set(), ["a"], parents_block=False)) == {"a": [3, 1, 0, 4, 2]}
    assert _ids(assign(CHAIN, {0, 1, 2}, ["a"], parents_block=False)) == {"a": [3, 4, 2]}


JOINED = SegmentLayout.initial(2, now=0).merge(0, 1, 1, 16)
"""0 and 1 -> 2."""


def children_of(layout: SegmentLayout) -> frozenset[int]:
    """Segments with a parent that is present: those that have gates."""
    return frozenset(i for i in layout.segments if layout.ancestors(i))


@given(layouts_with_drained(), st.data())
def test_a_gate_is_opened_exactly_when_every_ancestor_is_drained(case: Drained, data: st.DataObject) -> None:
    layout, drained = case
    shut = data.draw(st.sets(st.sampled_from(sorted(layout.segments))))

    plan = drain_barrier.plan_gates(layout, drained, shut)

    assert set(plan.may_open) == {i for i in shut if layout.ancestors(i) <= drained}


@given(layouts_with_drained())
def test_what_is_to_be_drained_is_sealed_readable_and_holds_a_gate_back(case: Drained) -> None:
    layout, drained = case
    shut = children_of(layout)

    plan = drain_barrier.plan_gates(layout, drained, shut)

    for i in plan.to_drain:
        assert not layout.segments[i].is_active
        assert i not in drained
        assert layout.ancestors(i) <= drained
        assert any(i in layout.ancestors(one) for one in shut)


@given(layouts())
def test_draining_and_opening_ends_with_every_gate_open_and_never_before_its_ancestors(
    layout: SegmentLayout,
) -> None:
    drained, shut = set[int](), set(children_of(layout))
    while shut:
        plan = drain_barrier.plan_gates(layout, drained, shut)
        assert plan.may_open or plan.to_drain, "nothing would ever open the gates that are left"
        for i in plan.may_open:
            assert layout.ancestors(i) <= drained
        shut -= set(plan.may_open)
        drained |= set(plan.to_drain)


@given(layouts_with_drained())
def test_a_segment_that_is_no_longer_there_holds_nothing_back(case: Drained) -> None:
    layout, drained = case
    gone = max(layout.segments) + 1

    assert gone in drain_barrier.plan_gates(layout, drained, [gone]).may_open


def test_a_grandchild_waits_for_its_grandparent_although_its_parent_is_drained() -> None:
    assert drain_barrier.plan_gates(CHAIN, {1}, [1, 2, 3, 4]) == GatePlan((), (0,))


@pytest.mark.parametrize(
    ("layout", "drained", "shut", "plan"),
    [
        (CHAIN, {0}, [1, 2, 3, 4], GatePlan((1, 2), ())),
        (CHAIN, {0}, [3, 4], GatePlan((), (1,))),
        (JOINED, {0}, [2], GatePlan((), (1,))),
        (JOINED, {0, 1}, [2], GatePlan((2,), ())),
    ],
    ids=["children of the root", "an empty child with an open gate", "one of two joined", "both joined"],
)
def test_a_child_opens_and_is_drained_after_all_its_parents(
    layout: SegmentLayout, drained: set[int], shut: list[int], plan: GatePlan
) -> None:
    assert drain_barrier.plan_gates(layout, drained, shut) == plan
