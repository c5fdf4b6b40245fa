"""Promotion: a candidate comes into force after a backtest of the topic's own past shows that it would have
cost less.

The backtest takes a while, so it runs first, outside any transaction. Its rows are the candidate's evidence,
also for a promotion that awaits approval. One transaction then checks whether the evidence is about this
candidate and the policy in force, and whether the candidate costs less. Only then does it set the topic's
override.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from controller import telemetry
from controller.domain.approval_states import ApprovalState, Subject
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
"""Days of the topic's past on which a candidate is evaluated."""
DAYS_NEEDED = 3
"""Minimum number of recorded days for a comparison: a weekday shows little about a weekend."""
WAIT_SECONDS = 7 * 86_400.0
"""Seconds for which a promotion waits for its approval. Afterwards the candidate is not promoted."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate and the policy in force, simulated on the same load in the backtest `run_id`. `live` is the
    result of the policy in force, `proposed` that of the candidate.
    """

    topic: str
    candidate: CandidateRow
    run_id: int
    live: BacktestResult
    proposed: BacktestResult

    @property
    def is_better(self) -> bool:
        """True if the candidate would have cost less. Both have the same least possible cost, so the regret
        is lower too.
        """
        return self.proposed.cost < self.live.cost

    @property
    def sentence(self) -> str:
        """Regrets of the candidate and of the policy in force, as text."""
        return (
            f"regret {regret(self.proposed):.3f} against {regret(self.live):.3f} of the policy in force, on "
            f"{measured_days(self.live):.1f} recorded days (backtest {self.run_id})"
        )


@dataclass(frozen=True, slots=True)
class Promotion:
    """Result of a promotion. `weighed` is None if the candidate had ended before, so that nothing was
    compared or changed. `waits` is True if the promotion awaits approval.
    """

    topic: str
    candidate: CandidateRow
    weighed: Weighed | None = None
    waits: bool = False

    @property
    def is_promoted(self) -> bool:
        """True if the candidate was promoted, by this call or before it."""
        return self.candidate.state is CandidateState.PROMOTED


def promote(
    store: Store,
    trials: Trials,
    topic: str,
    *,
    days: int,
    actor: str,
    request_key: str,
    with_approval: bool = False,
) -> Promotion:
    """Compare the topic's newest candidate with the policy in force by a backtest. Then, in one transaction, promote
    the candidate if it would have cost less, which sets the topic's override, and otherwise refuse it. With
    `with_approval`, a candidate that would have cost less awaits approval instead, and `waits` of the result is True.
    A promotion is logged.

    A candidate that was promoted or refused before the call is returned unchanged, without a backtest. In a dry run,
    whose store rolls back each transaction, the comparison is made and the candidate stays in shadow.

    `days` is the length of the topic's past that is simulated. `request_key` identifies the backtest: a repeated key
    compares the stored results of the first call. Raises TopicNotFound, NotFound without a candidate, Conflict for a
    withdrawn candidate or if the policies cannot be compared (fewer than `DAYS_NEEDED` recorded days, or no result,
    for example because the topic is not live), TopicNotLive if the topic is no longer live after the backtest,
    LostRace if the policy in force was changed since the comparison, InvalidPolicy if the promoted policy is not
    valid, the other errors of `trials`, and the errors of `Store.transaction`.
    """
    candidate = _newest(store, topic)
    if candidate.state is not CandidateState.SHADOW:
        return Promotion(topic, _demand_not_withdrawn(candidate, topic))
    weighed = weigh(store, trials, topic, days=days, actor=actor, request_key=request_key)
    if store.rolls_back:
        return Promotion(topic, weighed.candidate, weighed, with_approval and weighed.is_better)
    promotion = store.in_transaction(
        promote_on, topic, weighed.run_id, actor=actor, with_approval=with_approval
    )
    if promotion.is_promoted and promotion.weighed is not None:
        log.info("policy set", level=topic, actor=actor, candidate_id=promotion.candidate.candidate_id)
    return promotion


def lock(tx: Connection, row: ApprovalRow) -> None:
    """Lock the topic of the candidate that awaits approval, until the transaction ends. Raises TopicNotFound,
    TopicNotLive.
    """
    topics.lock_live_topic(tx, row.topic_id or 0)


