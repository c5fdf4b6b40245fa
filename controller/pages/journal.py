"""Decision log and operation journal, newest first, in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from sqlalchemy import Connection

from controller.actions.fields import fill_in
from controller.domain.decision import Lane, RefusalReason
from controller.domain.operation import OperationKind, OperationState, Origin
from controller.pages.backtests import RUN_COLUMNS
from controller.pages.context import MAX_ROWS, Id, Reading, Text
from controller.questions.backtests import LIST_BACKTESTS
from controller.questions.decisions import LIST_DECISIONS, SHOW_DECISION
from controller.questions.operations import LIST_OPERATIONS, LIST_STEPS, SHOW_OPERATION
from controller.questions.policies import LIST_CANDIDATES
from controller.questions.question import Question, Row, read_answers, read_page, read_view
from controller.tasks.dag_runs import DagRun, dag_run, deciding_run


def decisions(tx: Reading, request: Request) -> dict[str, Any]:
    """Return the page of decisions that the query of the request names, as `_page` reads it. Raises InvalidInput for an invalid field or page,
    and TopicNotFound.
    """
    rows, following = _page(tx, LIST_DECISIONS, request.query_params)
    return {
        "lanes": tuple(Lane),
        "reasons": tuple(RefusalReason),
        "decisions": shown(rows),
        "next": following,
    }


def decision(tx: Reading, decision_id: Id) -> dict[str, Any]:
    """Return one decision with its evaluation input. Raises NotFound."""
    request = fill_in(SHOW_DECISION.request, {"decision_id": decision_id})
    return {"decision": shown(read_page(tx, SHOW_DECISION, request, limit=1).rows)[0]}


def operations(tx: Reading, request: Request) -> dict[str, Any]:
    """Return the page of operations that the query of the request names, as `_page` reads it; state `live` means operations in progress.
    Raises InvalidInput for an invalid field or page, and TopicNotFound.
    """
    wanted: Mapping[str, str] = request.query_params
    is_live = wanted.get("state") == "live"
    rows, following = _page(
        tx, LIST_OPERATIONS, {**wanted, "state": "", "live": "yes"} if is_live else wanted
    )
    return {
        "states": ("live", *OperationState),
        "kinds": tuple(OperationKind),
        "origins": tuple(Origin),
        "operations": rows,
        "next": following,
    }


def _page(tx: Connection, question: Question, wanted: Mapping[str, str]) -> tuple[list[Row], str | None]:
    """Return the next `MAX_ROWS` rows, at most, that match the fields of a form, and the value of `page` after them (None at the end). A
    field that is empty or unknown does not filter. Raises InvalidInput for an invalid field or page, and TopicNotFound.
    """
    filters = {
        name: value for name, value in wanted.items() if value and name in question.request.model_fields
    }
    lists = {"state": [filters["state"]]} if "state" in filters else {}
    request = fill_in(question.request, {**filters, **lists})
    answer = read_page(tx, question, request, limit=MAX_ROWS, page=wanted.get("page") or None)
    return [*answer.rows], answer.next


def operation(tx: Reading, operation_id: Id) -> dict[str, Any]:
    """Return one operation: the segments it seals and creates, its steps, and the load at its request. Raises NotFound."""
    request = fill_in(SHOW_OPERATION.request, {"operation_id": operation_id})
    [row] = read_page(tx, SHOW_OPERATION, request, limit=1).rows
    return {
        "operation": row,
        "dag_run": dag_run(row["request_key"]) or _decided_in(tx, row["decision_id"]),
        "steps": read_answers(tx, LIST_STEPS, MAX_ROWS, operation_id=operation_id),
        "loads": read_view(
            tx, "inspect.operation_loads", "operation_id = :id", order="segment_id", id=operation_id
        ),
    }


def run(tx: Reading, dag_id: Text, run_id: Text) -> dict[str, Any]:
    """Return the operations, backtests and decisions of a DAG run, and the candidates whose evidence is one of the backtests; of each at
    most `MAX_ROWS`, and none for an unknown run.

    Airflow 3.1.0 does not encode the id in the tab's address, where a plus sign means a space; Airflow allows no spaces in ids.
    """
    run_id = run_id.replace(" ", "+")
    of_run = f"{dag_id}/{run_id}"
    backtests = read_answers(tx, LIST_BACKTESTS, MAX_ROWS, columns=RUN_COLUMNS, run=of_run)
    return {
        "dag_id": dag_id,
        "run_id": run_id,
        "operations": read_answers(tx, LIST_OPERATIONS, MAX_ROWS, run=of_run),
        "backtests": backtests,
        "candidates": read_answers(
            tx, LIST_CANDIDATES, MAX_ROWS, run_id=[backtest["run_id"] for backtest in backtests]
        ),
        "decisions": shown(read_answers(tx, LIST_DECISIONS, MAX_ROWS, run=of_run)),
    }


def _decided_in(tx: Connection, decision_id: int | None) -> DagRun | None:
    """Return the Airflow run of the pass that made the decision; None without a decision in the log, or if no pass made the decision."""
    if decision_id is None:
        return None
    rows = read_view(tx, "inspect.decisions", "decision_id = :id", columns="decided_by", id=decision_id)
    return deciding_run(rows[0]["decided_by"]) if rows else None


def shown(decisions: Sequence[Row]) -> list[Row]:
    """Return the decisions with a column `run`: the Airflow run of the pass that made the decision, None if no pass did."""
    return [row | {"run": deciding_run(row["decided_by"])} for row in decisions]
