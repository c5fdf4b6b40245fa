"""Approvals in the database: actions that wait for a person, and the answers.

Proposers add approvals, and end approvals whose subject is gone or performed. The autoscaler never changes a pending row, so that an
answer and a decision cannot wait for each other. An answer about an operation raises the topic's `evaluation` by a trigger, after the
row of the approval is locked. `domain.approval_states` defines the states, and when an approval lapses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.approval_rule import Approval
from controller.domain.approval_states import (
    ANSWERS,
    VALID_MS,
    ApprovalState,
    Subject,
    demand_transition,
    states_before,
)
from controller.domain.decision import Decision, kind_of, parts_of, sealed_by, size_of
from controller.domain.errors import NotFound
from controller.store.postgres.prepared_statements import Prepared
from controller.store.postgres.rows_by_topic import rows_by_topic


@dataclass(frozen=True, slots=True)
class NewApproval:
    """An approval to request. After `wait_seconds`, `default_answer` holds. `action` is a short text of the action. `topic_id` is None
    for a subject of the cluster; `act` and `epoch` are None for a subject that is not an operation.
    """

    subject: Subject
    subject_id: int
    topic_id: int | None
    action: str
    reason: str
    proposed_by: str
    wait_seconds: float
    default_answer: str = "reject"
    act: Decision | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StartedAction:
    """An approved action, and the operation that performs it."""

    topic_id: int
    act: Decision
    operation_id: int


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """A row of `inspect.approvals`. `subject_id` is the id of the decision that chose the operation, of the bundle proposal or of the
    candidate; `level` is the topic or `cluster`; `asked_in` is the Airflow run (dag/run) that requests the answer. `has_subject` is True
    if the topic is live and its segments are ACTIVE; `is_answerable`, if the approval is pending, has not expired and has its subject.
    The fields from `kind` on belong to an operation: `segment_ids` are the segments that it seals, `parts` is the number of segments that
    it creates (for a rebucket, of entry buckets), and `segments` the greater of the numbers of sealed and created segments.
    """

    approval_id: int
    subject: Subject
    subject_id: int
    level: str
    topic: str | None
    topic_id: int | None
    state: ApprovalState
    action: str
    reason: str
    proposed_at: datetime
    proposed_by: str
    expires_at: datetime
    default_answer: str
    answered_at: datetime | None
    answered_by: str | None
    outcome: str | None
    ended_at: datetime | None
    asked_in: str | None
    has_subject: bool
    is_answerable: bool
    kind: str | None
    segment_ids: tuple[int, ...] | None
    parts: int | None
    segments: int | None
    decision_id: int | None
    epoch: int | None
    operation_id: int | None


# The newest approval of each action that has not ended and whose segments are all ACTIVE.
_LAST_WORDS = Prepared(
    "approvals_last_words",
    """
    SELECT DISTINCT ON (a.topic_id, a.kind, a.segment_ids)
           a.topic_id, a.kind, a.segment_ids, a.parts, a.state,
           floor(extract(epoch FROM a.answered_at) * 1000)::bigint AS answered_at
      FROM cleave.approval a
     WHERE a.topic_id = ANY (:topic_ids) AND a.state IN ('pending', 'approved', 'rejected') AND a.subject = 'operation'
       AND NOT EXISTS (
           SELECT FROM unnest(a.segment_ids) AS sealed(segment_id)
             LEFT JOIN cleave.segment s
                    ON s.topic_id = a.topic_id AND s.segment_id = sealed.segment_id AND s.state = 'ACTIVE'
            WHERE s.segment_id IS NULL)
     ORDER BY a.topic_id, a.kind, a.segment_ids, a.approval_id DESC
""",
    {"topic_ids": "bigint[]"},
)
_PROPOSE = text("""
    INSERT INTO cleave.approval (subject, subject_id, topic_id, expires_at, epoch, parts, segments, kind, action, reason, proposed_by,
                                 default_answer, segment_ids)
    SELECT subject, subject_id, topic_id, clock_timestamp() + make_interval(secs => wait_seconds), epoch, parts, segments, kind,
           action, reason, proposed_by, default_answer, segment_ids
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given (
           subject text, subject_id bigint, topic_id bigint, wait_seconds float8, epoch bigint, parts integer, segments integer,
           kind text, action text, reason text, proposed_by text, default_answer text, segment_ids bigint[])
        ON CONFLICT DO NOTHING
