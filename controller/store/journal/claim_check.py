"""The check that a runner still has its claim of an operation: every statement that records something about a claimed
operation has it, so that a superseded runner changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection

from controller.domain.errors import FencedOut
from controller.domain.operation import Operation
from controller.store.postgres.prepared_statements import Prepared

# States are parameters if a row is found by its key: for a constant state, the planner may expect few rows and read all
# rows of that state.
GIVEN = """
    WITH given AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS g (
            operation_id bigint, topic_id bigint, term bigint, seen_state text, states text[], steps text[],
            subscription_version bigint, detail jsonb, stamps text[]))
"""
HELD = "o.claimed_by = :runner AND o.claim_term = g.term AND o.claim_expires_at > clock_timestamp()"
_STILL_HELD = Prepared(
    "held_operations",
    f"""{GIVEN}
    SELECT o.operation_id FROM cleave.operation o JOIN given g USING (operation_id)
     WHERE o.operation_id = ANY (:operation_ids) AND {HELD} AND o.state = g.seen_state
""",
    {"given": "text", "runner": "text", "operation_ids": "bigint[]"},
)


def still_held(tx: Connection, operations: Sequence[Operation], runner: str) -> set[int]:
    """Return the ids of the operations that the runner still holds and that are still in the states of `operations`."""
    return {row.operation_id for row in _STILL_HELD.execute(tx, held_parameters(operations, runner))}


def held_parameters(operations: Sequence[Operation], runner: str) -> dict[str, object]:
    """Return the parameters of the SQL texts `GIVEN` and `HELD` for statements that record nothing: `given` (a JSON list of the operations
    with their ids, claim terms and states), `runner`, and `operation_ids`.
    """
    documents = [
        {
            "operation_id": operation.operation_id,
            "term": operation.claim_term,
            "seen_state": operation.state.value,
        }
        for operation in operations
    ]
    ids = [operation.operation_id for operation in operations]
    return {"given": json.dumps(documents), "runner": runner, "operation_ids": ids}


def fenced_out(operation: Operation, runner: str) -> FencedOut:
    """Return the error for a runner that has lost its claim of the operation, or that saw the operation in a state which has changed."""
    return FencedOut(
        f"runner {runner} no longer holds operation {operation.operation_id} in state {operation.state} "
        f"(claim term {operation.claim_term}); leave the operation to its present runner"
    )
