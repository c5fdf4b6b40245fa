"""Bundles by hand: proposals answered, bundles split and unloaded, how far a namespace is balanced; and what people look at for it.

Collecting, aggregating, deciding a cycle and carrying out what is approved are processes of the machine, and have no calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, ConfigDict, FailFast, Field

from controller.actions.fields import Reason
from controller.bundles.bootstrap import bundles_of
from controller.bundles.services.manual_acts import ManualSplit
from controller.bundles.services.split_policies import change_split_policy
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store.namespaces import BalancingMode
from controller.entrypoints.bundles import desk
from controller.entrypoints.bundles.rows import approval_row
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.bundles import Cluster, InNamespace
from controller.entrypoints.web.api.changes import Change, Changing
from controller.entrypoints.web.api.paging import Asked, Page, written
from controller.entrypoints.web.asked import Namespace
from controller.entrypoints.web.demands import ADMINISTER, READ, DemandingRoute
from controller.entrypoints.web.paths import NAMESPACE_PATH, PREFIX
from controller.entrypoints.web.refusals import REFUSALS
from controller.store.postgres.engine import Store

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["bundles"])
_NAMESPACE = NAMESPACE_PATH + "/bundles"
_BUNDLE = _NAMESPACE + "/{bundle}"
BundleName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=100,
        pattern=r"^[^\s/\x00]+$",
        examples=["0x00000000_0x40000000"],
        description="Its range, or LARGEST or HOT of the namespace.",
    ),
]
ProposalIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**63)]],
    Query(
        alias="proposal_id", min_length=1, max_length=1000, description="All of them or none.", examples=[[7]]
    ),
]


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


class Answered(BaseModel):
    """A proposal after a person's answer, or in a rehearsal as it would be."""

    proposal_id: int = Field(examples=[7])
    bundle: str = Field(examples=["acme/shop/0x00000000_0x40000000"])
    state: str = Field(examples=["approved"])


class Answers(BaseModel):
    """Of all that were asked for."""

    dry_run: bool
    proposals: list[Answered]


class WhyRefused(BaseModel):
    """For whoever looks at it later."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "not before the sale"}]})

    reason: Annotated[Reason, Field(examples=["not before the sale"])]


class SplitPolicy(BaseModel):
    """When and how a namespace's bundles are split: every knob in force, and what the namespace sets itself."""

    namespace: str = Field(examples=["acme/shop"])
    effective: dict[str, Any] = Field(examples=[{"max_topics": 500}])
    overrides: dict[str, Any] = Field(examples=[{"max_topics": 500}])


class ChangedSplitPolicy(SplitPolicy):
    """Or as it would be."""

    dry_run: bool


class WantedMode(BaseModel):
    """How far proposals of the namespace go without a person."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "approval"}]})

    mode: BalancingMode


class ModeNow(BaseModel):
    """Or as it would be."""

    dry_run: bool
    namespace: str = Field(examples=["acme/shop"])
    mode: BalancingMode
    row_version: int


class BundleSplit(BaseModel):
    """Where an algorithm, positions or topics say; in two even parts where nothing is said."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"parts": 2, "unload": True}, {"positions": ["0x20000000"]}]}
    )

    algorithm: Annotated[str, Field(max_length=200, examples=["topic_count_equally_divide"])] | None = None
    positions: Annotated[list[str], Field(max_length=1000, examples=[["0x20000000"]]), FailFast()] = []
    topics: Annotated[list[str], Field(max_length=1000), FailFast()] = Field(
        [], description="To isolate, or to divide by."
    )
    parts: Annotated[int, Field(ge=2, le=1000)] = Field(2, description="Of an even division.")
    unload: bool = Field(False, description="The parts at once, so that they get new owners.")


class SplitBundle(BaseModel):
    """A bundle and what it became, or would."""

    dry_run: bool
    bundle: str = Field(examples=["acme/shop/0x00000000_0x40000000"])
    parts: list[dict[str, Any]] = Field(examples=[[{"part": "0x00000000_0x20000000", "topics": 400}]])
    outcome: str | None = Field(None, description="Null in a rehearsal.", examples=["done"])


