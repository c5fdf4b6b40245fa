"""`/admin/v2/namespaces/…/scalableTopicAutoScalePolicy`: the policy parameters that a namespace overrides."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from fastapi.responses import Response

from controller.web.http_caller import HttpCaller
from controller.web.pulsar import overrides
from controller.web.pulsar.documents import AutoScalePolicy
from controller.web.pulsar.switch import SWITCHED_ON
from controller.web.refusals import REFUSALS
from controller.web.route_rights import OPERATE, READ, DemandingRoute
from controller.web.shared_parameters import Namespace

_PATH = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
router = APIRouter(
    route_class=DemandingRoute, dependencies=[SWITCHED_ON], responses=REFUSALS, tags=["Pulsar: policies"]
)


@router.get(_PATH, dependencies=[READ], **overrides.ANSWERED)
def get_namespace_policy(acting: HttpCaller, namespace: Namespace) -> Response | AutoScalePolicy:
    """The policy parameters that the namespace overrides; 204 if there are none."""
    return overrides.get_override(acting, namespace)


@router.post(_PATH, dependencies=[OPERATE], status_code=204)
def set_namespace_policy(
    acting: HttpCaller, namespace: Namespace, policy: Annotated[AutoScalePolicy, Body()]
) -> None:
    """Replace the overrides of Pulsar's fields. Overrides that only Cleave has are kept."""
    overrides.set_override(acting, namespace, policy)


@router.delete(_PATH, dependencies=[OPERATE], status_code=204)
def remove_namespace_policy(acting: HttpCaller, namespace: Namespace) -> None:
    """Remove all overrides."""
    overrides.remove_override(acting, namespace)
