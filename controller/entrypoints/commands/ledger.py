"""What happened and what is now: decisions, refusals, operations, lineage, layout. All read the inspect views."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.tree import Tree

from controller.bootstrap import application
from controller.domain.errors import InvalidInput
from controller.domain.layout import SegmentLayout
from controller.entrypoints.commands.options import AsJson, Limit, Topic, topic_name
from controller.entrypoints.output import console, emit, layout_rows, rows_table
from controller.store.postgres import inspection
from controller.store.topics import layouts, topics

_DECISIONS = """
    SELECT * FROM inspect.decisions
     WHERE CAST(:topic AS text) IS NULL OR topic = :topic ORDER BY decided_at DESC LIMIT :limit"""
_WHY_NOT = """
    SELECT * FROM inspect.why_not
     WHERE CAST(:topic AS text) IS NULL OR topic = :topic ORDER BY decided_at DESC LIMIT :limit"""
_OPERATIONS = """
    SELECT * FROM inspect.operations
     WHERE (CAST(:topic AS text) IS NULL OR topic = :topic) AND (live OR NOT :only_live)
     ORDER BY operation_id DESC LIMIT :limit"""
_STUCK = """
    SELECT * FROM inspect.stuck_operations
     WHERE CAST(:topic AS text) IS NULL OR topic = :topic ORDER BY operation_id DESC LIMIT :limit"""

TopicFilter = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]


def decisions(
    topic: TopicFilter = None,
    why_not: Annotated[
        bool, typer.Option("--why-not", help="The latest refusals instead: what was left alone, and why.")
    ] = False,
    limit: Limit = 30,
    as_json: AsJson = False,
) -> None:
    """List decisions of the ledger, newest first."""
    statement = _WHY_NOT if why_not else _DECISIONS
    with application() as cleave, cleave.store.transaction() as tx:
        rows = inspection.rows(tx, statement, topic=topic and topic_name(topic), limit=limit)
    columns = (
        (
            "decided_at",
            "topic",
            "lane",
            "reason",
            "segment_id",
            "other_id",
            "metric",
            "value",
            "needed",
            "not_before",
        )
        if why_not
        else ("decision_id", "decided_at", "topic", "epoch", "lanes", "decided_by", "acts")
    )
    emit(as_json, rows, rows_table(rows, columns))


def operations(
    topic: TopicFilter = None,
    live: Annotated[bool, typer.Option("--live", help="Only those under way.")] = False,
    stuck: Annotated[
        bool, typer.Option("--stuck", help="Only those that make no progress, and why.")
    ] = False,
    limit: Limit = 30,
    as_json: AsJson = False,
) -> None:
    """List operations, newest first."""
    with application() as cleave, cleave.store.transaction() as tx:
        found = {"topic": topic and topic_name(topic), "limit": limit}
        rows = (
            inspection.rows(tx, _STUCK, **found)
            if stuck
            else inspection.rows(tx, _OPERATIONS, only_live=live, **found)
        )
    columns = [
        "operation_id",
        "topic",
        "kind",
        "state",
        "parents",
        "children",
        "origin",
        "actor",
        "reason",
        "last_error",
    ]
    if stuck:
        columns = [
            "operation_id",
            "topic",
            "kind",
            "state",
            "stuck_because",
            "age_seconds",
            "attempts",
            "last_error",
        ]
    emit(as_json, rows, rows_table(rows, columns))


def lineage(
    topic: Topic,
    segment: Annotated[
        int | None, typer.Argument(help="Start at this segment; all roots where left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw which segment came from which, as a tree."""
    with application() as cleave, cleave.store.transaction() as tx:
        row = topics.find_topic(tx, topic_name(topic))
        layout = layouts.load_layout(tx, row.topic_id)
    roots = (
        [segment]
        if segment is not None
        else [s.segment_id for s in layout.segments.values() if not s.parent_ids]
    )
    if as_json:
        ids = sorted({i for root in roots for i in layout.lineage(layout.segment(root).segment_id)})
        chosen = [r for r in layout_rows(layout) if r["segment"] in ids]
        emit(True, {"topic": row.name, "epoch": layout.epoch, "segments": chosen}, "")
        return
    tree = Tree(f"{row.name} at epoch {layout.epoch}")
    drawn: set[int] = set()
    for root in sorted(roots):
        _branch(tree, layout, layout.segment(root).segment_id, drawn)
    console.print(tree)


def _branch(tree: Tree, layout: SegmentLayout, segment_id: int, drawn: set[int]) -> None:
    """Draw a segment and its descendants. The child of several parents is drawn whole once."""
    segment = layout.segment(segment_id)
    until = "active" if segment.sealed_epoch is None else f"sealed at {segment.sealed_epoch}"
    again = " (drawn above)" if segment_id in drawn else ""
    others = f", parents {list(segment.parent_ids)}" if len(segment.parent_ids) > 1 else ""
    branch = tree.add(
        f"{segment_id} \\[{segment.hash_range}] epoch {segment.created_epoch}, {until}{others}{again}"
    )
    if not again:
        drawn.add(segment_id)
        for child in segment.child_ids:
            if child in layout.segments:
                _branch(branch, layout, child, drawn)


def layout(
    topic: Topic,
    at: Annotated[
        str | None, typer.Option("--at", help="A past epoch (7) or instant (2026-11-21T03:00:00Z).")
    ] = None,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="The JSON of PIP-468 instead of a table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the layout now, or as it was."""
    with application() as cleave, cleave.store.transaction() as tx:
        row = topics.find_topic(tx, topic_name(topic))
        shown = (
            layouts.load_layout(tx, row.topic_id)
            if at is None
            else layouts.layout_at(tx, row.topic_id, moment(at))
        )
    if metadata:
        emit(True, shown.to_metadata(), "")
        return
    rows: list[dict[str, Any]] = layout_rows(shown)
    document = {
        "topic": row.name,
        "epoch": shown.epoch,
        "next_segment_id": shown.next_segment_id,
        "segments": rows,
    }
    emit(as_json, document, rows_table(rows, title=f"{row.name} at epoch {shown.epoch}"))


def moment(text: str) -> int | datetime:
    """An epoch, or an instant in ISO 8601; without a time zone it is UTC."""
    if text.isdigit():
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is neither an epoch (7) nor an instant (2026-11-21T03:00:00Z)"
        ) from error
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
