"""The journal: claiming operations, recording steps, and what a runner may know of the rest.

A claim is a holder, a term and an expiry by the database's clock. Whatever a runner writes about an operation
goes through an UPDATE that demands the term, the holder, the state it saw and an unexpired claim, so that a
stale runner changes nothing, whatever it believes. Steps that change the layout are in ``commits``; the order
of steps is in ``domain/operation.py``. Operation rows are locked after the topic row, never before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, text

from controller.clock import to_ms
from controller.domain.errors import FencedOut
from controller.domain.operation import (
    Observed,
    Operation,
    OperationKind,
    OperationState,
    Step,
)
from controller.store.journal import find_by_request_key, get_operation, list_operations, read_operations
from controller.store.shards import Shards
from controller.store.topics import TopicState

__all__ = [
    "claim",
    "find_by_request_key",
    "get_operation",
    "list_operations",
    "next_due",
    "observe",
    "record_failure",
    "record_step",
    "release",
    "renew",
]

# The clock is asked once, in a sub-select, so that the index can be searched by it. Materialized, because a
# sub-select that locks rows must not run twice. Kinds of a newer program are left to it.
_CLAIM = """
    WITH due AS MATERIALIZED (
        SELECT operation_id FROM cleave.operation
         WHERE state NOT IN ('done', 'aborted') AND not_before <= (SELECT clock_timestamp())
           AND (claimed_by IS NULL
                OR claim_expires_at <= (SELECT clock_timestamp()) - make_interval(secs => :call_timeout_seconds))
           AND kind = ANY (:kinds) AND {which}
         ORDER BY not_before, operation_id LIMIT :limit FOR UPDATE SKIP LOCKED)
    UPDATE cleave.operation o
       SET claimed_by = :runner, claim_term = o.claim_term + 1, row_version = o.row_version + 1,
           claim_expires_at = clock_timestamp() + make_interval(secs => :lease_seconds)
      FROM due WHERE o.operation_id = due.operation_id
 RETURNING o.operation_id
"""
_ANY = "TRUE"
_ONE = "operation_id = :operation_id"
_IN_SHARDS = "topic_id % :shard_count = ANY (:shards)"

_NEXT_DUE = """
    SELECT min(greatest(not_before, intended_at, claim_expires_at + make_interval(secs => :call_timeout_seconds)))
      FROM cleave.operation WHERE state NOT IN ('done', 'aborted') AND kind = ANY (:kinds) AND {which}
"""

_HELD = "operation_id = :operation_id AND claimed_by = :runner AND claim_term = :term AND claim_expires_at > clock_timestamp()"
_RENEW = f"""
    UPDATE cleave.operation
       SET claim_expires_at = greatest(claim_expires_at, clock_timestamp() + make_interval(secs => :lease_seconds)),
           row_version = row_version + 1
     WHERE {_HELD}
"""  # noqa: S608 - constants only, as below
_RELEASE = f"""
    UPDATE cleave.operation SET claimed_by = NULL, claim_expires_at = NULL, row_version = row_version + 1
     WHERE {_HELD}
"""  # noqa: S608
_FAIL = f"""
    UPDATE cleave.operation
       SET claimed_by = NULL, claim_expires_at = NULL, row_version = row_version + 1, attempts = attempts + 1,
           last_error = :error_text, not_before = clock_timestamp() + make_interval(secs => :delay_seconds)
     WHERE {_HELD}
"""  # noqa: S608
_ADVANCE = f"""
    UPDATE cleave.operation
       SET state = :to_state, row_version = row_version + 1, attempts = 0, last_error = NULL,
           subscription_version = coalesce(CAST(:subscription_version AS bigint), subscription_version),
           fenced_at = CASE WHEN :to_state = 'fenced' THEN clock_timestamp() ELSE fenced_at END,
           committed_at = CASE WHEN :to_state = 'committed' THEN clock_timestamp() ELSE committed_at END,
           finished_at = CASE WHEN :is_final THEN clock_timestamp() END,
           claimed_by = CASE WHEN NOT :is_final THEN claimed_by END,
           claim_expires_at = CASE WHEN NOT :is_final THEN claim_expires_at END
     WHERE {_HELD} AND state = :from_state
"""  # noqa: S608
_JOURNAL = """
    INSERT INTO cleave.operation_step (operation_id, sequence, step, runner, claim_term, started_at, detail)
    SELECT :operation_id, coalesce(max(sequence), 0) + 1, :step, :runner, :term, :started_at, CAST(:detail AS jsonb)
      FROM cleave.operation_step WHERE operation_id = :operation_id
"""
_FREE_PARENTS = "UPDATE cleave.operation_parent SET live = false WHERE operation_id = :operation_id AND live"

_OBSERVE = """
    SELECT clock_timestamp() AS now, t.subscription_version, t.state,
           (SELECT count(*) FROM cleave.operation o
             WHERE o.topic_id = t.topic_id AND o.operation_id < :operation_id AND o.state NOT IN ('done', 'aborted')) AS older
      FROM cleave.topic t WHERE t.topic_id = :topic_id
