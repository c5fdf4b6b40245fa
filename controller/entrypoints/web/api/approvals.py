"""Acts that wait for a person: which, until when and what holds without an answer; and the answer, below the topic that it is about."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from controller.domain.approvals import ApprovalState
from controller.domain.errors import NotFound
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.changes import Changing, WithReason
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import OfTopic, Topic
from controller.entrypoints.web.demands import OPERATE, READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import approvals
from controller.store.decisions.approvals import ApprovalRow
from controller.store.postgres.engine import Store
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


class Approval(BaseModel):
    """An act that waits for a person, or waited; as `inspect.approvals`."""

    approval_id: int = Field(examples=[17])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    state: ApprovalState
    kind: str = Field(examples=["merge"])
    act: str = Field(examples=["merge segments 3, 4 into 1"])
    segment_ids: list[int] = Field(description="What it seals.", examples=[[3, 4]])
    parts: int = Field(description="Segments that it makes; of a rebucket the entry buckets.")
    segments: int = Field(description="Segments that it seals or makes, whichever are more.")
    reason: str = Field(description="Why it was decided.", examples=["cold"])
    proposed_at: datetime
    proposed_by: str
    expires_at: datetime = Field(description="When `default_answer` holds, if nobody has answered.")
    default_answer: str = Field(examples=["reject"])
    answered_at: datetime | None
    answered_by: str | None
    outcome: str | None = Field(description="Why it was answered so, or why it ended.")
    ended_at: datetime | None
    operation_id: int | None = Field(description="What carries it out.")
    decision_id: int
    asked_in: str | None = Field(description="The run of Airflow, as dag/run, in which somebody is asked.")
    has_segments: bool = Field(description="The segments that it seals are still there.")
    is_answerable: bool = Field(description="It waits, is in time, and has its segments.")


class Answer(WithReason):
    """Yes or no, and why."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"approve": True, "reason": "the sale is over"}]}
    )

    approve: bool = Field(examples=[True])


class AnsweredApproval(BaseModel):
    """The proposal after the answer, or as it is in a rehearsal."""

    dry_run: bool
    approval: Approval


@router.get(f"{PREFIX}/approvals", dependencies=[READ], response_model=Page[Approval])
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
def get_approval(acting: AtDesk, approval_id: ApprovalId) -> Approval:
    """One of them."""
    return _document(approvals.find(acting.app.store, approval_id))


@router.post(f"{TOPIC_PATH}/approvals/{{approval_id}}/answer", dependencies=[OPERATE])
def answer_approval(
    change: Changing, topic: Topic, approval_id: ApprovalId, answer: Answer
) -> AnsweredApproval:
    """Let the act go, or refuse it. What was approved goes with the next pass, if that still wants it within the hour."""

    def answered(store: Store) -> AnsweredApproval:
        _demand_of_topic(approvals.find(store, approval_id), topic)
        row = approvals.answer(
            store,
            approval_id,
            approve=answer.approve,
            actor=change.actor,
            reason=answer.reason,
            dry_run=change.dry_run,
        )
        return AnsweredApproval(dry_run=change.dry_run, approval=_document(row))

    return change.once(AnsweredApproval, answered)


def _demand_of_topic(found: ApprovalRow, topic: str) -> None:
    """Rights are those on the topic in the path, so no other topic's act is answered there."""
    if found.topic != topic:
        raise NotFound(
            f"approval {found.approval_id} is not of topic {topic}; `{PREFIX}/approvals` says which topic's"
        )


def _document(row: ApprovalRow) -> Approval:
    return Approval.model_validate(asdict(row))
