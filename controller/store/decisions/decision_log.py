"""The decision log: evaluations with their decisions, refusals and complete inputs.

One row is written for each evaluation whose outcome changed (`outcome_digest` of the auto-scaler decides). The text of the input and the
code version allow the replay of any decision. Rows are never changed. Each day has its own table, so that old rows are deleted by
dropping a table: after `CLEAVE_LEDGER_DAYS`, which the DAG `cleave_maintenance` reads (`DECISION_LOG_DAYS`) and passes to
`tasks.row_retention`, but never within 30 days. The database function `cleave.drop_decision_partitions` enforces the 30 days, because
only its owner may drop tables.
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
class EvaluationRecord:
    """An evaluation to write. `situation` is the canonical text of the input; `decided_at` is in milliseconds since the Unix epoch."""

    decision_id: int
    topic_id: int
    decided_at: int
    epoch: int
    input_version: int
    lanes: Collection[Lane]
    decided_by: str
    code_version: str
    evaluation: Evaluation
    situation: str


_COLUMNS = (
    "decision_id, topic_id, decided_at, epoch, input_version, lanes, decided_by, code_version,"
    " decisions, refusals, valid_until, situation"
)
# The digest has a word `lane=hash` for each lane that refuses. A locked topic is being evaluated: a later call treats it.
_REPEAT = text("""
    UPDATE cleave.evaluation SET outcome_digest = NULL, input_version = input_version + 1
     WHERE topic_id = ANY (ARRAY(
           SELECT e.topic_id FROM cleave.evaluation e
            WHERE EXISTS (SELECT FROM unnest(string_to_array(e.outcome_digest, ' ')) AS word
                           WHERE NOT EXISTS (SELECT FROM cleave.decision d
                                              WHERE d.topic_id = e.topic_id AND d.lanes @> ARRAY[split_part(word, '=', 1)]))
              FOR UPDATE SKIP LOCKED))
""")
_RECORD = text(f"""
    INSERT INTO cleave.decision ({_COLUMNS})
    SELECT decision_id, topic_id, decided_at, epoch, input_version, string_to_array(lanes, ','), decided_by,
           code_version, decisions, refusals, valid_until, situation
      FROM unnest(CAST(:decision_id AS bigint[]), CAST(:topic_id AS bigint[]), CAST(:decided_at AS timestamptz[]),
                  CAST(:epoch AS bigint[]), CAST(:input_version AS bigint[]), CAST(:lanes AS text[]),
                  CAST(:decided_by AS text[]), CAST(:code_version AS text[]), CAST(:decisions AS jsonb[]),
                  CAST(:refusals AS jsonb[]), CAST(:valid_until AS timestamptz[]), CAST(:situation AS text[]))
           AS given ({_COLUMNS})
""")  # noqa: S608  # column names of our own


def reserve_ids(tx: Connection, count: int) -> list[int]:
    """Reserve `count` ids of rows to write later, so that an operation can refer to its decision. Return them in ascending order. Unused
    ids leave gaps.
    """
    numbers = text("SELECT nextval('cleave.decision_id_seq') FROM generate_series(1, :count)")
    return list(tx.execute(numbers, {"count": count}).scalars()) if count else []


def record(tx: Connection, rows: Sequence[EvaluationRecord]) -> None:
    """Write the rows to the decision log, in one statement."""
    if rows:
        documents = [_document(row) for row in rows]
        tx.execute(_RECORD, {name: [document[name] for document in documents] for name in documents[0]})


def ensure_partitions(tx: Connection, days_ahead: int) -> list[str]:
    """Create the missing tables of today and of the next `days_ahead` days (UTC). Return the names of the created tables.

    A row whose day has no table is stored in `decision_default`, and moves into the table of its day when that is created.
    """
    make = text("SELECT cleave.ensure_decision_partitions(:days_ahead)")
    return list(tx.execute(make, {"days_ahead": days_ahead}).scalars())


def drop_partitions(tx: Connection, older_than: datetime) -> list[str]:
    """Drop the tables of days (UTC) that ended at or before `older_than`, except days of the last 30 days. Return the
    names of the dropped tables. Also deletes the rows of `decision_default` that are older than both limits.
    """
    drop = text("SELECT cleave.drop_decision_partitions(:older_than)")
    return list(tx.execute(drop, {"older_than": older_than}).scalars())


def repeat_lost_refusals(tx: Connection) -> int:
    """Make the topics due whose lasting refusals no longer have a row in the decision log, so that the next evaluation
    writes the refusals again. Return the number of these topics. A topic whose evaluation is locked is left out.
    """
    return tx.execute(_REPEAT).rowcount


def _document(row: EvaluationRecord) -> dict[str, Any]:
    evaluation = row.evaluation.to_document()
    return {
        "decision_id": row.decision_id,
        "topic_id": row.topic_id,
        "decided_at": to_datetime(row.decided_at),
        "epoch": row.epoch,
        "input_version": row.input_version,
        "lanes": ",".join(lane for lane in Lane if lane in row.lanes),
        "decided_by": row.decided_by,
        "code_version": row.code_version,
        "decisions": json.dumps(evaluation["decisions"]),
        "refusals": json.dumps(evaluation["refusals"]),
        "valid_until": None if evaluation["valid_until"] is None else to_datetime(evaluation["valid_until"]),
        "situation": row.situation,
    }
