"""Balancing of bundles: active brokers, the bundle of a topic, merges, cycles, split policies.

Collecting, aggregating, deciding a cycle and carrying out what is approved are processes of the machine, and have no calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from controller.bundles.bootstrap import bundles_of
from controller.bundles.services.split_policies import stored_split_policy
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.entrypoints.bundles import desk
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.bundles import Cluster, InNamespace
from controller.entrypoints.web.api.paging import Asked, Page
from controller.entrypoints.web.asked import Namespace
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import NAMESPACE_PATH, PREFIX
from controller.entrypoints.web.refusals import REFUSALS
from controller.questions.page_keys import write_keys

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["bundles"])
_NAMESPACE = NAMESPACE_PATH + "/bundles"


class ActiveBrokers(BaseModel):
    """The cluster's brokers that are active now, by name; null where none answers."""

    brokers: list[str] | None = Field(examples=[["pulsar-0:8080"]])


class Place(BaseModel):
    """Where a topic lies; null where its namespace is not known."""

    topic: str = Field(examples=["persistent://acme/shop/orders"])
    bundle: str | None = Field(examples=["acme/shop/0x00000000_0x40000000"])


class Mergeable(BaseModel):
    """Which cold bundles of a namespace could be one, what an operator would do for it, and why the other cold ones stay."""

    namespace: str = Field(examples=["acme/shop"])
    merges: list[dict[str, Any]] = Field(
        examples=[[{"merged": "0x00000000_0x40000000", "of": 2, "byte_rate": 1200}]]
    )
    steps: list[dict[str, Any]]
    apart: list[dict[str, Any]]


class Cycle(BaseModel):
    """What a cycle of the balancer was decided on and its answer, word for word; null once they are forgotten."""

    cycle_id: int = Field(examples=[42])
    code_version: str = Field(examples=["4"])
    inputs: str | None
    outcome: str | None


class SplitPolicy(BaseModel):
    """When and how a namespace's bundles are split: every knob in force, and what the namespace sets itself."""

    namespace: str = Field(examples=["acme/shop"])
    effective: dict[str, Any] = Field(examples=[{"max_topics": 500}])
    overrides: dict[str, Any] = Field(examples=[{"max_topics": 500}])


@router.get(f"{PREFIX}/bundles/brokers/active", dependencies=[READ])
def list_active_brokers(acting: AtDesk) -> ActiveBrokers:
    """The brokers that the cluster itself lists."""
    with bundles_of(acting.app) as bundles:
        return ActiveBrokers(brokers=desk.active_brokers(bundles))


@router.get(f"{PREFIX}/bundles/of-topic", dependencies=[READ])
def find_bundle_of_topic(
    acting: AtDesk,
    cluster: Cluster,
    topic: Annotated[str, Query(min_length=1, max_length=2000, examples=["persistent://acme/shop/orders"])],
) -> Place:
    """The bundle of a topic, by the boundaries that are stored."""
    with acting.app.store.transaction() as tx:
        bundle = bundle_namespaces.find_bundle_of(tx, cluster, topic)
    return Place(topic=topic, bundle=None if bundle is None else str(bundle))


@router.get(f"{PREFIX}/bundles/merges", dependencies=[READ], response_model=Page[Mergeable])
def list_merges(
    acting: AtDesk, paging: Asked, cluster: Cluster, namespace: InNamespace = None
) -> dict[str, Any]:
    """Cold neighbours that could be one bundle, by namespace. Shown only: Pulsar cannot merge."""
    [after] = paging.after([str])
    found = desk.merges(acting.app, cluster, namespace)
    rest: Sequence[dict[str, Any]] = [one for one in found if after is None or one["namespace"] > after]
    shown = rest[: paging.limit]
    return {"items": shown, "next": write_keys([shown[-1]["namespace"]]) if len(rest) > len(shown) else None}


@router.get(f"{PREFIX}/bundles/cycles/{{cycle_id}}", dependencies=[READ])
def show_cycle(acting: AtDesk, cycle_id: Annotated[int, Path(ge=0, lt=2**63, examples=[42])]) -> Cycle:
    """What a cycle was decided on, and its answer, so that it can be decided again."""
    with acting.app.store.transaction() as tx:
        return Cycle.model_validate(asdict(bundle_cycles.stored_cycle(tx, cycle_id)))


@router.get(_NAMESPACE + "/policy", dependencies=[READ])
def get_split_policy(acting: AtDesk, namespace: Namespace) -> SplitPolicy:
    """When and how a namespace's bundles are split."""
    policy = stored_split_policy(acting.app.store, acting.app.settings.pulsar_cluster, namespace)
    return SplitPolicy.model_validate(asdict(policy))
