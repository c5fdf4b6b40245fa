"""Operations of the journal: what is under way, what is stuck, what was done, and step by step how."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from controller.domain.errors import OperationNotFound
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.changes import MadeSegment
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import OfTopic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX
from controller.entrypoints.web.refusals import REFUSALS
from controller.store.postgres import inspection
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["operations"])
_OPERATIONS = """
    SELECT o.operation_id, o.topic, o.topic_id, o.kind, o.state, o.live, o.origin, o.actor, o.reason, o.decision_id, o.parents,
           o.children, o.epoch, o.attempts, o.last_error, o.claimed_by, o.claim_term, o.claim_expires_at, o.not_before, o.intended_at,
           o.fenced_at, o.committed_at, o.finished_at, o.deadline, o.age_seconds, o.fenced_seconds, o.request_key, o.parameters,
           s.stuck_because
      FROM inspect.operations o LEFT JOIN inspect.stuck_operations s USING (operation_id)
"""
_LIST = Listing(
    f"""
    {_OPERATIONS}
     WHERE (CAST(:topic AS text) IS NULL OR o.topic = :topic) AND (o.live OR NOT :only_live)
       AND (s.operation_id IS NOT NULL OR NOT :only_stuck)
       AND (CAST(:after_operation_id AS bigint) IS NULL OR o.operation_id < :after_operation_id)
     ORDER BY o.operation_id DESC LIMIT :limit
    """,
    {"operation_id": int},
)
_ONE = f"{_OPERATIONS} WHERE o.operation_id = :operation_id"
_STEPS = """
    SELECT sequence, step, runner, claim_term, started_at, finished_at, seconds, detail FROM inspect.operation_steps
     WHERE operation_id = :operation_id ORDER BY sequence
"""


class OperationRow(BaseModel):
    """An operation; as `inspect.operations`, with why it is stuck if it is."""

    operation_id: int = Field(examples=[42])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    kind: str = Field(examples=["split"])
    state: str = Field(examples=["done"])
    live: bool
    origin: str = Field(examples=["auto"])
    actor: str = Field(examples=["airflow cleave_split_pass scheduled__1"])
    reason: str = Field(examples=["msgRateIn"])
    decision_id: int | None
    parents: list[int] = Field(examples=[[0]])
    creates: list[MadeSegment]
    epoch: int | None = Field(examples=[8])
    attempts: int
    last_error: str | None
    claimed_by: str | None
    claim_term: int
    claim_expires_at: datetime | None
    not_before: datetime
    intended_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    fenced_at: datetime | None
    committed_at: datetime | None
    finished_at: datetime | None
    deadline: datetime
    age_seconds: float = Field(examples=[12.5])
    fenced_seconds: float | None = Field(description="From the close of its parents to its commit.")
    request_key: str
    parameters: dict[str, Any] = Field(examples=[{"subscription": "billing"}])
    stuck_because: str | None


class StepDone(BaseModel):
    """What a runner did for an operation."""

    sequence: int
    step: str = Field(examples=["create-children"])
    runner: str
    claim_term: int
    started_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    finished_at: datetime | None
    seconds: float | None = Field(examples=[0.2])
    detail: dict[str, Any] | None


class WholeOperation(OperationRow):
    """With its steps, of which there are few."""

    steps: list[StepDone]


def _operation(row: dict[str, Any]) -> dict[str, Any]:
    pairs = [child.split(":") for child in row["children"]]
    creates = [{"segment_id": int(number), "hash_range": hash_range} for number, hash_range in pairs]
    return {**row, "creates": creates}


@router.get(f"{PREFIX}/operations", dependencies=[READ], response_model=Page[OperationRow])
def list_operations(
    acting: AtDesk,
    paging: Asked,
    topic: OfTopic = None,
    live: Annotated[bool, Query(description="Only those under way.")] = False,
    stuck: Annotated[bool, Query(description="Only those that make no progress.")] = False,
) -> dict[str, Any]:
    """Operations, newest first."""
    with acting.app.store.transaction() as tx:
        name = None if topic is None else inspected.demand_known(tx, topic)
        return _LIST.page(tx, paging, each=_operation, topic=name, only_live=live, only_stuck=stuck)


@router.get(f"{PREFIX}/operations/{{operation_id}}", dependencies=[READ], response_model=WholeOperation)
def show_operation(
    acting: AtDesk, operation_id: Annotated[int, Path(ge=0, lt=2**63, examples=[42])]
) -> dict[str, Any]:
    """One operation, step by step."""
    with acting.app.store.transaction() as tx:
        found = inspection.rows(tx, _ONE, operation_id=operation_id)
        steps = inspection.rows(tx, _STEPS, operation_id=operation_id)
    if not found:
        raise OperationNotFound(
            f"operation {operation_id} is not in the journal; list the topic's operations"
        )
    return {**_operation(found[0]), "steps": steps}
