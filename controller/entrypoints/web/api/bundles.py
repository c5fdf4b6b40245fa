"""Namespace bundles of the Pulsar cluster: what each carries and who owns it, its brokers, and what the balancer proposes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from controller.bundles.store import views
from controller.bundles.store.proposals import ProposalState
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX
from controller.entrypoints.web.refusals import REFUSALS

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["bundles"])
_BUNDLES = Listing(
    """
    SELECT namespace, bundle, broker, mode, topic_count, producer_count, consumer_count, msg_rate_in, byte_rate_in, msg_rate_out,
           byte_rate_out, msg_rate_in + msg_rate_out AS msg_rate, byte_rate_in + byte_rate_out AS byte_rate, share_of_namespace,
           can_split, modified_at, observed_at, lower_bound, upper_bound
      FROM inspect.bundles_now
     WHERE cluster = :cluster AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
       AND (CAST(:after_namespace AS text) IS NULL OR (namespace, lower_bound) > (:after_namespace, :after_lower_bound))
     ORDER BY namespace, lower_bound LIMIT :limit
    """,
    {"namespace": str, "lower_bound": int},
)
_BROKERS = Listing(
    """
    SELECT broker, usage, above_mean, busiest_signal, bundle_count, topic_count, msg_rate_in, byte_rate_in, msg_rate_out,
           byte_rate_out, msg_rate_in + msg_rate_out AS msg_rate, byte_rate_in + byte_rate_out AS byte_rate, silent_seconds,
           report, version
      FROM inspect.bundles_brokers
     WHERE cluster = :cluster AND (CAST(:after_broker AS text) IS NULL OR broker > :after_broker) ORDER BY broker LIMIT :limit
    """,
    {"broker": str},
)
_PROPOSALS = Listing(
    """
    SELECT proposal_id, cycle_id, decided_at, namespace, bundle, kind, state, broker, destination, cut_points, reason, outcome,
           actor, mode, attempts, changed_at, extract(epoch FROM clock_timestamp() - decided_at) AS age_seconds
      FROM inspect.bundles_proposals
     WHERE cluster = :cluster AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
       AND (CAST(:cycle_id AS bigint) IS NULL OR cycle_id = :cycle_id)
       AND (cardinality(CAST(:states AS text[])) = 0 OR state = ANY (:states))
       AND (CAST(:after_proposal_id AS bigint) IS NULL OR proposal_id < :after_proposal_id)
     ORDER BY proposal_id DESC LIMIT :limit
    """,
    {"proposal_id": int},
)


class Bundle(BaseModel):
    """A bundle with its owner and load, null where not reported; as `inspect.bundles_now`."""

    namespace: str = Field(examples=["acme/shop"])
    bundle: str = Field(examples=["0x00000000_0x40000000"])
    broker: str | None = Field(examples=["pulsar-0:8080"])
    mode: str = Field(examples=["approval"])
    topic_count: int | None
    producer_count: int | None
    consumer_count: int | None
    msg_rate_in: float | None = Field(examples=[9000.0])
    byte_rate_in: float | None
    msg_rate_out: float | None
    byte_rate_out: float | None
    msg_rate: float | None = Field(description="In and out, as `byte_rate`.")
    byte_rate: float | None
    share_of_namespace: float | None = Field(examples=[0.25])
    can_split: bool
    modified_at: datetime | None = Field(examples=["2026-11-21T03:00:00Z"])
    observed_at: datetime | None
    lower_bound: int
    upper_bound: int = Field(examples=[1073741824])


class BundleCount(BaseModel):
    """How many bundles are known of a cluster, or of one of its namespaces."""

    cluster: str = Field(examples=["standalone"])
    bundles: int = Field(examples=[16])


class Broker(BaseModel):
    """A broker and what it carried when it was last read; as `inspect.bundles_brokers`."""

    broker: str = Field(examples=["pulsar-0:8080"])
    usage: float | None = Field(examples=[0.62])
    above_mean: float | None
    busiest_signal: str | None = Field(examples=["cpu"])
    bundle_count: int
    topic_count: int
    msg_rate_in: float
    byte_rate_in: float
    msg_rate_out: float
    byte_rate_out: float
    msg_rate: float = Field(description="In and out, as `byte_rate`.")
    byte_rate: float
    silent_seconds: float = Field(examples=[4.0])
    report: str | None
    version: str | None


class Proposal(BaseModel):
    """What the balancer proposed, why, and how far it has come; as `inspect.bundles_proposals`."""

    proposal_id: int = Field(examples=[7])
    cycle_id: int = Field(examples=[42])
    decided_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    namespace: str = Field(examples=["acme/shop"])
    bundle: str = Field(examples=["0x00000000_0x40000000"])
    kind: str = Field(examples=["split"])
    state: str = Field(examples=["proposed"])
    broker: str | None = Field(examples=["pulsar-0:8080"])
    destination: str | None = Field(examples=["pulsar-1:8080"])
    cut_points: list[str] = Field(examples=[["0x20000000"]])
    reason: str = Field(examples=["topics 1200 is above 1000"])
    outcome: str | None
    actor: str | None
    mode: str | None
    attempts: int
    changed_at: datetime
    age_seconds: float = Field(description="Since it was decided.")


async def _cluster(
    acting: AtDesk,
    cluster: Annotated[
        str | None,
        Query(max_length=500, description="CLEAVE_PULSAR_CLUSTER where left out.", examples=["standalone"]),
    ] = None,
) -> str:
    return cluster or acting.app.settings.pulsar_cluster


Cluster = Annotated[str, Depends(_cluster)]
InNamespace = Annotated[str | None, Query(max_length=1000, examples=["acme/shop"])]


@router.get(f"{PREFIX}/bundles", dependencies=[READ], response_model=Page[Bundle])
def list_bundles(
    acting: AtDesk, paging: Asked, cluster: Cluster, namespace: InNamespace = None
) -> dict[str, Any]:
    """Bundles by namespace, in the order of the ring."""
    with acting.app.store.transaction() as tx:
        return _BUNDLES.page(tx, paging, cluster=cluster, namespace=namespace)


@router.get(f"{PREFIX}/bundles/count", dependencies=[READ])
def count_bundles(acting: AtDesk, cluster: Cluster, namespace: InNamespace = None) -> BundleCount:
    """Of which cluster bundles are shown, and how many there are."""
    with acting.app.store.transaction() as tx:
        return BundleCount(cluster=cluster, bundles=views.count_bundles(tx, cluster, namespace))


@router.get(f"{PREFIX}/bundles/brokers", dependencies=[READ], response_model=Page[Broker])
def list_brokers(acting: AtDesk, paging: Asked, cluster: Cluster) -> dict[str, Any]:
    """Brokers by name."""
    with acting.app.store.transaction() as tx:
        return _BROKERS.page(tx, paging, cluster=cluster)


@router.get(f"{PREFIX}/bundles/proposals", dependencies=[READ], response_model=Page[Proposal])
def list_proposals(
    acting: AtDesk,
    paging: Asked,
    cluster: Cluster,
    namespace: InNamespace = None,
    state: Annotated[
        list[ProposalState] | None, Query(max_length=20, description="Only these; all without.")
    ] = None,
    cycle_id: Annotated[int | None, Query(ge=0, lt=2**63, examples=[42])] = None,
) -> dict[str, Any]:
    """What the balancer proposed, newest first."""
    with acting.app.store.transaction() as tx:
        states = [one.value for one in state or ()]
        return _PROPOSALS.page(
            tx, paging, cluster=cluster, namespace=namespace, states=states, cycle_id=cycle_id
        )
