"""Acts that wait for a person, as tasks: the questions that a run of Airflow puts to somebody, their answers, and answers by a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.actions.dry_run import store_for
from controller.actions.fields import fill_in
from controller.domain.shown import in_markdown
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.entrypoints.tasks.forms import AnswerForm
from controller.services import approvals
from controller.store.decisions.approvals import ApprovalRow

_COLUMNS = ("approval_id", "topic", "act", "reason", "state", "answered_by")


def approval_questions(*, dsn: str, extras: Extras, run: str) -> list[dict[str, Any]]:
    """What that run, `dag/run`, asks about; see `services.approvals.ask`. `expires_at` is text, `default` is `approve` or `reject`."""
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
            reason = given["reason"] or "asked for in Airflow"
            row = approvals.answer(
                app.store, approval_id, approve=given["approve"], actor=given["actor"], reason=reason
            )
    return _answer(row)


def answer_approvals(
    *, dsn: str, extras: Extras, actor: str, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Answer several alike, all or none of them. See `AnswerForm`."""
    form = fill_in(AnswerForm, params)
    with cleave_at(dsn, extras) as app, store_for(app, form.dry_run) as store:
        rows = approvals.answer_all(
            store,
            form.approvals,
            approve=form.answer == "approve",
            actor=actor,
            reason=form.reason,
        )
    answers = [_answer(row) for row in rows]
    title = f"{'would be ' if form.dry_run else ''}{form.answer}: {len(answers)} act(s)"
    emit(False, None, rows_table(answers, _COLUMNS, title=title))
    return answers


def _question(row: ApprovalRow) -> dict[str, Any]:
    until = f"{row.expires_at:%Y-%m-%d %H:%M} UTC"
    return {
        "approval_id": row.approval_id,
        "subject": f"{row.topic}: {row.act}?",
        "body": f"Because: {in_markdown(row.reason)}. Decided by {in_markdown(row.proposed_by)} (decision {row.decision_id}, approval {row.approval_id}).\n\n"
        f"What is approved goes with the next pass, if that still wants it within the hour. Without an answer until {until} it "
        f"is: **{row.default_answer.capitalize()}**.",
        "default": row.default_answer,
        "expires_at": row.expires_at.isoformat(),
    }


def _answer(row: ApprovalRow) -> dict[str, Any]:
    return {
        "approval_id": row.approval_id,
        "topic": row.topic,
        "act": row.act,
        "reason": row.reason,
        "state": row.state.value,
        "answered_by": row.answered_by,
        "outcome": row.outcome,
    }
