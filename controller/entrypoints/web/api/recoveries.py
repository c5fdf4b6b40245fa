"""Recovery of a topic whose logs are ahead of the database."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field

from controller.entrypoints.output import recovery_document
from controller.entrypoints.web.api.changes import Changing
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import ADMINISTER, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import reconciler
from controller.store.postgres.engine import Store

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["topics"])


class Recover(BaseModel):
    """Location of the logs of a topic."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"data_plane": "pulsar"}]})

    data_plane: str | None = Field(
        None,
        description="Data plane with the logs of a topic that the database does not have.",
        examples=["pulsar"],
    )


class RecoveryFinding(BaseModel):
    """A difference between the logs of a topic and the database."""

    kind: str = Field(description="A kind of docs/runbook/CleaveTopicHeld.md.", examples=["logs-ahead"])
    backing_topic: str = Field(description="Empty for a finding about the whole topic.")
    segment_id: int | None
    subscription: str | None
    operation_id: int | None = Field(description="Operation that repairs the difference.")
    error: str | None = Field(description="Why the difference was not repaired; null if it was.")
    reason: str | None = Field(description="Evidence for the finding.")


class Recovered(BaseModel):
    """A topic after its recovery, or as a dry run found the topic."""

    dry_run: bool
    topic: str = Field(examples=["topic://acme/shop/orders"])
    epoch: int = Field(description="-1 for a topic that the database does not have.", examples=[12])
    held_reason: str | None = Field(description="Why nothing acts on the topic; null if it is not held.")
    findings: list[RecoveryFinding]


@router.post(TOPIC_PATH + "/recover", dependencies=[ADMINISTER])
def recover_topic(
    change: Changing, topic: Topic, body: Annotated[Recover | None, Body()] = None
) -> Recovered:
    """Compare a topic's logs with the database, and rebuild the layout from the logs where the logs are ahead."""
    data_plane = (body or Recover()).data_plane

    def recover(store: Store) -> Recovered:
        recovery = reconciler.recover(
            store,
            change.app.planes,
            topic,
            actor=change.actor,
            data_plane=data_plane,
            dry_run=change.dry_run,
        )
        return Recovered.model_validate({"dry_run": change.dry_run, **recovery_document(recovery)})

    return change.once(Recovered, recover)
