"""Approvals in the database: acts that the autoscaler proposed, and the answers.

The autoscaler writes proposals and marks what was approved as done; it never touches a row that is pending, so whoever
answers never waits for a decision while a decision waits for the answer. An answer raises the topic's `evaluation` by a
trigger, after its own row is locked. What an answer means is `domain.approvals`'.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.approvals import VALID_MS, Approval, ApprovalState, kind_of, parts_of, size_of
from controller.domain.decision import Decision, sealed_by
from controller.store.postgres.prepared import Prepared


@dataclass(frozen=True, slots=True)
class ProposedAct:
    """An act to ask a person about, for so many seconds, after which `default_answer` holds."""

    topic_id: int
    act: Decision
    epoch: int
    decision_id: int
    proposed_by: str
    wait_seconds: int
    default_answer: str


@dataclass(frozen=True, slots=True)
class DoneAct:
    """An act that an operation carries out now."""

    topic_id: int
    act: Decision
    operation_id: int


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """A proposal as people see it. `act`: what is to be done to
    what, in a few words; `segments`: how many it seals or makes; `asked_in`: the run of Airflow, as `dag/run`, in which
    somebody is asked; `has_segments`: they are still there; `is_answerable`: it waits, is in time, and has its segments.
    """

    approval_id: int
    topic: str
    topic_id: int
    state: ApprovalState
    kind: str
    act: str
    segment_ids: tuple[int, ...]
    parts: int
    segments: int
    reason: str
    proposed_at: datetime
    proposed_by: str
    expires_at: datetime
    default_answer: str
    answered_at: datetime | None
    answered_by: str | None
    outcome: str | None
    ended_at: datetime | None
    operation_id: int | None
    decision_id: int
    asked_in: str | None
    has_segments: bool
    is_answerable: bool


# The newest of those that still say something about an act on segments that are there.
_LAST_WORDS = Prepared(
    "approvals_last_words",
    """
    SELECT DISTINCT ON (a.topic_id, a.kind, a.segment_ids)
           a.topic_id, a.kind, a.segment_ids, a.parts, a.state,
           floor(extract(epoch FROM a.answered_at) * 1000)::bigint AS answered_at
      FROM cleave.approval a
     WHERE a.topic_id = ANY (:topic_ids) AND a.state IN ('pending', 'approved', 'rejected')
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
    INSERT INTO cleave.approval (topic_id, expires_at, decision_id, epoch, parts, segments, kind, reason, proposed_by,
                                 default_answer, segment_ids)
    SELECT topic_id, clock_timestamp() + make_interval(secs => wait_seconds), decision_id, epoch, parts, segments, kind,
           reason, proposed_by, default_answer, segment_ids
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given (
           topic_id bigint, wait_seconds float8, decision_id bigint, epoch bigint, parts integer, segments integer,
           kind text, reason text, proposed_by text, default_answer text, segment_ids bigint[])
        ON CONFLICT (topic_id, kind, segment_ids) WHERE state = 'pending' DO NOTHING
""")
_DONE = text("""
    UPDATE cleave.approval a
       SET state = 'done', operation_id = given.operation_id, ended_at = clock_timestamp()
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given (
           topic_id bigint, operation_id bigint, kind text, segment_ids bigint[])
     WHERE a.topic_id = given.topic_id AND a.kind = given.kind AND a.segment_ids = given.segment_ids
       AND a.state = 'approved'
""")
_COLUMNS = (
    "approval_id, topic, topic_id, state, kind, act, segment_ids, parts, segments, reason, proposed_at, proposed_by, expires_at,"
    " default_answer, answered_at, answered_by, outcome, ended_at, operation_id, decision_id, asked_in, has_segments, is_answerable"
)
_ANSWER = text("""
    UPDATE cleave.approval
       SET state = :state, answered_at = clock_timestamp(), answered_by = :answered_by, outcome = :outcome
     WHERE approval_id = :approval_id AND state = 'pending' AND expires_at > clock_timestamp()
""")
# What somebody is just answering needs no question.
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
_LIST = text(f"""
    SELECT {_COLUMNS} FROM inspect.approvals
     WHERE (CAST(:topic_id AS bigint) IS NULL OR topic_id = :topic_id)
       AND (NOT :pending_only OR state = 'pending') AND approval_id < :before
     ORDER BY approval_id DESC LIMIT :limit
