"""A person's answer to what waits for an approval, and what holds without one.

An answer is a row. What was approved about an operation goes when the next evaluation still wants it; another subject does what the answer
means for it in the transaction of the answer. How a person is asked is for the interfaces to say. Defaults are given by the passes of
Airflow and, where workers are up, beside their loops: a worker's events never wait for that.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType

from sqlalchemy import Connection

from controller import telemetry
from controller.domain import approvals as rules
from controller.domain.approvals import ApprovalState, Subject
from controller.domain.errors import Conflict, Terminal
from controller.repeating import repeat_every
from controller.store import approvals
from controller.store.approvals import ApprovalRow
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

NOBODY = "default"
"""Stored as who answered, where no person did in time."""
MOST_SETTLED = 1000
"""Approvals settled at a time; the next call takes the rest."""
ASKED_AT_ONCE = 100
"""Approvals that one run of Airflow asks about; the next run takes the rest."""


SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        Subject.BUNDLE_PROPOSAL: "controller.bundles.services.approvals",
        Subject.PROMOTION: "controller.services.policy_candidates.promotion",
    }
)
"""Modules that know what an answer means for a subject, loaded by the first answer. Each has two functions, called in the transaction of the
answer: `lock` locks the subject, and `carry_out` does what the answer means; its error takes the answer back. Whoever changes a subject and
its approval locks the subject first. An answer about an operation is read by the next evaluation, and means nothing more.
"""


def find(store: Store, approval_id: int) -> ApprovalRow:
    """Return the approval. Raises NotFound."""
    with store.transaction() as tx:
        return approvals.get_approval(tx, approval_id)


def ask(store: Store, run: str) -> list[ApprovalRow]:
    """Return what that run of Airflow, `dag/run`, asks a person about: what no run asks about yet, `ASKED_AT_ONCE` at most. A repeated call
    returns the same approvals without those that were answered meanwhile.
    """
    with store.transaction() as tx:
        return [row for row in approvals.ask(tx, run, ASKED_AT_ONCE) if row.is_answerable]


def some_unasked(store: Store) -> bool:
    """Return True if something waits for an answer and no run of Airflow asks for it."""
    with store.transaction() as tx:
        return approvals.some_unasked(tx)


def answer(
    store: Store, approval_ids: Collection[int], *, approve: bool, actor: str, reason: str
) -> list[ApprovalRow]:
    """Approve or reject, all or none, in the order of the ids. The same answer again changes nothing and returns the first.

    Raises NotFound; Conflict where an approval was answered otherwise, is over its time, or where its subject is gone; and what the
    subject raises.
    """
    state = ApprovalState.APPROVED if approve else ApprovalState.REJECTED
    rows, first = [], set[int]()
    with store.transaction() as tx:
        for approval_id in sorted({*approval_ids}):
            row = approvals.get_approval(tx, approval_id)
            if row.state is ApprovalState.PENDING:
                _demand_answerable(row)
                if _move(tx, row, state, actor, reason, in_time=True):
                    first.add(approval_id)
                row = approvals.get_approval(tx, approval_id)
            _demand_answered(row, approve=approve)
            rows.append(row)
    for row in rows:
        if row.approval_id in first and not store.rolls_back:
            log.info(
                "approval answered",
                approval_id=row.approval_id,
                level=row.level,
                action=row.action,
                state=state.value,
                actor=actor,
            )
    return rows


def settle(store: Store) -> Mapping[int, ApprovalState]:
    """Give what has waited long enough its default, and end what can no longer go. Return the states by id."""
    with store.transaction() as tx:
        overdue = approvals.overdue(tx, MOST_SETTLED)
    changed = {}
    for row in overdue:
        state, outcome = rules.end_of_wait(
            row.subject, row.state, row.default_answer, has_subject=row.has_subject
        )
        try:
            with store.transaction() as tx:
                if not _move(tx, row, state, NOBODY, f"{row.outcome}; {outcome}" if row.outcome else outcome):
                    continue
        except Terminal as error:  # of its subject; the others are settled
            log.warning("approval not settled", approval_id=row.approval_id, why=str(error))
            continue
        changed[row.approval_id] = state
        log.info("approval settled", approval_id=row.approval_id, state=state.value)
    return changed


class ApprovalClock:
    """Gives defaults beside a worker's loop, so that approvals end in time where no pass of Airflow runs."""

    def __init__(self, store: Store, *, interval_seconds: float) -> None:
        self._store, self._interval_seconds = store, interval_seconds
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run until `stop`."""
        repeat_every(
            self._interval_seconds, lambda: settle(self._store), self._stopping, log, "proposals not settled"
        )

    def stop(self) -> None:
        """Leave after the settling in hand."""
        self._stopping.set()


def _move(
    tx: Connection, row: ApprovalRow, state: ApprovalState, by: str, outcome: str, *, in_time: bool = False
) -> bool:
    """Move the approval, and do what an answer means for its subject. Return False if another caller was first."""
    subject = None
    if state in rules.ANSWERS and row.subject in SUBJECTS:
        subject = importlib.import_module(SUBJECTS[row.subject])
    if subject is not None:
        subject.lock(tx, row)
    if not approvals.move(tx, row, state, outcome=outcome, answered_by=by, in_time=in_time):
        return False
    if subject is not None:
        subject.carry_out(tx, approvals.get_approval(tx, row.approval_id))
    return True


def _demand_answerable(row: ApprovalRow) -> None:
    if row.is_answerable:
        return
    what = f"{_name(row)} can no longer be answered"
    if row.has_subject:
        raise Conflict(
            f"{what}: that was possible until {_instant(row.expires_at)}, and what holds without an answer is "
            f"{row.default_answer}; act by hand if that is wrong"
        )
    raise Conflict(
        f"{what}: to {row.action} is no longer possible, since {rules.why_gone(row.subject)}; what is wanted now is proposed anew"
    )


def _demand_answered(row: ApprovalRow, *, approve: bool) -> None:
    """Raise Conflict for a second, different answer; the message says who was first."""
    yes = (ApprovalState.APPROVED, ApprovalState.DONE)
    if row.state in (yes if approve else (ApprovalState.REJECTED,)):
        return
    if row.state is ApprovalState.PENDING:  # its time ran out in this very moment
        _demand_answerable(row)
    if row.answered_at is None:
        raise Conflict(f"{_name(row)} has expired: {row.outcome}")
    said = "rejected" if row.state is ApprovalState.REJECTED else "approved"
    raise Conflict(
        f"{_name(row)} was {said} by {row.answered_by} at {_instant(row.answered_at)} ({row.outcome}) and is "
        f"{row.state.value}; act by hand if that was wrong"
    )


def _name(row: ApprovalRow) -> str:
    return f"approval {row.approval_id} of {'the cluster' if row.topic is None else f'topic {row.topic}'}"


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
