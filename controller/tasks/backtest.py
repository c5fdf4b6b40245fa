"""Backtests of policies on recorded load, as a task: the request comes from a form, and the results are
stored like those of any backtest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller.actions import backtest_rows
from controller.actions.fields import fill_in
from controller.backtest.summary import summary_by_policy
from controller.bootstrap import build_backtest
from controller.command_output import emit, rows_table
from controller.domain.errors import InvalidInput
from controller.questions import backtest_requests
from controller.services.policy_backtest import Loads
from controller.tasks import dag_runs
from controller.tasks.application_of_connection import Extras, cleave_at
from controller.tasks.forms import BacktestForm


def policy_backtest(
    *, dsn: str, extras: Extras, request_key: str, actor: str, asked_at: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the backtest that a `BacktestForm` describes, store and log its results, and add them to the note
    of the DAG run. Relative times count from `asked_at` (ISO 8601), so that every attempt makes the same
    request.

    The result has one row per policy. `inspect.backtest_results` has the rows of each load. Raises
    InvalidInput for an invalid form, and the errors of `PolicyBacktest.run`.
    """
    form = fill_in(BacktestForm, params)
    question = backtest_requests.question(form.policies, weights=form.weights, seeds=form.seeds)
    loads = loads_of(form, datetime.fromisoformat(asked_at))
    with cleave_at(dsn, extras) as app:
        answer = build_backtest(app).run(
            question, loads, asked_by=actor, request_key=request_key, engine=form.engine
        )
    rows = summary_by_policy(backtest_rows.result_rows(answer.results))
    title = f"backtest {answer.run_id}, computed {answer.engine}"
    emit(False, None, rows_table(backtest_rows.cells(rows), backtest_rows.SUMMARY, title=title))
    best_policy = f"; {rows[0]['policy']} had the least regret" if rows else ""
    dag_runs.note(
        app.settings, request_key, f"backtest {answer.run_id}, computed {answer.engine}{best_policy}"
    )
    return {
        "run_id": answer.run_id,
        "engine": answer.engine,
        "summary": rows,
        "left_out": [{"load": name, "reason": why} for name, why in sorted(answer.left_out.items())],
    }


def loads_of(form: BacktestForm, now: datetime) -> Loads:
    """Return the recorded load that the form selects; relative times count back from `now`. Raises
    InvalidInput for both topics and a namespace, or for an invalid time.
    """
    if form.topics and form.namespace:
        raise InvalidInput("topics and namespace cannot be combined; give one of the two")
    return Loads(*backtest_requests.past(form.since, form.until, now), form.topics, form.namespace or None)
