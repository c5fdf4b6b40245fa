"""Policies: what is stored at a level, what is in force for a topic and where it comes from, and who changed what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from controller.domain.policy import PolicyLevel
from controller.entrypoints.web.acting import Acting, AtDesk
from controller.entrypoints.web.asked import Namespace, Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import policy_admin
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["policy"])
CLUSTER = PolicyLevel.CLUSTER.value
_CLUSTER_PATH = f"{PREFIX}/policies/cluster"
_NAMESPACE_PATH = f"{PREFIX}/policies/namespaces/{{tenant}}/{{namespace}}"
_TOPIC_PATH = f"{PREFIX}/policies/topics/{{tenant}}/{{namespace}}/{{topic}}"


class StoredPolicy(BaseModel):
    """The knobs that a level sets; of the cluster all of them."""

    level: str = Field(examples=["namespace"])
    name: str | None = Field(examples=["acme/shop"])
    knobs: dict[str, Any] = Field(examples=[{"max_segments": 16}])


class KnobInForce(BaseModel):
    """A knob and the level that it comes from: topic, namespace, cluster or default."""

    knob: str = Field(examples=["max_segments"])
    value: Any = Field(examples=[16])
    level: str = Field(examples=["namespace"])


class PolicyInForce(BaseModel):
    """Every knob."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    knobs: list[KnobInForce]


def _stored(acting: Acting, level: str) -> StoredPolicy:
    with acting.app.store.transaction() as tx:
        knobs = policy_admin.stored(tx, level)
    return StoredPolicy(level=policy_admin.kind_of(level), name=_name(level), knobs=knobs)


def _name(level: str) -> str | None:
    return None if level == CLUSTER else level


@router.get(_CLUSTER_PATH, dependencies=[READ])
def get_cluster_policy(acting: AtDesk) -> StoredPolicy:
    """Every knob of the cluster."""
    return _stored(acting, CLUSTER)


@router.get(_NAMESPACE_PATH, dependencies=[READ])
def get_policy_of_namespace(acting: AtDesk, namespace: Namespace) -> StoredPolicy:
    """What a namespace overrides."""
    return _stored(acting, namespace)


@router.get(_TOPIC_PATH, dependencies=[READ])
def get_policy_of_topic(acting: AtDesk, topic: Topic) -> StoredPolicy:
    """What a topic overrides."""
    return _stored(acting, topic)


@router.get(TOPIC_PATH + "/policy", dependencies=[READ], response_model=PolicyInForce)
def get_policy_in_force(acting: AtDesk, topic: Topic) -> dict[str, Any]:
    """Every knob in force for a topic, and the level it comes from."""
    with acting.app.store.transaction() as tx:
        return {"topic": topic, "knobs": inspected.effective_policy(tx, inspected.find_topic(tx, topic))}
