"""`cleave decide`: what the evaluator says, for a live topic or for a snapshot in a file (what-if)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.bootstrap import application
from controller.clock import to_datetime
from controller.dataplane.base import DataPlane
from controller.domain.decision import Evaluation
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.evaluator import decide as ask
from controller.domain.situation import Capabilities, Situation
from controller.entrypoints import completion
from controller.entrypoints.commands.options import AsJson, topic_name
from controller.entrypoints.commands.refusals import figures
from controller.entrypoints.output import cell, emit, rows_table, say
from controller.store.decisions import situations
from controller.store.topics import topics

_COLUMNS = ("verdict", "segment", "reason", "figures", "not_before")
_INSTANTS = ("_at", "_since")
"""Endings of metrics whose value is an instant, in milliseconds since the Unix epoch."""


def decide(
    topic: Annotated[
        str | None,
        typer.Argument(help="A live topic; its present situation.", autocompletion=completion.topics),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="A situation as JSON: a file, or - for standard input.")
    ] = None,
    print_snapshot: Annotated[
        bool, typer.Option("--print-snapshot", help="Print the situation itself, to edit and ask again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    if (topic is None) == (snapshot is None):
        raise InvalidInput("name a topic or give --snapshot FILE, one of the two")
    if snapshot is not None:
        situation, evaluation = _of_text(_read(snapshot))
    else:
        situation = _live(topic or "")
        evaluation = ask(situation)
    if print_snapshot:
        say(situation.to_json())
        return
    emit(as_json, _document(evaluation), rows_table(_rows(evaluation), _COLUMNS, title=_title(evaluation)))


def _live(topic: str) -> Situation:
    with application() as cleave, cleave.store.transaction() as tx:
        row = topics.find_topic(tx, topic_name(topic))
        found = situations.load_situations(tx, [row.topic_id], planes_capabilities(cleave.planes))
    if row.topic_id not in found:
        raise NotFound(
            f"topic {row.name} is {row.state} on data plane {row.data_plane!r}; only a live topic on a data plane "
            "that is configured here has a situation to decide on"
        )
    return found[row.topic_id]


def planes_capabilities(planes: Mapping[str, DataPlane]) -> dict[str, Capabilities]:
    """What each configured data plane can do."""
    return {name: plane.capabilities for name, plane in planes.items()}


def _read(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"snapshot {source}: {error}; give a text that can be read, a file or - for standard input"
        ) from error


def _of_text(text: str) -> tuple[Situation, Evaluation]:
    """The situation and its verdict."""
    try:
        situation = Situation.from_json(text)
        _demand_tiling(situation)
        return situation, ask(situation)
    except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"the snapshot is not a situation ({type(error).__name__}: {error}); "
            "`cleave decide TOPIC --print-snapshot` prints one to start from"
        ) from error


def _demand_tiling(situation: Situation) -> None:
    """Refuse a layout in which not every hash has exactly one owner: a verdict on it means nothing."""
    ranges = [segment.hash_range for segment in situation.layout.active]
    begins = [hash_range.start for hash_range in ranges]
    follows = [0, *(hash_range.end + 1 for hash_range in ranges)]
    if [*begins, 0x10000] != follows:
        raise InvalidInput(
            f"the snapshot's segments {', '.join(map(str, ranges)) or '(none)'} do not tile the ring 0000-ffff; "
            "give each hash exactly one segment"
        )


def _document(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation with the keys of `inspect.why_not`: instants as such, not as milliseconds."""
    document = evaluation.to_document()
    refusals = [
        {**refusal, "not_before": _at(refusal.get("not_before")), **_measured_at(refusal)}
        for refusal in document["refusals"]
    ]
    return {**document, "refusals": refusals, "valid_until": _at(document["valid_until"])}


def _measured_at(refusal: Mapping[str, Any]) -> dict[str, datetime | int | None]:
    if not str(refusal.get("metric")).endswith(_INSTANTS):
        return {}
    return {f"{name}_at": _at(refusal.get(name)) for name in ("value", "needed")}


def _title(evaluation: Evaluation) -> str:
    acts = len(evaluation.decisions)
    until = (
        "until something changes"
        if evaluation.valid_until is None
        else f"until {cell(_at(evaluation.valid_until))}"
    )
    return f"{acts or 'no'} act{'' if acts == 1 else 's'}, {len(evaluation.refusals)} refused; holds {until}"


def _rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    document = evaluation.to_document()
    acts = [
        {"verdict": act["kind"], "segment": _segments(act), "reason": act["reason"], **_target(act)}
        for act in document["decisions"]
    ]
    refused = [
        {
            "verdict": "left alone",
            "segment": _segments(refusal),
            "reason": refusal["reason"],
            "figures": figures({**refusal, **_measured_at(refusal)}),
            "not_before": _at(refusal.get("not_before")),
        }
        for refusal in document["refusals"]
    ]
    return [*acts, *refused]


def _target(act: Mapping[str, Any]) -> dict[str, Any]:
    """Where an act cuts, or how many buckets it gives."""
    if "bucket_count" in act:
        return {"figures": f"{act['bucket_count']} buckets"}
    return {"figures": f"cut at {', '.join(f'{at:#06x}' for at in act['at'])}"} if act.get("at") else {}


def _at(milliseconds: float | None) -> datetime | int | None:
    if milliseconds is None:
        return None
    try:
        return to_datetime(int(milliseconds))
    except (ValueError, ArithmeticError, OSError):  # a what-if may lie beyond the calendar
        return int(milliseconds)


def _segments(document: Mapping[str, Any]) -> str:
    names = ("segment_id", "left_id", "right_id", "other_id", "segment_ids")
    return "+".join(str(document[name]) for name in names if document.get(name) is not None)
