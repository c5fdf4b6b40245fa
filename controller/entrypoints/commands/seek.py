"""`cleave seek`: a subscription goes on from somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from controller.domain.errors import InvalidInput
from controller.domain.seek_target import SeekTarget, parse_seek_target
from controller.entrypoints.commands.options import (
    AsJson,
    DryRun,
    NoWait,
    Reason,
    TimeoutSeconds,
    Topic,
    about,
    how_to,
    topic_name,
)
from controller.entrypoints.commands.topics import operations_table, tell
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane
from controller.entrypoints.reach.port import Row

_COLUMNS = ("segment_id", "state", "is_drained", "backlog", "readers")
Subscription = Annotated[str, typer.Argument(help="Name of the subscription.")]
To = Annotated[
    str | None,
    typer.Option(
        help="earliest, latest (skip everything), or an instant such as 2026-11-22T10:00:00Z; of a checkpoint group: kept."
    ),
]
GiveUp = Annotated[
    bool,
    typer.Option(
        "--give-up", help="Instead: give up the seek that waits; the subscription goes on as it was."
    ),
]
ReleaseSeconds = Annotated[
    float | None,
    typer.Option(
        help="How long its consumers have to let go of what they read; without it, the grace period of consumers."
    ),
]


def seek(
    topic: Topic,
    subscription: Subscription,
    to: To = None,
    give_up: GiveUp = False,
    release_seconds: ReleaseSeconds = None,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Have a subscription go on from somewhere else, on every segment, with all its consumers.

    They let go first; what they acknowledge of what they had read is refused. Sealed segments with messages from there on are
    read again, before what came after them. Of two seeks the later one waits for the earlier, and decides. A seek that waits for
    consumers, or for logs out of reach, can be given up until all of them have let go; then it moves cursors, and ends.
    """
    if give_up is (to is not None):
        raise InvalidInput("say where to go on from with --to, or --give-up to give up the seek that waits")
    name, how = topic_name(topic), how_to(reason, dry_run, no_wait, timeout_seconds)
    target = None if to is None else parse_seek_target(to)
    with about(name), control_plane() as cleave:
        asked = cleave.subscriptions
        if to is None or target is None:
            given_up = asked.give_up_seek(name, subscription, how)
            emit(as_json, given_up, operations_table(given_up))
            return
        changed = asked.seek(name, subscription, to, how, release_seconds=release_seconds)
        if dry_run:
            _show_cursors(name, subscription, target, asked.cursors(name, subscription), as_json)
        else:
            tell(changed, as_json)


def _show_cursors(
    topic: str, subscription: str, target: SeekTarget, cursors: Sequence[Row], as_json: bool
) -> None:
    """What the seek would move, and who reads there."""
    rows = [
        {
            "segment_id": one["segment_id"],
            "state": "SEALED" if one["is_sealed"] else "ACTIVE",
            "is_drained": one["is_drained"],
            "backlog": one["backlog"],
            "readers": list(one["readers"]),
        }
        for one in cursors
    ]
    document = {"topic": topic, "subscription": subscription, "to": target.sentence, "cursors": rows}
    title = f"{topic}: {subscription} would go {target.sentence}"
    emit(as_json, document, rows_table(rows, _COLUMNS, title=title))
