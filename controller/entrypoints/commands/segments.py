"""`cleave segments`: split, merge, rebucket, each with a dry run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controller.bootstrap import application
from controller.entrypoints.commands.options import (
    AsJson,
    DryRun,
    NoWait,
    Reason,
    TimeoutSeconds,
    Topic,
    about,
    hash_value,
    topic_name,
)
from controller.entrypoints.commands.topics import finish
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.rehearsal import stage
from controller.entrypoints.running import manual_request
from controller.services import segment_admin
from controller.services.segment_admin import Planner, Preview

app = typer.Typer(no_args_is_help=True)
SegmentId = Annotated[
    int, typer.Argument(min=0, help="Id of an ACTIVE segment; `cleave topics show` lists them.")
]


def preview_document(preview: Preview) -> dict[str, Any]:
    """A dry run as data."""
    return {
        "topic": preview.topic,
        "epoch": preview.epoch,
        "kind": preview.reshape.kind.value,
        "parents": list(preview.reshape.parent_ids),
        "creates": [
            {"segment_id": c.segment_id, "hash_range": str(c.hash_range), "buckets": len(c.bucket_splits) + 1}
            for c in preview.reshape.children
        ],
    }


def _act(
    topic: str,
    planner: Planner,
    reason: str,
    *,
    dry_run: bool,
    no_wait: bool,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    name = topic_name(topic)
    with about(name), application() as cleave:
        if dry_run:
            document = preview_document(segment_admin.preview(cleave.store, cleave.planes, name, planner))
            with stage(cleave, dry_run) as store:  # what a preview does not ask: is a segment busy?
                segment_admin.submit(store, cleave.planes, name, planner, manual_request(cleave, reason))
            title = f"{name} at epoch {document['epoch']}: {document['kind']} would seal {document['parents']} and create"
            emit(as_json, document, rows_table(document["creates"], title=title))
            return
        intent = segment_admin.submit(
            cleave.store, cleave.planes, name, planner, manual_request(cleave, reason)
        )
        finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


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
    planner = segment_admin.splitting(segment, at=[hash_value(point) for point in at or []], parts=parts)
    _act(
        topic,
        planner,
        reason,
        dry_run=dry_run,
        no_wait=no_wait,
        timeout_seconds=timeout_seconds,
        as_json=as_json,
    )


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
    planner = segment_admin.merging(first, second)
    _act(
        topic,
        planner,
        reason,
        dry_run=dry_run,
        no_wait=no_wait,
        timeout_seconds=timeout_seconds,
        as_json=as_json,
    )


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
    planner = segment_admin.rebucketing(segment, bucket_count)
    _act(
        topic,
        planner,
        reason,
        dry_run=dry_run,
        no_wait=no_wait,
        timeout_seconds=timeout_seconds,
        as_json=as_json,
    )
