"""The drain barrier: which segments may be delivered, of a layout in which some segments are drained."""

from __future__ import annotations

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


def test_where_lag_matters_more_than_order_children_do_not_wait() -> None:
    assert _ids(assign(CHAIN, {0}, ["a"], parents_block=False)) == {"a": [3, 1, 4, 2]}
    assert _ids(assign(CHAIN, set(), ["a"], parents_block=False)) == {"a": [3, 1, 0, 4, 2]}
    assert _ids(assign(CHAIN, {0, 1, 2}, ["a"], parents_block=False)) == {"a": [3, 4, 2]}
