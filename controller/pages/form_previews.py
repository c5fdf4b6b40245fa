"""The dry run of a DAG's form: the same form and the same plan as a run, and nothing is written."""

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
from controller.questions import backtest_requests
from controller.questions.policies import LIST_CANDIDATES
from controller.questions.question import read_answers
from controller.store.decisions.candidates import CandidateState
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import inspector_reads
from controller.tasks.actions import demand_below_cluster, form_of, perform_form
from controller.tasks.backtest import loads_of
from controller.tasks.forms import BacktestForm

Conf = Mapping[str, Any]
_ACTIONS: Mapping[str, str] = {
    "cleave_manual_split": "segments split",
    "cleave_manual_merge": "segments merge",
    "cleave_manual_rebucket": "segments rebucket",
    "cleave_approve": "approvals approve",
    "bundle_approve": "approvals approve",
    "cleave_cluster_policy": "policy set",
    "cleave_policy": "policy set",
    "policy_propose": "policy propose",
}
"""Actions by the id of the DAG whose form is the request of the action."""
_FIXED: Mapping[str, Conf] = {
    "bundle_approve": {"level": CLUSTER},
    "cleave_approve": {"level": None},
    "cleave_cluster_policy": {"level": CLUSTER},
}
"""Fields of an action that the form of its DAG does not have."""


def dry_run(cleave: Application, dag_id: str, conf: Conf) -> dict[str, Any]:
    """Return the effects that a run of the DAG would have, with a `sentence` for people. Writes nothing. Raises InvalidInput for a DAG
    without a preview, and the errors that the run would raise before it waits for an operation.
    """
    if dag_id in _ACTIONS:
        return _action(cleave, find_action(_ACTIONS[dag_id]), conf, _FIXED.get(dag_id, {}))
    if dag_id not in _OTHERS:
        raise InvalidInput(
            f"{dag_id!r} has no preview; those with one are {', '.join((*_ACTIONS, *_OTHERS))}"
        )
    return _OTHERS[dag_id](cleave, conf)


def _action(cleave: Application, action: AnyAction, conf: Conf, fixed: Conf) -> dict[str, Any]:
    """Return the document of the action's dry run with the values of the form, with its `sentence`. Raises InvalidInput for an invalid
    form, AccessForbidden for the level of the cluster unless it is fixed, and the errors of the action.
    """
    form = fill_in(form_of(action), {**conf, **fixed, "dry_run": True})
    if "level" not in fixed:
        demand_below_cluster(action, form)
    response = perform_form(cleave, action, form, request_key="preview", actor="preview")
    return response.model_dump(mode="json") | {"sentence": response.sentence()}


def _backtest(cleave: Application, conf: Conf) -> dict[str, Any]:
    """Return the number of topics, segments and records that PostgreSQL holds for the loads of the form, and a sentence with their span of
    time; without a record, only `records` 0 and the sentence. The run itself reads the landing area.

    Raises InvalidInput for an invalid form, Unsupported without NumPy.
    """
    form = fill_in(BacktestForm, conf)
    question = backtest_requests.question(form.policies, weights=form.weights, seeds=form.seeds)
    loads = loads_of(form, datetime.now(UTC))
    with snapshot(cleave.store) as tx:
        past = backtest_requests.recorded_load(tx, loads)
    if not past["records"]:
        nothing = "PostgreSQL has no load record for these; the run reads the landing area, which may have none either"
        return {"records": 0, "sentence": nothing}
    spans = f"recorded from {past['since']:%Y-%m-%d %H:%M}Z to {past['until']:%Y-%m-%d %H:%M}Z"
    of = f"{past['segments']} segments of {past['topics']} topics, {past['records']} records"
    sentence = f"would run {len(question.candidates)} policies over the load of {of}, {spans}"
    return {
        "topics": past["topics"],
        "segments": past["segments"],
        "records": past["records"],
        "sentence": sentence,
    }


def _promotion(cleave: Application, conf: Conf) -> dict[str, Any]:
    """Return the id of the topic's candidate in shadow, and a sentence about the comparison that a run would make. Compares nothing. Raises
    InvalidInput for an invalid form, NotFound without a candidate in shadow, and TopicNotFound.
    """
    form = fill_in(PromoteCandidate, conf)
    with snapshot(cleave.store) as tx:
        topic = inspector_reads.find_topic(tx, form.topic)
        candidates = read_answers(tx, LIST_CANDIDATES, state=CandidateState.SHADOW, **topic.key)
    if not candidates:
        raise NotFound(f"topic {form.topic} has no candidate in shadow; `cleave policy propose` makes one")
    [candidate] = candidates
    sentence = (
        f"would weigh candidate {candidate['candidate_id']} ({candidate['parameters']}) against the policy in force on {form.days} days of load, "
        "refuse the candidate if it would have cost more, and otherwise wait for an approval before it is in force"
    )
    return {"candidate_id": candidate["candidate_id"], "sentence": sentence}


_OTHERS: Mapping[str, Callable[[Application, Conf], dict[str, Any]]] = {
    "policy_backtest": _backtest,
    "policy_promote": _promotion,
}
