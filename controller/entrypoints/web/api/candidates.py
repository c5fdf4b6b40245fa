"""Candidates of policy, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from controller.actions.candidates import CandidateDocument
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import OfTopic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX
from controller.entrypoints.web.refusals import REFUSALS
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["policy"])
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


class CandidateListed(CandidateDocument):
    """A candidate with both regrets in its backtest; as `inspect.policy_candidates`."""

    candidate_id: int = Field(examples=[3])
    regret: float | None = Field(examples=[1.12])
    live_regret: float | None = Field(description="Of the policy that was in force.")
    shadow_decisions: int = Field(examples=[420])
    last_decided_at: datetime | None


@router.get(f"{PREFIX}/policies/candidates", dependencies=[READ], response_model=Page[CandidateListed])
def list_candidates(acting: AtDesk, paging: Asked, topic: OfTopic = None) -> dict[str, Any]:
    """Policies that were proposed, newest first."""
    with acting.app.store.transaction() as tx:
        if topic is not None:
            inspected.find_topic(tx, topic)
        return _LIST.page(tx, paging, topic=topic)
