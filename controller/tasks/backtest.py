"""Backtests of policies on recorded load, and the nightly search for policies that would have cost less, as tasks. A
request comes from a form, and the results are stored like those of any backtest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from controller.actions import backtest_rows
from controller.actions.fields import fill_in
from controller.backtest.summary import summary_by_policy
from controller.bootstrap import build_backtest, build_trials
from controller.command_output import emit, rows_table
from controller.domain.errors import InvalidInput
from controller.questions import backtest_requests
from controller.services import policy_candidates
from controller.services.policy_backtest import Loads
from controller.store.backtests import BacktestAnswer
from controller.tasks import dag_runs
from controller.tasks.application_of_connection import Extras, cleave_at
from controller.tasks.forms import BacktestForm, TuningForm

SHOWN_AT_MOST = 100
"""Maximum number of topics in a logged table, and in each list of a result."""
_COLUMNS = ("topic", "candidate_id", "parameters", "looked_at", "why")


def policy_backtest(
    *, dsn: str, extras: Extras, request_key: str, actor: str, asked_at: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the backtest that a `BacktestForm` describes, store and log its results, and add them to the note
    of the DAG run. Relative times count from `asked_at` (ISO 8601), so that every attempt makes the same
    request.

    The result has one row per policy, and the topics without results (`_left_out`). `inspect.backtest_results`
    has the rows of each load. Raises InvalidInput for an invalid form, and the errors of `PolicyBacktest.run`.
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
        **_left_out(answer),
    }


def _left_out(answer: BacktestAnswer) -> dict[str, Any]:
    """Return the number of topics without a result, and the first `SHOWN_AT_MOST` of them with the reason. Both are None
    for a backtest that was done before this call, because only results are stored.
    """
    if answer.was_done:
        return {"left_out": None, "left_out_count": None}
    named = sorted(answer.left_out.items())[:SHOWN_AT_MOST]
    return {
        "left_out": [{"load": name, "reason": why} for name, why in named],
        "left_out_count": len(answer.left_out),
    }


def loads_of(form: BacktestForm, now: datetime) -> Loads:
    """Return the recorded load that the form selects; relative times count back from `now`. Raises
    InvalidInput for both topics and a namespace, or for an invalid time.
    """
    if form.topics and form.namespace:
        raise InvalidInput("topics and namespace cannot be combined; give one of the two")
    return Loads(*backtest_requests.past(form.since, form.until, now), form.topics, form.namespace or None)


def tune_policies(
    *, dsn: str, extras: Extras, request_key: str, actor: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Tune the topics that a `TuningForm` selects, propose better policies into shadow, and log the result.
    Each topic has a row with the number of variants that were tried, and the reason why a candidate was or
    was not proposed.

    Return the counts and the first `SHOWN_AT_MOST` rows; topics with a proposed candidate come first. Raises
    InvalidInput for an invalid form, NotFound for a topic that is not live, Unsupported without the extra
    `backtest`.
    """
    form = fill_in(TuningForm, params)
    with cleave_at(dsn, extras) as app:
        tuned = policy_candidates.tune(
            app.store, build_trials(app), form.topics, days=form.days, actor=actor, request_key=request_key
        )
    tuned = sorted(tuned, key=lambda topic: (topic.candidate_id is None, topic.topic))
    rows = [{**asdict(topic), "run_ids": list(topic.run_ids)} for topic in tuned[:SHOWN_AT_MOST]]
    proposed = sum(1 for topic in tuned if topic.candidate_id is not None)
    emit(
        False, None, rows_table(rows, _COLUMNS, title=f"{len(tuned)} topics, {proposed} candidates proposed")
    )
    return {"topics": len(tuned), "proposed": proposed, "tuned": rows}
