"""Questions about bundles of Pulsar clusters: their load and owners, the brokers, and the proposals of the balancer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from controller.actions.fields import AS_ARGUMENT
from controller.bundles.store.proposals import ProposalState
from controller.bundles.store.views import UNKNOWN_NAMESPACE
from controller.domain.formatting import duration
from controller.questions.question import Question, QuestionRequest, Row


class ClusterFilter(QuestionRequest):
    """Filters of a question about one cluster or all clusters."""

    cluster: Annotated[str, Field(max_length=500)] | None = Field(
        None, description="Only this Pulsar cluster.", examples=["standalone"]
    )


class NamespaceFilter(ClusterFilter):
    """Filters of a question about one namespace or all namespaces."""

    namespace: Annotated[str | None, AS_ARGUMENT] = Field(
        None, max_length=1000, description="tenant/namespace. None: all.", examples=["acme/shop"]
    )


class ListBundles(NamespaceFilter):
    """List bundles with their owners and load, as last aggregated, in the order of the ring."""


class ListBrokers(ClusterFilter):
    """List brokers by name, with their load when they were last read."""


class ListProposals(NamespaceFilter):
    """List the proposals of the balancer with their reasons and states, newest first."""

    state: list[ProposalState] | None = Field(
        None, max_length=20, description="Only proposals in these states.", examples=[["proposed"]]
    )
    cycle: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="Only proposals of this cycle.", examples=[42]
    )


_CLUSTER = {"cluster": "cluster = :cluster"}
_NAMESPACE = {**_CLUSTER, "namespace": "namespace = :namespace"}


def _made(row: Row, _now: datetime) -> Row:
    """Return the row of a proposal with its age as a text (`made`)."""
    return {**row, "made": f"{duration(float(row['age_seconds']))} ago"}


LIST_BUNDLES = Question(
    "bundles show",
    "/bundles",
    "inspect.bundles_now",
    ListBundles,
    {"cluster": str, "namespace": str, "lower_bound": int},
    _NAMESPACE,
    missing=UNKNOWN_NAMESPACE,
    table=(
        "cluster",
        "namespace",
        "bundle",
        "broker",
        "mode",
        "topic_count",
        "msg_rate",
        "byte_rate",
        "share_of_namespace",
    ),
    default_limit=1000,
)
LIST_BROKERS = Question(
    "bundles brokers",
    "/bundles/brokers",
    "inspect.bundles_brokers",
    ListBrokers,
    {"cluster": str, "broker": str},
    _CLUSTER,
    default_limit=1000,
    is_command=False,
)
LIST_PROPOSALS = Question(
    "bundles proposals",
    "/bundles/proposals",
    "inspect.bundles_proposals",
    ListProposals,
    {"proposal_id": int},
    {**_NAMESPACE, "state": "state = ANY (CAST(:state AS text[]))", "cycle": "cycle_id = :cycle"},
    descending=True,
    table=(
        "proposal_id",
        "approval_id",
        "cycle_id",
        "made",
        "kind",
        "state",
        "cluster",
        "namespace",
        "bundle",
        "broker",
        "destination",
        "cut_points",
        "reason",
        "mode",
        "outcome",
    ),
    present=_made,
    default_limit=50,
)
QUESTIONS = (LIST_BUNDLES, LIST_BROKERS, LIST_PROPOSALS)
