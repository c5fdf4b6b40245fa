"""Tables of an evaluation's actions and refusals, and of two evaluations side by side.

`decide` shows one evaluation, `decisions replay` and `what-if` show the differences of two. The functions take documents, so that a new and a
stored evaluation look alike.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from controller.command_output import cell
from controller.domain.formatting import counted
from controller.domain.refusal_text import how_far
from controller.questions.evaluations import Document, at, matched

COLUMNS = ("result", "segment", "reason", "figures", "not_before")


def title(evaluation: Document) -> str:
    """Return the number of actions and refusals as text, and the time until which they are valid, or that they are valid until something
    changes. `evaluation` is the document of an evaluation.
    """
    until = at(evaluation["valid_until"])
    end = "until something changes" if until is None else f"until {cell(until)}"
    actions, refusals = (
        counted(len(evaluation[key]), noun)
        for key, noun in (("decisions", "action"), ("refusals", "refusal"))
    )
    return f"{actions}, {refusals}; valid {end}"


def rows(evaluation: Document, now: int) -> list[dict[str, Any]]:
    """Return a row of `COLUMNS` for each action, then for each refusal. `now` is the time of the evaluation in milliseconds."""
    acts = [_act_row(act) for act in evaluation["decisions"]]
    return acts + [_refusal_row(refusal, now) for refusal in evaluation["refusals"]]


def side_by_side(first: Document, second: Document, names: tuple[str, str], now: int) -> list[dict[str, Any]]:
    """Return the rows of two evaluations, with column `answer` and those of `COLUMNS`. `answer` is one of `names`, or `both` for an action
    or refusal that both evaluations have; rows of one evaluation only come first, of each sort the actions before the refusals. `now` is
    the time of the evaluation in milliseconds since the Unix epoch.
    """
    differing, common = list[dict[str, Any]](), list[dict[str, Any]]()
    for key, row in (("decisions", _act_row), ("refusals", partial(_refusal_row, now=now))):
        only_first, only_second, both = matched(first[key], second[key])
        differing += [{"answer": names[0], **row(item)} for item in only_first]
        differing += [{"answer": names[1], **row(item)} for item in only_second]
        common += [{"answer": "both", **row(item)} for item in both]
    return differing + common


def _act_row(act: Document) -> dict[str, Any]:
    return {"result": act["kind"], "segment": _segments(act), "reason": act["reason"], **_target(act)}


def _refusal_row(refusal: Document, now: int) -> dict[str, Any]:
    return {
        "result": "no action",
        "segment": _segments(refusal),
        "reason": refusal["reason"],
        "figures": how_far(refusal, now),
        "not_before": at(refusal.get("not_before")),
    }


def _target(act: Document) -> dict[str, Any]:
    """Return the column `figures` of an action: its number of entry buckets, or its cut points. An action with neither has no such column."""
    if "bucket_count" in act:
        return {"figures": f"{act['bucket_count']} buckets"}
    return {"figures": f"cut at {', '.join(f'{cut:#06x}' for cut in act['at'])}"} if act.get("at") else {}


def _segments(action: Document) -> str:
    """Return the ids of the segments of an action or a refusal, joined by `+`. Empty if there are none."""
    names = ("segment_id", "left_id", "right_id", "other_id")
    ids = [action[name] for name in names if action.get(name) is not None]
    return "+".join(map(str, (*ids, *action.get("segment_ids", ()))))
