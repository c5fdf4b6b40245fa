"""The audit: who asked for what, from where, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.demands import ADMINISTER, DemandingRoute
from controller.entrypoints.web.paths import PREFIX
from controller.entrypoints.web.refusals import REFUSALS

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["audit"])
_LIST = Listing(
    """
    SELECT * FROM inspect.audit
     WHERE (CAST(:subject AS text) IS NULL OR subject = :subject)
       AND (CAST(:after_audit_id AS bigint) IS NULL OR audit_id < :after_audit_id)
     ORDER BY audit_id DESC LIMIT :limit
    """,
    {"audit_id": int},
)


class Audited(BaseModel):
    """One request that changed something, was to change something, or was denied; as `inspect.audit`."""

    audit_id: int = Field(examples=[42])
    asked_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    subject: str | None = Field(examples=["ada"])
    role: str | None = Field(examples=["operator"])
    address: str | None = Field(examples=["10.0.0.12"])
    act: str = Field(examples=["split_segment"])
    method: str = Field(examples=["POST"])
    path: str = Field(examples=["/api/v1/topics/acme/shop/orders/split"])
    status: int
    result: str = Field(examples=["done", "denied", "refused", "failed"])
    reason: str | None
    request_key: str | None = Field(examples=["orders-monday-1"])
    dry_run: bool = Field(description="The request was a dry run.")


@router.get(f"{PREFIX}/audit", dependencies=[ADMINISTER], response_model=Page[Audited])
def list_audit(
    acting: AtDesk,
    paging: Asked,
    subject: Annotated[str | None, Query(max_length=500, examples=["ada"])] = None,
) -> dict[str, Any]:
    """Newest first."""
    with acting.app.store.transaction() as tx:
        return _LIST.page(tx, paging, subject=subject)