class Unload(BaseModel):
    """To which broker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"destination": "pulsar-1:8080"}]})

    destination: Annotated[str, Field(max_length=500, examples=["pulsar-1:8080"])] | None = Field(
        None, description="As brokers are listed; the brokers choose where null."
    )


class UnloadedBundle(BaseModel):
    """A bundle and who owns it."""

    dry_run: bool
    bundle: str = Field(examples=["acme/shop/0x00000000_0x40000000"])
    owner: str | None = Field(examples=["pulsar-0:8080"])
    destination: str | None = Field(examples=["pulsar-1:8080"])
    outcome: str | None = Field(None, description="Null in a rehearsal.", examples=["done"])


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
    return {"items": shown, "next": written([shown[-1]["namespace"]]) if len(rest) > len(shown) else None}


@router.get(f"{PREFIX}/bundles/cycles/{{cycle_id}}", dependencies=[READ])
def show_cycle(acting: AtDesk, cycle_id: Annotated[int, Path(ge=0, lt=2**63, examples=[42])]) -> Cycle:
    """What a cycle was decided on, and its answer, so that it can be decided again."""
    with acting.app.store.transaction() as tx:
        return Cycle.model_validate(asdict(bundle_cycles.stored_cycle(tx, cycle_id)))


@router.post(f"{PREFIX}/bundles/proposals/approve", dependencies=[ADMINISTER])
def approve_proposals(change: Changing, proposal_ids: ProposalIds) -> Answers:
    """Approve proposals. What is approved is carried out by the next application of proposals."""
    return _answer(change, proposal_ids, None)


@router.post(f"{PREFIX}/bundles/proposals/refuse", dependencies=[ADMINISTER])
def refuse_proposals(
    change: Changing, proposal_ids: ProposalIds, said: Annotated[WhyRefused, Body()]
) -> Answers:
    """Refuse proposals before they are applied."""
    return _answer(change, proposal_ids, said.reason)


def _answer(change: Change, proposal_ids: Sequence[int], refuse: str | None) -> Answers:
    from controller.bundles.services import balancer

    def answered(store: Store) -> Answers:
        found = balancer.approve(store, proposal_ids, refuse=refuse, actor=change.actor)
        rows = [Answered.model_validate(approval_row(row)) for row in found]
        return Answers(dry_run=change.dry_run, proposals=rows)

    return change.once(Answers, answered)


@router.get(_NAMESPACE + "/policy", dependencies=[READ])
def get_split_policy(acting: AtDesk, namespace: Namespace) -> SplitPolicy:
    """When and how a namespace's bundles are split."""
    app = acting.app
    cluster, actor = app.settings.pulsar_cluster, acting.grant.subject
    found = change_split_policy(app.store, cluster, namespace, {}, actor=actor, dry_run=True)
    return SplitPolicy.model_validate(asdict(found))


@router.post(_NAMESPACE + "/policy", dependencies=[ADMINISTER])
def set_split_policy(
    change: Changing,
    namespace: Namespace,
    knobs: Annotated[
        dict[str, Any],
        Body(
            description="Knobs by name; null takes one back.", examples=[{"max_topics": 500}], max_length=100
        ),
    ],
    how: Annotated[
        Literal["patch", "replace"], Query(description="`replace` forgets the namespace's other knobs.")
    ] = "patch",
) -> ChangedSplitPolicy:
    """Set knobs of a namespace's split policy; checked together. The next cycle goes by them."""

    def changed(store: Store) -> ChangedSplitPolicy:
        cluster, replace = change.app.settings.pulsar_cluster, how == "replace"
        found = change_split_policy(store, cluster, namespace, knobs, actor=change.actor, replace=replace)
        return ChangedSplitPolicy(dry_run=change.dry_run, **asdict(found))

    return change.once(ChangedSplitPolicy, changed)


@router.post(_NAMESPACE + "/mode", dependencies=[ADMINISTER])
def set_balancing_mode(
    change: Changing, namespace: Namespace, said: Annotated[WantedMode, Body()]
) -> ModeNow:
    """Enable a namespace for balancing, or set it back to dry run."""

    def changed(store: Store) -> ModeNow:
        cluster = change.app.settings.pulsar_cluster
        found = desk.set_mode(store, cluster, namespace, said.mode, actor=change.actor)
        return ModeNow(dry_run=change.dry_run, **found)

    return change.once(ModeNow, changed)


@router.post(_BUNDLE + "/split", dependencies=[ADMINISTER])
def split_bundle(
    change: Changing,
    namespace: Namespace,
    bundle: BundleName,
    said: Annotated[BundleSplit | None, Body()] = None,
) -> SplitBundle:
    """Split a bundle. A repeat finds the cuts made and changes nothing."""
    how = said or BundleSplit()
    asked = ManualSplit(f"{namespace}/{bundle}", how.algorithm, how.positions, how.topics, how.parts)

    def split(_: Store) -> SplitBundle:
        with bundles_of(change.app) as bundles:
            found = desk.split(bundles, asked, unload=how.unload, dry_run=change.dry_run)
        return SplitBundle(dry_run=change.dry_run, **found)

    return change.once(SplitBundle, split)


@router.post(_BUNDLE + "/unload", dependencies=[ADMINISTER])
def unload_bundle(
    change: Changing, namespace: Namespace, bundle: BundleName, said: Annotated[Unload | None, Body()] = None
) -> UnloadedBundle:
    """Take a bundle from its owner, and give it to a broker if one is named. One that is there stays there."""
    to = (said or Unload()).destination

    def unloaded(_: Store) -> UnloadedBundle:
        with bundles_of(change.app) as bundles:
            found = desk.unload(bundles, f"{namespace}/{bundle}", to, dry_run=change.dry_run)
        return UnloadedBundle(dry_run=change.dry_run, **found)

    return change.once(UnloadedBundle, unloaded)
