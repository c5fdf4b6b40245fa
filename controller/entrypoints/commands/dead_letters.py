"""`cleave dead-letters`: what could not be handled, and how to put it back."""

from __future__ import annotations

import typer

from controller.domain.names import topic_name
from controller.entrypoints.commands.actions import add_actions
from controller.entrypoints.commands.options import AsJson, Limit, Topic, about
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


add_actions(app, "dead-letters")
