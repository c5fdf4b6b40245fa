"""What policies would have cost on the load that was recorded, as a task: asked in a form, kept like any other backtest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller.actions import backtest_rows
from controller.actions.fields import fill_in
from controller.bootstrap import build_backtest
from controller.domain.errors import InvalidInput
from controller.questions import backtest_requests
from controller.services.policy_backtest import Loads
from controller.tasks import dag_runs
from controller.tasks.access import Extras, cleave_at
from controller.tasks.forms import BacktestForm
from controller.terminal import emit, rows_table


def policy_backtest(
    *, dsn: str, extras: Extras, request_key: str, actor: str, asked_at: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """See `BacktestForm`. A time ago is counted from `asked_at`, so that every attempt asks the same question.

    The answer has one row a policy; the rows of each load are in `inspect.backtest_results`.
    """
    form = fill_in(BacktestForm, params)
    question = backtest_requests.question(form.policies, weights=form.weights, seeds=form.seeds)
    loads = loads_of(form, datetime.fromisoformat(asked_at))
    with cleave_at(dsn, extras) as app:
        answer = build_backtest(app).run(
            question, loads, asked_by=actor, request_key=request_key, engine=form.engine
        )
    rows = backtest_rows.summary(backtest_rows.result_rows(answer.results))
    title = f"backtest {answer.run_id}, computed {answer.engine}"
    emit(False, None, rows_table(backtest_rows.cells(rows), backtest_rows.SUMMARY, title=title))
    best = f"; the least regret had {rows[0]['policy']}" if rows else ""
    dag_runs.note(app.settings, request_key, f"backtest {answer.run_id}, computed {answer.engine}{best}")
    return {
        "run_id": answer.run_id,
        "engine": answer.engine,
        "summary": rows,
        "left_out": [{"load": name, "reason": why} for name, why in sorted(answer.left_out.items())],
    }


def loads_of(form: BacktestForm, now: datetime) -> Loads:
    """The recorded load that the form asks about. Raises InvalidInput."""
    if form.topics and form.namespace:
        raise InvalidInput("topics and namespace: give one of the two")
    return Loads(*backtest_requests.past(form.since, form.until, now), form.topics, form.namespace or None)
