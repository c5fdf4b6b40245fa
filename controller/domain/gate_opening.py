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
    """The shut gates of one subscription that may be opened, and the segments that hold the others back, by segment
    id, ascending.
    """

    may_open: tuple[int, ...]
    """Shut gates of segments whose ancestors are all drained, and of segments that are absent from the layout."""
    to_drain: tuple[int, ...]
    """Sealed segments that hold a shut gate back and can be drained now: every ancestor of theirs is drained, and their own gate is
    not shut.
    """


def plan(layout: SegmentGraph, drained: Collection[int], shut: Collection[int]) -> GatePlan:
    """Return which of the `shut` gates of one subscription may be opened, and which sealed segments consumers have to
    drain next before the other gates can be opened. Nothing is opened.

    `layout` has every segment that the subscription has not drained, and the descendants of these segments. A segment
    that is absent from `layout` counts as drained, and so do its ancestors; its gate may be opened. `drained`: ids of
    the sealed segments that the subscription has drained. `shut`: ids of the segments whose gate is shut.
    """
    drained_ids, closed_ids = frozenset(drained), frozenset(shut)
    unblocked = drain_barrier.clear(layout, drained_ids)
    blocked = closed_ids & (layout.segments.keys() - unblocked)
    ancestors = layout.ancestors_of(parent for i in blocked for parent in layout.segments[i].parent_ids)
    return GatePlan(
        tuple(sorted(closed_ids - blocked)), tuple(sorted((ancestors & unblocked) - drained_ids - closed_ids))
    )
