"""Approvals that await an answer: tests read and answer them."""

from __future__ import annotations

from controller.domain.approval_states import Subject
from controller.services import approval_answers
from controller.store.approvals import ApprovalRow
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store


def pending(store: Store) -> list[ApprovalRow]:
    """Return the approvals that await an answer, newest first."""
    with store.transaction() as tx:
        ids = inspection.rows(
            tx, "SELECT approval_id FROM inspect.approvals WHERE state = 'pending' ORDER BY 1 DESC"
        )
    return [approval_answers.find(store, row["approval_id"]) for row in ids]


def answer_subject(
    store: Store,
    subject: Subject,
    subject_id: int,
    *,
    approve: bool = True,
    actor: str = "ann",
    reason: str = "seen",
) -> ApprovalRow:
    """Answer the one pending approval of the subject."""
    [row] = [row for row in pending(store) if (row.subject, row.subject_id) == (subject, subject_id)]
    [answered] = approval_answers.answer(
        store, [row.approval_id], approve=approve, actor=actor, reason=reason
    )
    return answered
