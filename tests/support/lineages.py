"""Layouts with a long history."""

from __future__ import annotations

from controller.domain.layout import SegmentLayout


def lineage_of_merges(rounds: int) -> SegmentLayout:
    """Return a layout that was split and merged `rounds` times: each round has a segment over the whole ring (id 3 x round) and its
    halves.
    """
    layout = SegmentLayout.initial(1, now=0)
    for number in range(rounds):
        layout = layout.split(3 * number, 2 * number).merge(3 * number + 1, 3 * number + 2, 2 * number + 1)
    return layout
