"""Shadow evaluations: decisions of candidates, with those of the live policy at the same evaluation.

One row is written for each evaluation at which the outcome of a candidate changed. The decisions are never performed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.clock import to_datetime
from controller.domain.decision import Evaluation, Lane


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """A shadow evaluation to write, with the live evaluation of the topic at the same time. `decision_id` is the row of the decision log
    for the live evaluation; None if it has none. `outcome_digest` is None if the candidate neither acts nor refuses.

    `situation` is the canonical text of the evaluation input; `decided_at` is in milliseconds since the Unix epoch.
    """

    candidate_id: int
    topic_id: int
    decided_at: int
    epoch: int
    lanes: Collection[Lane]
    decided_by: str
    code_version: str
    evaluation: Evaluation
    live: Evaluation
    decision_id: int | None
    outcome_digest: str | None
    situation: str


_COLUMNS = (
    "candidate_id, topic_id, decided_at, epoch, lanes, decided_by, code_version, decisions, refusals, live_decisions,"
    " live_refusals, decision_id, outcome_digest, situation"
)
_RECORD = text(f"""
    INSERT INTO cleave.shadow_decision ({_COLUMNS})
    SELECT candidate_id, topic_id, decided_at, epoch, string_to_array(lanes, ','), decided_by, code_version, decisions,
           refusals, live_decisions, live_refusals, decision_id, outcome_digest, situation
      FROM unnest(CAST(:candidate_id AS bigint[]), CAST(:topic_id AS bigint[]), CAST(:decided_at AS timestamptz[]),
                  CAST(:epoch AS bigint[]), CAST(:lanes AS text[]), CAST(:decided_by AS text[]),
                  CAST(:code_version AS text[]), CAST(:decisions AS jsonb[]), CAST(:refusals AS jsonb[]),
                  CAST(:live_decisions AS jsonb[]), CAST(:live_refusals AS jsonb[]), CAST(:decision_id AS bigint[]),
                  CAST(:outcome_digest AS text[]), CAST(:situation AS text[]))
           AS given ({_COLUMNS})
""")  # noqa: S608  # column names of our own
_FORGET = text("DELETE FROM cleave.shadow_decision WHERE decided_at < :older_than")


def record(tx: Connection, rows: Sequence[ShadowRow]) -> None:
    """Write the shadow evaluations in one statement."""
    if rows:
        documents = [_document(row) for row in rows]
        tx.execute(_RECORD, {name: [document[name] for document in documents] for name in documents[0]})


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Delete shadow evaluations that were decided before `older_than`. Return the number of deleted rows."""
    return tx.execute(_FORGET, {"older_than": older_than}).rowcount


def _document(row: ShadowRow) -> dict[str, Any]:
    evaluation, live = row.evaluation.to_document(), row.live.to_document()
    return {
        "candidate_id": row.candidate_id,
        "topic_id": row.topic_id,
        "decided_at": to_datetime(row.decided_at),
        "epoch": row.epoch,
        "lanes": ",".join(lane for lane in Lane if lane in row.lanes),
        "decided_by": row.decided_by,
        "code_version": row.code_version,
        "decisions": json.dumps(evaluation["decisions"]),
        "refusals": json.dumps(evaluation["refusals"]),
        "live_decisions": json.dumps(live["decisions"]),
        "live_refusals": json.dumps(live["refusals"]),
        "decision_id": row.decision_id,
        "outcome_digest": row.outcome_digest,
        "situation": row.situation,
    }
