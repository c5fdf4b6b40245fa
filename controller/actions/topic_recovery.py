"""Action on a topic: recover its layout from its logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, TopicName
from controller.actions.responses import Response, Row
from controller.actions.rights import Right
from controller.domain.errors import Terminal
from controller.services import reconciler


class RecoverTopic(ActionRequest):
    """Compare a topic's logs with the database, and rebuild the layout from the logs if the logs are ahead."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"data_plane": "pulsar"}]})

    topic: TopicName
    data_plane: str | None = Field(
        None,
        description="Data plane with the logs of a topic that is not in the database.",
        examples=["pulsar"],
    )


class RecoveryFinding(BaseModel):
    """A difference between the logs of a topic and the database."""

    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description="A kind of docs/runbook/CleaveTopicHeld.md.", examples=["logs-ahead"])
    backing_topic: str = Field(description="Empty for a finding about the whole topic.")
    segment_id: int | None
    subscription: str | None
    operation_id: int | None = Field(description="Operation that repairs the difference.")
    error: str | None = Field(
        description="Reason why the difference was not repaired; null if it was repaired."
    )
    reason: str | None = Field(description="Evidence for the finding.")


class RecoveryResponse(Response):
    """A topic after its recovery, or as a dry run saw it."""

    replaces_log: ClassVar[bool] = True

    topic: str = Field(examples=["topic://acme/shop/orders"])
    epoch: int = Field(description="-1 for a topic that is not in the database.", examples=[12])
    held_reason: str | None = Field(
        description="Reason why the topic is held, so that nothing acts on it; null if it is not held."
    )
    findings: list[RecoveryFinding]

    def sentence(self) -> str:
        """Return a sentence with the epoch of the topic and the number of findings."""
        epoch = "not in the database" if self.epoch < 0 else f"epoch {self.epoch}"
        return f"{self.topic}: {epoch}, {len(self.findings)} finding(s)"

    def rows(self) -> Sequence[Row]:
        """Return one row for each finding. A reason that equals the error is left out."""
        columns = ("kind", "segment_id", "subscription", "backing_topic", "reason", "error")
        rows = [{name: getattr(finding, name) for name in columns} for finding in self.findings]
        return [row | ({"reason": None} if row["reason"] == row["error"] else {}) for row in rows]

    def demand_done(self, wait_seconds: float) -> None:  # noqa: ARG002 - callers do not wait for a recovery
        """Raise Terminal, with the first reason, for a topic that is held or that the recovery could not repair.
        Does nothing in a dry run.
        """
        errors = [finding.error for finding in self.findings if finding.error is not None]
        reason = next(iter(errors), self.held_reason)
        if reason is not None and not self.dry_run:
            raise Terminal(f"nothing acts on {self.topic}: {reason}; see docs/runbook/CleaveTopicHeld.md")


def recover(context: Context, request: RecoverTopic) -> RecoveryResponse:
    """Compare the topic's logs with the database, repair the differences, and return them; a difference that was
    not repaired has an `error`. If the logs are ahead, the layout is rebuilt from them, or the topic is held. The topic
    counts as unverified until the comparison has succeeded. A dry run changes nothing.

    A topic that is not in the database is added if the data plane `data_plane` has logs of it; otherwise TopicNotFound is
    raised. Also raises Unsupported if the data plane is not configured here or keeps layouts, DataPlaneUnavailable if a
    log does not answer, and TopicHeld, SegmentBusy or LostRace if the repair of a terminated log cannot be intended.
    """
    recovery = reconciler.recover(
        context.store,
        context.app.planes,
        request.topic,
        actor=context.caller.actor,
        data_plane=request.data_plane,
        dry_run=context.dry_run,
    )
    return RecoveryResponse(
        dry_run=context.dry_run,
        topic=recovery.topic,
        epoch=recovery.epoch,
        held_reason=recovery.held_reason,
        findings=[RecoveryFinding.model_validate(finding) for finding in recovery.findings],
    )


ACTIONS = (
    Action(
        "topics recover", "/topics/{topic}/recover", Right.ADMINISTER, RecoverTopic, RecoveryResponse, recover
    ),
)
