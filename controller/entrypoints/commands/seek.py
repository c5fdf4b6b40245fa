"""`cleave seek`: a subscription goes on from somewhere else."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.bootstrap import Application, application
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
    topic_name,
)
from controller.entrypoints.commands.topics import finish, operations_table
from controller.entrypoints.output import emit, operation_document, rows_table
from controller.entrypoints.rehearsal import stage
from controller.entrypoints.running import manual_request, run_to_its_end, user_name
from controller.services import topic_admin

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
    name, target = topic_name(topic), None if to is None else parse_seek_target(to)
    with about(name), application() as cleave, stage(cleave, dry_run) as store:
        if target is None:
            given_up = topic_admin.give_up_seek(store, name, subscription, actor=user_name(), reason=reason)
            if not (no_wait or dry_run):
                given_up = [run_to_its_end(cleave, one.operation_id, timeout_seconds) for one in given_up]
            documents = [operation_document(one) for one in given_up]
            emit(as_json, documents, operations_table(documents))
            return
        waited = cleave.settings.consumer_grace_seconds if release_seconds is None else release_seconds
        request = manual_request(cleave, reason)
        intent = topic_admin.seek_subscription(
            store, name, subscription, target, request, release_seconds=waited
        )
        if dry_run:
            _show_cursors(cleave, name, subscription, target, as_json)
        else:
            finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


def _show_cursors(
    cleave: Application, topic: str, subscription: str, target: SeekTarget, as_json: bool
) -> None:
    """What the seek would move, and who reads there."""
    rows = [
        {
            "segment_id": one.segment_id,
            "state": "SEALED" if one.is_sealed else "ACTIVE",
            "is_drained": one.is_drained,
            "backlog": one.backlog,
            "readers": list(one.readers),
        }
        for one in topic_admin.what_a_seek_moves(cleave.store, cleave.planes, topic, subscription)
    ]
    document = {"topic": topic, "subscription": subscription, "to": target.sentence, "cursors": rows}
    title = f"{topic}: {subscription} would go {target.sentence}"
    emit(as_json, document, rows_table(rows, _COLUMNS, title=title))
