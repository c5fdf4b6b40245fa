"""A verdict for people and for programs: acts and refusals as rows, and two verdicts side by side.

`decide` shows one, `decisions replay` and `what-if` show how two differ. Verdicts are taken as documents, so that one
that was just made and one that stands in the ledger are shown alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from controller.clock import to_datetime
from controller.domain.how_far import INSTANTS, how_far
from controller.domain.replay import exact
from controller.entrypoints.output import cell

COLUMNS = ("verdict", "segment", "reason", "figures", "not_before")
Document = Mapping[str, Any]
"""An evaluation as JSON values, see `Evaluation.to_document`."""


def document(evaluation: Document, now: int) -> dict[str, Any]:
    """The evaluation with the keys of `inspect.why_not`: instants as such, not as milliseconds. Each refusal says how
    far it was from acting at `now`, the moment of the question.
    """
    refusals = [refusal_document(refusal, now) for refusal in evaluation["refusals"]]
    return {**evaluation, "refusals": refusals, "valid_until": at(evaluation["valid_until"])}


def title(evaluation: Document) -> str:
    """How many acts and refusals, and until when they hold."""
    acts = len(evaluation["decisions"])
    until = at(evaluation["valid_until"])
    holds = "until something changes" if until is None else f"until {cell(until)}"
    return (
        f"{acts or 'no'} act{'' if acts == 1 else 's'}, {len(evaluation['refusals'])} refused; holds {holds}"
    )


def rows(evaluation: Document, now: int) -> list[dict[str, Any]]:
    """A row of `COLUMNS` for each act, then for each refusal."""
    acts = [_act_row(act) for act in evaluation["decisions"]]
    return acts + [_refusal_row(refusal, now) for refusal in evaluation["refusals"]]


def side_by_side(first: Document, second: Document, names: tuple[str, str], now: int) -> list[dict[str, Any]]:
    """The rows of both, each with the `answer` it is in: one of `names`, or `both`. What differs comes first."""
    alone, others = list[dict[str, Any]](), list[dict[str, Any]]()
    for key, row in (("decisions", _act_row), ("refusals", partial(_refusal_row, now=now))):
        left, right, both = _matched(first[key], second[key])
        alone += [{"answer": names[0], **row(one)} for one in left]
        alone += [{"answer": names[1], **row(one)} for one in right]
        others += [{"answer": "both", **row(one)} for one in both]
    return alone + others


def difference(first: Document, second: Document, names: tuple[str, str]) -> dict[str, Any]:
    """The acts and refusals that only one of the two has, by its name."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key in ("decisions", "refusals"):
        left, right, _ = _matched(first[key], second[key])
        found[names[0]][key], found[names[1]][key] = left, right
    return found


def at(milliseconds: float | None) -> datetime | int | None:
    """The instant; what lies beyond the calendar, as a what-if may, stays a number."""
    if milliseconds is None:
        return None
    try:
        return to_datetime(int(milliseconds))
    except (ValueError, ArithmeticError, OSError):
        return int(milliseconds)


def _matched(
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


def _act_row(act: Document) -> dict[str, Any]:
    return {"verdict": act["kind"], "segment": _segments(act), "reason": act["reason"], **_target(act)}


def _refusal_row(refusal: Document, now: int) -> dict[str, Any]:
    return {
        "verdict": "left alone",
        "segment": _segments(refusal),
        "reason": refusal["reason"],
        "figures": how_far(refusal, now),
        "not_before": at(refusal.get("not_before")),
    }


def refusal_document(refusal: Document, now: int) -> dict[str, Any]:
    """One refusal with its instants as such, and the sentence that says how far it was from acting."""
    instants = {"not_before": at(refusal.get("not_before")), **_measured_at(refusal)}
    return {**refusal, **instants, "how_far": how_far(refusal, now)}


def _measured_at(refusal: Document) -> dict[str, datetime | int | None]:
    if not str(refusal.get("metric")).endswith(INSTANTS):
        return {}
    return {f"{name}_at": at(refusal.get(name)) for name in ("value", "needed")}


def _target(act: Document) -> dict[str, Any]:
    """Where an act cuts, or how many buckets it gives."""
    if "bucket_count" in act:
        return {"figures": f"{act['bucket_count']} buckets"}
    return {"figures": f"cut at {', '.join(f'{cut:#06x}' for cut in act['at'])}"} if act.get("at") else {}


def _segments(one: Document) -> str:
    names = ("segment_id", "left_id", "right_id", "other_id", "segment_ids")
    return "+".join(str(one[name]) for name in names if one.get(name) is not None)
