"""Evaluations as documents for programs, and the difference of two evaluations.

Evaluations are read as documents, so that a present evaluation and one of the decision log get the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from controller.clock import to_datetime, to_ms
from controller.domain.decision import Lane
from controller.domain.decision_replay import exact
from controller.domain.refusal_text import INSTANTS, how_far

if TYPE_CHECKING:
    from controller.services.what_if import WhatIf

Document = Mapping[str, Any]
"""An evaluation as JSON values, as returned by `Evaluation.to_document`."""
IN_FORCE, WHAT_IF = "in_force", "what_if"


def stored_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluation that a row of `inspect.decisions` or `inspect.decision_inputs` holds, as JSON values
    with times in milliseconds.
    """
    valid_until = row["valid_until"]
    return {
        "decisions": row["decisions"],
        "refusals": row["refusals"],
        "valid_until": None if valid_until is None else to_ms(valid_until),
    }


def document(evaluation: Document, now: int) -> dict[str, Any]:
    """Return the evaluation with times instead of milliseconds in `valid_until` and in the refusals; its decisions are
    unchanged. Each refusal also gets a text (`how_far`) about its distance from an action at `now`, in milliseconds
    since the Unix epoch.
    """
    refusals = [refusal_document(refusal, now) for refusal in evaluation["refusals"]]
    return {**evaluation, "refusals": refusals, "valid_until": at(evaluation["valid_until"])}


def refusal_document(refusal: Document, now: int) -> dict[str, Any]:
    """Return the refusal with a time in `not_before` instead of milliseconds, and a text (`how_far`) about its distance
    from an action at `now`, in milliseconds since the Unix epoch. If its value is a time, `value_at` and `needed_at`
    are added.
    """
    instants = {"not_before": at(refusal.get("not_before")), **_measured_at(refusal)}
    return {**refusal, **instants, "how_far": how_far(refusal, now)}


def _measured_at(refusal: Document) -> dict[str, datetime | int | None]:
    """Return `value_at` and `needed_at` as times if the refusal's metric is a time in milliseconds; otherwise an
    empty dict.
    """
    if not str(refusal.get("metric")).endswith(INSTANTS):
        return {}
    return {f"{name}_at": at(refusal.get(name)) for name in ("value", "needed")}


def difference(first: Document, second: Document, names: tuple[str, str]) -> dict[str, Any]:
    """Return, by name of the evaluation, the `decisions` and `refusals` that only this evaluation of the two has.
    `names` are the names of the first and the second evaluation; both are keys of the result, with empty lists if the
    evaluations are equal.
    """
    by_name: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in ("decisions", "refusals"):
        only_first, only_second, _ = matched(first[key], second[key])
        by_name[names[0]][key], by_name[names[1]][key] = only_first, only_second
    return by_name


def matched(
    first: Sequence[Document], second: Sequence[Document]
) -> tuple[list[Document], list[Document], list[Document]]:
    """Return the documents that are only in the first sequence, in its order; only in the second, in its order; and in
    both, in the order of the second. Numbers are compared by value. Equal documents are matched one to one, so
    repetitions count. Raises ValueError for NaN and infinities.
    """
    only_first = list(first)
    only_second, in_both = list[Document](), list[Document]()
    unmatched = [exact(document) for document in only_first]
    for document in second:
        compared = exact(document)
        if compared in unmatched:
            index = unmatched.index(compared)
            unmatched.pop(index)
            in_both.append(only_first.pop(index))
        else:
            only_second.append(document)
    return only_first, only_second, in_both


def at(milliseconds: float | None) -> datetime | int | None:
    """Return the time of milliseconds since the Unix epoch; None for None. A time beyond the calendar, which a
    what-if may have, is returned as the whole number of milliseconds.
    """
    if milliseconds is None:
        return None
    try:
        return to_datetime(int(milliseconds))
    except (ValueError, ArithmeticError, OSError):
        return int(milliseconds)


def comparison(result: WhatIf) -> dict[str, Any]:
    """Return the evaluations under the policy in force and under another policy, with their differences, as the
    fields of `what_if.Comparison`.
    """
    evaluation_documents, now = (result.in_force.to_document(), result.what_if.to_document()), result.now.now
    differences = difference(*evaluation_documents, (IN_FORCE, WHAT_IF))
    return {
        "topic": result.topic,
        "epoch": result.now.layout.epoch,
        "at": at(now),
        "lanes": [lane for lane in Lane if lane in result.lanes],
        "changes": result.changes,
        "is_same": not any(documents for side in differences.values() for documents in side.values()),
        IN_FORCE: document(evaluation_documents[0], now),
        WHAT_IF: document(evaluation_documents[1], now),
        "difference": differences,
    }
