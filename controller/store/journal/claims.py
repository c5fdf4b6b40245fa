"""The journal: claiming operations, recording steps, and what a runner may know of the rest.

A claim is a holder, a term and an expiry by the database's clock. Whatever a runner writes about an operation
goes through an UPDATE that demands the term, the holder, the state it saw and an unexpired claim, so that a
stale runner changes nothing, whatever it believes. Steps that change the layout are in ``commits``; the order
of steps is in ``domain/operation.py``. Operation rows are locked after the topic row, never before it.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.operation import Operation, OperationKind
from controller.store.journal.rows import (
    READ_FROM,
    find_by_request_key,
    get_operation,
    list_operations,
    operation_of,
)
from controller.store.journal.steps import HELD, claim_of, fenced_out, observe, record_step
from controller.store.shards import Shards

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
         WHERE finished_at IS NULL AND not_before <= (SELECT clock_timestamp())
           AND (claimed_by IS NULL
                OR claim_expires_at <= (SELECT clock_timestamp()) - make_interval(secs => :call_timeout_seconds))
           AND kind = ANY (:kinds) AND {which}
         ORDER BY not_before, operation_id LIMIT :limit FOR UPDATE SKIP LOCKED)
    , taken AS (
        UPDATE cleave.operation o
           SET claimed_by = :runner, claim_term = o.claim_term + 1, row_version = o.row_version + 1,
               claim_expires_at = clock_timestamp() + make_interval(secs => :lease_seconds)
          FROM due WHERE o.operation_id = due.operation_id
     RETURNING o.*)
    {read} ORDER BY o.operation_id
"""
_ANY = "TRUE"
_ONE = "operation_id = :operation_id"
_IN_SHARDS = "topic_id % :shard_count = ANY (:shards)"

_NEXT_DUE = """
    SELECT min(greatest(not_before, intended_at, claim_expires_at + make_interval(secs => :call_timeout_seconds)))
      FROM cleave.operation WHERE finished_at IS NULL AND kind = ANY (:kinds) AND {which}
"""

_RENEW = f"""
    UPDATE cleave.operation
       SET claim_expires_at = greatest(claim_expires_at, clock_timestamp() + make_interval(secs => :lease_seconds)),
           row_version = row_version + 1
     WHERE {HELD}
"""  # noqa: S608 - constants only, as below
_RELEASE = f"""
    UPDATE cleave.operation SET claimed_by = NULL, claim_expires_at = NULL, row_version = row_version + 1
     WHERE {HELD}
"""  # noqa: S608
_FAIL = f"""
    UPDATE cleave.operation
       SET claimed_by = NULL, claim_expires_at = NULL, row_version = row_version + 1, attempts = attempts + 1,
           last_error = :error_text, not_before = clock_timestamp() + make_interval(secs => :delay_seconds)
     WHERE {HELD}
"""  # noqa: S608


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
    statement = _CLAIM.format(which=which, read=READ_FROM.format(source="taken"))
    return [operation_of(row) for row in tx.execute(text(statement), parameters)]


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
    tx.execute(text(_RELEASE), claim_of(operation, runner))


def record_failure(
    tx: Connection, operation: Operation, runner: str, error_text: str, delay_seconds: float
) -> None:
    """Notes why the step failed, gives the claim back and asks for another try after the delay.

    After a call that timed out the delay has to be at least the call time-out. Raises FencedOut.
    """
    _demand_held(tx, operation, runner, _FAIL, error_text=error_text, delay_seconds=delay_seconds)


def _which(operation_id: int | None, shards: Shards | None) -> tuple[str, dict[str, object]]:
    kinds: dict[str, object] = {"kinds": [kind.value for kind in OperationKind]}
    if operation_id is not None:
        return _ONE, kinds | {"operation_id": operation_id}
    return (_ANY, kinds) if shards is None else (_IN_SHARDS, kinds | shards.parameters)


def _demand_held(
    tx: Connection, operation: Operation, runner: str, statement: str, **parameters: object
) -> None:
    if tx.execute(text(statement), {**claim_of(operation, runner), **parameters}).rowcount != 1:
        raise fenced_out(operation, runner)
