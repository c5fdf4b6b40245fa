"""Reads finished operations with their steps and decisions, for `cleave traces`, which sends them to a trace collector.

Reads only schema `inspect`, so a login in role `cleave_inspector` suffices.
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
class TracedOperation:
    """A finished operation, done or aborted, with its steps. `decision` is the decision that chose the operation, with the columns of the
    last load run before the decision; these are None unless the decision used load and the run was at most ten minutes older. `decision`
    is None if no decision chose the operation (a person, a program or a repair requested it), or if the decision has expired.
    """

    operation: Row
    steps: Sequence[Row]
    decision: Row | None


def installed_at(tx: Connection) -> datetime:
    """Return the time of the first migration of this database, which tells installations with the same ids apart."""
    instant: datetime = inspection.rows(tx, _INSTALLED)[0]["installed_at"]
    return instant


def ended_operations(tx: Connection, since: datetime, after: int, *, limit: int) -> list[TracedOperation]:
    """Return up to `limit` operations that finished after `since`, or exactly at `since` with an id above `after`,
    sorted by the time of finishing and the id. Empty if there is no such operation.

    `operation` has the columns of `_ENDED`. `steps` are in the order of `sequence`, with the columns of `_STEPS`.
    `decision` is also None if the decision was made more than a day before the earliest intent of the returned
    operations.
    """
    operations = inspection.rows(tx, _ENDED, since=since, after=after, limit=limit)
    if not operations:
        return []
    steps: dict[int, list[Row]] = {row["operation_id"]: [] for row in operations}
    for step in inspection.rows(tx, _STEPS, operation_ids=list(steps)):
        steps[step["operation_id"]].append(step)
    decision_ids = [row["decision_id"] for row in operations if row["decision_id"] is not None]
    oldest = min(row["intended_at"] for row in operations)
    decisions = {
        row["decision_id"]: row
        for row in inspection.rows(tx, _DECISIONS, decision_ids=decision_ids, oldest=oldest)
    }
    return [
        TracedOperation(row, steps[row["operation_id"]], decisions.get(row["decision_id"]))
        for row in operations
    ]
