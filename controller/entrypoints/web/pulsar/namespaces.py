"""`/admin/v2/namespaces/…/scalableTopicAutoScalePolicy`: what a namespace overrides of the policy."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends
from fastapi.responses import Response

from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.demands import OPERATE, READ
from controller.entrypoints.web.paths import NamespaceName, Tenant
from controller.entrypoints.web.pulsar.documents import AutoScalePolicy, knobs_of, policy_of
from controller.entrypoints.web.pulsar.switch import SWITCHED_ON
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import policy_admin

_PATH = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
router = APIRouter(dependencies=[SWITCHED_ON], responses=REFUSALS, tags=["Pulsar: policies"])
NOTHING: dict[int | str, dict[str, Any]] = {204: {"description": "Nothing is overridden here."}}


async def _namespace(tenant: Tenant, namespace: NamespaceName) -> str:
    return f"{tenant}/{namespace}"


Namespace = Annotated[str, Depends(_namespace)]


@router.get(
    _PATH,
    dependencies=[READ],
    response_model=AutoScalePolicy,
    response_model_exclude_none=True,
    responses=NOTHING,
)
def get_namespace_policy(acting: AtDesk, namespace: Namespace) -> Response | AutoScalePolicy:
    """What the namespace overrides; 204 for nothing."""
    with acting.app.store.transaction() as tx:
        return policy_of(policy_admin.stored(tx, namespace)) or Response(status_code=204)


@router.post(_PATH, dependencies=[OPERATE], status_code=204)
def set_namespace_policy(
    acting: AtDesk, namespace: Namespace, policy: Annotated[AutoScalePolicy, Body()]
) -> None:
    """Replace what the namespace overrides of Pulsar's fields; knobs that only Cleave has stay."""
    policy_admin.change(
        acting.app.store, namespace, lambda before: knobs_of(policy, before), actor=acting.grant.subject
    )


@router.delete(_PATH, dependencies=[OPERATE], status_code=204)
def remove_namespace_policy(acting: AtDesk, namespace: Namespace) -> None:
    """Override nothing any more."""
    policy_admin.change(acting.app.store, namespace, lambda _before: {}, actor=acting.grant.subject)
