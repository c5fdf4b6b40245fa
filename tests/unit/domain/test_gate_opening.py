"""The rule of gates: which may be opened, and which sealed segments have to be drained first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain import gate_opening
from controller.domain.gate_opening import GatePlan
from controller.domain.layout import SegmentLayout
from tests.unit.domain.strategies import layouts, layouts_with_drained

# 0 -> 1, 2 and 1 -> 3, 4.
CHAIN = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2)
JOINED = SegmentLayout.initial(2, now=0).merge(0, 1, 1, 16)
"""0 and 1 -> 2."""

Case = tuple[SegmentLayout, frozenset[int]]


def children_of(layout: SegmentLayout) -> frozenset[int]:
    """Segments with a parent that is present: those that have gates."""
    return frozenset(i for i in layout.segments if layout.ancestors(i))


@given(layouts_with_drained(), st.data())
def test_a_gate_is_opened_exactly_when_every_ancestor_is_drained(case: Case, data: st.DataObject) -> None:
    layout, drained = case
    shut = data.draw(st.sets(st.sampled_from(sorted(layout.segments))))

    plan = gate_opening.plan(layout, drained, shut)

    assert set(plan.may_open) == {i for i in shut if layout.ancestors(i) <= drained}


@given(layouts_with_drained())
def test_what_is_to_be_drained_is_sealed_readable_and_holds_a_gate_back(case: Case) -> None:
    layout, drained = case
    shut = children_of(layout)

    plan = gate_opening.plan(layout, drained, shut)

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
        plan = gate_opening.plan(layout, drained, shut)
        assert plan.may_open or plan.to_drain, "nothing would ever open the gates that are left"
        for i in plan.may_open:
            assert layout.ancestors(i) <= drained
        shut -= set(plan.may_open)
        drained |= set(plan.to_drain)


@given(layouts_with_drained())
def test_a_segment_that_is_no_longer_there_holds_nothing_back(case: Case) -> None:
    layout, drained = case
    gone = max(layout.segments) + 1

    assert gone in gate_opening.plan(layout, drained, [gone]).may_open


def test_a_grandchild_waits_for_its_grandparent_although_its_parent_is_drained() -> None:
    assert gate_opening.plan(CHAIN, {1}, [1, 2, 3, 4]) == GatePlan((), (0,))


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
    assert gate_opening.plan(layout, drained, shut) == plan
