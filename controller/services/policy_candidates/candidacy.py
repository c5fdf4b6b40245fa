"""Candidates come and go: proposed into shadow, or withdrawn by somebody."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from controller.domain.errors import Conflict, InvalidInput, NotFound
from controller.domain.policy import PolicyOverride
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateRow, CandidateState
from controller.store.postgres.engine import Store
from controller.store.topics import policies, topics


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate in shadow; `was_there`: it had been proposed before, with the same parameters."""

    candidate: CandidateRow
    was_there: bool = False


def propose(
    store: Store, topic: str, override: PolicyOverride, *, actor: str, reason: str, run_id: int | None = None
) -> Proposal:
    """Put a policy into shadow: the parameters it sets on top of what is in force.

    `run_id`: a backtest that speaks for it. Raises TopicNotFound, TopicNotLive, InvalidPolicy for parameters that do not fit the
    levels above, Conflict where another candidate is in shadow.
    """
    if not override.parameters:
        raise InvalidInput(
            f"a candidate for {topic} without a parameter is the policy in force; name what it sets"
        )
    with store.transaction() as tx:
        row = topics.lock_live_topic(tx, topics.find_topic(tx, topic).topic_id)
        found = candidates.newest(tx, row.topic_id)
        if found is not None and found.state is CandidateState.SHADOW:
            if PolicyOverride.from_document(found.override) == override:
                return Proposal(found, was_there=True)
            raise Conflict(
                f"topic {topic} has candidate {found.candidate_id} ({found.parameters}) in shadow; promote or withdraw it first"
            )
        policies.demand_valid(tx, topic, promoted(tx, row.topic_id, override))
        made = candidates.propose(tx, row.topic_id, override, proposed_by=actor, reason=reason, run_id=run_id)
    return Proposal(made)


def withdraw(store: Store, topic: str, *, actor: str, reason: str) -> CandidateRow:
    """Take the topic's candidate out of shadow. One that was withdrawn stays so. Raises NotFound where there is none, and
    Conflict where it was promoted or refused.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic, lock=True)
        found = demand_candidate(candidates.newest(tx, row.topic_id), topic)
        if found.state is CandidateState.WITHDRAWN:
            return found
        if found.state is not CandidateState.SHADOW:
            raise Conflict(
                f"candidate {found.candidate_id} of topic {topic} is {found.state} ({found.outcome}); `cleave policy set` "
                "changes what is in force"
            )
        return candidates.end(
            tx, found.candidate_id, CandidateState.WITHDRAWN, ended_by=actor, outcome=reason
        )


def demand_candidate(found: CandidateRow | None, topic: str) -> CandidateRow:
    """Raises NotFound for a topic that never had one."""
    if found is None:
        raise NotFound(
            f"topic {topic} has no candidate; `cleave policy propose {topic} PARAMETER=VALUE` puts one into shadow"
        )
    return found


def promoted(tx: Connection, topic_id: int, override: PolicyOverride) -> PolicyOverride:
    """What the topic would override with the candidate's parameters in force. Raises InvalidPolicy for one that cannot be read."""
    stored = policies.stored_document(tx, topic_id=topic_id)
    return PolicyOverride.from_document({**stored, **override.to_document()})
