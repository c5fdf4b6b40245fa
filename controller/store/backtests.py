"""Backtests: what was asked, and what each policy would have cost.

A request is a row before it is computed, so a run that died is seen. Its results come in the transaction that ends it, all
or none. They follow from the inputs, so a repeat that was faster has written the very same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict

Document = Mapping[str, Any]

_BEGIN = text("""
    INSERT INTO cleave.backtest_run (request_key, asked_by, code_version, inputs)
    VALUES (:request_key, :asked_by, :code_version, CAST(:inputs AS jsonb))
    ON CONFLICT (request_key) DO NOTHING
    RETURNING run_id, state
""")
_KNOWN = text("""
    SELECT run_id, state, inputs = CAST(:inputs AS jsonb) AND code_version = :code_version AS is_same
      FROM cleave.backtest_run WHERE request_key = :request_key
""")
_AGAIN = text("""
    UPDATE cleave.backtest_run SET state = 'running', error = NULL, finished_at = NULL
     WHERE run_id = :run_id AND state = 'failed'
""")
_END = text("""
    UPDATE cleave.backtest_run SET state = :state, engine = :engine, error = :error, finished_at = clock_timestamp()
     WHERE run_id = :run_id AND state = 'running'
""")
_RESULTS = text("""
    INSERT INTO cleave.backtest_result (run_id, load, policy, seed, topic_id, cost, least_cost, figures)
    SELECT :run_id, load, policy, seed, topic_id, cost, least_cost, figures
      FROM unnest(CAST(:load AS text[]), CAST(:policy AS text[]), CAST(:seed AS integer[]), CAST(:topic_id AS bigint[]),
                  CAST(:cost AS float8[]), CAST(:least_cost AS float8[]), CAST(:figures AS jsonb[]))
           AS given (load, policy, seed, topic_id, cost, least_cost, figures)
""")


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """Who asks for what. `inputs` holds `policies`, `loads` and `prices`; a request key that is there is the same run."""

    request_key: str
    asked_by: str
    code_version: str
    inputs: Document


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """One policy on one load. Costs are in segment-hours; `topic_id` None where the load is a trace."""

    load: str
    policy: str
    seed: int
    topic_id: int | None
    cost: float
    least_cost: float
    figures: Document


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run; `is_done`: an earlier request with the same key has its results already."""

    run_id: int
    is_done: bool


def begin(tx: Connection, request: BacktestRequest) -> BegunRun:
    """Writes down what is asked; a run that failed is begun again. Raises Conflict where the key was used for another
    question.
    """
    asked = {
        "request_key": request.request_key,
        "asked_by": request.asked_by,
        "code_version": request.code_version,
        "inputs": json.dumps(request.inputs, sort_keys=True, allow_nan=False),
    }
    new = tx.execute(_BEGIN, asked).one_or_none()
    if new is not None:
        return BegunRun(new.run_id, is_done=False)
    known = tx.execute(_KNOWN, asked).one()
    if not known.is_same:
        raise Conflict(
            f"the request {request.request_key} was backtest {known.run_id}, which asked something else; "
            "give this one another key"
        )
    if known.state == "failed":
        tx.execute(_AGAIN, {"run_id": known.run_id})
    return BegunRun(known.run_id, is_done=known.state == "done")


def finish(tx: Connection, run_id: int, engine: str, results: Sequence[BacktestResult]) -> None:
    """Ends the run with its results; does nothing where somebody else has ended it."""
    if _end(tx, run_id, "done", engine=engine) and results:
        columns = ("load", "policy", "seed", "topic_id", "cost", "least_cost")
        rows: dict[str, Any] = {name: [getattr(one, name) for one in results] for name in columns}
        rows["figures"] = [json.dumps(one.figures, sort_keys=True, allow_nan=False) for one in results]
        tx.execute(_RESULTS, {"run_id": run_id, **rows})


def fail(tx: Connection, run_id: int, error: str) -> None:
    """Ends the run with what went wrong; does nothing where it has ended."""
    _end(tx, run_id, "failed", error=error)


def _end(
    tx: Connection, run_id: int, state: str, *, engine: str | None = None, error: str | None = None
) -> bool:
    ended = tx.execute(_END, {"run_id": run_id, "state": state, "engine": engine, "error": error})
    return ended.rowcount == 1
