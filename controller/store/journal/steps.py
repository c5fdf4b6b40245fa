"""Steps: what a runner sees before it chooses one, and how the one it did is recorded.

Part of ``operations``, which claims; callers ask there. Whatever is written about an operation demands the claim
(``HELD``). The order of steps is in ``domain/operation.py``; steps that change the layout are in ``commits``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.clock import to_ms
from controller.domain.errors import FencedOut
from controller.domain.operation import Observed, Operation, OperationState, Step
from controller.store.topics.topics import TopicState

HELD = "operation_id = :operation_id AND claimed_by = :runner AND claim_term = :term AND claim_expires_at > clock_timestamp()"

_OBSERVED = """clock_timestamp() AS now, t.subscription_version AS topic_subscription_version, t.state AS topic_state,
           (SELECT count(*) FROM cleave.operation o WHERE o.topic_id = t.topic_id
               AND o.operation_id < :operation_id AND o.finished_at IS NULL) AS older"""
_OBSERVE = f"SELECT {_OBSERVED} FROM cleave.topic t WHERE t.topic_id = :topic_id"  # noqa: S608
_REPEATABLE = frozenset({OperationState.PREPARED, OperationState.FENCED, OperationState.DONE})
"""States whose recording need not wait for the disk.

A server that crashes within the next moments forgets the last of them, and the runner does the step once more: the
act is idempotent, and what it led to in this database is forgotten with it, because a log of changes is lost from
its end only. Each is followed by one that does wait. Not here, ever: `fencing`, which has to be known before a log is
closed; `committed`, which people are told; `aborting` and `aborted`, after which logs are deleted. Claims wait too:
a term that is forgotten would be given out twice, to two threads of one worker even under one name.
"""

# One statement, so that a step costs one round trip. What is written hangs on the row that passed the claim.
_ADVANCE = f"""
    WITH moved AS (
        UPDATE cleave.operation
           SET state = :to_state, row_version = row_version + 1, attempts = 0, last_error = NULL,
               subscription_version = coalesce(CAST(:subscription_version AS bigint), subscription_version),
               fenced_at = CASE WHEN :to_state = 'fenced' THEN clock_timestamp() ELSE fenced_at END,
               committed_at = CASE WHEN :to_state = 'committed' THEN clock_timestamp() ELSE committed_at END,
               finished_at = CASE WHEN :is_final THEN clock_timestamp() END,
               claimed_by = CASE WHEN NOT :is_final THEN claimed_by END,
               claim_expires_at = CASE WHEN NOT :is_final THEN claim_expires_at END
         WHERE {HELD} AND state = :from_state
     RETURNING operation_id, topic_id, subscription_version)
    , journal AS (
        INSERT INTO cleave.operation_step (operation_id, sequence, step, runner, claim_term, started_at, detail)
        SELECT operation_id, (SELECT coalesce(max(sequence), 0) + 1 FROM cleave.operation_step
                               WHERE operation_id = :operation_id),
               :step, :runner, :term, :started_at, CAST(:detail AS jsonb)
          FROM moved)
    , freed AS (
        UPDATE cleave.operation_parent p SET live = false FROM moved
         WHERE p.operation_id = moved.operation_id AND p.live AND :frees_parents)
    SELECT moved.subscription_version, {_OBSERVED},
           CASE WHEN :may_be_repeated THEN set_config('synchronous_commit', 'off', true) END
      FROM moved JOIN cleave.topic t USING (topic_id)
"""  # noqa: S608


def observe(tx: Connection, operation: Operation) -> Observed:
    """What the next step is chosen on, by the database's clock and under no lock.

    ``other_live_operations`` counts the topic's older ones only, so that no two wait for each other. A topic
    being deleted asks every operation on it to abort that still can.
    """
    parameters = {"operation_id": operation.operation_id, "topic_id": operation.topic_id}
    return _observed(tx.execute(text(_OBSERVE), parameters).one())


def record_step(
    tx: Connection,
    operation: Operation,
    runner: str,
    step: Step,
    to_state: OperationState,
    *,
    started_at: datetime,
    detail: Mapping[str, object] | None = None,
    subscription_version: int | None = None,
) -> tuple[Operation, Observed]:
    """Moves the operation on under its claim term and writes the step into the journal, in one statement.

    Returns the operation as it is now and what there is to see just then, for the choice of the next step. Raises FencedOut when the claim has passed or the state is not the one ``operation`` shows. A final state
    gives claim and parents back. ``subscription_version`` notes which subscriptions the children have now.
    """
    parameters = {
        **claim_of(operation, runner),
        "from_state": operation.state.value,
        "to_state": to_state.value,
        "is_final": not to_state.is_live,
        "frees_parents": not to_state.is_live or to_state is OperationState.COMMITTED,
        "may_be_repeated": to_state in _REPEATABLE,
        "subscription_version": subscription_version,
        "step": step.value,
        "started_at": started_at,
        "detail": json.dumps(dict(detail or {})),
    }
    row = tx.execute(text(_ADVANCE), parameters).one_or_none()
    if row is None:
        raise fenced_out(operation, runner)
    # Nothing else of the row can have changed: only whoever holds the term writes it, and the rest is for life.
    moved = replace(operation, state=to_state, attempts=0, subscription_version=row.subscription_version)
    return moved, _observed(row)


def _observed(row: Row[Any]) -> Observed:
    return Observed(
        now_ms=to_ms(row.now),
        subscription_version=row.topic_subscription_version,
        other_live_operations=row.older,
        abort_requested=row.topic_state not in (TopicState.CREATING, TopicState.LIVE),
    )


def claim_of(operation: Operation, runner: str) -> dict[str, object]:
    """The parameters of ``HELD``."""
    return {"operation_id": operation.operation_id, "runner": runner, "term": operation.claim_term}


def fenced_out(operation: Operation, runner: str) -> FencedOut:
    """What a runner is told whose claim has passed."""
    return FencedOut(
        f"operation {operation.operation_id} is no longer {runner}'s in state {operation.state} "
        f"(claim term {operation.claim_term}); leave it to whoever holds it now"
    )
