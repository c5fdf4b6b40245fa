"""`cleave dead-letters`: what could not be handled, and how to put it back."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from controller.domain.names import topic_name
from controller.entrypoints.commands.options import AsJson, DryRun, Limit, Topic, about
from controller.entrypoints.commands.subscriptions import Subscription
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane

_COLUMNS = ("parked_at", "key", "segment_id", "position", "deliveries", "bytes", "error")

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_letters(
    topic: Topic, subscription: Subscription, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List a subscription's dead letters, oldest first; changes nothing. With --json each has its payload, in base64."""
    name = topic_name(topic)
    with about(name), control_plane() as cleave:
        found = cleave.dead_letters.look(name, subscription, limit)
    rows, title = found.rows, f"{found.log}: {found.count} to put back"
    emit(as_json, rows, rows_table(rows, _COLUMNS, title=title))


@app.command()
def redrive(
    topic: Topic,
    subscription: Subscription,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Messages at most; all without.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their topic, oldest first, as new messages: every subscription of the topic gets them."""
    name = topic_name(topic)
    with about(name), control_plane() as cleave:
        found = cleave.dead_letters.redrive(name, subscription, limit, dry_run=dry_run)
    result = "would be put back" if dry_run else "put back"
    told, left = found.messages, found.left
    document: dict[str, Any] = {
        "topic": name, "subscription": subscription, "messages": told, "left": left, "result": result
    }  # fmt: skip
    emit(
        as_json,
        document,
        Text(f"{name}: {told} dead letters of {subscription} {result}, {left} left"),
    )