def carry_out(tx: Connection, row: ApprovalRow) -> None:
    """Carry out the answer to the approval of a promotion, in the caller's transaction. If the approval is approved,
    promote the candidate on its stored evidence, or refuse the candidate if the evidence shows that it would not have
    cost less. A promotion sets the topic's override. If the approval is not approved, or the topic has no candidate,
    nothing changes, and the candidate stays in shadow.

    Raises TopicNotFound, TopicNotLive, NotFound if the backtest of the evidence does not exist or has not finished,
    Conflict if the backtest is not about the candidate or has too few recorded days, or if the candidate is
    withdrawn, LostRace if the policy in force was changed since the comparison, and InvalidPolicy if the promoted
    policy is not valid. After an error the caller rolls back.
    """
    candidate = candidates.newest(tx, row.topic_id or 0)
    if row.state is ApprovalState.APPROVED and candidate is not None:
        promote_on(tx, row.topic or "", candidate.run_id or 0, actor=row.answered_by or "")


def weigh(store: Store, trials: Trials, topic: str, *, days: int, actor: str, request_key: str) -> Weighed:
    """Compare the topic's candidate in shadow with the policy in force, by a backtest of the last `days` days before
    the database's present time. Return the results of both. The backtest is stored under `request_key`; a repeated
    key compares the stored results of the first call. The candidate does not change.

    Raises TopicNotFound, and NotFound without a candidate. Raises Conflict if the candidate is not in shadow, if
    fewer than `DAYS_NEEDED` days were recorded, if the stored backtest of a repeated key is about another candidate,
    if the backtest lacks the result of the candidate or of the policy in force, or if `trials` raises NotFound.
    Raises LostRace if the policy in force is not the policy that the stored backtest of a repeated key compared. Also
    raises the other errors of `trials`, and the errors of `Store.transaction`.
    """
    candidate = _newest(store, topic)
    if candidate.state is not CandidateState.SHADOW:
        raise Conflict(
            f"candidate {candidate.candidate_id} of topic {topic} is {candidate.state}: {candidate.outcome}"
        )
    until = store.in_transaction(database_now)
    variants = (Variant(IN_FORCE), Variant(CANDIDATE, IN_FORCE, dict(candidate.override)))
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
        raise Conflict(f"candidate {candidate.candidate_id} cannot be compared: {error.message}") from error
    if trial.was_done:
        return store.in_transaction(_evidence, topic, candidate, trial.run_id)
    results = trial.of(topic)
    if results.keys() != {IN_FORCE, CANDIDATE}:
        raise Conflict(
            f"candidate {candidate.candidate_id} cannot be compared: {trial.left_out.get(topic, 'no result')}"
        )
    weighed = Weighed(topic, candidate, trial.run_id, results[IN_FORCE], results[CANDIDATE])
    _demand_enough_days(weighed, days)
    return weighed


def promote_on(
    tx: Connection, topic: str, run_id: int, *, actor: str, with_approval: bool = False
) -> Promotion:
    """In the caller's transaction, promote the topic's newest candidate if the finished backtest `run_id` shows that
    it would have cost less, and otherwise refuse it. A promotion sets the topic's override. With `with_approval`, a
    candidate that would have cost less awaits approval instead: `run_id` becomes its evidence, and an approval is
    added unless one is pending for this evidence. The topic's row stays locked until the transaction ends. A
    candidate that was promoted or refused before is returned unchanged.

    Raises TopicNotFound and TopicNotLive; NotFound without a candidate, or if `run_id` is not a finished run;
    Conflict if the run is not about this candidate or has fewer than `DAYS_NEEDED` recorded days, or if the candidate
    is withdrawn; LostRace if the policy in force is not the policy that was compared (call `weigh` again); and
    InvalidPolicy if the promoted policy is not valid together with the levels above. After an error the caller rolls
    back.
    """
    row = topics.lock_live_topic(tx, topics.find_topic(tx, topic).topic_id)
    candidate = demand_candidate(candidates.newest(tx, row.topic_id), topic)
    if candidate.state is not CandidateState.SHADOW:
        return Promotion(topic, _demand_not_withdrawn(candidate, topic))
    weighed = _evidence(tx, topic, candidate, run_id)
    if with_approval and weighed.is_better:
        waiting_candidate = candidates.ask(tx, candidate, run_id, _approval(weighed, actor))
        return Promotion(topic, waiting_candidate, weighed, waits=True)
    if weighed.is_better:
        override = promoted(tx, row.topic_id, PolicyOverride.from_document(candidate.override))
        policies.set_topic(tx, row.topic_id, override, actor=actor)
    ended_candidate = candidates.end(
        tx,
        candidate.candidate_id,
        CandidateState.PROMOTED if weighed.is_better else CandidateState.REFUSED,
        ended_by=actor,
        outcome=weighed.sentence,
        run_id=run_id,
    )
    return Promotion(topic, ended_candidate, weighed)


