"""Candidates: policies that are proposed for a topic, and are evaluated in shadow before they may be promoted.

A candidate is a set of parameters on top of the policy in force. While the candidate is in shadow, the autoscaler evaluates it along
with the live policy (`shadow_decisions`). A candidate ends promoted, refused or withdrawn, and never changes afterwards. Callers that
change a candidate hold the lock of its topic, so that locks are always taken in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.approval_states import ApprovalState, Subject
from controller.domain.policy import PolicyOverride
from controller.store import approvals
from controller.store.approvals import NewApproval
from controller.store.postgres.prepared_statements import Prepared


class CandidateState(StrEnum):
    """State of a candidate. A candidate begins in shadow and leaves that state once."""

    SHADOW = "shadow"
    PROMOTED = "promoted"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A stored candidate. `run_id` is the backtest that is its evidence, None without evidence. `outcome` is the reason of its end; the
    three fields about the end are None in shadow.
    """

    candidate_id: int
    topic_id: int
    override: Mapping[str, Any]
    proposed_at: datetime
    proposed_by: str
    reason: str
    state: CandidateState
    run_id: int | None
    ended_at: datetime | None
    ended_by: str | None
    outcome: str | None

    @property
    def parameters(self) -> str:
        """Parameters that the candidate sets, in the notation of the command line."""
        return parameters_text(self.override)


def parameters_text(override: Mapping[str, Any]) -> str:
    """Return the parameters in the notation of the command line, sorted by name: `max_segments=8 min_segments=2`."""
    return " ".join(
        f"{parameter}={json.dumps(value).strip(chr(34))}" for parameter, value in sorted(override.items())
    )


@dataclass(frozen=True, slots=True)
class ShadowCandidate:
    """A candidate to evaluate: its parameters, and the digest of its last outcome; None if it was not evaluated yet, or if the last
    evaluation had no action and no refusal.
    """

    candidate_id: int
    topic_id: int
    override: Mapping[str, Any]
    outcome_digest: str | None


_COLUMNS = "candidate_id, topic_id, override, proposed_at, proposed_by, reason, state, run_id, ended_at, ended_by, outcome"
_PROPOSE = text(f"""
    INSERT INTO cleave.policy_candidate (topic_id, override, proposed_by, reason, run_id)
    VALUES (:topic_id, CAST(:override AS jsonb), :proposed_by, :reason, :run_id) RETURNING {_COLUMNS}
""")  # noqa: S608  # column names of our own
_NEWEST = text(f"""
    SELECT {_COLUMNS} FROM cleave.policy_candidate WHERE topic_id = :topic_id ORDER BY candidate_id DESC LIMIT 1
""")  # noqa: S608
_END = text(f"""
    UPDATE cleave.policy_candidate
       SET state = :state, ended_at = clock_timestamp(), ended_by = :ended_by, outcome = :outcome,
           run_id = coalesce(:run_id, run_id)
     WHERE candidate_id = :candidate_id RETURNING {_COLUMNS}
""")  # noqa: S608
_EVIDENCE = text(f"""
    UPDATE cleave.policy_candidate SET run_id = :run_id WHERE candidate_id = :candidate_id RETURNING {_COLUMNS}
""")  # noqa: S608
_REFUSED = text(f"""
    SELECT {_COLUMNS} FROM cleave.policy_candidate
     WHERE topic_id = :topic_id AND override = CAST(:override AS jsonb) AND state IN ('refused', 'withdrawn')
       AND ended_at > :since
     ORDER BY candidate_id DESC LIMIT 1
""")  # noqa: S608
_IN_SHADOW = Prepared(
    "candidates_in_shadow",
    """
    SELECT c.candidate_id, c.topic_id, c.override,
           (SELECT s.outcome_digest FROM cleave.shadow_decision s
             WHERE s.candidate_id = c.candidate_id ORDER BY s.shadow_id DESC LIMIT 1) AS outcome_digest
      FROM cleave.policy_candidate c
     WHERE c.topic_id = ANY (:topic_ids) AND c.state = 'shadow'
""",
    {"topic_ids": "bigint[]"},
)


