"""A verdict for people: acts and refusals as rows, and two verdicts side by side. For programs: `verdict_documents`.

`decide` shows one, `decisions replay` and `what-if` show how two differ. Verdicts are taken as documents, so that one
that was just made and one that stands in the ledger are shown alike.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from controller.domain.how_far import how_far
from controller.questions.evaluations import Document, at, matched
from controller.terminal import cell

COLUMNS = ("verdict", "segment", "reason", "figures", "not_before")


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
        left, right, both = matched(first[key], second[key])
        alone += [{"answer": names[0], **row(one)} for one in left]
        alone += [{"answer": names[1], **row(one)} for one in right]
        others += [{"answer": "both", **row(one)} for one in both]
    return alone + others


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


def _target(act: Document) -> dict[str, Any]:
    """Where an act cuts, or how many buckets it gives."""
    if "bucket_count" in act:
        return {"figures": f"{act['bucket_count']} buckets"}
    return {"figures": f"cut at {', '.join(f'{cut:#06x}' for cut in act['at'])}"} if act.get("at") else {}


def _segments(one: Document) -> str:
    names = ("segment_id", "left_id", "right_id", "other_id", "segment_ids")
    return "+".join(str(one[name]) for name in names if one.get(name) is not None)
