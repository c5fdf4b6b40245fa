"""Applies the cluster's present rules of placement (active brokers, isolation, anti-affinity, failure domains). A pure step before each
cycle.

The stored load of a broker is a last reading; a broker that failed minutes ago still has one. So destinations are taken from the
cluster's own list of active brokers. A broker on the list that does not report is known, but receives no bundle. The rules are read from
the cluster before each cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from controller.bundles.domain.cluster import Broker, Cluster, NamespacePolicy
from controller.bundles.domain.isolation import Isolation, IsolationPolicy

SILENT_TICKS = 2
"""Number of the collector's last ticks; a broker that reported in none of these ticks gets no bundle."""


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
        """Return the active brokers that may own the namespace's bundles: those that the first matching isolation policy allows, or, if no
        policy names the namespace, those that are primary in no policy. Empty if none may, None if there is no isolation policy at all,
        so that all may. If `active` is None, no broker counts as active.
        """
        isolation = Isolation(self.isolation, self.active or ())
        own = isolation.allowed(namespace)
        return isolation.shared if own is None else own


def ruled(cluster: Cluster, rules: PlacementRules, reporting: Collection[str] | None) -> Cluster:
    """Return the cluster with exactly the active brokers of the rules, their failure domains, the policies of its namespaces that restrict
    anything, and the shared brokers. An active broker that is not in the cluster is added without a report. Reports of brokers that are not
    in `reporting` are removed.

    `reporting` None: fewer than SILENT_TICKS ticks are stored, so silent brokers cannot be recognized, and every report stays. If the list
    of active brokers was not read, the cluster is returned unchanged.
    """
    if rules.active is None:
        return cluster
    stored = cluster.broker_by_name
    brokers = [stored.get(name, Broker(name)) for name in rules.active]
    if reporting is not None:
        brokers = [broker if broker.name in reporting else replace(broker, report=None) for broker in brokers]
    brokers = [replace(broker, failure_domain=rules.failure_domains.get(broker.name)) for broker in brokers]
    isolation = Isolation(rules.isolation, rules.active)
    policies = {}
    for namespace in sorted({bundle.namespace for bundle in cluster.bundles}):
        policy = NamespacePolicy(isolation.allowed(namespace), rules.anti_affinity_groups.get(namespace))
        if policy.binds:
            policies[namespace] = policy
    return replace(cluster, brokers=tuple(brokers), policies=policies, shared_brokers=isolation.shared)
