"""Approvals: a person's answer to an act that waits. A client of the REST API answers below the topic of the act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import REASON, ActionRequest, Reason, TopicName
from controller.actions.responses import Response, Row
from controller.actions.rights import Right
from controller.domain.approvals import ApprovalState
from controller.domain.errors import NotFound
from controller.domain.whole_numbers import MOST
from controller.services import approvals
from controller.store.decisions.approvals import ApprovalRow

_LOOKUP = "/approvals/{approval_id}"
_PATH = "/topics/{topic}/approvals/{approval_id}"


class AnswerRequest(ActionRequest):
    """A request to answer one act that waits."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the sale is over"}]})

    approval_id: Annotated[
        int, Field(ge=1, le=MOST, description="As `cleave approvals list` shows it.", examples=[17])
    ]
    topic: TopicName | None = Field(
        None, description="Topic of the act; an act of another topic is not answered. Default: any topic."
    )
    reason: Reason | None = REASON


class Approve(AnswerRequest):
    """Approve an act: the next pass begins it, if the pass still wants it within the hour."""


class Reject(AnswerRequest):
    """Reject an act, which is not proposed again for the policy's `approval_hold_seconds`."""


class ApprovalDocument(BaseModel):
    """An act that waits for a person, or waited; as `inspect.approvals`."""

    approval_id: int = Field(examples=[17])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    state: ApprovalState
    kind: str = Field(examples=["merge"])
    act: str = Field(examples=["merge segments 3, 4 into 1"])
    segment_ids: list[int] = Field(description="Segments that the act seals.", examples=[[3, 4]])
    parts: int = Field(description="Segments that the act makes; of a rebucket the entry buckets.")
    segments: int = Field(description="Segments that the act seals or makes, whichever are more.")
    reason: str = Field(description="Why the act was decided.", examples=["cold"])
    proposed_at: datetime
    proposed_by: str
    expires_at: datetime = Field(description="When `default_answer` holds, if no person has answered.")
    default_answer: str = Field(examples=["reject"])
    answered_at: datetime | None
    answered_by: str | None
    outcome: str | None = Field(description="Reason of the answer, or why the act ended.")
    ended_at: datetime | None
    operation_id: int | None = Field(description="Operation that carries the act out.")
    decision_id: int
    asked_in: str | None = Field(description="Run of Airflow, as dag/run, in which a person is asked.")
    has_segments: bool = Field(description="The segments that the act seals are still there.")
    is_answerable: bool = Field(description="The act waits, is in time, and has its segments.")

    @classmethod
    def of(cls, row: ApprovalRow) -> ApprovalDocument:
        """Return the document of a row."""
        return cls.model_validate(asdict(row))


class ApprovalResponse(ApprovalDocument, Response):
    """The act after the answer; in a dry run as the act would be."""

    def sentence(self) -> str:
        """See `Response`."""
        verb = "would be" if self.dry_run else "is"
        return f"{self.topic}: to {self.act} {verb} {self.state} (approval {self.approval_id})"

    def rows(self) -> Sequence[Row]:
        """Return no row: the sentence says all of it."""
        return []


def approve(context: Context, request: Approve) -> ApprovalResponse:
    """Raises as `_answer`."""
    return _answer(context, request, approve=True)


def reject(context: Context, request: Reject) -> ApprovalResponse:
    """Raises as `_answer`."""
    return _answer(context, request, approve=False)


def _answer(context: Context, request: AnswerRequest, *, approve: bool) -> ApprovalResponse:
    """Raises NotFound for an act of another topic: rights are those on the topic in the path. Else as `approvals.answer`."""
    waiting = approvals.find(context.store, request.approval_id)
    if request.topic is not None and waiting.topic != request.topic:
        raise NotFound(
            f"approval {waiting.approval_id} is not of topic {request.topic}; `cleave approvals list` says which topic's"
        )
    row = approvals.answer(
        context.store,
        request.approval_id,
        approve=approve,
        actor=context.caller.actor,
        reason=context.journal_request(request.reason).reason,
    )
    return ApprovalResponse(**asdict(row), dry_run=context.dry_run)


ACTIONS = (
    Action(
        "approvals approve",
        f"{_PATH}/approve",
        Right.OPERATE,
        Approve,
        ApprovalResponse,
        approve,
        lookup=_LOOKUP,
    ),
    Action(
        "approvals reject",
        f"{_PATH}/reject",
        Right.OPERATE,
        Reject,
        ApprovalResponse,
        reject,
        lookup=_LOOKUP,
    ),
)
