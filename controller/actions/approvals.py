"""Approvals: a person's answer to what waits, whatever it is about. A client of the REST API answers below the level of the subject."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, FailFast, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import REASON, ActionRequest, PolicyLevel, Reason, split_words
from controller.actions.responses import Response
from controller.actions.rights import Right
from controller.domain.errors import NotFound
from controller.domain.names import CLUSTER
from controller.domain.whole_numbers import MOST
from controller.services import approvals
from controller.store.approvals import ApprovalRow


class AnswerRequest(ActionRequest):
    """A request to answer approvals alike, all or none of them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"approvals": [17], "reason": "the sale is over"}]}
    )

    approvals: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST)], ...],
        Field(
            min_length=1,
            max_length=1000,
            description="Ids, as `cleave approvals list` shows them.",
            examples=[[17]],
        ),
        FailFast(),
        BeforeValidator(split_words),
    ]
    level: PolicyLevel | None = Field(
        None,
        description="A topic, or tenant/namespace for all its topics, or cluster for all levels; an approval of another level is not "
        "answered. Default: any topic; over HTTP the level of the first approval.",
        examples=["acme/shop"],
    )
    reason: Reason | None = REASON


class Approve(AnswerRequest):
    """Approve what waits. A pass begins an approved operation, if the pass still wants it within the hour."""


class Reject(AnswerRequest):
    """Reject what waits. An operation is not proposed again for the policy's `approval_hold_seconds`."""


class AnsweredApprovals(Response):
    """The approvals after the answer, by id; in a dry run as they would be."""

    approvals: list[ApprovalRow]

    def sentence(self) -> str:
        """See `Response`."""
        verb = "would be" if self.dry_run else "is"
        return "; ".join(
            f"{row.level}: to {row.action} {verb} {row.state} (approval {row.approval_id})"
            for row in self.approvals
        )


def _answer(context: Context, request: AnswerRequest, *, approve: bool) -> AnsweredApprovals:
    """Raises NotFound for an approval of another level: rights are those on the level. Else as `approvals.answer`."""
    for approval_id in request.approvals:
        row = approvals.find(context.store, approval_id)
        if not _is_of(row.level, request.level):
            raise NotFound(
                f"approval {approval_id} is of {row.level}, not of {request.level or 'a topic'}; answer it with that level"
            )
    rows = approvals.answer(
        context.store,
        request.approvals,
        approve=approve,
        actor=context.caller.actor,
        reason=context.journal_request(request.reason).reason,
    )
    return AnsweredApprovals(approvals=rows, dry_run=context.dry_run)


def _is_of(level: str, asked: str | None) -> bool:
    if asked is None:
        return level != CLUSTER
    return asked in (CLUSTER, level) or level.startswith(f"topic://{asked}/")


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
