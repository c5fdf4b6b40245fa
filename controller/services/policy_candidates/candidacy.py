"""Proposes candidates into shadow, and withdraws them."""

from __future__ import annotations

from sqlalchemy import Connection

from controller.domain.errors import Conflict, InvalidInput, NotFound
from controller.domain.policy import PolicyOverride
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateRow, CandidateState
from controller.store.postgres.engine import Store
from controller.store.topics import policies, topics


def propose(
    store: Store, topic: str, override: PolicyOverride, *, actor: str, reason: str, run_id: int | None = None
) -> tuple[CandidateRow, bool]:
    """Propose a candidate for the topic into shadow, and return the candidate and False. `override` has the parameters that the candidate
    sets on top of the policy in force, which does not change. If a candidate with the same parameters is in shadow,
    this candidate is returned unchanged, with True; `actor`, `reason` and `run_id` are then
    ignored.

    `run_id` is the backtest that is stored as the candidate's evidence; None stores no evidence. Raises
    TopicNotFound, TopicNotLive, InvalidInput if `override` has no parameter, InvalidPolicy if the topic's override
    with these parameters is not valid together with the levels above, or if the stored override cannot be read,
    Conflict if a candidate with other parameters is in shadow, and the errors of `Store.transaction`.
    """
    if not override.parameters:
        raise InvalidInput(
            f"a candidate for {topic} without a parameter equals the policy in force; name at least one parameter"
        )
    with store.transaction() as tx:
        row = topics.lock_live_topic(tx, topics.find_topic(tx, topic).topic_id)
        candidate = candidates.newest(tx, row.topic_id)
        if candidate is not None and candidate.state is CandidateState.SHADOW:
            if PolicyOverride.from_document(candidate.override) == override:
                return candidate, True
            raise Conflict(
                f"topic {topic} has candidate {candidate.candidate_id} ({candidate.parameters}) in shadow; promote or withdraw it first"
            )
        policies.demand_valid(tx, topic, promoted(tx, row.topic_id, override))
        proposed = candidates.propose(
            tx, row.topic_id, override, proposed_by=actor, reason=reason, run_id=run_id
        )
    return proposed, False


def withdraw(store: Store, topic: str, *, actor: str, reason: str) -> CandidateRow:
    """Withdraw the topic's newest candidate from shadow, and return it. The topic need not be live. `actor` and
    `reason` are stored, `reason` as the candidate's outcome. Pending and approved approvals of the candidate expire;
    the policy in force does not change. A candidate that is already withdrawn is returned unchanged. Raises
    TopicNotFound, NotFound if the topic never had a candidate, Conflict if the candidate was promoted or refused, and
    the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic, lock=True)
        candidate = demand_candidate(candidates.newest(tx, row.topic_id), topic)
        if candidate.state is CandidateState.WITHDRAWN:
            return candidate
        if candidate.state is not CandidateState.SHADOW:
            raise Conflict(
                f"candidate {candidate.candidate_id} of topic {topic} is {candidate.state} ({candidate.outcome}); use `cleave policy set` "
                "to change the policy in force"
            )
        return candidates.end(
            tx, candidate.candidate_id, CandidateState.WITHDRAWN, ended_by=actor, outcome=reason
        )


def demand_candidate(candidate: CandidateRow | None, topic: str) -> CandidateRow:
    """Return the candidate. Raises NotFound for a topic that never had one."""
    if candidate is None:
        raise NotFound(
            f"topic {topic} has no candidate; propose one with `cleave policy propose {topic} PARAMETER=VALUE`"
        )
    return candidate


def promoted(tx: Connection, topic_id: int, override: PolicyOverride) -> PolicyOverride:
    """Return the override that the topic would have after a promotion: the topic's stored override, in which the
    parameters of `override` (the candidate's) are added or replaced. Writes nothing, and does not validate the result
    together with the levels above. Raises TopicNotFound, and InvalidPolicy if the stored override cannot be read.
    """
    stored = policies.stored_document(tx, topic_id=topic_id)
    return PolicyOverride.from_document({**stored, **override.to_document()})
