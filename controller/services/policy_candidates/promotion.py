"""Promotion: a candidate is in force from the moment a backtest of the topic's own past says that it would have cost less.

The backtest takes a while, so it is run first, outside of any transaction, and everything else rests on its rows: the run is the candidate's
evidence, also for a promotion that waits for an approval. In one transaction it is then asked again whether the evidence is about this
candidate and the policy that is in force now, whether it costs less there, and only then the topic's override is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from controller import telemetry
from controller.domain.approvals import ApprovalState, Subject
from controller.domain.errors import Conflict, LostRace, NotFound
from controller.domain.policy import AutoScalePolicy, PolicyOverride
from controller.services.policy_candidates.candidacy import demand_candidate, promoted
from controller.services.policy_candidates.trials import (
    CANDIDATE,
    IN_FORCE,
    Trials,
    Variant,
    measured_days,
    regret,
)
from controller.store import backtests
from controller.store.approvals import ApprovalRow, NewApproval
from controller.store.backtests import BacktestResult
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateRow, CandidateState
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.topics import policies, topics

log = telemetry.get_logger(__name__)

DAYS = 14
"""Days of the topic's past that a candidate is weighed on."""
DAYS_NEEDED = 3
"""Recorded days below which nothing is said about a policy: a weekday says little about a weekend."""
WAIT_SECONDS = 7 * 86_400.0
"""How long a promotion waits for its approval. After that nothing is promoted."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate beside the policy in force, on the same load, in the backtest `run_id`."""

    topic: str
    candidate: CandidateRow
    run_id: int
    live: BacktestResult
    proposed: BacktestResult

    @property
    def is_better(self) -> bool:
        """Whether it would have cost less. The least possible cost is the same for both, so the regret is lower too."""
        return self.proposed.cost < self.live.cost

    @property
    def sentence(self) -> str:
        """Both figures."""
        return (
            f"regret {regret(self.proposed):.3f} against {regret(self.live):.3f} of the policy in force, on "
            f"{measured_days(self.live):.1f} recorded days (backtest {self.run_id})"
        )


@dataclass(frozen=True, slots=True)
class Promotion:
    """What became of the candidate. `weighed` None: it had ended before, and nothing was asked or changed. `waits`: for an approval."""

    topic: str
    candidate: CandidateRow
    weighed: Weighed | None = None
    waits: bool = False

    @property
    def is_promoted(self) -> bool:
        """Whether the candidate's parameters are the topic's override."""
        return self.candidate.state is CandidateState.PROMOTED


def promote(
    store: Store, trials: Trials, topic: str, *, days: int, actor: str, request_key: str, ask: bool = False
) -> Promotion:
    """Weigh the topic's candidate, then promote or refuse it. With `ask`, a candidate that would have cost less waits for a person. A candidate
    that has ended stays as it is.

    Raises what `weigh` raises, and LostRace where the policy in force was changed meanwhile.
    """
    found = _newest(store, topic)
    if found.state is not CandidateState.SHADOW:
        return Promotion(topic, _ended(found, topic))
    weighed = weigh(store, trials, topic, days=days, actor=actor, request_key=request_key)
    with store.transaction() as tx:
        promotion = promote_on(tx, topic, weighed.run_id, actor=actor, ask=ask)
    if promotion.is_promoted and promotion.weighed is not None and not store.rolls_back:
        log.info("policy set", level=topic, actor=actor, candidate_id=promotion.candidate.candidate_id)
    return promotion


def lock(tx: Connection, row: ApprovalRow) -> None:
    """Lock the topic of the candidate that waits for an approval. Raises TopicNotLive."""
    topics.lock_live_topic(tx, row.topic_id or 0)


def carry_out(tx: Connection, row: ApprovalRow) -> None:
    """Promote the candidate that was approved; a rejected candidate stays in shadow. Raises as `promote_on`."""
    candidate = candidates.newest(tx, row.topic_id or 0)
    if row.state is ApprovalState.APPROVED and candidate is not None:
        promote_on(tx, row.topic or "", candidate.run_id or 0, actor=row.answered_by or "")


