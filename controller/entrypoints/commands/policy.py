"""`cleave policy`: get, set, remove at three levels, and what is effective for a topic."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from controller.bootstrap import application
from controller.domain.errors import InvalidInput
from controller.domain.policy import AutoScalePolicy, PolicyOverride, validate
from controller.entrypoints.commands.options import AsJson, DryRun, Topic, topic_name
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.running import manual_request
from controller.store import policies, topics

app = typer.Typer(help="Auto-scaling policies: cluster, namespace, topic.", no_args_is_help=True)

Where = Annotated[
    str, typer.Argument(metavar="LEVEL", help="cluster, tenant/namespace, or topic://tenant/namespace/name.")
]


def _read(tx: Connection, where: str) -> dict[str, Any]:
    if where == "cluster":
        return policies.get_cluster(tx).policy.to_document()
    if _is_topic(where):
        return policies.get_topic(
            tx, topics.find_topic(tx, topic_name(where)).topic_id
        ).override.to_document()
    return policies.get_namespace(tx, where).override.to_document()


def _is_topic(where: str) -> bool:
    return "://" in where or where.count("/") >= 2


@app.command()
def get(where: Where, as_json: AsJson = False) -> None:
    """Show what is stored at a level (not what is effective)."""
    with application() as cleave, cleave.store.transaction() as tx:
        document = _read(tx, where)
    emit(
        as_json,
        document,
        rows_table([{"knob": k, "value": v} for k, v in document.items()], ("knob", "value"), title=where),
    )


@app.command("set")
def set_policy(
    where: Where,
    knobs: Annotated[
        list[str], typer.Argument(metavar="KNOB=VALUE...", help="For instance max_segments=16.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Forget the level's other knobs.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set knobs at a level; the result is checked together with the levels above."""
    changes = parse_knobs(knobs)
    with application() as cleave, cleave.store.transaction() as tx:
        before = {} if replace else _read(tx, where)
        document = {**before, **changes}
        attempt = tx.begin_nested()  # a dry run checks all that a real one does, and takes it back
        _write(tx, where, document, manual_request(cleave, "policy set").actor)
        if dry_run:
            attempt.rollback()
    emit(
        as_json,
        document,
        rows_table([{"knob": k, "value": v, "was": before.get(k)} for k, v in document.items()], title=where),
    )


def _write(tx: Connection, where: str, document: dict[str, Any], actor: str) -> None:
    if where == "cluster":
        policy = AutoScalePolicy.from_document(document)
        validate(policy)
        policies.set_cluster(tx, policy, actor=actor)
    elif _is_topic(where):
        topic_id = topics.find_topic(tx, topic_name(where)).topic_id
        policies.set_topic(tx, topic_id, PolicyOverride.from_document(document))
    else:
        policies.set_namespace(tx, where, PolicyOverride.from_document(document), actor=actor)


@app.command()
def remove(where: Where, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove everything stored at a level; the levels above apply again."""
    with application() as cleave, cleave.store.transaction() as tx:
        document = _read(tx, where)
        actor = manual_request(cleave, "policy remove").actor
        attempt = tx.begin_nested()
        if where == "cluster":
            policies.remove_cluster(tx, actor=actor)
        elif _is_topic(where):
            policies.remove_topic(tx, topics.find_topic(tx, topic_name(where)).topic_id)
        else:
            policies.remove_namespace(tx, where, actor=actor)
        if dry_run:
            attempt.rollback()
    verb = "would be removed from" if dry_run else "removed from"
    emit(
        as_json,
        {"removed": document},
        rows_table([{"knob": k, "value": v} for k, v in document.items()], title=f"{verb} {where}"),
    )


@app.command()
def effective(topic: Topic, as_json: AsJson = False) -> None:
    """Show every knob in force for a topic, and the level it comes from."""
    with application() as cleave, cleave.store.transaction() as tx:
        found = policies.effective_policy(tx, topics.find_topic(tx, topic_name(topic)).topic_id)
    document = found.policy.to_document()
    rows = [
        {"knob": knob, "value": value, "from": found.levels[knob].value} for knob, value in document.items()
    ]
    emit(as_json, rows, rows_table(rows))


def parse_knobs(pairs: list[str]) -> dict[str, Any]:
    """knob=value pairs; values are JSON (true, 16, 0.25) or plain text."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        knob, equals, text = pair.partition("=")
        if not equals or not knob:
            raise InvalidInput(f"{pair!r} is not of the form knob=value, for instance max_segments=16")
        try:
            changes[knob] = json.loads(text)
        except json.JSONDecodeError:
            changes[knob] = text
    return changes
