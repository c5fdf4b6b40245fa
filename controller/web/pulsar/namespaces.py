"""`/admin/v2/namespaces/…/scalableTopicAutoScalePolicy`: what a namespace overrides of the policy."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from fastapi.responses import Response

from controller.web.acting import AtDesk
from controller.web.asked import Namespace
from controller.web.demands import OPERATE, READ, DemandingRoute
from controller.web.pulsar import overrides
from controller.web.pulsar.documents import AutoScalePolicy
from controller.web.pulsar.switch import SWITCHED_ON
from controller.web.refusals import REFUSALS

_PATH = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
router = APIRouter(
    route_class=DemandingRoute, dependencies=[SWITCHED_ON], responses=REFUSALS, tags=["Pulsar: policies"]
)


@router.get(_PATH, dependencies=[READ], **overrides.ANSWERED)
def get_namespace_policy(acting: AtDesk, namespace: Namespace) -> Response | AutoScalePolicy:
    """What the namespace overrides; 204 for nothing."""
    return overrides.get_override(acting, namespace)


@router.post(_PATH, dependencies=[OPERATE], status_code=204)
def set_namespace_policy(
    acting: AtDesk, namespace: Namespace, policy: Annotated[AutoScalePolicy, Body()]
) -> None:
    """Replace what the namespace overrides of Pulsar's fields; parameters that only Cleave has stay."""
    overrides.set_override(acting, namespace, policy)


@router.delete(_PATH, dependencies=[OPERATE], status_code=204)
def remove_namespace_policy(acting: AtDesk, namespace: Namespace) -> None:
    """Override nothing any more."""
    overrides.remove_override(acting, namespace)
