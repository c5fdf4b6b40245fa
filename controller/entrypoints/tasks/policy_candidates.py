"""Policies that prove themselves, as tasks: the nightly search for better ones, and a promotion with an approval between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from controller.actions import backtest_rows
from controller.actions.candidates import PromoteCandidate
from controller.actions.fields import fill_in
from controller.bootstrap import build_trials
from controller.domain.errors import Conflict
from controller.domain.shown import in_markdown
from controller.entrypoints import dag_runs
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.entrypoints.tasks.forms import TuningForm
from controller.services import policy_candidates
from controller.services.policy_candidates import TuningRequest

SHOWN_AT_MOST = 100
_COLUMNS = ("topic", "candidate_id", "knobs", "looked_at", "why")


def tune_policies(
    *, dsn: str, extras: Extras, request_key: str, actor: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """See `TuningForm`. Each topic has a row: what was looked at, and why something or nothing was proposed.

    The answer has the first hundred; what was proposed comes first.
    """
    form = fill_in(TuningForm, params)
    with cleave_at(dsn, extras) as app:
        request = TuningRequest(form.topics, form.days, actor, request_key)
        tuned = policy_candidates.tune(app.store, build_trials(app), request)
    tuned = sorted(tuned, key=lambda one: (one.candidate_id is None, one.topic))
    rows = [{**asdict(one), "run_ids": list(one.run_ids)} for one in tuned[:SHOWN_AT_MOST]]
    proposed = sum(1 for one in tuned if one.candidate_id is not None)
    emit(
        False, None, rows_table(rows, _COLUMNS, title=f"{len(tuned)} topics, {proposed} candidates proposed")
    )
    return {"topics": len(tuned), "proposed": proposed, "tuned": rows}


def weigh_policy(
    *, dsn: str, extras: Extras, request_key: str, actor: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Weigh a topic's candidate on its own past; the answer has both figures, and text to approve. See `PromoteCandidate`.

    Raises Conflict for a candidate that would have cost more, after refusing it: there is nothing to approve.
    """
    form = fill_in(PromoteCandidate, params)
    with cleave_at(dsn, extras) as app:
        weighed = policy_candidates.weigh(
            app.store,
            build_trials(app),
            form.topic,
            days=form.days,
            actor=actor,
            request_key=request_key,
        )
        told = f"candidate {weighed.candidate.candidate_id} of {form.topic}, backtest {weighed.run_id}: {weighed.sentence}"
        dag_runs.note(app.settings, request_key, told)
        if not weighed.is_better:
            policy_candidates.promote_on(app.store, form.topic, weighed.run_id, actor=actor)
            raise Conflict(
                f"candidate {weighed.candidate.candidate_id} of topic {form.topic} is refused: {weighed.sentence}"
            )
    rows = backtest_rows.result_rows((weighed.live, weighed.proposed))
    emit(False, None, rows_table(backtest_rows.cells(backtest_rows.summary(rows)), backtest_rows.SUMMARY))
    return {
        "topic": form.topic,
        "candidate_id": weighed.candidate.candidate_id,
        "knobs": weighed.candidate.knobs,
        "run_id": weighed.run_id,
        "regret": {row["policy"]: row["regret"] for row in rows},
        "sentence": in_markdown(weighed.sentence),
        "reason": in_markdown(weighed.candidate.reason),
    }


def promote_policy(*, dsn: str, extras: Extras, actor: str, weighed: Mapping[str, Any]) -> dict[str, Any]:
    """Promote what `weigh_policy` answered about, if it still holds: the same candidate, and the same policy in force."""
    with cleave_at(dsn, extras) as app:
        done = policy_candidates.promote_on(app.store, weighed["topic"], weighed["run_id"], actor=actor)
    found = done.candidate
    if not done.is_promoted:
        raise Conflict(
            f"candidate {found.candidate_id} of topic {done.topic} is {found.state}: {found.outcome}"
        )
    return {
        "topic": done.topic,
        "candidate_id": found.candidate_id,
        "state": found.state.value,
        "outcome": found.outcome,
    }
