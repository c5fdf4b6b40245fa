"""Candidates of policy as people ask about them, by the command or over HTTP: documents, and a promotion or its rehearsal.

What a candidate has to prove, and when it is in force, is in `services.policy_candidates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controller.bootstrap import Application, build_trials
from controller.domain.errors import InvalidInput
from controller.domain.policy import PolicyOverride
from controller.entrypoints import backtest_rows
from controller.services import policy_candidates
from controller.services.computing.computers import Computation
from controller.store.decisions.candidates import CandidateRow

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProposedCandidate:
    """A candidate in shadow; `was_there`: it had been proposed before, with the same knobs."""

    candidate: Row
    was_there: bool


@dataclass(frozen=True, slots=True)
class JudgedCandidate:
    """What became of a candidate, or in a rehearsal would become of it, and by which figures: `results` has one row a policy.

    `had_ended`: before anybody asked, so nothing was weighed or changed.
    """

    candidate: Row
    is_better: bool
    sentence: str
    had_ended: bool
    results: Sequence[Row]


def override_of(knobs: Mapping[str, Any]) -> PolicyOverride:
    """What a candidate sets. Raises InvalidInput for null: it cannot take anything back."""
    for knob, value in knobs.items():
        if value is None:
            raise InvalidInput(f"{knob}=null: give the value that the candidate sets")
    return PolicyOverride.from_document(knobs)


def document(topic: str, found: CandidateRow) -> Row:
    """A candidate with the name of its topic."""
    return {"topic": topic, **asdict(found), "state": found.state.value}


def judge(
    app: Application,
    topic: str,
    *,
    days: int,
    actor: str,
    request_key: str,
    dry_run: bool,
    computation: Computation | None = None,
) -> JudgedCandidate:
    """Weigh the topic's candidate, and promote or refuse it unless that is only rehearsed; `app` then has a store that takes
    everything back. `computation` as for `build_trials`. Raises as `policy_candidates.promote`.
    """
    trials = build_trials(app, computation)
    asked: dict[str, Any] = {"days": days, "actor": actor, "request_key": request_key}
    if dry_run:
        weighed = policy_candidates.weigh(app.store, trials, topic, **asked)
        return JudgedCandidate(
            document(topic, weighed.candidate), weighed.is_better, weighed.sentence, False, _rows(weighed)
        )
    done = policy_candidates.promote(app.store, trials, topic, **asked)
    return JudgedCandidate(
        document(topic, done.candidate),
        done.is_promoted,
        done.candidate.outcome or "",
        done.weighed is None,
        () if done.weighed is None else _rows(done.weighed),
    )


def _rows(weighed: policy_candidates.Weighed) -> Sequence[Row]:
    return backtest_rows.result_rows((weighed.live, weighed.proposed))