""")
_MARK_DONE = text("""
    UPDATE cleave.approval a
       SET state = 'done', operation_id = given.operation_id, ended_at = clock_timestamp()
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given (
           topic_id bigint, operation_id bigint, kind text, segment_ids bigint[])
     WHERE a.topic_id = given.topic_id AND a.kind = given.kind AND a.segment_ids = given.segment_ids
       AND a.state = 'approved'
""")
_COLUMNS = ", ".join(field.name for field in fields(ApprovalRow))
_MOVE = text("""
    UPDATE cleave.approval
       SET state = :state, outcome = :outcome,
           answered_at = CASE WHEN :answers THEN clock_timestamp() ELSE answered_at END,
           answered_by = CASE WHEN :answers THEN :answered_by ELSE answered_by END,
           ended_at = CASE WHEN NOT :answers THEN clock_timestamp() END
     WHERE approval_id = :approval_id AND state = :seen AND (NOT :in_time OR expires_at > clock_timestamp())
""")
_END = text("""
    UPDATE cleave.approval
       SET state = :state, outcome = concat_ws('; ', outcome, :outcome), ended_at = clock_timestamp()
     WHERE subject = :subject AND subject_id = ANY (:subject_ids) AND state = ANY (:before)
""")
# A locked row is being answered, so it is skipped.
_ASK = text("""
    UPDATE cleave.approval SET asked_in = :run
     WHERE approval_id = ANY (ARRAY(
           SELECT a.approval_id FROM cleave.approval a JOIN inspect.approvals v USING (approval_id)
            WHERE v.is_answerable AND a.asked_in IS NULL
            ORDER BY a.approval_id LIMIT :limit FOR UPDATE OF a SKIP LOCKED))
""")
_UNASKED = text("""
    SELECT EXISTS (SELECT FROM inspect.approvals WHERE state = 'pending' AND asked_in IS NULL AND is_answerable)
""")
_ONE = text(f"SELECT {_COLUMNS} FROM inspect.approvals WHERE approval_id = :approval_id")  # noqa: S608  # our own names
_ASKED = text(f"""
    SELECT {_COLUMNS} FROM inspect.approvals WHERE asked_in = :run AND state = 'pending' ORDER BY approval_id
""")  # noqa: S608
_OVERDUE = text(f"""
    SELECT {_COLUMNS} FROM inspect.approvals
     WHERE (state = 'pending' AND (NOT has_subject OR expires_at <= clock_timestamp()))
        OR (state = 'approved' AND subject = 'operation' AND answered_at <= clock_timestamp() - make_interval(secs => :valid_seconds))
     ORDER BY topic_id, approval_id LIMIT :limit
""")  # noqa: S608
_FORGET = text("""
    DELETE FROM cleave.approval
     WHERE state IN ('rejected', 'expired', 'done') AND greatest(proposed_at, answered_at, ended_at) < :older_than
