"""Which gates may be opened, and which sealed segments have to be drained first.

A gate holds the messages of a segment back from one subscription of standard consumers. The gate may be opened when every ancestor
of the segment is drained for that subscription: the rule of the drain barrier, which Cleave's own consumers follow. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from controller.domain import drain_barrier
from controller.domain.segment_graph import SegmentGraph


@dataclass(frozen=True, slots=True)
class GatePlan:
    """Answer about the shut gates of one subscription, by segment id, ascending."""

    may_open: tuple[int, ...]
    """Shut gates of segments whose ancestors are all drained."""
    to_drain: tuple[int, ...]
    """Sealed segments that hold a shut gate back and can be drained now: every ancestor of theirs is drained, and their own gate is
    not shut.
    """


def plan(layout: SegmentGraph, drained: Collection[int], shut: Collection[int]) -> GatePlan:
    """Return which of the `shut` gates may be opened, and which sealed segments hold the others back.

    `layout` has every unread segment and what descends from it. A segment that is absent is drained or pruned, and so is everything
    above it. `drained` names sealed segments.
    """
    done, closed = frozenset(drained), frozenset(shut)
    clear = drain_barrier.clear(layout, done)
    held_back = closed & (layout.segments.keys() - clear)
    above = layout.ancestors_of(parent for i in held_back for parent in layout.segments[i].parent_ids)
    return GatePlan(tuple(sorted(closed - held_back)), tuple(sorted((above & clear) - done - closed)))
