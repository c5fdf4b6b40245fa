"""Answers to approvals of any subject. A client of the REST API answers below the level of the subject."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, FailFast, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import REASON, ActionRequest, PolicyLevel, Reason, split_words
from controller.actions.responses import Response, WithExample
from controller.actions.rights import Right
from controller.domain.approval_states import covers
from controller.domain.errors import NotFound
from controller.domain.whole_numbers import MOST
from controller.services import approval_answers
from controller.store.approvals import ApprovalRow


class AnswerRequest(ActionRequest):
    """A request to give several approvals the same answer, all or none of them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"approvals": [17], "reason": "the sale is over"}]}
    )

    approvals: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST)], ...],
        Field(
            min_length=1,
            max_length=1000,
            description="Ids of the approvals, from `cleave approvals list`.",
            examples=[[17]],
        ),
        FailFast(),
        BeforeValidator(split_words),
    ]
    level: PolicyLevel | None = Field(
        None,
        description="Level of the approvals: a topic, tenant/namespace for all its topics, or cluster for all levels. An approval of another level is not "
        "answered. Default: any topic; over HTTP the level of the first approval.",
        examples=["acme/shop"],
    )
    reason: Reason | None = REASON


class Approve(AnswerRequest):
    """Approve what awaits an answer. A pass begins an approved operation if the pass decides on it again
    within the hour.
    """


class Reject(AnswerRequest):
    """Reject what awaits an answer. An operation is not proposed again for the policy's
    `approval_hold_seconds`.
    """


_EXAMPLE = {
    "approval_id": 17,
    "subject": "operation",
    "subject_id": 4711,
    "level": "topic://acme/shop/orders",
    "topic": "topic://acme/shop/orders",
    "topic_id": 5,
    "state": "done",
    "action": "split segment 3 into 2",
    "reason": "msgRateIn",
    "proposed_at": "2026-11-26T08:00:00Z",
    "proposed_by": "split-pass",
    "expires_at": "2026-11-26T09:00:00Z",
    "default_answer": "reject",
    "answered_at": "2026-11-26T08:05:00Z",
    "answered_by": "ada",
    "outcome": "the sale begins tomorrow",
    "ended_at": "2026-11-26T08:06:00Z",
    "asked_in": "cleave_approvals/scheduled__2026-11-26T08:00:00",
    "has_subject": True,
    "is_answerable": False,
    "kind": "split",
    "segment_ids": [3],
    "parts": 2,
    "segments": 2,
    "decision_id": 4711,
    "epoch": 12,
    "operation_id": 9,
}


class AnsweredApprovals(Response):
    """The approvals after the answer, ordered by id; in a dry run, as they would be."""

    approvals: list[Annotated[ApprovalRow, WithExample(_EXAMPLE)]]

    def sentence(self) -> str:
        """Return the level, action, state and id of each approval."""
        verb = "would be" if self.dry_run else "is"
        return "; ".join(
            f"{row.level}: to {row.action} {verb} {row.state} (approval {row.approval_id})"
            for row in self.approvals
        )


def _answer(context: Context, request: AnswerRequest, *, approve: bool) -> AnsweredApprovals:
    """Approve or reject all of the approvals, or none of them. Return them after the answer, each once, by id. Approvals
    that have this answer already are returned unchanged; an approval that is done counts as approved.

    Raises NotFound for an approval that does not exist or that the requested level does not cover (`covers`);
    Conflict if an approval has another answer or has expired, or if its subject is gone; and the errors of carrying out
    the answer (an approved operation is not carried out here, but begins when the next evaluation still decides on it).
    """
    for approval_id in request.approvals:
        row = approval_answers.find(context.store, approval_id)
        if not covers(request.level, row.level):
            raise NotFound(
                f"approval {approval_id} is of {row.level}, not of {request.level or 'a topic'}; answer it with that level"
            )
    rows = approval_answers.answer(
        context.store,
        request.approvals,
        approve=approve,
        actor=context.caller.actor,
        reason=context.reason_of(request.reason),
    )
    return AnsweredApprovals(approvals=rows, dry_run=context.dry_run)


ACTIONS = tuple(
    Action(
        f"approvals {verb}",
        f"/approvals/{{level}}/{verb}",
        Right.OPERATE,
        request,
        AnsweredApprovals,
        partial(_answer, approve=request is Approve),
        cluster_right=Right.ADMINISTER,
        lookup="/approvals/{approvals[0]}",
    )
    for verb, request in (("approve", Approve), ("reject", Reject))
)
