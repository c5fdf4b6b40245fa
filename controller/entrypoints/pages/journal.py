"""What was decided and what was done: the ledger and the journal, newest first, a page at a time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from controller.clock import to_ms
from controller.domain.decision import Lane, RefusalReason
from controller.domain.errors import NotFound
from controller.domain.how_far import how_far
from controller.domain.operation import OperationKind, OperationState, Origin
from controller.entrypoints.dag_runs import DagRun, dag_run, deciding_run
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.questions.spans import span
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
    {_OF_TOPIC} AND (CAST(:before AS bigint) IS NULL OR decision_id < :before)
       AND (CAST(:lane AS text) = '' OR lanes @> ARRAY[CAST(:lane AS text)])
       AND (CAST(:reason AS text) = '' OR refusals @> jsonb_build_array(jsonb_build_object('reason', CAST(:reason AS text))))
       AND (CAST(:acted AS text) = '' OR (decisions <> '[]') = (:acted = 'yes'))
       AND (CAST(:decider AS text) = '' OR strpos(decided_by, :decider) > 0)
       AND decided_at BETWEEN CAST(:since AS timestamptz) AND CAST(:until AS timestamptz)
     ORDER BY decision_id DESC LIMIT :limit
"""
_DECIDED = f"""
    SELECT {_DECISION_COLUMNS} FROM inspect.decisions WHERE decided_by = :decider ORDER BY decision_id DESC LIMIT :limit
"""
_DECISION = f"SELECT {_DECISION_COLUMNS}, decisions, valid_until, situation FROM inspect.decisions WHERE decision_id = :decision_id"
_OPERATION_COLUMNS = """
    operation_id, topic, kind, state, live, origin, actor, reason, parents, children, creates, intended_at, age_seconds, fenced_seconds, last_error,
    decision_id
"""
_OPERATIONS = f"""
    SELECT {_OPERATION_COLUMNS} FROM inspect.operations
    {_OF_TOPIC} AND (CAST(:before AS bigint) IS NULL OR operation_id < :before)
       AND (CAST(:state AS text) = '' OR state = :state OR (:state = 'live' AND live))
       AND (CAST(:kind AS text) = '' OR kind = :kind) AND (CAST(:origin AS text) = '' OR origin = :origin)
       AND (CAST(:actor AS text) = '' OR strpos(actor, :actor) > 0)
     ORDER BY operation_id DESC LIMIT :limit
"""
_OF_RUN = f"""
    SELECT {_OPERATION_COLUMNS} FROM inspect.operations
     WHERE starts_with(request_key, :asked) OR decision_id IN (SELECT decision_id FROM inspect.decisions WHERE decided_by = :decider)
     ORDER BY operation_id DESC LIMIT :limit
"""
_ON_SEGMENT = f"""
    SELECT {_OPERATION_COLUMNS} FROM inspect.operations
     WHERE topic_id = :topic_id AND (live OR state = 'aborted')
       AND (:segment_id = ANY (parents) OR :segment_id = ANY (children))
     ORDER BY live DESC, operation_id DESC LIMIT :limit
"""
_BACKTESTS_OF_RUN = """
    SELECT b.run_id, b.state, b.policies, cardinality(b.loads) AS loads, b.error, c.candidate_id, c.topic, c.state AS candidate_state, c.outcome
      FROM inspect.backtest_runs b LEFT JOIN inspect.policy_candidates c USING (run_id)
     WHERE starts_with(b.request_key, :asked) ORDER BY b.run_id DESC LIMIT :limit
"""
_OPERATION = "SELECT * FROM inspect.operations WHERE operation_id = :operation_id"
_STEPS = (
    "SELECT * FROM inspect.operation_steps WHERE operation_id = :operation_id ORDER BY sequence LIMIT :limit"
)
_LOADS = "SELECT * FROM inspect.operation_loads WHERE operation_id = :operation_id ORDER BY segment_id"
_STUCK = "SELECT stuck_because FROM inspect.stuck_operations WHERE operation_id = :operation_id"
STATES = ("live", *OperationState)


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """What a list of decisions is narrowed to; an empty text narrows nothing. Times as `spans.span` reads them."""

    find: str = ""
    lane: str = ""
    reason: str = ""
    acted: str = ""
    decider: str = ""
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """What a list of operations is narrowed to; an empty text narrows nothing."""

    find: str = ""
    state: str = ""
    kind: str = ""
    origin: str = ""
    actor: str = ""


