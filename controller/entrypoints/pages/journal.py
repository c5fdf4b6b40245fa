"""What was decided and what was done: the ledger and the journal, newest first, a page at a time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.clock import to_ms
from controller.domain.errors import NotFound
from controller.domain.how_far import how_far
from controller.domain.operation import OperationState
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.entrypoints.tasks.dag_runs import dag_run
from controller.store.postgres import inspection

# A full name is looked up by its index; a part of one is looked for in all.
_OF_TOPIC = """
     WHERE (CAST(:find AS text) = '' OR topic = :find OR (NOT starts_with(:find, 'topic://') AND strpos(topic, :find) > 0))
"""
_DECISION_COLUMNS = (
    "decision_id, topic, decided_at, epoch, lanes, decided_by, acts, operations, refusals, code_version"
)
_DECISIONS = f"""
    SELECT {_DECISION_COLUMNS} FROM inspect.decisions
    {_OF_TOPIC} AND (CAST(:before AS bigint) IS NULL OR decision_id < :before) ORDER BY decision_id DESC LIMIT :limit
"""
_DECIDED = f"""
    SELECT {_DECISION_COLUMNS} FROM inspect.decisions WHERE decided_by = :decider ORDER BY decision_id DESC LIMIT :limit
"""
_OPERATION_COLUMNS = """
    operation_id, topic, kind, state, live, origin, actor, reason, parents, children, intended_at, age_seconds, fenced_seconds, last_error,
    decision_id
"""
_OPERATIONS = f"""
    SELECT {_OPERATION_COLUMNS} FROM inspect.operations
    {_OF_TOPIC} AND (CAST(:before AS bigint) IS NULL OR operation_id < :before)
       AND (CAST(:state AS text) = '' OR state = :state OR (:state = 'live' AND live)) ORDER BY operation_id DESC LIMIT :limit
"""
_OF_RUN = f"""
    SELECT {_OPERATION_COLUMNS} FROM inspect.operations
     WHERE starts_with(request_key, :asked) OR decision_id IN (SELECT decision_id FROM inspect.decisions WHERE decided_by = :decider)
     ORDER BY operation_id DESC LIMIT :limit
"""
_OPERATION = "SELECT * FROM inspect.operations WHERE operation_id = :operation_id"
_STEPS = (
    "SELECT * FROM inspect.operation_steps WHERE operation_id = :operation_id ORDER BY sequence LIMIT :limit"
)
_LOADS = "SELECT * FROM inspect.operation_loads WHERE operation_id = :operation_id ORDER BY segment_id"
_STUCK = "SELECT stuck_because FROM inspect.stuck_operations WHERE operation_id = :operation_id"
STATES = ("live", *OperationState)


def decisions(tx: Connection, find: str, before: int | None, rows: int = MOST_ROWS) -> dict[str, Any]:
    """Decisions older than `before`; each refusal with how far it was from acting when it was made."""
    found = inspection.rows(tx, _DECISIONS, find=find, before=before, limit=rows + 1)
    return {"find": find, "decisions": _shown(found[:rows]), "next": _next(found, rows, "decision_id")}


def operations(
    tx: Connection, find: str, state: str, before: int | None, rows: int = MOST_ROWS
) -> dict[str, Any]:
    """Operations older than `before`, in that state or `live` if given."""
    found = inspection.rows(tx, _OPERATIONS, find=find, state=state, before=before, limit=rows + 1)
    return {
        "find": find,
        "state": state,
        "states": STATES,
        "operations": found[:rows],
        "next": _next(found, rows, "operation_id"),
    }


def operation(tx: Connection, operation_id: int) -> dict[str, Any]:
    """One operation: what it seals and creates, each step, and the load it was asked at. Raises NotFound."""
    found = inspection.rows(tx, _OPERATION, operation_id=operation_id)
    if not found:
        raise NotFound(f"there is no operation {operation_id}; the list of operations has those there are")
    stuck = inspection.rows(tx, _STUCK, operation_id=operation_id)
    return {
        "operation": found[0],
        "dag_run": dag_run(found[0]["request_key"]),
        "stuck_because": stuck[0]["stuck_because"] if stuck else None,
        "steps": inspection.rows(tx, _STEPS, operation_id=operation_id, limit=MOST_ROWS),
        "loads": inspection.rows(tx, _LOADS, operation_id=operation_id),
    }


def run(tx: Connection, dag_id: str, run_id: str) -> dict[str, Any]:
    """What a run of a DAG asked for and decided.

    Airflow 3.1.0 puts the id into the tab's address as it is, where a plus sign is a space; Airflow allows no spaces in ids.
    """
    run_id = run_id.replace(" ", "+")
    asked = f"airflow/{dag_id}/{run_id}/"
    return {
        "dag_id": dag_id,
        "run_id": run_id,
        "operations": inspection.rows(
            tx, _OF_RUN, asked=asked, decider=_decider(dag_id, run_id), limit=MOST_ROWS
        ),
        "decisions": _shown(inspection.rows(tx, _DECIDED, decider=_decider(dag_id, run_id), limit=MOST_ROWS)),
    }


def _decider(dag_id: str, run_id: str) -> str:
    """The name under which a pass decides, see `cleave_dags.run_name`."""
    return f"airflow {dag_id} {run_id}"


def _shown(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each refusal with the sentence of how far it was from acting when it was made."""
    return [
        row
        | {"refusals": [one | {"how_far": how_far(one, to_ms(row["decided_at"]))} for one in row["refusals"]]}
        for row in decisions
    ]


def _next(found: list[dict[str, Any]], rows: int, key: str) -> int | None:
    return int(found[rows - 1][key]) if len(found) > rows else None
