"""Which brokers may have bundles now, as the cluster itself says: a pure step from what is stored to what is decided on.

What is stored of a broker is a last reading; a broker that died minutes ago still has one. So destinations are taken
from the cluster's own list of active brokers. A broker on that list which stays silent is known, but nothing is moved
to it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from controller.bundles.domain.cluster import Broker, Cluster

SILENT_TICKS = 2
"""A broker that reported in none of the last so many ticks of the collector gets no bundle."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """What a cluster was asked before a cycle. `active`: its list of brokers; None: it was not asked."""

    active: frozenset[str] | None = None


def ruled(cluster: Cluster, rules: PlacementRules, heard: Collection[str] | None) -> Cluster:
    """The cluster with the brokers of the list alone, without the reports of those that are not among `heard`.

    `heard` None: fewer than SILENT_TICKS ticks are on file, so that silence cannot be told.
    """
    if rules.active is None:
        return cluster
    known = cluster.broker_by_name
    brokers = [known.get(name, Broker(name)) for name in rules.active]
    if heard is not None:
        brokers = [one if one.name in heard else replace(one, report=None) for one in brokers]
    return replace(cluster, brokers=tuple(brokers))
