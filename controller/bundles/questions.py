"""Questions about bundles of Pulsar clusters: their load and owners, the brokers, and the proposals of the balancer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from controller.bundles.store.proposals import ProposalState
from controller.bundles.store.views import UNKNOWN_NAMESPACE
from controller.domain.formatting import duration
from controller.questions.question import Filter, Question, Row

_CLUSTER = Filter(
    "cluster = :cluster",
    Annotated[str, Field(max_length=500)],
    "Only this Pulsar cluster.",
    ["standalone"],
)
_NAMESPACE = Filter(
    "namespace = :namespace",
    Annotated[str, Field(max_length=1000)],
    "tenant/namespace. None: all.",
    ["acme/shop"],
    is_argument=True,
)


def _made(row: Row, _now: datetime) -> Row:
    """Return the row of a proposal with its age as a text (`made`)."""
    return {**row, "made": f"{duration(float(row['age_seconds']))} ago"}


LIST_BUNDLES = Question(
    "bundles show",
    "/bundles",
    "inspect.bundles_now",
    "List bundles with their owners and load, as last aggregated, in the order of the ring.",
    {"cluster": str, "namespace": str, "lower_bound": int},
    {"cluster": _CLUSTER, "namespace": _NAMESPACE},
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
    "List brokers by name, with their load when they were last read.",
    {"cluster": str, "broker": str},
    {"cluster": _CLUSTER},
    default_limit=1000,
    is_command=False,
)
LIST_PROPOSALS = Question(
    "bundles proposals",
    "/bundles/proposals",
    "inspect.bundles_proposals",
    "List the proposals of the balancer with their reasons and states, newest first.",
    {"proposal_id": int},
    {
        "cluster": _CLUSTER,
        "namespace": _NAMESPACE,
        "state": Filter(
            "state = ANY (CAST(:state AS text[]))",
            ProposalState,
            "Only proposals in these states.",
            [["proposed"]],
            most=20,
        ),
        "cycle": Filter(
            "cycle_id = :cycle",
            Annotated[int, Field(ge=0, lt=2**63)],
            "Only proposals of this cycle.",
            [42],
        ),
    },
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
