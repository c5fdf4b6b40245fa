"""A verdict for programs: the evaluation as a document, and what only one of two has.

Verdicts are read as documents, so that a new verdict and a verdict of the ledger have the same sentences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from controller.clock import to_datetime, to_ms
from controller.domain.decision import Lane
from controller.domain.how_far import INSTANTS, how_far
from controller.domain.replay import exact

if TYPE_CHECKING:
    from controller.services.what_if import WhatIf

Document = Mapping[str, Any]
"""An evaluation as JSON values, see `Evaluation.to_document`."""
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
    """The evaluation with the keys of `inspect.why_not`: instants as such, not as milliseconds. Each refusal says how
    far it was from acting at `now`, the moment of the question.
    """
    refusals = [refusal_document(refusal, now) for refusal in evaluation["refusals"]]
    return {**evaluation, "refusals": refusals, "valid_until": at(evaluation["valid_until"])}


def refusal_document(refusal: Document, now: int) -> dict[str, Any]:
    """One refusal with its instants as such, and the sentence that says how far it was from acting."""
    instants = {"not_before": at(refusal.get("not_before")), **_measured_at(refusal)}
    return {**refusal, **instants, "how_far": how_far(refusal, now)}


def refusal_row(row: Mapping[str, Any], now: int) -> dict[str, Any]:
    """A row of `inspect.why_not`, with the sentence that says how far it was from acting at `now`."""
    ends = row["not_before"]
    refused = {**row, "not_before": None if ends is None else to_ms(ends)}
    return {**row, "how_far": how_far(refused, now)}


def _measured_at(refusal: Document) -> dict[str, datetime | int | None]:
    if not str(refusal.get("metric")).endswith(INSTANTS):
        return {}
    return {f"{name}_at": at(refusal.get(name)) for name in ("value", "needed")}


def difference(first: Document, second: Document, names: tuple[str, str]) -> dict[str, Any]:
    """The acts and refusals that only one of the two has, by its name."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in ("decisions", "refusals"):
        left, right, _ = matched(first[key], second[key])
        found[names[0]][key], found[names[1]][key] = left, right
    return found


def matched(
    first: Sequence[Document], second: Sequence[Document]
) -> tuple[list[Document], list[Document], list[Document]]:
    """Those of the first alone, of the second alone, and of both, each as often as it is there."""
    left = list(first)
    right, both = list[Document](), list[Document]()
    keys = [_key(one) for one in left]
    for one in second:
        key = _key(one)
        if key in keys:
            place = keys.index(key)
            keys.pop(place)
            both.append(left.pop(place))
        else:
            right.append(one)
    return left, right, both


def _key(one: Document) -> str:
    return json.dumps(exact(one), sort_keys=True, default=str)


def at(milliseconds: float | None) -> datetime | int | None:
    """The instant; what lies beyond the calendar, as a what-if may, stays a number."""
    if milliseconds is None:
        return None
    try:
        return to_datetime(int(milliseconds))
    except (ValueError, ArithmeticError, OSError):
        return int(milliseconds)


def comparison(found: WhatIf) -> dict[str, Any]:
    """What a policy would decide beside the one in force: the question, both answers, and what only one of them has."""
    answers, now = (found.in_force.to_document(), found.what_if.to_document()), found.now.now
    apart = difference(*answers, (IN_FORCE, WHAT_IF))
    return {
        "topic": found.topic,
        "epoch": found.now.layout.epoch,
        "at": at(now),
        "lanes": [lane for lane in Lane if lane in found.lanes],
        "changes": found.changes,
        "is_same": not any(one for side in apart.values() for one in side.values()),
        IN_FORCE: document(answers[0], now),
        WHAT_IF: document(answers[1], now),
        "difference": apart,
    }
