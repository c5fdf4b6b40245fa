"""`cleave approvals`: acts that wait for a person, and the person's answer."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from controller.domain.names import topic_name
from controller.domain.whole_numbers import MOST
from controller.entrypoints import completion
from controller.entrypoints.commands.options import AsJson, DryRun, Limit, Reason
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

ApprovalId = Annotated[
    int, typer.Argument(metavar="APPROVAL_ID", min=1, max=MOST, help="As `cleave approvals list` shows it.")
]


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


@app.command()
def approve(
    approval_id: ApprovalId,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let the act go: the next pass begins it, if it still wants it within the hour."""
    _answer(approval_id, reason, dry_run, as_json, approve=True)


@app.command()
def reject(
    approval_id: ApprovalId,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Refuse the act, which is not proposed again for the policy's `approval_hold_seconds`."""
    _answer(approval_id, reason, dry_run, as_json, approve=False)


def _answer(approval_id: int, reason: str, dry_run: bool, as_json: bool, *, approve: bool) -> None:
    with control_plane() as cleave:
        row = cleave.approvals.answer(approval_id, approve=approve, reason=reason, dry_run=dry_run)
    said = "approved" if approve else "rejected"
    verb = f"would be {said}" if dry_run else f"is {said}"
    told = Text(f"{row['topic']}: to {row['act']} {verb} (approval {row['approval_id']})")
    emit(as_json, row | {"dry_run": dry_run}, told)
