"""Proposals of the balancer: approve, refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, Reason, split_words
from controller.actions.responses import Response, Row
from controller.actions.rights import Right

ProposalId = Annotated[int, Field(ge=0, lt=2**63)]


class ApproveProposals(ActionRequest):
    """Approve proposals, or refuse them; all or none. The next `apply` carries out what is approved."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"proposals": [7]}, {"proposals": [7, 8], "refuse": "not before the sale"}]
        }
    )

    proposals: Annotated[
        tuple[ProposalId, ...],
        Field(min_length=1, max_length=1000, description="Ids of the proposals."),
        FailFast(),
        BeforeValidator(split_words),
    ]
    refuse: Reason | None = Field(None, description="Reason to refuse the proposals. None: approve them.")


class AnsweredProposal(BaseModel):
    """A proposal after a person's answer; in a dry run as it would be."""

    proposal_id: int = Field(examples=[7])
    kind: str = Field(examples=["unload"])
    bundle: str = Field(examples=["acme/shop/0x00000000_0x40000000"])
    state: str = Field(examples=["approved"])


class AnsweredProposals(Response):
    """The proposals of the request, in the order of the request."""

    proposals: list[AnsweredProposal]

    def sentence(self) -> str:
        """See `Response`."""
        verb = "would be" if self.dry_run else "is"
        return "; ".join(
            f"proposal {row.proposal_id} ({row.kind} of {row.bundle}) {verb} {row.state}"
            for row in self.proposals
        )

    def rows(self) -> Sequence[Row]:
        """See `Response`."""
        return [row.model_dump() for row in self.proposals]


def approve(context: Context, request: ApproveProposals) -> AnsweredProposals:
    """Raises as `balancer.approve`."""
    from controller.bundles.services import balancer  # it loads what reads reports

    rows = balancer.approve(
        context.store, request.proposals, refuse=request.refuse, actor=context.caller.actor
    )
    return AnsweredProposals(
        dry_run=context.dry_run,
        proposals=[
            AnsweredProposal(
                proposal_id=row.proposal_id,
                kind=row.kind.value,
                bundle=str(row.bundle),
                state=row.state.value,
            )
            for row in rows
        ],
    )


ACTIONS = (
    Action(
        "bundles approve",
        "/bundles/proposals/answer",
        Right.ADMINISTER,
        ApproveProposals,
        AnsweredProposals,
        approve,
    ),
)
