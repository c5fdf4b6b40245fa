"""The drawing of a layout's history."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from controller.commands.layouts import lineage_tree
from controller.domain.hash_range import FULL_RANGE
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment

DIAMOND = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2).split(2, 3).merge(4, 5, 4)
"""Segment 7 has two parents, 4 and 5."""


def drawn(layout: SegmentLayout) -> list[str]:
    """The lines of the tree of segment 0 on a terminal of 80 columns, without guides and the title."""
    console = Console(width=80, file=StringIO())
    with console.capture() as output:
        console.print(lineage_tree("title", layout, [0]), crop=False)
    return [line.lstrip(" │├└─") for line in output.get().splitlines()[1:]]


def test_a_segment_is_drawn_below_each_parent_and_its_descendants_once() -> None:
    lines = drawn(DIAMOND)

    assert [line.split(" [")[0] for line in lines] == ["0", "1", "3", "4", "7", "2", "5", "7", "6"]
    assert [line for line in lines if line.endswith("(drawn above)")] == [
        "7 [4000-bfff] epoch 4, active, parents [4, 5] (drawn above)"
    ]


def chain(generations: int) -> SegmentLayout:
    """A layout in which each segment has one child."""
    segments = [
        Segment(i, FULL_RANGE, parent_ids=(i - 1,) if i else (), created_epoch=i, sealed_epoch=i + 1)
        for i in range(generations)
    ]
    return SegmentLayout.from_selection(generations, generations, segments)


def test_each_generation_is_drawn_also_where_the_terminal_is_too_narrow() -> None:
    assert [line.split(" [")[0] for line in drawn(chain(100))] == [str(i) for i in range(100)]


def test_a_history_may_have_more_generations_than_calls_may_nest() -> None:
    branch, generations = lineage_tree("title", chain(2000), [0]), 0
    while branch.children:
        [branch], generations = branch.children, generations + 1

    assert generations == 2000