def weigh(store: Store, trials: Trials, topic: str, *, days: int, actor: str, request_key: str) -> Weighed:
    """The topic's candidate in shadow beside the policy in force, on the last `days` of its past; decides nothing.

    Raises NotFound without a candidate, Conflict where too little was recorded or the candidate has ended.
    """
    found = _newest(store, topic)
    if found.state is not CandidateState.SHADOW:
        raise Conflict(f"candidate {found.candidate_id} of topic {topic} is {found.state}: {found.outcome}")
    with store.transaction() as tx:
        until = database_now(tx)
    variants = (Variant(IN_FORCE), Variant(CANDIDATE, IN_FORCE, dict(found.override)))
    try:
        trial = trials(
            variants,
            (topic,),
            until - timedelta(days=days),
            until,
            asked_by=actor,
            request_key=request_key,
        )
    except NotFound as error:
        raise Conflict(f"candidate {found.candidate_id} cannot be weighed: {error.message}") from error
    results = trial.of(topic)
    if results.keys() != {IN_FORCE, CANDIDATE}:
        raise Conflict(
            f"candidate {found.candidate_id} cannot be weighed: {trial.left_out.get(topic, 'no result')}"
        )
    weighed = Weighed(topic, found, trial.run_id, results[IN_FORCE], results[CANDIDATE])
    _demand_enough(weighed, days)
    return weighed


def promote_on(tx: Connection, topic: str, run_id: int, *, actor: str, ask: bool = False) -> Promotion:
    """Promote or refuse the topic's candidate on the evidence of a backtest that was run, or ask for the approval to promote it. What has
    ended stays as it is.

    Raises Conflict for a run that is not about this candidate, and LostRace where the policy in force is not the one that
    was weighed: weigh again.
    """
    row = topics.lock_live_topic(tx, topics.find_topic(tx, topic).topic_id)
    found = demand_candidate(candidates.newest(tx, row.topic_id), topic)
    if found.state is not CandidateState.SHADOW:
        return Promotion(topic, _ended(found, topic))
    weighed = _evidence(tx, topic, found, run_id)
    if ask and weighed.is_better:
        asked = candidates.ask(tx, found, run_id, _approval(weighed, actor))
        return Promotion(topic, asked, weighed, waits=True)
    if weighed.is_better:
        override = promoted(tx, row.topic_id, PolicyOverride.from_document(found.override))
        policies.set_topic(tx, row.topic_id, override, actor=actor)
    ended = candidates.end(
        tx,
        found.candidate_id,
        CandidateState.PROMOTED if weighed.is_better else CandidateState.REFUSED,
        ended_by=actor,
        outcome=weighed.sentence,
        run_id=run_id,
    )
    return Promotion(topic, ended, weighed)


def _approval(weighed: Weighed, actor: str) -> NewApproval:
    found = weighed.candidate
    return NewApproval(
        Subject.PROMOTION,
        found.candidate_id,
        found.topic_id,
        f"promote candidate {found.candidate_id} ({found.parameters})",
        f"{weighed.sentence}; {found.proposed_by} proposed it: {found.reason}",
        actor,
        WAIT_SECONDS,
    )


def _newest(store: Store, topic: str) -> CandidateRow:
    with store.transaction() as tx:
        return demand_candidate(candidates.newest(tx, topics.find_topic(tx, topic).topic_id), topic)


def _ended(found: CandidateRow, topic: str) -> CandidateRow:
    if found.state is CandidateState.WITHDRAWN:
        raise Conflict(
            f"candidate {found.candidate_id} of topic {topic} was withdrawn ({found.outcome}); propose it again"
        )
    return found


def _demand_enough(weighed: Weighed, days: int) -> None:
    recorded = measured_days(weighed.live)
    if recorded < DAYS_NEEDED:
        raise Conflict(
            f"topic {weighed.topic} has {recorded:.1f} recorded days among the last {days}, and {DAYS_NEEDED} are needed to "
            "judge a policy; wait, ask about more days, or see whether the aggregation keeps its history "
            "(CLEAVE_HISTORY_URL)"
        )


def _evidence(tx: Connection, topic: str, found: CandidateRow, run_id: int) -> Weighed:
    """The run's figures about this candidate, if it is about nothing else."""
    inputs = backtests.inputs_of(tx, run_id)
    results, _ = backtests.results_of(tx, run_id)
    mine = {one.policy: one for one in results if one.topic_id == found.topic_id}
    parameters = {one["name"]: one["parameters"] for one in inputs["policies"]}
    if mine.keys() != {IN_FORCE, CANDIDATE} or parameters.get(CANDIDATE) != dict(found.override):
        raise Conflict(
            f"backtest {run_id} is not about candidate {found.candidate_id} ({found.parameters}); weigh it again"
        )
    weighed = Weighed(topic, found, run_id, mine[IN_FORCE], mine[CANDIDATE])
    days = float(weighed.live.figures.get("days", 0.0))
    _demand_enough(weighed, round(days))
    [judged] = [one["policy"] for one in inputs["loads"] if one["topic_id"] == found.topic_id]
    if AutoScalePolicy.from_document(judged) != policies.in_force(tx, found.topic_id):
        raise LostRace(
            f"the policy of topic {topic} was changed since candidate {found.candidate_id} was weighed; weigh it again",
            what="policy",
        )
    return weighed
