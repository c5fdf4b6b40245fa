"""A person's answer to what the autoscaler proposed, and what holds without one.

An answer is a row and nothing more: what was approved goes when the next evaluation still wants it. Asking for an
answer is the business of the edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from controller.domain.approvals import ApprovalState
from controller.domain.errors import Conflict, NotFound
from controller.domain.whole_numbers import MOST
from controller.store.decisions import approvals
from controller.store.decisions.approvals import ApprovalRow
from controller.store.postgres.engine import Store
from controller.store.topics import topics

NOBODY = "default"
"""Who answered where nobody did."""

MOST_SETTLED = 1000
"""Proposals settled at a time; the next call takes the rest."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a look at all proposals changed, by id, and which wait for an answer now, newest first."""

    changed: Mapping[int, ApprovalState]
    pending: tuple[ApprovalRow, ...]


def list_approvals(
    store: Store, topic: str | None = None, *, pending_only: bool, limit: int, before: int = MOST
) -> list[ApprovalRow]:
    """Proposals of one topic or of all, newest first. Raises TopicNotFound."""
    with store.transaction() as tx:
        topic_id = None if topic is None else topics.find_topic(tx, topic).topic_id
        return approvals.list_approvals(
            tx, topic_id=topic_id, pending_only=pending_only, before=before, limit=limit
        )


def find(store: Store, approval_id: int) -> ApprovalRow:
    """The proposal. Raises NotFound."""
    with store.transaction() as tx:
        return _found(tx, approval_id)


def answer(
    store: Store, approval_id: int, *, approve: bool, actor: str, reason: str, dry_run: bool = False
) -> ApprovalRow:
    """Approve or reject the proposal. The same answer again changes nothing and returns the first.

    Raises NotFound; Conflict where it was answered otherwise, or where its segments are no longer there.
    """
    state = ApprovalState.APPROVED if approve else ApprovalState.REJECTED
    with store.transaction() as tx:
        found = _found(tx, approval_id)
        if found.state is ApprovalState.PENDING:
            _demand_answerable(found)
            if dry_run:
                return found
            approvals.answer(tx, approval_id, state, answered_by=actor, outcome=reason)
            found = _found(tx, approval_id)
        _demand_answered(found, approve=approve)
        return found


def settle(store: Store) -> Settled:
    """Give what has waited long enough its default, and end what can no longer go."""
    with store.transaction() as tx:
        changed = approvals.settle(tx, answered_by=NOBODY, limit=MOST_SETTLED)
        pending = approvals.list_approvals(
            tx, topic_id=None, pending_only=True, before=MOST, limit=MOST_SETTLED
        )
    return Settled(changed, tuple(pending))


def _found(tx: Connection, approval_id: int) -> ApprovalRow:
    found = approvals.find(tx, approval_id)
    if found is None:
        raise NotFound(f"there is no approval {approval_id}; `inspect.approvals` has those that wait")
    return found


def _demand_answerable(found: ApprovalRow) -> None:
    if not found.is_answerable:
        raise Conflict(
            f"approval {found.approval_id} of topic {found.topic} can no longer be answered: to {found.act} is no longer "
            "possible, since the layout moved on; what is wanted now is proposed anew"
        )


def _demand_answered(found: ApprovalRow, *, approve: bool) -> None:
    """Whoever comes second with another answer is told who was first."""
    yes = (ApprovalState.APPROVED, ApprovalState.DONE)
    if found.state in (yes if approve else (ApprovalState.REJECTED,)):
        return
    if found.answered_at is None:
        raise Conflict(f"approval {found.approval_id} of topic {found.topic} has expired: {found.outcome}")
    said = "rejected" if found.state is ApprovalState.REJECTED else "approved"
    raise Conflict(
        f"approval {found.approval_id} of topic {found.topic} was {said} by {found.answered_by} at "
        f"{found.answered_at:%Y-%m-%d %H:%M:%S} UTC ({found.outcome}) and is {found.state.value}; act by hand if that was wrong"
    )
