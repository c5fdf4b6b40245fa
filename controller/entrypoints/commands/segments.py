"""`cleave segments`: split, merge, rebucket, each with a dry run."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.entrypoints.commands.options import (
    AsJson,
    DryRun,
    NoWait,
    Reason,
    TimeoutSeconds,
    Topic,
    about,
    hash_value,
    how_to,
    topic_name,
)
from controller.entrypoints.commands.topics import tell
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane
from controller.entrypoints.reach.port import How, Merge, Rebucket, Split

app = typer.Typer(no_args_is_help=True)
SegmentId = Annotated[
    int, typer.Argument(min=0, help="Id of an ACTIVE segment; `cleave topics show` lists them.")
]


def _act(topic: str, act: Split | Merge | Rebucket, how: How, as_json: bool) -> None:
    name = topic_name(topic)
    with about(name), control_plane() as cleave:
        changed = cleave.segments.reshape(name, act, how)
    if changed.planned is None:
        tell(changed, as_json)
        return
    columns = ("segment_id", "hash_range", "buckets")
    document = {
        "topic": name,
        "epoch": changed.planned.epoch,
        "kind": changed.operation["kind"],
        "parents": changed.operation["parents"],
        "creates": [{column: one[column] for column in columns} for one in changed.planned.segments],
    }
    title = (
        f"{name} at epoch {document['epoch']}: {document['kind']} would seal {document['parents']} and create"
    )
    emit(as_json, document, rows_table(document["creates"], title=title))


@app.command()
def split(
    topic: Topic,
    segment: SegmentId,
    at: Annotated[
        list[str] | None, typer.Option(help="First hash of a new segment (0x8000); repeatable.")
    ] = None,
    parts: Annotated[int | None, typer.Option(min=2, help="Equal parts instead of cut points.")] = None,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Split a segment at the midpoint, at cut points, or into equal parts."""
    act = Split(segment, [hash_value(point) for point in at or []], parts)
    _act(topic, act, how_to(reason, dry_run, no_wait, timeout_seconds), as_json)


@app.command()
def merge(
    topic: Topic,
    first: SegmentId,
    second: SegmentId,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Merge two neighbouring segments."""
    act = Merge(first, second)
    _act(topic, act, how_to(reason, dry_run, no_wait, timeout_seconds), as_json)


@app.command()
def rebucket(
    topic: Topic,
    segment: SegmentId,
    bucket_count: Annotated[int, typer.Argument(min=1, help="Entry buckets of the successor.")],
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Give a segment another number of entry buckets."""
    act = Rebucket(segment, bucket_count)
    _act(topic, act, how_to(reason, dry_run, no_wait, timeout_seconds), as_json)
