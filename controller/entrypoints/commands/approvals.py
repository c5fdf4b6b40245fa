"""`cleave approvals`: acts that wait for a person, and the person's answer."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.domain.names import topic_name
from controller.entrypoints import completion
from controller.entrypoints.commands.actions import add_actions
from controller.entrypoints.commands.options import AsJson, Limit
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane

_COLUMNS = (
    "approval_id",
    "topic",
    "act",
    "reason",
    "state",
    "proposed_at",
    "expires_at",
    "default_answer",
    "answered_by",
)

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_approvals(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="Only this topic's; else those of all.", autocompletion=completion.topics
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Those that are answered or expired, too.")] = False,
    limit: Limit = 30,
    as_json: AsJson = False,
) -> None:
    """List acts that wait for a person, newest first; what holds at `expires_at` without an answer is `default_answer`."""
    name = None if topic is None else topic_name(topic)
    with control_plane() as cleave:
        rows = cleave.approvals.list(topic=name, pending_only=not every, limit=limit)
    emit(as_json, rows, rows_table(rows, _COLUMNS))


add_actions(app, "approvals")
