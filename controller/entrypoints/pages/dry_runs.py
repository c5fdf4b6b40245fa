"""The dry run of a DAG's form, which the pages call a preview: the same form, the same plan, nothing written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.actions.action import AnyAction, find_action
from controller.actions.candidates import PromoteCandidate
from controller.actions.fields import fill_in
from controller.bootstrap import Application
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.names import CLUSTER
from controller.domain.shown import shown
from controller.entrypoints.tasks.actions import form_of, perform_form
from controller.entrypoints.tasks.backtest import loads_of
from controller.entrypoints.tasks.forms import BacktestForm
from controller.questions import backtest_requests
from controller.store.postgres import inspection
from controller.store.postgres.snapshots import snapshot

Conf = Mapping[str, Any]
_ACTIONS: Mapping[str, str] = {
    "cleave_manual_split": "segments split",
    "cleave_manual_merge": "segments merge",
    "cleave_manual_rebucket": "segments rebucket",
    "cleave_approve": "approvals approve",
    "bundle_approve": "approvals approve",
    "cleave_policy": "policy set",
    "policy_propose": "policy propose",
}
"""DAGs whose form is that of an action."""
_FIXED: Mapping[str, Conf] = {"bundle_approve": {"level": CLUSTER}}
"""Fields of the action that the form of a DAG has not."""
_RECORDED = """
    SELECT count(DISTINCT h.topic_id) AS topics, count(DISTINCT (h.topic_id, h.segment_id)) AS segments, count(*) AS records,
           min(h.recorded_at) AS since, max(h.recorded_at) AS until
      FROM inspect.load_history h
     WHERE h.recorded_at BETWEEN :since AND :until AND (CAST(:topics AS text[]) IS NULL OR h.topic = ANY (:topics))
       AND (CAST(:namespace AS text) IS NULL OR starts_with(h.topic, 'topic://' || :namespace || '/'))
"""
_CANDIDATE = """
    SELECT candidate_id, override, reason FROM inspect.policy_candidates WHERE topic = :topic AND state = 'shadow'
"""


def dry_run(cleave: Application, dag_id: str, conf: Conf) -> dict[str, Any]:
    """Return what the run would do, with a `sentence` for people. Raises what the run itself would raise."""
    if dag_id in _ACTIONS:
        return _action(cleave, find_action(_ACTIONS[dag_id]), {**conf, **_FIXED.get(dag_id, {})})
    if dag_id not in _OTHERS:
        raise InvalidInput(
            f"{dag_id!r} has no preview; those with one are {', '.join((*_ACTIONS, *_OTHERS))}"
        )
    return _OTHERS[dag_id](cleave, conf)


def _action(cleave: Application, action: AnyAction, conf: Conf) -> dict[str, Any]:
    form = fill_in(form_of(action), {**conf, "dry_run": True})
    response = perform_form(cleave, action, form, request_key="preview", actor="preview")
    return response.model_dump(mode="json") | {"sentence": response.sentence()}


def _backtest(cleave: Application, conf: Conf) -> dict[str, Any]:
    """How much past there is for it, by the records in PostgreSQL: the run itself reads those of the landing area."""
    form = fill_in(BacktestForm, conf)
    asked = backtest_requests.question(form.policies, weights=form.weights, seeds=form.seeds)
    loads = loads_of(form, datetime.now(UTC))
    with snapshot(cleave.store) as tx:
        [past] = inspection.rows(
            tx,
            _RECORDED,
            since=loads.since,
            until=loads.until,
            topics=list(loads.topics) if loads.topics else None,
            namespace=loads.namespace,
        )
    if not past["records"]:
        nothing = "PostgreSQL has no record of load of that; the run looks at what the landing area keeps, and may find nothing either"
        return {"records": 0, "sentence": nothing}
    spans = f"recorded from {past['since']:%Y-%m-%d %H:%M}Z to {past['until']:%Y-%m-%d %H:%M}Z"
    of = f"{past['segments']} segments of {past['topics']} topics, {past['records']} records"
    told = f"would run {len(asked.candidates)} policies over the load of {of}, {spans}"
    return {
        "topics": past["topics"],
        "segments": past["segments"],
        "records": past["records"],
        "sentence": told,
    }


def _promotion(cleave: Application, conf: Conf) -> dict[str, Any]:
    form = fill_in(PromoteCandidate, conf)
    with snapshot(cleave.store) as tx:
        found = inspection.rows(tx, _CANDIDATE, topic=form.topic)
    if not found:
        raise NotFound(f"topic {form.topic} has no candidate in shadow; `cleave policy propose` makes one")
    [one] = found
    knobs = ", ".join(f"{knob}={shown(value)}" for knob, value in one["override"].items())
    told = (
        f"would weigh candidate {one['candidate_id']} ({knobs}) against the policy in force on {form.days} days of load, refuse it if it "
        "would have cost more, and else wait for somebody's approval before it is in force"
    )
    return {"candidate_id": one["candidate_id"], "sentence": told}


_OTHERS: Mapping[str, Callable[[Application, Conf], dict[str, Any]]] = {
    "policy_backtest": _backtest,
    "policy_promote": _promotion,
}
