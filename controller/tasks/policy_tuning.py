"""Tuning as a task: the nightly search for policies that would have cost less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from controller.actions.fields import fill_in
from controller.bootstrap import build_trials
from controller.command_output import emit, rows_table
from controller.services import policy_candidates
from controller.tasks.application_of_connection import Extras, cleave_at
from controller.tasks.forms import TuningForm

SHOWN_AT_MOST = 100
"""Maximum number of topics in the logged table and in the result."""
_COLUMNS = ("topic", "candidate_id", "parameters", "looked_at", "why")


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
