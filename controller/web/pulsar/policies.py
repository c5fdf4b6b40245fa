"""The policy parameters that a namespace or a topic overrides, in the form of Pulsar's admin API: get, set and remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import Response

from controller.services import policy_admin
from controller.web.http_caller import Acting, HttpCaller
from controller.web.pulsar.documents import AutoScalePolicy, parameters_of, policy_of
from controller.web.pulsar.switch import SWITCHED_ON
from controller.web.refusals import REFUSALS
from controller.web.route_rights import OPERATE, READ, DemandingRoute
from controller.web.shared_parameters import Namespace, Topic

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
_TOPIC = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy"
router = APIRouter(
    route_class=DemandingRoute, dependencies=[SWITCHED_ON], responses=REFUSALS, tags=["Pulsar: policies"]
)
_ANSWERED: dict[str, Any] = {
    "response_model": AutoScalePolicy,
    "response_model_exclude_none": True,
    "responses": {204: {"description": "No parameter is overridden at this level."}},
}
"""OpenAPI description of the answer with the overrides."""


def _get(acting: Acting, level: str) -> Response | AutoScalePolicy:
    """Return the level's overrides of Pulsar's fields; a response 204 if there are none. Raises TopicNotFound."""
    with acting.app.store.transaction() as tx:
        return policy_of(policy_admin.stored(tx, level)) or Response(status_code=204)


def _set(acting: Acting, level: str, policy: AutoScalePolicy) -> None:
    """Replace the level's overrides of Pulsar's fields. Overrides that only Cleave has are kept. Raises the errors of
    `policy_admin.change`.
    """
    policy_admin.change(
        acting.app.store, level, lambda before: parameters_of(policy, before), actor=acting.grant.subject
    )


def _remove(acting: Acting, level: str) -> None:
    """Remove all overrides of the level, also those that only Cleave has. Raises the errors of `policy_admin.change`."""
    policy_admin.change(acting.app.store, level, lambda _before: {}, actor=acting.grant.subject)


@router.get(_NAMESPACE, dependencies=[READ], **_ANSWERED)
def get_namespace_policy(acting: HttpCaller, namespace: Namespace) -> Response | AutoScalePolicy:
    """The policy parameters that the namespace overrides; 204 if there are none."""
    return _get(acting, namespace)


@router.post(_NAMESPACE, dependencies=[OPERATE], status_code=204)
def set_namespace_policy(
    acting: HttpCaller, namespace: Namespace, policy: Annotated[AutoScalePolicy, Body()]
) -> None:
    """Replace the overrides of Pulsar's fields. Overrides that only Cleave has are kept."""
    _set(acting, namespace, policy)


@router.delete(_NAMESPACE, dependencies=[OPERATE], status_code=204)
def remove_namespace_policy(acting: HttpCaller, namespace: Namespace) -> None:
    """Remove all overrides of the namespace, also those that only Cleave has."""
    _remove(acting, namespace)


@router.get(_TOPIC, dependencies=[READ], **_ANSWERED)
def get_auto_scale_policy(acting: HttpCaller, topic: Topic) -> Response | AutoScalePolicy:
    """The policy parameters that the topic overrides; 204 if there are none."""
    return _get(acting, topic)


@router.post(_TOPIC, dependencies=[OPERATE], status_code=204)
def set_auto_scale_policy(
    acting: HttpCaller, topic: Topic, policy: Annotated[AutoScalePolicy, Body()]
) -> None:
    """Replace the overrides of Pulsar's fields. Overrides that only Cleave has are kept."""
    _set(acting, topic, policy)


@router.delete(_TOPIC, dependencies=[OPERATE], status_code=204)
def remove_auto_scale_policy(acting: HttpCaller, topic: Topic) -> None:
    """Remove all overrides of the topic, also those that only Cleave has."""
    _remove(acting, topic)