def decisions(
    tx: Connection, wanted: DecisionFilter, before: int | None = None, rows: int = MOST_ROWS
) -> dict[str, Any]:
    """Decisions older than `before`; each refusal with how far it was from acting when it was made. Raises InvalidInput."""
    since, until = span(wanted.since or None, wanted.until or None)
    filters = {**asdict(wanted), "since": since, "until": until}
    found = inspection.rows(tx, _DECISIONS, **filters, before=before, limit=rows + 1)
    return {
        "wanted": wanted,
        "lanes": tuple(Lane),
        "reasons": tuple(RefusalReason),
        "decisions": _shown(found[:rows]),
        "next": _next(found, rows, "decision_id"),
    }


def decision(tx: Connection, decision_id: int) -> dict[str, Any]:
    """One decision with the situation it was made on. Raises NotFound."""
    found = inspection.rows(tx, _DECISION, decision_id=decision_id)
    if not found:
        raise NotFound(f"there is no decision {decision_id}; the list of decisions has those that are kept")
    return {"decision": _shown(found)[0]}


def operations(
    tx: Connection, wanted: OperationFilter, before: int | None = None, rows: int = MOST_ROWS
) -> dict[str, Any]:
    """Operations older than `before`."""
    found = inspection.rows(tx, _OPERATIONS, **asdict(wanted), before=before, limit=rows + 1)
    return {
        "wanted": wanted,
        "states": STATES,
        "kinds": tuple(OperationKind),
        "origins": tuple(Origin),
        "operations": found[:rows],
        "next": _next(found, rows, "operation_id"),
    }


def on_segment(tx: Connection, topic_id: int, segment_id: int) -> list[dict[str, Any]]:
    """Operations on the segment that are under way or were aborted: what was done is in the layout's history."""
    return inspection.rows(tx, _ON_SEGMENT, topic_id=topic_id, segment_id=segment_id, limit=20)


def operation(tx: Connection, operation_id: int) -> dict[str, Any]:
    """One operation: what it seals and creates, each step, and the load it was asked at. Raises NotFound."""
    found = inspection.rows(tx, _OPERATION, operation_id=operation_id)
    if not found:
        raise NotFound(f"there is no operation {operation_id}; the list of operations has those there are")
    stuck = inspection.rows(tx, _STUCK, operation_id=operation_id)
    return {
        "operation": found[0],
        "dag_run": dag_run(found[0]["request_key"]) or _decided_in(tx, found[0]["decision_id"]),
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
        "backtests": inspection.rows(tx, _BACKTESTS_OF_RUN, asked=asked, limit=MOST_ROWS),
        "decisions": _shown(inspection.rows(tx, _DECIDED, decider=_decider(dag_id, run_id), limit=MOST_ROWS)),
    }


def _decider(dag_id: str, run_id: str) -> str:
    """The name under which a pass decides, see `cleave_dags.run_name`."""
    return f"airflow {dag_id} {run_id}"


def _decided_in(tx: Connection, decision_id: int | None) -> DagRun | None:
    """The run of the pass that decided it."""
    found = inspection.rows(tx, _DECISION, decision_id=decision_id) if decision_id is not None else []
    return deciding_run(found[0]["decided_by"]) if found else None


def _shown(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with the run that made it, and each refusal with how far it was from acting then."""
    return [
        row
        | {"run": deciding_run(row["decided_by"])}
        | {"refusals": [one | {"how_far": how_far(one, to_ms(row["decided_at"]))} for one in row["refusals"]]}
        for row in decisions
    ]


def _next(found: list[dict[str, Any]], rows: int, key: str) -> int | None:
    return int(found[rows - 1][key]) if len(found) > rows else None
