"""Operations that have ended, with all that led to them: for `cleave traces`, which sends them where traces are collected.

Out of schema `inspect`: a login in role `cleave_inspector` may read all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from controller.store.postgres import inspection

Row = Mapping[str, Any]

_ENDED = """
    SELECT operation_id, topic, kind, state, origin, actor, reason, decision_id, parents, children, epoch, attempts, last_error,
           intended_at, finished_at, request_key
      FROM inspect.operations
     WHERE (finished_at, operation_id) > (:since, :after)
     ORDER BY finished_at, operation_id LIMIT :limit
"""
_STEPS = """
    SELECT operation_id, sequence, step, runner, claim_term, started_at, finished_at FROM inspect.operation_steps
     WHERE operation_id = ANY (:operation_ids) ORDER BY operation_id, sequence
"""
_DECISIONS = """
    SELECT d.decision_id, d.topic, d.decided_at, d.lanes, d.decided_by, d.code_version, d.acts,
           r.run_id, r.engine, r.samples, r.segments, r.window_end, r.applied_at
      FROM inspect.decisions d
      LEFT JOIN LATERAL (
           SELECT * FROM inspect.load_runs l
            WHERE d.lanes && ARRAY['load', 'merge'] AND l.applied_at <= d.decided_at AND l.applied_at > d.decided_at - interval '10 minutes'
            ORDER BY l.applied_at DESC LIMIT 1) r ON true
     WHERE d.decision_id = ANY (:decision_ids) AND d.decided_at > CAST(:oldest AS timestamptz) - interval '1 day'
"""
_INSTALLED = "SELECT min(applied_at) AS installed_at FROM inspect.migrations"


@dataclass(frozen=True, slots=True)
class Traced:
    """One operation. `decision` has the load run before it, where it looked at load and there was one within ten minutes; None where
    somebody asked by hand, or the ledger's day is gone.
    """

    operation: Row
    steps: Sequence[Row]
    decision: Row | None


def installed_at(tx: Connection) -> datetime:
    """When this database was made: it tells installations apart, whose ids are the same."""
    found: datetime = inspection.rows(tx, _INSTALLED)[0]["installed_at"]
    return found


def ended_operations(tx: Connection, since: datetime, after: int, *, limit: int) -> list[Traced]:
    """Those that ended after the instant, or at it with a larger id than `after`; in that order."""
    operations = inspection.rows(tx, _ENDED, since=since, after=after, limit=limit)
    if not operations:
        return []
    steps: dict[int, list[Row]] = {one["operation_id"]: [] for one in operations}
    for step in inspection.rows(tx, _STEPS, operation_ids=list(steps)):
        steps[step["operation_id"]].append(step)
    decided = [one["decision_id"] for one in operations if one["decision_id"] is not None]
    oldest = min(one["intended_at"] for one in operations)
    decisions = {
        one["decision_id"]: one
        for one in inspection.rows(tx, _DECISIONS, decision_ids=decided, oldest=oldest)
    }
    return [Traced(one, steps[one["operation_id"]], decisions.get(one["decision_id"])) for one in operations]
