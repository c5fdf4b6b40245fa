"""A person's answer to what the autoscaler proposed, and what holds without one.

An answer is a row and nothing more: what was approved goes when the next evaluation still wants it. How somebody is asked is
the business of the edges. Defaults are given by the passes of Airflow and, where workers are up, beside their loops: a worker's
events never wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection

from controller import telemetry
from controller.domain.approvals import ApprovalState
from controller.domain.errors import Conflict, NotFound
from controller.domain.whole_numbers import MOST
from controller.repeating import repeat_every
from controller.store.decisions import approvals
from controller.store.decisions.approvals import ApprovalRow
from controller.store.postgres.engine import Store
from controller.store.topics import topics

log = telemetry.get_logger(__name__)

NOBODY = "default"
"""Who answered where nobody did."""

MOST_SETTLED = 1000
"""Proposals settled at a time; the next call takes the rest."""


ASKED_AT_ONCE = 100
"""Proposals that one run of Airflow asks about; the next run takes the rest."""


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


def ask(store: Store, run: str) -> list[ApprovalRow]:
    """What that run of Airflow, `dag/run`, asks somebody about: what nobody is asked about yet, `ASKED_AT_ONCE` at most. The same
    when it is called again, but for what was answered meanwhile.
    """
    with store.transaction() as tx:
        return [row for row in approvals.ask(tx, run, ASKED_AT_ONCE) if row.is_answerable]


def some_unasked(store: Store) -> bool:
    """Whether something waits for an answer and no run of Airflow asks for it."""
    with store.transaction() as tx:
        return approvals.some_unasked(tx)


def answer(store: Store, approval_id: int, *, approve: bool, actor: str, reason: str) -> ApprovalRow:
    """Approve or reject the proposal. The same answer again changes nothing and returns the first.

    Raises NotFound; Conflict where it was answered otherwise, is over its time, or where its segments are no longer there.
    """
    [row] = answer_all(store, (approval_id,), approve=approve, actor=actor, reason=reason)
    return row


def answer_all(
    store: Store,
    approval_ids: Collection[int],
    *,
    approve: bool,
    actor: str,
    reason: str,
) -> list[ApprovalRow]:
    """The same of several, all or none, in the order of their ids."""
    state = ApprovalState.APPROVED if approve else ApprovalState.REJECTED
    rows, first = [], set[int]()
    with store.transaction() as tx:
        for approval_id in sorted({*approval_ids}):
            found = _found(tx, approval_id)
            if found.state is ApprovalState.PENDING:
                _demand_answerable(found)
                if approvals.answer(tx, approval_id, state, answered_by=actor, outcome=reason):
                    first.add(approval_id)
                found = _found(tx, approval_id)
            _demand_answered(found, approve=approve)
            rows.append(found)
    for row in rows:
        if row.approval_id in first and not store.rolls_back:
            about = {"approval_id": row.approval_id, "topic": row.topic, "act": row.act}
            log.info("approval answered", **about, state=state.value, actor=actor)
    return rows


def settle(store: Store) -> Mapping[int, ApprovalState]:
    """Give what has waited long enough its default, and end what can no longer go: by id, how it stands now."""
    with store.transaction() as tx:
        changed = approvals.settle(tx, answered_by=NOBODY, limit=MOST_SETTLED)
    for approval_id, state in changed.items():
        log.info("approval settled", approval_id=approval_id, state=state.value)
    return changed


class ApprovalClock:
    """Gives defaults beside a worker's loop, so that proposals end in time where no pass of Airflow runs."""

    def __init__(self, store: Store, *, interval_seconds: float) -> None:
        self._store, self._interval_seconds = store, interval_seconds
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        repeat_every(
            self._interval_seconds, lambda: settle(self._store), self._stopping, log, "proposals not settled"
        )

    def stop(self) -> None:
        """Leave after the settling in hand."""
        self._stopping.set()


def _found(tx: Connection, approval_id: int) -> ApprovalRow:
    found = approvals.find(tx, approval_id)
    if found is None:
        raise NotFound(
            f"approval {approval_id} does not exist; `cleave approvals list --state any` lists them"
        )
    return found


def _demand_answerable(found: ApprovalRow) -> None:
    if found.is_answerable:
        return
    what = f"approval {found.approval_id} of topic {found.topic} can no longer be answered"
    if found.has_segments:
        raise Conflict(
            f"{what}: that was possible until {_instant(found.expires_at)}, and what holds without an answer is "
            f"{found.default_answer}; act by hand if that is wrong"
        )
    raise Conflict(
        f"{what}: to {found.act} is no longer possible, since the layout moved on; what is wanted now is proposed anew"
    )


def _demand_answered(found: ApprovalRow, *, approve: bool) -> None:
    """Whoever comes second with another answer is told who was first."""
    yes = (ApprovalState.APPROVED, ApprovalState.DONE)
    if found.state in (yes if approve else (ApprovalState.REJECTED,)):
        return
    if found.state is ApprovalState.PENDING:  # its time ran out in this very moment
        _demand_answerable(found)
    if found.answered_at is None:
        raise Conflict(f"approval {found.approval_id} of topic {found.topic} has expired: {found.outcome}")
    said = "rejected" if found.state is ApprovalState.REJECTED else "approved"
    raise Conflict(
        f"approval {found.approval_id} of topic {found.topic} was {said} by {found.answered_by} at "
        f"{_instant(found.answered_at)} ({found.outcome}) and is {found.state.value}; act by hand if that was wrong"
    )


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