def propose(
    tx: Connection,
    topic_id: int,
    override: PolicyOverride,
    *,
    proposed_by: str,
    reason: str,
    run_id: int | None = None,
) -> CandidateRow:
    """Store a candidate in shadow. `run_id` is the backtest that is its evidence; None without a backtest. Raises Conflict if the topic has
    a candidate in shadow, InvalidInput for an override that sets nothing. The caller holds the lock of the topic row.
    """
    parameters = {
        "topic_id": topic_id,
        "override": json.dumps(override.to_document(), sort_keys=True),
        "proposed_by": proposed_by,
        "reason": reason,
        "run_id": run_id,
    }
    return _candidate(tx.execute(_PROPOSE, parameters).one())


def newest(tx: Connection, topic_id: int) -> CandidateRow | None:
    """Return the last candidate of the topic, in any state. None if the topic never had a candidate."""
    row = tx.execute(_NEWEST, {"topic_id": topic_id}).one_or_none()
    return None if row is None else _candidate(row)


def end(
    tx: Connection,
    candidate_id: int,
    state: CandidateState,
    *,
    ended_by: str,
    outcome: str,
    run_id: int | None = None,
) -> CandidateRow:
    """Move the candidate from shadow to `state` (promoted, refused or withdrawn), end the candidate's approvals, and
    return the candidate. The time, `ended_by` (the actor) and `outcome` (the reason) are stored. The policy of the
    topic is not changed.

    A promotion sets an approved approval of the candidate to done. All other pending and approved approvals of the
    candidate expire. `run_id` is the backtest that becomes the evidence of the candidate; None keeps the present
    evidence.

    Raises InvariantViolated if the candidate is not in shadow, and InvalidInput for a promotion without a backtest in
    which the candidate cost less. The caller holds the lock of the topic row.
    """
    parameters = {
        "candidate_id": candidate_id,
        "state": state.value,
        "ended_by": ended_by,
        "outcome": outcome,
        "run_id": run_id,
    }
    candidate = _candidate(tx.execute(_END, parameters).one())
    if state is CandidateState.PROMOTED:
        approvals.end(tx, Subject.PROMOTION, [candidate_id], ApprovalState.DONE, None)
    reason = f"candidate {candidate_id} was {state}"
    approvals.end(tx, Subject.PROMOTION, [candidate_id], ApprovalState.EXPIRED, reason)
    return candidate


def ask(tx: Connection, candidate: CandidateRow, run_id: int, approval: NewApproval) -> CandidateRow:
    """Make the backtest `run_id` the evidence of the candidate, add `approval`, which is about the promotion of the
    candidate, as pending, and return the changed candidate.

    If `run_id` is not the evidence in `candidate`, the candidate's pending and approved approvals expire first.
    Otherwise a pending approval of the candidate stays, and `approval` is ignored. The caller holds the lock of the
    topic row.
    """
    if candidate.run_id != run_id:
        reason = f"candidate {candidate.candidate_id} was tested again, in backtest {run_id}"
        approvals.end(tx, Subject.PROMOTION, [candidate.candidate_id], ApprovalState.EXPIRED, reason)
    approvals.propose(tx, [approval])
    return _candidate(tx.execute(_EVIDENCE, {"candidate_id": candidate.candidate_id, "run_id": run_id}).one())


def turned_down(
    tx: Connection, topic_id: int, override: PolicyOverride, since: datetime
) -> CandidateRow | None:
    """Return the topic's candidate with exactly these parameters that was refused or withdrawn after `since`; of several, the one that was
    proposed last. None if there is none.
    """
    document = json.dumps(override.to_document())
    row = tx.execute(_REFUSED, {"topic_id": topic_id, "override": document, "since": since}).one_or_none()
    return None if row is None else _candidate(row)


def in_shadow(tx: Connection, topic_ids: Collection[int]) -> list[ShadowCandidate]:
    """Return the candidates in shadow of these topics, in no order. A topic without such a candidate is absent."""
    rows = _IN_SHADOW.execute(tx, {"topic_ids": list(topic_ids)})
    return [ShadowCandidate(**row._mapping) for row in rows]


def _candidate(row: Any) -> CandidateRow:
    return CandidateRow(**{**row._mapping, "state": CandidateState(row.state)})
