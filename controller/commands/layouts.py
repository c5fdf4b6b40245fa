"""`cleave layout`, `cleave lineage` and `cleave key`: the layout, its history, and the segment of a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.tree import Tree

from controller.actions.fields import fill_in
from controller.actions.perform import about
from controller.actions.responses import SEGMENT_COLUMNS, segment_rows
from controller.command_output import (
    console,
    created,
    emit,
    rows_table,
)
from controller.commands.options import AsJson, Topic
from controller.commands.server_choice import perform
from controller.domain.key_hash import key_hash
from controller.domain.layout import SegmentLayout
from controller.domain.names import topic_name
from controller.domain.segment import Segment
from controller.questions.layouts import SHOW_LAYOUT, ShowLayout

At = Annotated[str | None, typer.Option("--at", help="A past epoch (7) or instant (2026-11-21T03:00:00Z).")]

INDENT = 4
"""Columns by which a tree indents each generation."""
LABEL_WIDTH = 60
"""Columns that a tree leaves for the text of a segment, at least."""


def lineage(
    topic: Topic,
    segment: Annotated[int | None, typer.Argument(help="Segment to start at. Default: all roots.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the present layout, with sealed segments until they are pruned, as trees of `segment`, or of each root by id, with all
    descendants. As JSON: the rows of these segments and also of their ancestors (`segments`), with `topic` and `epoch`. Raises
    SegmentNotFound for an unknown segment, and the errors of `_layout`. The help text is in `command_list`.
    """
    name = topic_name(topic)
    layout = _layout(name, None)
    with about(name):
        # A segment whose parents are all pruned is a root too, because the layout drops their ids.
        roots = (
            [layout.segment(segment).segment_id]
            if segment is not None
            else [root.segment_id for root in layout.segments.values() if not root.parent_ids]
        )
    if as_json:
        ids = sorted({i for root in roots for i in layout.lineage(layout.segment(root).segment_id)})
        chosen = [row for row in segment_rows(layout) if row["segment_id"] in ids]
        emit(True, {"topic": name, "epoch": layout.epoch, "segments": chosen}, "")
        return
    console.print(lineage_tree(f"{name} at epoch {layout.epoch}", layout, sorted(roots)), crop=False)


def _layout(topic: str, at: str | None) -> SegmentLayout:
    """Return the layout of the topic at an epoch or instant; `at` None: the present layout. Raises InvalidInput for another text, the
    errors of `show_layout` (on the database, TopicNotFound also for a malformed name), and over HTTP those of `Calls`.
    """
    layout: SegmentLayout = perform(SHOW_LAYOUT, fill_in(ShowLayout, {"topic": topic, "at": at})).layout
    return layout


def lineage_tree(title: str, layout: SegmentLayout, roots: Sequence[int]) -> Tree:
    """Return a tree of the roots and their descendants below the title. The descendants of a segment are drawn once, and children that the
    layout does not have are left out. Raises SegmentNotFound for an unknown root.
    """
    tree = _WholeTree(title)
    drawn: set[int] = set()
    # A stack, because a history may have more generations than Python calls may nest.
    waiting: list[tuple[Tree, int, int]] = [(tree, root, 1) for root in reversed(roots)]
    while waiting:
        parent, segment_id, depth = waiting.pop()
        segment = layout.segment(segment_id)
        is_repeated = segment_id in drawn
        branch = parent.add(_label(segment, is_repeated=is_repeated))
        tree.depth = max(tree.depth, depth)
        if not is_repeated:
            drawn.add(segment_id)
            children = [child for child in reversed(segment.child_ids) if child in layout.segments]
            waiting += [(branch, child, depth + 1) for child in children]
    return tree


class _WholeTree(Tree):
    """A tree whose lines may be wider than the terminal; Rich leaves out branches that are indented beyond the terminal's width."""

    depth = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, self.depth * INDENT + LABEL_WIDTH)
        return super().__rich_console__(console, options.update_width(width))


def _label(segment: Segment, *, is_repeated: bool) -> str:
    """Return the text of a segment in the tree."""
    until = "active" if segment.sealed_epoch is None else f"sealed at {segment.sealed_epoch}"
    repeated = " (drawn above)" if is_repeated else ""
    other_parents = f", parents {list(segment.parent_ids)}" if len(segment.parent_ids) > 1 else ""
    return f"{segment.segment_id} \\[{segment.hash_range}] epoch {segment.created_epoch}, {until}{other_parents}{repeated}"


def layout(
    topic: Topic,
    at: At = None,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="The JSON of PIP-468 instead of a table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the topic's layout, now or at the epoch or time `at`: the active segments by range, then the sealed segments by id until they
    are pruned. `--metadata` prints the JSON of PIP-468 instead, with or without `--json`. Raises the errors of `_layout`. The help text is
    in `command_list`.
    """
    name = topic_name(topic)
    answer = _layout(name, at)
    if metadata:
        emit(True, answer.to_metadata(), "")
        return
    rows = segment_rows(answer)
    document = {
        "topic": name,
        "epoch": answer.epoch,
        "next_segment_id": answer.next_segment_id,
        "segments": rows,
    }
    emit(as_json, document, rows_table(rows, SEGMENT_COLUMNS, title=f"{name} at epoch {answer.epoch}"))


def key(
    topic: Topic,
    message_key: Annotated[
        str, typer.Argument(metavar="KEY", help="Key of a message, as its producer set it.")
    ],
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Print the segment that holds the key, now or at the epoch or time `at`, and the sealed segments of the key's hash (`earlier`), the
    oldest first. `segment_id` and `hash_range` are None for a layout without active segments. Raises InvalidInput for a key without a
    UTF-8 form, and the errors of `_layout`. The help text is in `command_list`.
    """
    name = topic_name(topic)
    layout = _layout(name, at)
    place = key_hash(message_key).segment_hash
    holder = layout.segment_for(place) if layout.active else None
    document: dict[str, Any] = {
        "topic": name,
        "key": message_key,
        "segment_hash": f"{place:#06x}",
        "epoch": layout.epoch,
        "segment_id": holder and holder.segment_id,
        "hash_range": holder and str(holder.hash_range),
        "earlier": [
            {"segment_id": segment.segment_id, "hash_range": str(segment.hash_range)}
            for segment in layout.sealed_for(place)
        ],
    }
    row_shown = {**document, "earlier": created(document["earlier"])}
    columns = ("key", "segment_hash", "epoch", "segment_id", "hash_range", "earlier")
    emit(as_json, document, rows_table([row_shown], columns, title=name))
