"""Applies the cluster's present rules of placement (isolation, anti-affinity, failure domains) to its active brokers. Pure.

The rules are read from the cluster before each cycle, together with its list of active brokers (`active_brokers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.bundles.domain.cluster import Cluster, NamespacePolicy
from controller.bundles.domain.isolation import Isolation, IsolationPolicy


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


def ruled(cluster: Cluster, rules: PlacementRules) -> Cluster:
    """Return the cluster, which has only active brokers (`with_active_brokers`), with their failure domains, the policies of its namespaces
    that restrict anything, and the shared brokers. If the list of active brokers was not read, the cluster is returned unchanged.
    """
    if rules.active is None:
        return cluster
    brokers = [
        replace(broker, failure_domain=rules.failure_domains.get(broker.name)) for broker in cluster.brokers
    ]
    isolation = Isolation(rules.isolation, rules.active)
    policies = {}
    for namespace in sorted({bundle.namespace for bundle in cluster.bundles}):
        policy = NamespacePolicy(isolation.allowed(namespace), rules.anti_affinity_groups.get(namespace))
        if policy.binds:
            policies[namespace] = policy
    return replace(cluster, brokers=tuple(brokers), policies=policies, shared_brokers=isolation.shared)
