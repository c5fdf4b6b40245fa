"""Candidates of policy: proposed into shadow, listed, withdrawn, and promoted where their topic's own past says so."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field

from controller.domain.errors import InvalidInput
from controller.entrypoints import candidate_desk
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.changes import Changing, WithReason
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import OfTopic, Topic
from controller.entrypoints.web.computing import COMPUTE, Computing
from controller.entrypoints.web.demands import OPERATE, READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import policy_candidates
from controller.store.postgres.engine import Store
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["policies"])
MOST_DAYS = 30
"""That one call weighs a candidate on: half a minute of a server's time, most of it for reading, and no Spark."""
_PATH = TOPIC_PATH + "/candidate"
_LIST = Listing(
    """
    SELECT candidate_id, topic, topic_id, state, override, proposed_at, proposed_by, reason, ended_at, ended_by, outcome, run_id,
           regret, live_regret, shadow_decisions, last_decided_at
      FROM inspect.policy_candidates
     WHERE (CAST(:topic AS text) IS NULL OR topic = :topic)
       AND (CAST(:after_candidate_id AS bigint) IS NULL OR candidate_id < :after_candidate_id)
     ORDER BY candidate_id DESC LIMIT :limit
    """,
    {"candidate_id": int},
)


class Candidate(BaseModel):
    """A policy that was proposed for a topic, and what became of it."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    candidate_id: int = Field(examples=[3])
    topic_id: int
    override: dict[str, Any] = Field(
        description="Knobs that it sets on top of what is in force.", examples=[{"target_use": 0.8}]
    )
    proposed_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    proposed_by: str = Field(examples=["ada"])
    reason: str = Field(examples=["fewer segments at night"])
    state: str = Field(examples=["shadow"])
    run_id: int | None = Field(description="The backtest that is its evidence.")
    ended_at: datetime | None
    ended_by: str | None
    outcome: str | None = Field(description="Why it ended.")


class CandidateListed(Candidate):
    """With both regrets in its backtest; as `inspect.policy_candidates`."""

    regret: float | None = Field(examples=[1.12])
    live_regret: float | None = Field(description="Of the policy that was in force.")
    shadow_decisions: int = Field(examples=[420])
    last_decided_at: datetime | None


class NewCandidate(WithReason):
    """What is proposed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"knobs": {"target_use": 0.8}, "reason": "fewer segments at night"}]}
    )

    knobs: Annotated[dict[str, Any], Field(max_length=100, examples=[{"target_use": 0.8}])]


class Promote(BaseModel):
    """On how much of the topic's own past both policies are weighed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"days": 14}]})

    days: Annotated[int, Field(ge=policy_candidates.DAYS_NEEDED, le=2**31)] = policy_candidates.DAYS


class ChangedCandidate(BaseModel):
    """A candidate after a change, or in a rehearsal as it would be."""

    dry_run: bool
    candidate: Candidate


class Proposed(ChangedCandidate):
    """One in shadow."""

    was_there: bool = Field(description="It had been proposed before, with the same knobs.")


class Judged(ChangedCandidate):
    """One that was weighed. In a rehearsal it is still in shadow."""

    is_better: bool = Field(description="It would have cost less, so it is promoted; else it is refused.")
    sentence: str = Field(description="By which figures.")
    had_ended: bool = Field(description="Before this was asked, so nothing was weighed or changed.")
    results: list[dict[str, Any]] = Field(
        description="One row a policy: in-force, and candidate.",
        examples=[[{"policy": "in-force", "regret": 1.31}, {"policy": "candidate", "regret": 1.12}]],
    )


@router.get(f"{PREFIX}/policies/candidates", dependencies=[READ], response_model=Page[CandidateListed])
def list_candidates(acting: AtDesk, paging: Asked, topic: OfTopic = None) -> dict[str, Any]:
    """Policies that were proposed, newest first."""
    with acting.app.store.transaction() as tx:
        if topic is not None:
            inspected.find_topic(tx, topic)
        return _LIST.page(tx, paging, topic=topic)


@router.post(_PATH, dependencies=[OPERATE])
def propose_candidate(change: Changing, topic: Topic, said: Annotated[NewCandidate, Body()]) -> Proposed:
    """Put a policy into shadow: it is asked beside the one in force, and never acts."""
    override = candidate_desk.override_of(said.knobs)

    def proposed(store: Store) -> Proposed:
        found = policy_candidates.propose(store, topic, override, actor=change.actor, reason=said.reason)
        candidate = Candidate.model_validate(candidate_desk.document(topic, found.candidate))
        return Proposed(dry_run=change.dry_run, candidate=candidate, was_there=found.was_there)

    return change.once(Proposed, proposed)


@router.delete(_PATH, dependencies=[OPERATE])
def withdraw_candidate(
    change: Changing, topic: Topic, said: Annotated[WithReason | None, Body()] = None
) -> ChangedCandidate:
    """Take a topic's candidate out of shadow; what is in force stays."""
    reason = (said or WithReason()).reason

    def withdrawn(store: Store) -> ChangedCandidate:
        found = policy_candidates.withdraw(store, topic, actor=change.actor, reason=reason)
        candidate = Candidate.model_validate(candidate_desk.document(topic, found))
        return ChangedCandidate(dry_run=change.dry_run, candidate=candidate)

    return change.once(ChangedCandidate, withdrawn)


@router.post(f"{_PATH}/promote", dependencies=[OPERATE, COMPUTE])
def promote_candidate(
    change: Changing, computing: Computing, topic: Topic, said: Annotated[Promote | None, Body()] = None
) -> Judged:
    """Weigh a topic's candidate on its own past, and put it in force if it would have cost less; else it is refused."""
    days = (said or Promote()).days
    if days > MOST_DAYS:
        raise InvalidInput(
            f"days = {days}: a server weighs a candidate on {MOST_DAYS} days at most; ask about fewer, or trigger the DAG "
            "policy_promote"
        )

    def judged(store: Store) -> Judged:
        found = candidate_desk.judge(
            replace(change.app, store=store),
            topic,
            days=days,
            actor=change.actor,
            request_key=change.request_key,
            dry_run=change.dry_run,
            computation=computing,
        )
        return Judged.model_validate({"dry_run": change.dry_run, **asdict(found)})

    return change.once(Judged, judged)
