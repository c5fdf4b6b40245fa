"""`cleave decide`: what the evaluator says, for a live topic or for a snapshot in a file (what-if)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.bootstrap import application
from controller.domain.decision import Evaluation
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.evaluator import decide as ask
from controller.domain.situation import Situation
from controller.entrypoints.commands.options import AsJson, topic_name
from controller.entrypoints.output import emit, rows_table
from controller.store import situations, topics


def decide(
    topic: Annotated[str | None, typer.Argument(help="A live topic; its situation of this moment.")] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="A situation as JSON: a file, or - for standard input.")
    ] = None,
    print_snapshot: Annotated[
        bool, typer.Option("--print-snapshot", help="Print the situation itself, to edit and ask again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what would be decided and what would be left alone, and why. Changes nothing."""
    if (topic is None) == (snapshot is None):
        raise InvalidInput("name a topic or give --snapshot FILE, one of the two")
    situation = _from_text(_read(snapshot)) if snapshot is not None else _live(topic or "")
    if print_snapshot:
        typer.echo(situation.to_json())
        return
    evaluation = ask(situation)
    emit(as_json, evaluation.to_document(), rows_table(_rows(evaluation)))


def _live(topic: str) -> Situation:
    with application() as cleave, cleave.store.transaction() as tx:
        row = topics.find_topic(tx, topic_name(topic))
        found = situations.load_situations(tx, [row.topic_id], planes_capabilities(cleave.planes))
    if row.topic_id not in found:
        raise NotFound(f"topic {row.name} is {row.state}; only a live topic has a situation to decide on")
    return found[row.topic_id]


def planes_capabilities(planes: Any) -> dict[str, Any]:
    """What each configured data plane can do."""
    return {name: plane.capabilities for name, plane in planes.items()}


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"snapshot {source}: {error}; give a file that can be read, or - for standard input"
        ) from error


def _from_text(text: str) -> Situation:
    try:
        return Situation.from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"the snapshot is not a situation ({type(error).__name__}: {error}); "
            "`cleave decide TOPIC --print-snapshot` prints one to start from"
        ) from error


def _rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    document = evaluation.to_document()
    acts = [
        {"verdict": act["kind"], "segment": _segments(act), "reason": act["reason"]}
        for act in document["decisions"]
    ]
    refused = [
        {
            "verdict": "left alone",
            "segment": _segments(r),
            **{k: r.get(k) for k in ("lane", "reason", "metric", "value", "needed")},
        }
        for r in document["refusals"]
    ]
    columns = ("verdict", "segment", "lane", "reason", "metric", "value", "needed")
    return [{column: row.get(column) for column in columns} for row in (*acts, *refused)]


def _segments(document: dict[str, Any]) -> str:
    names = ("segment_id", "left_id", "right_id", "other_id", "segment_ids")
    return "+".join(str(document[name]) for name in names if document.get(name) is not None)
