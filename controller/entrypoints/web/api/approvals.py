"""Acts that wait for a person: which, until when and what holds without an answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from controller.actions.approvals import ApprovalDocument
from controller.domain.approvals import ApprovalState
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import OfTopic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import approvals
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["approvals"])
_APPROVALS = Listing(
    """
    SELECT approval_id, topic, topic_id, state, kind, act, segment_ids, parts, segments, reason, proposed_at, proposed_by, expires_at,
           default_answer, answered_at, answered_by, outcome, ended_at, operation_id, decision_id, asked_in, has_segments, is_answerable
      FROM inspect.approvals
     WHERE (CAST(:topic_id AS bigint) IS NULL OR topic_id = :topic_id) AND (CAST(:state AS text) IS NULL OR state = :state)
       AND (CAST(:after_approval_id AS bigint) IS NULL OR approval_id < :after_approval_id)
     ORDER BY approval_id DESC LIMIT :limit
    """,
    {"approval_id": int},
)


ApprovalId = Annotated[int, Path(ge=0, lt=2**63, examples=[17])]


@router.get(f"{PREFIX}/approvals", dependencies=[READ], response_model=Page[ApprovalDocument])
def list_approvals(
    acting: AtDesk,
    paging: Asked,
    topic: OfTopic = None,
    state: Annotated[ApprovalState | None, Query(description="Only these; all without.")] = None,
) -> dict[str, Any]:
    """Acts that wait for a person, or waited, newest first."""
    with acting.app.store.transaction() as tx:
        topic_id = None if topic is None else inspected.find_topic(tx, topic).topic_id
        return _APPROVALS.page(tx, paging, topic_id=topic_id, state=state)


@router.get(f"{PREFIX}/approvals/{{approval_id}}", dependencies=[READ])
def get_approval(acting: AtDesk, approval_id: ApprovalId) -> ApprovalDocument:
    """One of them."""
    return ApprovalDocument.of(approvals.find(acting.app.store, approval_id))
