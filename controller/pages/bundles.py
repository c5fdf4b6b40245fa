"""Bundles: the load of each broker, a namespace's bundles by load, and the proposals that wait for approval."""

from __future__ import annotations

from typing import Any

from controller.bundles.questions import LIST_BROKERS, LIST_BUNDLES, LIST_PROPOSALS
from controller.bundles.store.proposals import ProposalState
from controller.pages.context import MAX_ROWS, Reading, Text
from controller.pages.figures import bundles_by_load
from controller.questions.question import read_answers, read_view

MOST_BUNDLES = 5_000
"""Maximum number of bundles in the picture of a namespace."""
_OPEN = [ProposalState.PROPOSED, ProposalState.APPROVED, ProposalState.APPLIED]


def page(tx: Reading, cluster: Text = "", namespace: Text = "") -> dict[str, Any]:
    """Return all brokers and namespaces, the live proposals, and the bundles of one namespace of a cluster.

    If `cluster` or `namespace` is an empty text, the listed namespace with the most bytes per second is chosen, among those that match the
    other name. Lists have at most MAX_ROWS + 1 rows, so that the page can say that a list is cut; bundles have at most MOST_BUNDLES.
    Without such a namespace there are no bundles.
    """
    by_load = "byte_rate_in + byte_rate_out DESC NULLS LAST, namespace"
    namespaces = read_view(tx, "inspect.bundles_namespaces", order=by_load, limit=MAX_ROWS + 1)
    fitting = (
        row for row in namespaces if cluster in ("", row["cluster"]) and namespace in ("", row["namespace"])
    )
    busiest = next(fitting, {"cluster": cluster, "namespace": namespace})
    chosen = {"cluster": cluster or busiest["cluster"], "namespace": namespace or busiest["namespace"]}
    bundles = read_answers(tx, LIST_BUNDLES, MOST_BUNDLES, **chosen)
    return {
        "brokers": read_answers(
            tx, LIST_BROKERS, MAX_ROWS + 1, order="cluster, usage DESC NULLS LAST, broker"
        ),
        "namespaces": namespaces,
        "chosen": chosen,
        "bundles": bundles,
        "ring": bundles_by_load(bundles),
        "proposals": read_answers(tx, LIST_PROPOSALS, MAX_ROWS + 1, state=_OPEN),
        "why_not": read_view(
            tx, "inspect.bundles_why_not", order="cluster, namespace, bundle", limit=MAX_ROWS + 1
        ),
    }