def _approval(weighed: Weighed, actor: str) -> NewApproval:
    """Return the request for an approval of the promotion, which expires after `WAIT_SECONDS`."""
    candidate = weighed.candidate
    return NewApproval(
        Subject.PROMOTION,
        candidate.candidate_id,
        candidate.topic_id,
        f"promote candidate {candidate.candidate_id} ({candidate.parameters})",
        f"{weighed.sentence}; {candidate.proposed_by} proposed it: {candidate.reason}",
        actor,
        WAIT_SECONDS,
    )


def _newest(store: Store, topic: str) -> CandidateRow:
    """Return the topic's newest candidate. Raises TopicNotFound, NotFound."""
    with store.transaction() as tx:
        return demand_candidate(candidates.newest(tx, topics.find_topic(tx, topic).topic_id), topic)


def _demand_not_withdrawn(candidate: CandidateRow, topic: str) -> CandidateRow:
    """Return the candidate, which has ended. Raises Conflict if it was withdrawn."""
    if candidate.state is CandidateState.WITHDRAWN:
        raise Conflict(
            f"candidate {candidate.candidate_id} of topic {topic} was withdrawn ({candidate.outcome}); propose it again"
        )
    return candidate


def _demand_enough_days(weighed: Weighed, days: int) -> None:
    """Raise Conflict if the result of the policy in force covers fewer than `DAYS_NEEDED` days with figures. `days`,
    the length of the simulated past, only appears in the message.
    """
    recorded_days = measured_days(weighed.live)
    if recorded_days < DAYS_NEEDED:
        raise Conflict(
            f"topic {weighed.topic} has {recorded_days:.1f} recorded days in the last {days}, but {DAYS_NEEDED} are needed to "
            "compare policies; wait, choose more days, or check whether the aggregation keeps its history "
            "(CLEAVE_HISTORY_URL)"
        )


def _evidence(tx: Connection, topic: str, candidate: CandidateRow, run_id: int) -> Weighed:
    """Return the results of the backtest `run_id` for this candidate and for the policy in force. Changes nothing.
    Raises NotFound if the run does not exist or has not finished. Raises Conflict if the run lacks a result of the
    candidate with these parameters or of the policy in force, or has fewer than `DAYS_NEEDED` recorded days. Raises
    LostRace if the present policy in force is not the policy that the run compared.
    """
    inputs = backtests.inputs_of(tx, run_id)
    results, _ = backtests.results_of(tx, run_id)
    by_policy = {result.policy: result for result in results if result.topic_id == candidate.topic_id}
    parameters = {policy["name"]: policy["parameters"] for policy in inputs["policies"]}
    if by_policy.keys() != {IN_FORCE, CANDIDATE} or parameters.get(CANDIDATE) != dict(candidate.override):
        raise Conflict(
            f"backtest {run_id} is not about candidate {candidate.candidate_id} ({candidate.parameters}); run the promotion again"
        )
    weighed = Weighed(topic, candidate, run_id, by_policy[IN_FORCE], by_policy[CANDIDATE])
    days = float(weighed.live.figures.get("days", 0.0))
    _demand_enough_days(weighed, round(days))
    [compared_policy] = [load["policy"] for load in inputs["loads"] if load["topic_id"] == candidate.topic_id]
    if AutoScalePolicy.from_document(compared_policy) != policies.in_force(tx, candidate.topic_id):
        raise LostRace(
            f"the policy of topic {topic} was changed since candidate {candidate.candidate_id} was compared; run the promotion again",
            what="policy",
        )
    return weighed
