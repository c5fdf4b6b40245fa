"""Backtests: what policies would have cost, side by side with the least there could have been, and candidates to promote."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.actions import backtest_rows
from controller.domain.errors import NotFound
from controller.entrypoints.pages import figures
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.entrypoints.tasks.dag_runs import dag_run
from controller.store.backtests import BacktestResult
from controller.store.postgres import inspection

_RUNS = """
    SELECT run_id, state, asked_at, asked_by, policies, cardinality(loads) AS loads, since, until, engine, seconds, results, error
      FROM inspect.backtest_runs ORDER BY run_id DESC LIMIT :limit
"""
_RUN = "SELECT * FROM inspect.backtest_runs WHERE run_id = :run_id"
_RESULTS = """
    SELECT load, topic_id, policy, seed, cost, least_cost, figures FROM inspect.backtest_results
     WHERE run_id = :run_id ORDER BY load, policy, seed
"""
_CANDIDATES = """
    SELECT candidate_id, topic, state, override, proposed_by, proposed_at, reason, regret, live_regret, run_id, shadow_decisions,
           approval_id, ended_at, ended_by, outcome
      FROM inspect.policy_candidates ORDER BY state = 'shadow' DESC, candidate_id DESC LIMIT :limit
"""


def page(tx: Connection) -> dict[str, Any]:
    """The runs, newest first, and the candidates."""
    return {
        "runs": inspection.rows(tx, _RUNS, limit=MOST_ROWS + 1),
        "candidates": inspection.rows(tx, _CANDIDATES, limit=MOST_ROWS + 1),
    }


def run(tx: Connection, run_id: int) -> dict[str, Any]:
    """One run: a row a policy, then one a load and policy. Raises NotFound."""
    found = inspection.rows(tx, _RUN, run_id=run_id)
    if not found:
        raise NotFound(f"there is no backtest {run_id}; the list of backtests has those there are")
    rows = backtest_rows.result_rows(
        BacktestResult(**one) for one in inspection.rows(tx, _RESULTS, run_id=run_id)
    )
    summary = backtest_rows.summary(rows)
    by_load = backtest_rows.by_load(rows)
    return {
        "run": found[0],
        "dag_run": dag_run(found[0]["request_key"]),
        "columns": backtest_rows.SUMMARY,
        "summary": backtest_rows.cells(summary),
        "regrets": figures.regrets(summary),
        "load_columns": backtest_rows.BY_LOAD,
        "by_load": backtest_rows.cells(by_load[:MOST_ROWS]),
        "is_cut_off": len(by_load) > MOST_ROWS,
    }
