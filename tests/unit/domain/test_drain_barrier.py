"""The drain barrier: which segments may be delivered, of a layout in which some segments are drained."""

from __future__ import annotations

import pytest
from hypothesis import given

from controller.domain.assignment import Assignment, assign
from controller.domain.drain_barrier import candidates
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