""")


def last_words(tx: Connection, topic_ids: Collection[int]) -> dict[int, tuple[Approval, ...]]:
    """Return the newest approval of each action of these topics, by topic id. Only approvals of operations count that
    are pending, approved or rejected, and whose sealed segments are all ACTIVE.

    The kind and the sealed segments identify an action. The approvals of a topic are sorted by kind and sealed
    segments. A topic without such an approval is absent.
    """
    rows = rows_by_topic(_LAST_WORDS.execute(tx, {"topic_ids": list(topic_ids)}))
    return {
        topic_id: tuple(
            Approval(row.kind, tuple(row.segment_ids), row.parts, ApprovalState(row.state), row.answered_at)
            for row in topic_rows
        )
        for topic_id, topic_rows in rows.items()
    }


def propose(tx: Connection, approvals: Sequence[NewApproval]) -> None:
    """Add the approvals as pending. If the action or subject of an approval has a pending approval already, that
    approval stays and the given approval is ignored.
    """
    if approvals:
        tx.execute(_PROPOSE, {"rows": json.dumps([_document(approval) for approval in approvals])})


def mark_done(tx: Connection, actions: Sequence[StartedAction]) -> None:
    """Set the approved approvals of these actions to done, and store the operation and the present time in each, so
    that each approval is used once.

    The topic, the kind and the sealed segments identify the approval of an action. An action without an approved
    approval is ignored.
    """
    if actions:
        rows = [
            {"topic_id": action.topic_id, "operation_id": action.operation_id, **_key(action.act)}
            for action in actions
        ]
        tx.execute(_MARK_DONE, {"rows": json.dumps(rows)})


def move(
    tx: Connection,
    row: ApprovalRow,
    state: ApprovalState,
    *,
    outcome: str,
    answered_by: str | None = None,
    in_time: bool = False,
) -> bool:
    """Move the approval of `row` to `state`, and store `outcome`, a text, in place of the earlier outcome. Return
    True if the approval was moved. Return False, without a change, if the approval was deleted or is no longer in the
    state of `row`, or if `in_time` is True and the approval has expired.

    An answer (approved or rejected) stores the present time and `answered_by`, which other states ignore. Any other
    state stores the present time as the end. Raises InvariantViolated if no transition leads from the state of `row`
    to `state`.
    """
    demand_transition(row.state, state)
    values = {
        "approval_id": row.approval_id,
        "seen": row.state.value,
        "state": state.value,
        "outcome": outcome,
        "answers": state in ANSWERS,
        "answered_by": answered_by,
        "in_time": in_time,
    }
    return bool(tx.execute(_MOVE, values).rowcount)


def end(
    tx: Connection,
    subject: Subject,
    subject_ids: Collection[int],
    state: ApprovalState,
    outcome: str | None,
) -> None:
    """End the approvals of these subjects, which are performed (done) or gone (expired).

    `outcome` is appended to the stored outcome, after a semicolon; None keeps the stored outcome. Approvals that have no transition to
    `state`, such as approvals that have ended, are not changed.
    """
    values = {
        "subject": subject.value,
        "subject_ids": [*subject_ids],
        "state": state.value,
        "outcome": outcome,
    }
    tx.execute(_END, values | {"before": states_before(state)})


def ask(tx: Connection, run: str, limit: int) -> list[ApprovalRow]:
    """Assign up to `limit` answerable approvals without a run to the Airflow run `run` (dag/run), which requests their answers. Approvals
    that another transaction has locked are skipped. Return all pending approvals of the run by id, including approvals of an earlier call
    and approvals that are no longer answerable.
    """
    tx.execute(_ASK, {"run": run, "limit": limit})
    return [_row(row) for row in tx.execute(_ASKED, {"run": run})]


def some_unasked(tx: Connection) -> bool:
    """Return True if an answerable approval has no Airflow run that requests its answer."""
    return bool(tx.execute(_UNASKED).scalar_one())


def get_approval(tx: Connection, approval_id: int) -> ApprovalRow:
    """Return the approval. Raises NotFound."""
    row = tx.execute(_ONE, {"approval_id": approval_id}).one_or_none()
    if row is None:
        raise NotFound(
            f"approval {approval_id} does not exist; `cleave approvals list --state any` lists them"
        )
    return _row(row)


def overdue(tx: Connection, limit: int) -> list[ApprovalRow]:
    """Return up to `limit` approvals to end, by topic: pending approvals that have expired or whose subject is gone, and approvals of
    operations that were approved but not performed within `VALID_MS` after the answer.
    """
    return [_row(row) for row in tx.execute(_OVERDUE, {"limit": limit, "valid_seconds": VALID_MS / 1000})]


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Delete rejected, expired and done approvals that were last changed before `older_than`, and return their number.

    A deleted rejection has no further effect.
    """
    return tx.execute(_FORGET, {"older_than": older_than}).rowcount


def _key(action: Decision) -> dict[str, Any]:
    """Return the columns that identify the approval of an action within a topic: the kind, and the ids of the sealed
    segments.
    """
    return {"kind": kind_of(action), "segment_ids": list(sealed_by(action))}


def _document(approval: NewApproval) -> dict[str, Any]:
    """Return the fields of the approval, except `act`, as values for JSON by name. If the approval has an action, the
    result also contains `kind`, `segment_ids` (the ids of the sealed segments), `parts` (`parts_of`) and `segments`
    (`size_of`: the number of sealed or of created segments, whichever is larger).
    """
    document = {field.name: getattr(approval, field.name) for field in fields(NewApproval)}
    action = document.pop("act")
    if action is None:
        return document
    return document | _key(action) | {"parts": parts_of(action), "segments": size_of(action)}


def _row(row: Any) -> ApprovalRow:
    segment_ids = None if row.segment_ids is None else tuple(row.segment_ids)
    enums = {"state": ApprovalState(row.state), "subject": Subject(row.subject)}
    return ApprovalRow(**{**row._mapping, **enums, "segment_ids": segment_ids})
