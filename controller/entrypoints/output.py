"""What a person or a program reads: tables on a terminal, one JSON document with `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation

PIPED_WIDTH = 220
console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def to_json(value: Any) -> Any:
    """Values json does not know: instants become ISO 8601, the rest its text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def emit(as_json: bool, document: Any, table: Table | str) -> None:
    """Print the document for programs or the table for people."""
    if as_json:
        typer.echo(json.dumps(document, default=to_json, indent=2, sort_keys=False))
    else:
        console.print(table)


def rows_table(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None, title: str | None = None
) -> Table:
    """A table of mappings; an empty one says so."""
    names = list(columns or (rows[0].keys() if rows else ()))
    table = Table(
        title=title, box=None, header_style="bold", caption=None if rows else "nothing found", pad_edge=False
    )
    for name in names:
        numeric = bool(rows) and all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in names))
    return table


def cell(value: Any) -> str:
    """One cell: short instants, short numbers, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:,.1f}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def layout_rows(layout: SegmentLayout, *, sealed: bool = True) -> list[dict[str, Any]]:
    """Segments as rows: the active ones by range, then the sealed ones by id."""
    chosen = list(layout.active)
    if sealed:
        chosen += sorted(
            (s for s in layout.segments.values() if s not in layout.active), key=lambda s: s.segment_id
        )
    return [
        {
            "segment": segment.segment_id,
            "range": str(segment.hash_range),
            "state": segment.state.value,
            "buckets": segment.bucket_count,
            "parents": list(segment.parent_ids),
            "children": list(segment.child_ids),
            "merge_depth": segment.merge_depth,
            "created_epoch": segment.created_epoch,
            "sealed_epoch": segment.sealed_epoch,
        }
        for segment in chosen
    ]


def operation_document(operation: Operation) -> dict[str, Any]:
    """An operation as people ask for it."""
    return {
        "operation_id": operation.operation_id,
        "topic": operation.topic_name,
        "kind": operation.kind.value,
        "state": operation.state.value,
        "epoch": operation.epoch,
        "parents": list(operation.parent_ids),
        "children": [f"{child.plan.segment_id} [{child.plan.hash_range}]" for child in operation.children],
        "origin": operation.origin.value,
        "actor": operation.actor,
        "reason": operation.reason,
    }