"""


def claim(
    tx: Connection,
    *,
    runner: str,
    lease_seconds: float,
    call_timeout_seconds: float,
    limit: int = 1,
    operation_id: int | None = None,
    shards: Shards | None = None,
) -> list[Operation]:
    """Takes up to ``limit`` live operations that are due and nobody's, and raises their claim terms.

    Somebody's claim is over ``call_timeout_seconds`` (of the longest data-plane call) after its expiry, when
    nothing its holder started can still be under way. Rows another claimer is looking at are skipped.
    """
    which, parameters = _which(operation_id, shards)
    parameters |= {
        "runner": runner,
        "lease_seconds": lease_seconds,
        "call_timeout_seconds": call_timeout_seconds,
        "limit": limit,
    }
    claimed = tx.execute(text(_CLAIM.format(which=which)), parameters).scalars().all()
    return read_operations(tx, claimed)


def next_due(tx: Connection, shards: Shards | None = None, *, call_timeout_seconds: float) -> datetime | None:
    """The earliest instant at which a live operation can be claimed; it may lie in the past. None: none is live."""
    which, parameters = _which(None, shards)
    parameters["call_timeout_seconds"] = call_timeout_seconds
    due: datetime | None = tx.execute(text(_NEXT_DUE.format(which=which)), parameters).scalar_one()
    return due


def renew(tx: Connection, operation: Operation, runner: str, lease_seconds: float) -> None:
    """Extends the claim to ``lease_seconds`` from now, never shortens it. Raises FencedOut when it is lost."""
    _demand_held(tx, operation, runner, _RENEW, lease_seconds=lease_seconds)


def release(tx: Connection, operation: Operation, runner: str) -> None:
    """Gives the claim back at once. No call of the runner may be under way; nothing happens if it was lost."""
    tx.execute(text(_RELEASE), _claim_of(operation, runner))


def record_failure(
    tx: Connection, operation: Operation, runner: str, error_text: str, delay_seconds: float
) -> None:
    """Notes why the step failed, gives the claim back and asks for another try after the delay.

    After a call that timed out the delay has to be at least the call time-out. Raises FencedOut.
    """
    _demand_held(tx, operation, runner, _FAIL, error_text=error_text, delay_seconds=delay_seconds)


def observe(tx: Connection, operation: Operation) -> Observed:
    """What the next step is chosen on, by the database's clock and under no lock.

    ``other_live_operations`` counts the topic's older ones only, so that no two wait for each other. A topic
    being deleted asks every operation on it to abort that still can.
    """
    parameters = {"operation_id": operation.operation_id, "topic_id": operation.topic_id}
    row = tx.execute(text(_OBSERVE), parameters).one()
    return Observed(
        now_ms=to_ms(row.now),
        subscription_version=row.subscription_version,
        other_live_operations=row.older,
        abort_requested=row.state not in (TopicState.CREATING, TopicState.LIVE),
    )


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
) -> Operation:
    """Moves the operation on under its claim term, writes the step into the journal, returns the new row.

    Raises FencedOut when the claim has passed or the state is not the one ``operation`` shows. A final state
    gives claim and parents back. ``subscription_version`` notes which subscriptions the children have now.
    """
    parameters = {
        "from_state": operation.state.value,
        "to_state": to_state.value,
        "is_final": not to_state.is_live,
        "subscription_version": subscription_version,
    }
    _demand_held(tx, operation, runner, _ADVANCE, **parameters)
    entry = {"step": step.value, "started_at": started_at, "detail": json.dumps(dict(detail or {}))}
    tx.execute(text(_JOURNAL), {**_claim_of(operation, runner), **entry})
    if not to_state.is_live or to_state is OperationState.COMMITTED:
        tx.execute(text(_FREE_PARENTS), {"operation_id": operation.operation_id})
    return get_operation(tx, operation.operation_id)


def _which(operation_id: int | None, shards: Shards | None) -> tuple[str, dict[str, object]]:
    kinds: dict[str, object] = {"kinds": [kind.value for kind in OperationKind]}
    if operation_id is not None:
        return _ONE, kinds | {"operation_id": operation_id}
    return (_ANY, kinds) if shards is None else (_IN_SHARDS, kinds | shards.parameters)


def _claim_of(operation: Operation, runner: str) -> dict[str, object]:
    return {"operation_id": operation.operation_id, "runner": runner, "term": operation.claim_term}


def _demand_held(
    tx: Connection, operation: Operation, runner: str, statement: str, **parameters: object
) -> None:
    if tx.execute(text(statement), {**_claim_of(operation, runner), **parameters}).rowcount != 1:
        raise FencedOut(
            f"operation {operation.operation_id} is no longer {runner}'s in state {operation.state} "
            f"(claim term {operation.claim_term}); leave it to whoever holds it now"
        )
