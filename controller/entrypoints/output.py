"""What a person or a program reads: tables on a terminal, one JSON document with `--json`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation

PIPED_WIDTH = 220


def _reader_has_gone() -> NoReturn:
    """The reader of our output (head, less) has closed it: leave silently and without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        _reader_has_gone()


console = _Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def to_json(value: Any) -> Any:
    """Values json does not know: instants become ISO 8601, the rest its text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def emit(as_json: bool, document: Any, table: RenderableType) -> None:
    """Print the document for programs or the table for people."""
    if as_json:
        say(json.dumps(document, default=to_json, indent=2, sort_keys=False))
    else:
        console.print(table)


def say(text: str) -> None:
    """Print a text as it is."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        _reader_has_gone()


def rows_table(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None, title: str | None = None
) -> RenderableType:
    """A table of mappings under a line that is its title; where there is nothing it says so."""
    names = list(columns or (rows[0].keys() if rows else ()))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(Text(name), justify="right" if _is_numeric(rows, name) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(name))) for name in names))  # plain: [a000-bfff] is no markup
    body = table if rows else Text("nothing found")
    # Not the table's own title: that one is broken to the width of the table.
    return body if title is None else Group(Text(title), body)


def _is_numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether the column holds only numbers and empty cells."""
    held = [row[name] for row in rows if row.get(name) is not None]
    return bool(held) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in held
    )


def cell(value: Any) -> str:
    """One cell: short instants, short numbers, nothing for None, truth as JSON writes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()  # what `policy set` reads
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
