"""Applies a person's answer to an approval, and the default where no person answers in time.

An answer is a row. An approved operation runs when the next evaluation still decides on it. For any other
subject, the transaction of the answer also carries out the answer. The interfaces decide how approvals
are presented. Defaults are applied by the passes of Airflow and, where workers run, by a thread of the
worker: its event loop never waits for a default.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType

from sqlalchemy import Connection

from controller import telemetry
from controller.domain.approval_states import ANSWERS, ApprovalState, Subject, end_of_wait, why_subject_ended
from controller.domain.errors import Conflict, Terminal
from controller.repeating import Stoppable, repeat_every
from controller.store import approvals
from controller.store.approvals import ApprovalRow
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

DEFAULT_ACTOR = "default"
"""Actor that is stored with an approval that no person answered in time."""
SETTLE_LIMIT = 1000
"""Maximum number of approvals that one call settles; the next call settles the rest."""
REQUEST_LIMIT = 100
"""Maximum number of approvals that one run of Airflow presents to a person; the next run presents the rest.
"""


SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        Subject.BUNDLE_PROPOSAL: "controller.bundles.services.proposal_answers",
        Subject.PROMOTION: "controller.services.policy_candidates.promotion",
    }
)
"""Modules that carry out answers, by subject; imported at the first answer. Each module has two functions,
which are called in the transaction of the answer. `lock` locks the subject. `carry_out` applies the answer;
if `carry_out` raises, the answer is rolled back. Code that changes a subject and its approval must lock the
subject first. An answer about an operation has no module: the next evaluation reads the answer.
"""


def find(store: Store, approval_id: int) -> ApprovalRow:
    """Return the approval. Raises NotFound."""
    return store.in_transaction(approvals.get_approval, approval_id)


def ask(store: Store, run: str) -> list[ApprovalRow]:
    """Assign up to `REQUEST_LIMIT` approvals to the Airflow run `run` (`dag/run`): approvals that can be answered,
    that no run presents yet, and that no other transaction has locked. Return all approvals of this run that can be
    answered, ordered by id. A repeated call therefore returns the approvals of earlier calls as well, except
    approvals that can no longer be answered. Raises the errors of `Store.transaction`.
    """
    return [row for row in store.in_transaction(approvals.ask, run, REQUEST_LIMIT) if row.is_answerable]


def some_unasked(store: Store) -> bool:
    """Return True if an approval awaits an answer and no run of Airflow presents it."""
    return store.in_transaction(approvals.some_unasked)


def answer(
    store: Store, approval_ids: Collection[int], *, approve: bool, actor: str, reason: str
) -> list[ApprovalRow]:
    """Approve (`approve` True) or reject all of the approvals in one transaction. After an error, no approval has
    changed. Return the rows of the approvals after the answer, one for each distinct id, ordered by id. The list is
    empty without ids. `actor` is stored as the person who answered, and `reason` as the outcome. New answers are
    logged, except in a dry run.

    The same transaction carries out the answer to a bundle proposal or a promotion. An approved operation only begins
    when the next evaluation still decides on the operation. If an approval already has the same answer, the first
    answer stays, and its row is returned. An approval that is done counts as approved.

    Raises NotFound; Conflict if an approval has the other answer, has expired, or has lost its subject; the errors of
    the two functions of the subject's module (`SUBJECTS`), such as LostRace if the policy in force has changed; and
    the errors of `Store.transaction`.
    """
    state = ApprovalState.APPROVED if approve else ApprovalState.REJECTED
    rows, answered_ids = [], set[int]()
    with store.transaction() as tx:
        for approval_id in sorted({*approval_ids}):
            row = approvals.get_approval(tx, approval_id)
            if row.state is ApprovalState.PENDING:
                _demand_answerable(row)
                if _change_state(tx, row, state, actor, reason, in_time=True):
                    answered_ids.add(approval_id)
                row = approvals.get_approval(tx, approval_id)
            _demand_answered(row, approve=approve)
            rows.append(row)
    for row in rows:
        if row.approval_id in answered_ids and not store.rolls_back:
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
    """End up to `SETTLE_LIMIT` approvals whose time is over, each in a transaction of its own, and return their next
    states by approval id. A pending approval that has expired gets its default answer, which is carried out like the
    answer of a person. A pending approval whose subject is gone becomes expired, and so does an approved operation
    that was not performed in time. Each change is logged.

    The result lacks an approval that another caller settled or answered in the meantime. If the subject of an
    approval raises a terminal error, the error is logged, the approval keeps its state, and the next call tries
    again. Any other error, such as a Retryable of a subject or of `Store.transaction`, is raised, and the approvals
    that were settled before stay settled.
    """
    overdue = store.in_transaction(approvals.overdue, SETTLE_LIMIT)
    new_states = {}
    for row in overdue:
        state, outcome = end_of_wait(row.subject, row.state, row.default_answer, has_subject=row.has_subject)
        try:
            with store.transaction() as tx:
                if not _change_state(
                    tx, row, state, DEFAULT_ACTOR, f"{row.outcome}; {outcome}" if row.outcome else outcome
                ):
                    continue
        except Terminal as error:  # The error concerns this subject only; the other approvals are settled.
            log.warning("approval not settled", approval_id=row.approval_id, why=str(error))
            continue
        new_states[row.approval_id] = state
        log.info("approval settled", approval_id=row.approval_id, state=state.value)
    return new_states


class ApprovalClock(Stoppable):
    """A background thread of a worker that applies the defaults of approvals that were not answered in time,
    so that approvals end without a pass of Airflow.
    """

    def __init__(self, store: Store, *, interval_seconds: float) -> None:
        super().__init__()
        self._store, self._interval_seconds = store, interval_seconds

    def run(self) -> None:
        """Settle approvals every `interval_seconds` until `stop`. A failed round is logged."""
        repeat_every(
            self._interval_seconds, lambda: settle(self._store), self._stopping, log, "approvals not settled"
        )


def _change_state(
    tx: Connection, row: ApprovalRow, state: ApprovalState, actor: str, outcome: str, *, in_time: bool = False
) -> bool:
    """Change the state of the approval, and store `actor` and `outcome`, the reason as text. `actor` is stored only
    with an answer (APPROVED or REJECTED). If the subject has a module in `SUBJECTS`, an answer is also carried out,
    and the rows of the subject are locked before the row of the approval.

    Return False, without a change, if the approval no longer has the state of `row`, or if `in_time` is True and the
    approval has expired. Raises InvariantViolated if the state cannot follow the state of `row`, and the errors of
    the subject's module, after which the caller must roll the transaction back.
    """
    subject = None
    if state in ANSWERS and row.subject in SUBJECTS:
        subject = importlib.import_module(SUBJECTS[row.subject])
    if subject is not None:
        subject.lock(tx, row)
    if not approvals.move(tx, row, state, outcome=outcome, answered_by=actor, in_time=in_time):
        return False
    if subject is not None:
        subject.carry_out(tx, approvals.get_approval(tx, row.approval_id))
    return True


def _demand_answerable(row: ApprovalRow) -> None:
    """Do nothing if the approval of `row`, which is pending, can be answered. Raise Conflict if the approval has
    expired or its subject is gone. The message says which of the two is the case; if both are, the message says that
    the subject is gone.
    """
    if row.is_answerable:
        return
    refusal = f"{_approval_text(row)} can no longer be answered"
    if row.has_subject:
        raise Conflict(
            f"{refusal}: the time for an answer ended at {_time_text(row.expires_at)}, and the default, "
            f"{row.default_answer}, applies; make the change by hand if the default is wrong"
        )
    raise Conflict(
        f"{refusal}: to {row.action} is no longer possible, since {why_subject_ended(row.subject)}; if it is still needed, a new "
        "approval will be requested"
    )


def _demand_answered(row: ApprovalRow, *, approve: bool) -> None:
    """Do nothing if the approval of `row` has the answer `approve` (True: approved, False: rejected). An approval
    that is done counts as approved; an approval that was approved and then expired does not. Otherwise raise
    Conflict.

    If a person or the default has answered, the message names the actor and the time of this answer, also if the
    approval expired afterwards. Without an answer, the message says that the approval has expired or that its subject
    is gone. A pending approval for which `row` still says that it can be answered is also refused as expired.
    """
    approving_states = (ApprovalState.APPROVED, ApprovalState.DONE)
    if row.state in (approving_states if approve else (ApprovalState.REJECTED,)):
        return
    if row.state is ApprovalState.PENDING:  # The approval expired after the caller read the row.
        _demand_answerable(row)
    if row.answered_at is None:
        raise Conflict(f"{_approval_text(row)} has expired: {row.outcome}")
    answer = "rejected" if row.state is ApprovalState.REJECTED else "approved"
    raise Conflict(
        f"{_approval_text(row)} was {answer} by {row.answered_by} at {_time_text(row.answered_at)} ({row.outcome}) and is "
        f"{row.state.value}; make the change by hand if that was wrong"
    )


def _approval_text(row: ApprovalRow) -> str:
    return f"approval {row.approval_id} of {'the cluster' if row.topic is None else f'topic {row.topic}'}"


def _time_text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
