"""What waits for a person, as tasks: the questions that a run of Airflow puts to a person, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from controller.domain.approvals import Subject
from controller.domain.shown import in_markdown
from controller.services import approvals
from controller.store.approvals import ApprovalRow
from controller.tasks.access import Extras, cleave_at


def approval_questions(*, dsn: str, extras: Extras, run: str) -> list[dict[str, Any]]:
    """Return what that run, `dag/run`, asks about; see `services.approvals.ask`. `expires_at` is text, `default` is `approve` or `reject`."""
    with cleave_at(dsn, extras) as app:
        rows = approvals.ask(app.store, run)
    return [_question(row) for row in rows]


def answer_question(
    *, dsn: str, extras: Extras, question: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Write down what was answered: `approve`, `actor` and `reason`; `actor` None where nobody answered in time, and then the default
    holds. Somebody may have answered elsewhere, as by the command: the same answer changes nothing. Raises as `services.approvals.answer`.
    """
    approval_id = int(question["approval_id"])
    with cleave_at(dsn, extras) as app:
        if given["actor"] is None:
            approvals.settle(app.store)
            row = approvals.find(app.store, approval_id)
        else:
            reason = given["reason"] or "requested in Airflow"
            [row] = approvals.answer(
                app.store, [approval_id], approve=given["approve"], actor=given["actor"], reason=reason
            )
    return dict(to_jsonable_python(asdict(row)))


def _question(row: ApprovalRow) -> dict[str, Any]:
    about, note = f"{row.subject} {row.subject_id}", ""
    if row.subject is Subject.OPERATION:
        about = f"decision {row.decision_id}"
        note = "What is approved goes with the next pass, if that still wants it within the hour. "
    return {
        "approval_id": row.approval_id,
        "subject": f"{row.topic or 'Bundles'}: {row.action}?",
        "body": f"Because: {in_markdown(row.reason)}. Proposed by {in_markdown(row.proposed_by)} ({about}, approval {row.approval_id}).\n\n"
        f"{note}Without an answer until {row.expires_at:%Y-%m-%d %H:%M} UTC it is: **{row.default_answer.capitalize()}**.",
        "default": row.default_answer,
        "expires_at": row.expires_at.isoformat(),
    }
