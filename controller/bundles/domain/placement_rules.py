"""Which brokers may have which bundles now, as the cluster itself says: a pure step before each cycle.

What is stored of a broker is a last reading; a broker that died minutes ago still has one. So destinations are taken
from the cluster's own list of active brokers. A broker on that list which stays silent is known, but nothing is moved
to it. Isolation policies, anti-affinity groups and failure domains are the cluster's, too, and read each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from controller.bundles.domain.cluster import Broker, Cluster, NamespacePolicy
from controller.bundles.domain.isolation import Isolation, IsolationPolicy

SILENT_TICKS = 2
"""A broker that reported in none of the last so many ticks of the collector gets no bundle."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Placement rules of a cluster, read before a cycle. `active`: its list of brokers; None: the list was not read.

    `failure_domains` is by broker, `anti_affinity_groups` by namespace.
    """

    active: frozenset[str] | None = None
    isolation: tuple[IsolationPolicy, ...] = ()
    failure_domains: Mapping[str, str] = field(default_factory=dict)
    anti_affinity_groups: Mapping[str, str] = field(default_factory=dict)

    def allowed(self, namespace: str) -> frozenset[str] | None:
        """The brokers that may have the namespace's bundles; None: every one."""
        isolation = Isolation(self.isolation, self.active or ())
        own = isolation.allowed(namespace)
        return isolation.shared if own is None else own


def ruled(cluster: Cluster, rules: PlacementRules, heard: Collection[str] | None) -> Cluster:
    """The cluster with the brokers of the list alone, without the reports of those that are not among `heard`.

    `heard` None: fewer than SILENT_TICKS ticks are on file, so silent brokers cannot be recognized.
    """
    if rules.active is None:
        return cluster
    known = cluster.broker_by_name
    brokers = [known.get(name, Broker(name)) for name in rules.active]
    if heard is not None:
        brokers = [one if one.name in heard else replace(one, report=None) for one in brokers]
    brokers = [replace(one, failure_domain=rules.failure_domains.get(one.name)) for one in brokers]
    isolation = Isolation(rules.isolation, rules.active)
    policies = {}
    for namespace in sorted({bundle.namespace for bundle in cluster.bundles}):
        policy = NamespacePolicy(isolation.allowed(namespace), rules.anti_affinity_groups.get(namespace))
        if policy.binds:
            policies[namespace] = policy
    return replace(cluster, brokers=tuple(brokers), policies=policies, shared_brokers=isolation.shared)
