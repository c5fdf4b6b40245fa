"""Reports about bundles: the bundle of a topic, active brokers, possible merges, cycles, and split policies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import AS_ARGUMENT
from controller.actions.responses import Answer, Document, Row
from controller.bundles.actions.fields import BundleNamespace
from controller.bundles.actions.namespaces import SplitPolicyDocument
from controller.bundles.domain.ring import edge_text, topic_hash
from controller.bundles.store import cycles, namespaces
from controller.bundles.store import views as bundle_views
from controller.domain.errors import DataPlaneUnavailable, StoreUnavailable
from controller.domain.pulsar_names import canonical_topic_name, namespace_of
from controller.questions.page_keys import write_keys
from controller.questions.question import PageAnswer, PageRequest, QuestionRequest

if TYPE_CHECKING:
    from controller.bundles.domain.merging import MergeVerdict

ClusterName = Annotated[
    Annotated[str, Field(max_length=500)] | None,
    Field(description="Pulsar cluster. None: CLEAVE_PULSAR_CLUSTER.", examples=["standalone"]),
]


class ListActiveBrokers(QuestionRequest):
    """List the brokers that the cluster itself lists as active."""


class ActiveBrokers(Document):
    """The names of the active brokers."""

    cluster: str = Field(examples=["standalone"])
    brokers: list[str] | None = Field(description="Null if no broker answers.", examples=[["pulsar-0:8080"]])


class FindBundle(QuestionRequest):
    """Show the complete name of a topic, its hash, and its bundle if the boundaries of its namespace are known."""

    topic: str = Field(
        min_length=1,
        max_length=2000,
        description="A topic of Pulsar.",
        examples=["persistent://acme/shop/orders"],
    )
    cluster: ClusterName = None


class TopicPlace(Answer):
    """Complete name, hash and bundle of a topic."""

    topic: str = Field(examples=["persistent://acme/shop/orders"])
    hash: str = Field(examples=["0x2f3c1a00"])
    bundle: str | None = Field(
        description="Null if the namespace is not known, or the database is unreachable.",
        examples=["acme/shop/0x00000000_0x40000000"],
    )
    namespace: str = Field(examples=["acme/shop"])

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return f"{self.topic} lies in {self.bundle or 'a bundle that is not known'}"

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [self.model_dump()]


class ListMerges(PageRequest):
    """List cold neighbours that could be merged into one bundle, with the steps for an operator, because Pulsar cannot merge bundles."""

    namespace: Annotated[BundleNamespace | None, AS_ARGUMENT] = Field(
        None, description="tenant/namespace. None: all.", examples=["acme/shop"]
    )
    cluster: ClusterName = None


class NamespaceMerges(BaseModel):
    """The possible merges of a namespace, the steps for an operator, and the cold or silent bundles that cannot be merged."""

    namespace: str = Field(examples=["acme/shop"])
    merges: list[dict[str, Any]] = Field(
        examples=[[{"merged": "0x00000000_0x40000000", "of": 2, "byte_rate": 1200}]]
    )
    steps: list[dict[str, Any]]
    apart: list[dict[str, Any]]

    @classmethod
    def of(cls, namespace: str, verdict: MergeVerdict) -> NamespaceMerges:
        """Return the document of a merge verdict. Without a plan, `merges` and `steps` are empty."""
        plan = verdict.plan
        return cls(
            namespace=namespace,
            merges=[
                {
                    "merged": merge.merged.range_text,
                    "of": len(merge.members),
                    "byte_rate": round(merge.latest.byte_rate),
                }
                for merge in (plan.merges if plan else ())
            ],
            steps=[{"step": step, "what": what} for step, what in (plan.steps if plan else {}).items()],
            apart=[
                {
                    "bundle": refusal.bundle.range_text,
                    "reason": str(refusal.reason),
                    "value": refusal.value,
                    "needed": refusal.needed,
                }
                for refusal in verdict.refusals
            ],
        )


class MergesAnswer(PageAnswer[NamespaceMerges]):
    """A page of namespaces with their merges."""

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return (
            "bundles that could be merged"
            if self.items
            else "no bundles are known yet: collect and aggregate reports first"
        )

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [
            {"namespace": item.namespace, "merges": len(item.merges), "stay_apart": len(item.apart)}
            for item in self.items
        ]

    def tables(self) -> Sequence[tuple[str, Sequence[Row]]]:
        """Return the tables of the answer."""
        return [
            table
            for item in self.items
            for table in (
                (f"{item.namespace} could have", item.merges),
                ("an operator would", item.steps),
                (f"{item.namespace}: stays apart", item.apart),
            )
        ]


class ShowCycle(QuestionRequest):
    """Show the inputs and the outcome of a cycle of the balancer, so that the cycle can be replayed."""

    cycle_id: Annotated[int, Field(ge=0, lt=2**63, examples=[42])]


class CycleAnswer(Document):
    """The exact texts of a cycle."""

    cycle_id: int = Field(examples=[42])
    cluster: str = Field(examples=["standalone"])
    code_version: str = Field(examples=["4"])
    inputs: str | None = Field(description="Null after the inputs were deleted.")
    outcome: str | None = Field(description="Null after the outcome was deleted.")


class ShowSplitPolicy(QuestionRequest):
    """Show the split policy of a namespace: all parameters in force, and the sources of their values."""

    namespace: BundleNamespace


def list_active_brokers(context: Context, _request: ListActiveBrokers) -> ActiveBrokers:
    """Read the list of active brokers from the cluster of the settings, and return their names, sorted; None instead of the list if no
    address of the settings answers with a list. Raises InvalidInput if the settings name no cluster.
    """
    from controller.bundles.bootstrap import bundles_of  # it loads what reads reports

    cluster = context.app.settings.pulsar_cluster
    with bundles_of(context.app) as bundles, suppress(DataPlaneUnavailable):
        return ActiveBrokers(
            cluster=cluster, brokers=sorted(broker.name for broker in bundles.reader.brokers())
        )
    return ActiveBrokers(cluster=cluster, brokers=None)


def find_bundle(context: Context, request: FindBundle) -> TopicPlace:
    """Return the complete name, the hash and the bundle of the topic in the cluster of the request. The bundle is
    None if the database has no boundaries of the topic's namespace, or while the database is unreachable. Whether the
    topic exists is not checked. Raises InvalidInput for a text that is no topic name.
    """
    name, bundle = canonical_topic_name(request.topic), None
    with suppress(StoreUnavailable), context.store.transaction() as tx:
        bundle = namespaces.find_bundle_of(tx, _cluster(context, request.cluster), name)
    return TopicPlace(
        topic=name,
        hash=edge_text(topic_hash(name)),
        bundle=None if bundle is None else str(bundle),
        namespace=namespace_of(name),
    )


def list_merges(context: Context, request: ListMerges) -> MergesAnswer:
    """Return a page of namespaces by name, each with its possible merges, by the load that is stored. Reads no
    broker. A namespace without a possible merge is included. A namespace whose stored split policy cannot be read is
    left out.

    Raises NotFound if the request names a namespace that is left out or whose bundles are not known, InvalidPolicy
    for invalid balance settings, and InvalidInput for an invalid `page`.
    """
    from controller.bundles.bootstrap import balance_settings
    from controller.bundles.services import balancer

    [after] = request.keys([str])
    verdicts = balancer.merges(
        context.store,
        cluster=_cluster(context, request.cluster),
        settings=balance_settings(context.app.settings),
    )
    if request.namespace is not None and request.namespace not in verdicts:
        raise bundle_views.unknown_namespace(request.namespace)
    names = [
        name
        for name in sorted(verdicts)
        if request.namespace in (None, name) and (after is None or name > after)
    ]
    shown, is_last = names[: request.size], len(names) <= request.size
    return MergesAnswer(
        items=[NamespaceMerges.of(name, verdicts[name]) for name in shown],
        next=None if is_last else write_keys([shown[-1]]),
    )


def show_cycle(context: Context, request: ShowCycle) -> CycleAnswer:
    """Return the texts of a cycle; None for texts that were deleted. Raises NotFound for an unknown cycle."""
    with context.store.transaction() as tx:
        return CycleAnswer(**asdict(cycles.get_cycle(tx, request.cycle_id)))


def show_split_policy(context: Context, request: ShowSplitPolicy) -> SplitPolicyDocument:
    """Return the split policy of the namespace in the cluster of the settings. Raises NotFound if no report has named the namespace, and
    InvalidPolicy for parameters that an older version left unreadable.
    """
    cluster = context.app.settings.pulsar_cluster
    with context.store.transaction() as tx:
        row = namespaces.get_namespace(tx, cluster, request.namespace)
    return SplitPolicyDocument.of(request.namespace, row.split_settings)


def _cluster(context: Context, cluster: str | None) -> str:
    return cluster or context.app.settings.pulsar_cluster


LIST_ACTIVE_BROKERS = report(
    "bundles active-brokers",
    "/bundles/brokers/active",
    ListActiveBrokers,
    ActiveBrokers,
    list_active_brokers,
    is_command=False,
)
SHOW_CYCLE = report(
    "bundles cycle", "/bundles/cycles/{cycle_id}", ShowCycle, CycleAnswer, show_cycle, is_command=False
)
ACTIONS = (
    LIST_ACTIVE_BROKERS,
    report("bundles hash", "/bundles/of-topic", FindBundle, TopicPlace, find_bundle),
    report("bundles merges", "/bundles/merges", ListMerges, MergesAnswer, list_merges),
    SHOW_CYCLE,
    report(
        "bundles policy",
        "/namespaces/{namespace}/bundles/policy",
        ShowSplitPolicy,
        SplitPolicyDocument,
        show_split_policy,
    ),
)
