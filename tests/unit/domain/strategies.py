"""Hypothesis strategies: topics as they become by any run of layout changes, for whoever needs a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from controller.domain.errors import InvalidLayoutChange
from controller.domain.hash_range import MAX_HASH, RING_SIZE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import (
    Reshape,
    plan_equal_split,
    plan_heal,
    plan_merge,
    plan_rebucket,
    plan_recut,
    plan_split,
)
from controller.domain.segment import Segment

MAX_BUCKETS = 16

segment_hashes = st.integers(0, MAX_HASH)
consumer_names = st.sets(st.text("abc019-", min_size=1, max_size=4), max_size=12)


@dataclass(frozen=True)
class Prune:
    """The one act that is not a reshape."""

    segment_id: int


Act = Reshape | Prune


@dataclass(frozen=True)
class LayoutSequence:
    """A topic's life: ``layouts[0]`` is the first one, ``acts[i]`` leads from layout i to i + 1."""

    layouts: tuple[SegmentLayout, ...]
    acts: tuple[Act, ...]

    @property
    def last(self) -> SegmentLayout:
        return self.layouts[-1]


def perform(layout: SegmentLayout, act: Act, now: int) -> SegmentLayout:
    return layout.prune(act.segment_id) if isinstance(act, Prune) else layout.apply(act, now)


@st.composite
def hash_ranges(draw: st.DrawFn, min_width: int = 1) -> HashRange:
    start = draw(st.integers(0, RING_SIZE - min_width))
    end = draw(st.integers(start + min_width - 1, MAX_HASH) | st.just(start + min_width - 1))
    return HashRange(start, end)


@st.composite
def cut_points(draw: st.DrawFn, hash_range: HashRange, max_size: int = 4) -> list[int]:
    """Ascending cut points inside a range, its edges preferred so that width-1 segments occur."""
    inside = st.integers(hash_range.start + 1, hash_range.end)
    edges = st.sampled_from([hash_range.start + 1, hash_range.end])
    return sorted(draw(st.sets(inside | edges, min_size=1, max_size=max_size)))


@st.composite
def trails(draw: st.DrawFn, *, prune: bool = True, max_changes: int = 12) -> LayoutSequence:
    """Any life of a topic; without ``prune`` nothing is ever forgotten."""
    first = draw(st.sampled_from([1, 1, 2, 3, 5, 16]))
    layouts = [
        SegmentLayout.initial(first, bucket_budget=draw(st.integers(1, 40)), max_buckets=MAX_BUCKETS, now=0)
    ]
    acts: list[Act] = []
    for now in range(1, draw(st.integers(0, max_changes)) + 1):
        act = draw(_acts(layouts[-1], prune))
        if act is not None:
            acts.append(act)
            layouts.append(perform(layouts[-1], act, now))
    return LayoutSequence(tuple(layouts), tuple(acts))


def layouts(*, prune: bool = True, max_changes: int = 12) -> st.SearchStrategy[SegmentLayout]:
    return trails(prune=prune, max_changes=max_changes).map(lambda trail: trail.last)


@st.composite
def layouts_with_drained(draw: st.DrawFn) -> tuple[SegmentLayout, frozenset[int]]:
    """A layout and any set of its sealed segments, ancestors after descendants too (as a seek leaves them)."""
    layout = draw(layouts())
    sealed = [i for i, segment in layout.segments.items() if not segment.is_active]
    return layout, draw(st.frozensets(st.sampled_from(sealed))) if sealed else frozenset()


@st.composite
def _acts(draw: st.DrawFn, layout: SegmentLayout, prune: bool) -> Act | None:
    """One act the layout accepts, or None where the drawn kind has nothing to act on."""
    sealed = sorted(i for i, segment in layout.segments.items() if not segment.is_active)
    kinds = ["split", "split", "equal split", "merge", "merge", "rebucket", "recut", "heal"]
    kind = draw(st.sampled_from(kinds + ["prune", "prune"] * bool(prune and sealed)))
    if kind == "prune":
        return Prune(draw(st.sampled_from(sealed)))
    if kind in {"merge", "recut"}:
        plan = draw(_over_neighbours(layout, kind))
    else:
        plan = draw(_over_one(layout, kind, draw(st.sampled_from(layout.active))))
    # Another operation may have reserved ids in between.
    gap = draw(st.sampled_from([0, 0, 1, 3]))
    return plan and replace(
        plan, children=tuple(replace(child, segment_id=child.segment_id + gap) for child in plan.children)
    )


@st.composite
def _over_one(draw: st.DrawFn, layout: SegmentLayout, kind: str, parent: Segment) -> Reshape | None:
    segment_id = parent.segment_id
    if kind == "heal":
        return plan_heal(layout, segment_id)
    if kind == "rebucket":
        buckets = draw(st.integers(1, MAX_BUCKETS))
        return _accepted(lambda: plan_rebucket(layout, segment_id, buckets, MAX_BUCKETS))
    if parent.hash_range.width == 1:
        return None
    if kind == "equal split":
        return plan_equal_split(layout, segment_id, draw(st.integers(2, min(5, parent.hash_range.width))))
    at: Sequence[int] | int | None = draw(st.none() | cut_points(parent.hash_range))
    return plan_split(layout, segment_id, at)


@st.composite
def _over_neighbours(draw: st.DrawFn, layout: SegmentLayout, kind: str) -> Reshape | None:
    if len(layout.active) < 2:
        return None
    low = draw(st.integers(0, len(layout.active) - 2))
    size = 2 if kind == "merge" else draw(st.integers(2, min(4, len(layout.active) - low)))
    neighbours = layout.active[low : low + size]
    parent_ids = draw(st.permutations([segment.segment_id for segment in neighbours]))
    if kind == "merge":
        return plan_merge(layout, parent_ids[0], parent_ids[1], MAX_BUCKETS)
    union = HashRange(neighbours[0].hash_range.start, neighbours[-1].hash_range.end)
    no_points: st.SearchStrategy[list[int]] = st.just([])
    points = draw(no_points | cut_points(union))
    return _accepted(lambda: plan_recut(layout, parent_ids, points, MAX_BUCKETS))


def _accepted(plan: Callable[[], Reshape]) -> Reshape | None:
    """None where the change would change nothing."""
    try:
        return plan()
    except InvalidLayoutChange:
        return None