""")  # noqa: S608
# By topic, so that two of them never raise evaluations crosswise; what somebody is just answering is left to them.
_OVERDUE = text("""
    WITH due AS (
        SELECT a.approval_id,
               CASE WHEN a.state = 'approved' THEN 'expired'
                    WHEN NOT v.has_segments THEN 'expired'
                    WHEN a.default_answer = 'approve' THEN 'approved' ELSE 'rejected' END AS state,
               CASE WHEN a.state = 'approved' THEN a.outcome || '; not wanted within an hour of that'
                    WHEN NOT v.has_segments THEN 'the layout moved on: the segments are no longer as they were proposed'
                    ELSE 'nobody answered in time' END AS outcome
          FROM cleave.approval a
          JOIN inspect.approvals v USING (approval_id)
         WHERE (a.state = 'pending' AND (NOT v.has_segments OR a.expires_at <= clock_timestamp()))
            OR (a.state = 'approved' AND a.answered_at <= clock_timestamp() - make_interval(secs => :valid_seconds))
         ORDER BY a.topic_id, a.approval_id LIMIT :limit FOR UPDATE OF a SKIP LOCKED)
    UPDATE cleave.approval a
       SET state = due.state, outcome = due.outcome,
           answered_at = CASE WHEN due.state = 'expired' THEN a.answered_at ELSE clock_timestamp() END,
           answered_by = CASE WHEN due.state = 'expired' THEN a.answered_by ELSE :answered_by END,
           ended_at = CASE WHEN due.state = 'expired' THEN clock_timestamp() END
      FROM due WHERE due.approval_id = a.approval_id
    RETURNING a.approval_id, a.state
""")
_FORGET = text("""
    DELETE FROM cleave.approval
     WHERE state IN ('rejected', 'expired', 'done') AND greatest(proposed_at, answered_at, ended_at) < :older_than
""")


def last_words(tx: Connection, topic_ids: Collection[int]) -> dict[int, tuple[Approval, ...]]:
    """The last word on each act of these topics that somebody was asked about, as far as it can still matter."""
    found: dict[int, list[Approval]] = defaultdict(list)
    for row in _LAST_WORDS.execute(tx, {"topic_ids": list(topic_ids)}):
        state = ApprovalState(row.state)
        one = Approval(row.kind, tuple(row.segment_ids), row.parts, state, row.answered_at)
        found[row.topic_id].append(one)
    return {topic_id: tuple(words) for topic_id, words in found.items()}


def propose(tx: Connection, proposals: Sequence[ProposedAct]) -> None:
    """Writes the proposals down. One that waits already is left as it is."""
    if proposals:
        tx.execute(_PROPOSE, {"rows": json.dumps([_document(one) for one in proposals])})


def done(tx: Connection, acts: Sequence[DoneAct]) -> None:
    """Where these acts were approved, that is used up."""
    if acts:
        tx.execute(
            _DONE, {"rows": json.dumps([_key(one) | {"operation_id": one.operation_id} for one in acts])}
        )


def answer(tx: Connection, approval_id: int, state: ApprovalState, *, answered_by: str, outcome: str) -> bool:
    """Approve or reject what is pending and in time; False where it is not (any more)."""
    asked = {
        "approval_id": approval_id,
        "state": state.value,
        "answered_by": answered_by,
        "outcome": outcome,
    }
    return bool(tx.execute(_ANSWER, asked).rowcount)


def ask(tx: Connection, run: str, limit: int) -> list[ApprovalRow]:
    """Puts down that what nobody was asked about yet is asked in that run of Airflow, `dag/run`. Answers all that are asked in it and
    still pending, also of an earlier call.
    """
    tx.execute(_ASK, {"run": run, "limit": limit})
    return [_row(row) for row in tx.execute(_ASKED, {"run": run})]


def some_unasked(tx: Connection) -> bool:
    """Whether something waits for an answer and nobody is asked in Airflow."""
    return bool(tx.execute(_UNASKED).scalar_one())


def find(tx: Connection, approval_id: int) -> ApprovalRow | None:
    """The proposal; None where there is none of that id."""
    row = tx.execute(_ONE, {"approval_id": approval_id}).one_or_none()
    return None if row is None else _row(row)


def list_approvals(
    tx: Connection, *, topic_id: int | None, pending_only: bool, before: int, limit: int
) -> list[ApprovalRow]:
    """Newest first; for the next page give the last row's id as `before`."""
    asked = {"topic_id": topic_id, "pending_only": pending_only, "before": before, "limit": limit}
    return [_row(row) for row in tx.execute(_LIST, asked)]


def settle(tx: Connection, *, answered_by: str, limit: int) -> dict[int, ApprovalState]:
    """What has waited long enough gets its default, and what can no longer go has expired; by id, how it stands now."""
    asked = {"answered_by": answered_by, "limit": limit, "valid_seconds": VALID_MS / 1000}
    return {row.approval_id: ApprovalState(row.state) for row in tx.execute(_OVERDUE, asked)}


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Deletes what ended before; how many. A refusal is forgotten too, so it holds no longer than this."""
    return tx.execute(_FORGET, {"older_than": older_than}).rowcount


def _key(one: ProposedAct | DoneAct) -> dict[str, Any]:
    return {"topic_id": one.topic_id, "kind": kind_of(one.act), "segment_ids": list(sealed_by(one.act))}


def _document(one: ProposedAct) -> dict[str, Any]:
    return _key(one) | {
        "wait_seconds": one.wait_seconds,
        "decision_id": one.decision_id,
        "epoch": one.epoch,
        "parts": parts_of(one.act),
        "segments": size_of(one.act),
        "reason": one.act.reason,
        "proposed_by": one.proposed_by,
        "default_answer": one.default_answer,
    }


def _row(row: Any) -> ApprovalRow:
    held = {**row._mapping, "state": ApprovalState(row.state), "segment_ids": tuple(row.segment_ids)}
    return ApprovalRow(**held)
