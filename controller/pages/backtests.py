"""Backtests: the cost of policies compared with the minimum, and the candidates to promote."""

from __future__ import annotations

from typing import Any

from controller.actions import backtest_rows
from controller.backtest.summary import summary_by_load, summary_by_policy
from controller.pages import figures
from controller.pages.context import MAX_ROWS, Id, Reading
from controller.questions.backtests import LIST_BACKTESTS, read_backtest
from controller.questions.policies import LIST_CANDIDATES
from controller.questions.question import read_answers
from controller.tasks.dag_runs import dag_run

RUN_COLUMNS = "run_id, state, asked_at, asked_by, policies, cardinality(loads) AS loads, since, until, engine, seconds, results, error"
"""Columns of the list, without the inputs, which name every load."""
_SHADOW_FIRST = "state = 'shadow' DESC, candidate_id DESC"


def page(tx: Reading) -> dict[str, Any]:
    """Return the runs, newest first, and the candidates, those in shadow first; of each at most `MAX_ROWS` + 1
    rows.
    """
    return {
        "runs": read_answers(tx, LIST_BACKTESTS, MAX_ROWS + 1, columns=RUN_COLUMNS),
        "candidates": read_answers(tx, LIST_CANDIDATES, MAX_ROWS + 1, order=_SHADOW_FIRST),
    }


def run(tx: Reading, run_id: Id) -> dict[str, Any]:
    """Return one run: a row for each policy, and the first `MAX_ROWS` rows by load and policy. Raises NotFound."""
    row, results = read_backtest(tx, run_id)
    rows = backtest_rows.result_rows(results)
    summary = summary_by_policy(rows)
    by_load = summary_by_load(rows)
    return {
        "run": row,
        "dag_run": dag_run(row["request_key"]),
        "columns": backtest_rows.SUMMARY,
        "summary": backtest_rows.cells(summary),
        "regrets": figures.regrets(summary),
        "load_columns": backtest_rows.BY_LOAD,
        "by_load": backtest_rows.cells(by_load[:MAX_ROWS]),
        "is_cut_off": len(by_load) > MAX_ROWS,
    }
