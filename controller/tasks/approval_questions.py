"""Approvals as tasks: the questions that a run of Airflow presents to a person, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic_core import to_jsonable_python

from controller.domain.approval_states import Subject
from controller.domain.errors import Conflict
from controller.domain.formatting import in_markdown
from controller.services import approval_answers
from controller.store.approvals import ApprovalRow
from controller.tasks.application_of_connection import Extras, cleave_at


def approval_questions(*, dsn: str, extras: Extras, run: str) -> list[dict[str, Any]]:
    """Assign up to `REQUEST_LIMIT` approvals that no other run presents to the run `run` (`dag/run`), and
    return those of the run that can be answered as questions. A repeated call returns the same questions,
    except answered ones. `expires_at` is text; `default` is `approve` or `reject`.
    """
    with cleave_at(dsn, extras) as app:
        rows = approval_answers.ask(app.store, run)
    return [_question(row) for row in rows]


def answer_question(
    *, dsn: str, extras: Extras, question: Mapping[str, Any], answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Record an answer with the fields `approve`, `actor` and `reason` to a question of `approval_questions`,
    and return the approval. If no person answered in time, `actor` is None: expired approvals get their
    defaults (as in `services.approval_answers.settle`), and the approval is returned as it then is. If a person has
    already given the same answer elsewhere, nothing changes. Raises NotFound; Conflict if the approval of this id is
    another one, because the database was restored after the question; and the errors of
    `services.approval_answers.answer`.
    """
    approval_id = int(question["approval_id"])
    with cleave_at(dsn, extras) as app:
        row = approval_answers.find(app.store, approval_id)
        # A restored database issues ids again. The time is never changed, and is exact to the microsecond.
        if row.expires_at != datetime.fromisoformat(question["expires_at"]):
            raise Conflict(
                f"approval {approval_id} is not the one of this question, because the database was restored since; "
                "`cleave approvals list` shows what awaits an answer"
            )
        if answer["actor"] is None:
            approval_answers.settle(app.store)
            row = approval_answers.find(app.store, approval_id)
        else:
            reason = answer["reason"] or "requested in Airflow"
            [row] = approval_answers.answer(
                app.store, [approval_id], approve=answer["approve"], actor=answer["actor"], reason=reason
            )
    return dict(to_jsonable_python(asdict(row)))


def _question(row: ApprovalRow) -> dict[str, Any]:
    """Return the approval as a question: its id, a subject, a body in Markdown, the default answer, and the time until
    which a person may answer.
    """
    subject_text, note = f"{row.subject} {row.subject_id}", ""
    if row.subject is Subject.OPERATION:
        subject_text = f"decision {row.decision_id}"
        note = (
            "An approved operation begins with the next pass, if a pass within the hour decides on it again. "
        )
    return {
        "approval_id": row.approval_id,
        "subject": f"{row.topic or 'Bundles'}: {row.action}?",
        "body": f"Because: {in_markdown(row.reason)}. Proposed by {in_markdown(row.proposed_by)} ({subject_text}, approval {row.approval_id}).\n\n"
        f"{note}Without an answer until {row.expires_at:%Y-%m-%d %H:%M} UTC the default applies: **{row.default_answer.capitalize()}**.",
        "default": row.default_answer,
        "expires_at": row.expires_at.isoformat(),
    }
