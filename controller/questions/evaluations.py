"""Evaluations as documents for programs, and the difference of two evaluations.

Evaluations are read as documents, so that a present evaluation and one of the decision log get the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from controller.clock import to_datetime, to_ms
from controller.domain.decision import Lane
from controller.domain.refusal_text import INSTANTS, how_far
from controller.domain.replay import exact

if TYPE_CHECKING:
    from controller.services.what_if import WhatIf

Document = Mapping[str, Any]
"""An evaluation as JSON values, as returned by `Evaluation.to_document`."""
IN_FORCE, WHAT_IF = "in_force", "what_if"


def stored_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluation that a row of `inspect.decisions` or `inspect.decision_inputs` holds."""
    valid_until = row["valid_until"]
    return {
        "decisions": row["decisions"],
        "refusals": row["refusals"],
        "valid_until": None if valid_until is None else to_ms(valid_until),
    }


def document(evaluation: Document, now: int) -> dict[str, Any]:
    """Return the evaluation with the keys of `inspect.why_not`, and times instead of milliseconds. Each refusal has a text (`how_far`)
    about its distance from an action at `now`, the time of the question.
    """
    refusals = [refusal_document(refusal, now) for refusal in evaluation["refusals"]]
    return {**evaluation, "refusals": refusals, "valid_until": at(evaluation["valid_until"])}


def refusal_document(refusal: Document, now: int) -> dict[str, Any]:
    """Return the refusal with times instead of milliseconds, and a text about its distance from an action."""
    instants = {"not_before": at(refusal.get("not_before")), **_measured_at(refusal)}
    return {**refusal, **instants, "how_far": how_far(refusal, now)}


def refusal_row(row: Mapping[str, Any], now: int) -> dict[str, Any]:
    """Return the row of `inspect.why_not` with a text about its distance from an action at `now`."""
    ends = row["not_before"]
    refused = {**row, "not_before": None if ends is None else to_ms(ends)}
    return {**row, "how_far": how_far(refused, now)}


def _measured_at(refusal: Document) -> dict[str, datetime | int | None]:
    if not str(refusal.get("metric")).endswith(INSTANTS):
        return {}
    return {f"{name}_at": at(refusal.get(name)) for name in ("value", "needed")}


def difference(first: Document, second: Document, names: tuple[str, str]) -> dict[str, Any]:
    """Return, by name of the evaluation, the decisions and refusals that only this one of the two evaluations has."""
    only: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in ("decisions", "refusals"):
        left, right, _ = matched(first[key], second[key])
        only[names[0]][key], only[names[1]][key] = left, right
    return only


def matched(
    first: Sequence[Document], second: Sequence[Document]
) -> tuple[list[Document], list[Document], list[Document]]:
    """Return the documents that are only in the first sequence, only in the second, and in both, with repetitions."""
    left = list(first)
    right, both = list[Document](), list[Document]()
    keys = [_key(document) for document in left]
    for document in second:
        key = _key(document)
        if key in keys:
            index = keys.index(key)
            keys.pop(index)
            both.append(left.pop(index))
        else:
            right.append(document)
    return left, right, both


def _key(document: Document) -> str:
    return json.dumps(exact(document), sort_keys=True, default=str)


def at(milliseconds: float | None) -> datetime | int | None:
    """Return the time. A time beyond the calendar, which a what-if may have, stays a number."""
    if milliseconds is None:
        return None
    try:
        return to_datetime(int(milliseconds))
    except (ValueError, ArithmeticError, OSError):
        return int(milliseconds)


def comparison(found: WhatIf) -> dict[str, Any]:
    """Return the evaluations under the policy in force and under another policy, with their differences."""
    answers, now = (found.in_force.to_document(), found.what_if.to_document()), found.now.now
    apart = difference(*answers, (IN_FORCE, WHAT_IF))
    return {
        "topic": found.topic,
        "epoch": found.now.layout.epoch,
        "at": at(now),
        "lanes": [lane for lane in Lane if lane in found.lanes],
        "changes": found.changes,
        "is_same": not any(documents for side in apart.values() for documents in side.values()),
        IN_FORCE: document(answers[0], now),
        WHAT_IF: document(answers[1], now),
        "difference": apart,
    }
