"""The cluster's present rules of placement (isolation, anti-affinity, failure domains) and its active brokers, applied before a cycle. Pure.

The rules are read from the cluster before each cycle, together with its list of active brokers. The stored load of a broker is a last
reading; a broker that failed minutes ago still has one. So destinations are taken from the cluster's own list of active brokers. A broker
on the list that does not report is known, but receives no bundle.

The rules of isolation policies are those of `LoadManagerShared.applyNamespacePolicies` in 4.2.4. A policy names namespaces and brokers by
regular expressions over the whole name. A broker's name here is its host, without the port. A namespace belongs to the first policy that
names it. Its bundles may be on the primary brokers. While fewer than `min_primaries` primary brokers are active, they may be on the
secondary ones too. A namespace without a policy may be on every broker that is primary in no policy.

Pulsar reads the expressions as Java's. An expression that Python cannot read permits nothing: as a namespace it matches every namespace,
as a broker it allows none, and it keeps namespaces without a policy off all brokers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from controller.bundles.domain.cluster import Broker, Cluster, NamespacePolicy

SILENT_TICKS = 2
"""Number of the collector's last ticks; a broker that reported in none of these ticks gets no bundle."""


def with_active_brokers(
    cluster: Cluster, active: Collection[str] | None, reporting: Collection[str] | None
) -> Cluster:
    """Return the cluster with exactly the `active` brokers, which are given by name. An active broker that is not in the cluster is added
    without a report. Reports of brokers that are not in `reporting` are removed.

    `active` None: the list of active brokers was not read, so the cluster is returned unchanged. `reporting` None: fewer than SILENT_TICKS
    ticks are stored, so silent brokers cannot be recognized, and every report stays.
    """
    if active is None:
        return cluster
    stored = cluster.broker_by_name
    brokers = [stored.get(name, Broker(name)) for name in active]
    if reporting is not None:
        brokers = [broker if broker.name in reporting else replace(broker, report=None) for broker in brokers]
    return replace(cluster, brokers=tuple(brokers))


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """One policy of a cluster. `namespaces` are regular expressions over the whole name of a namespace, `primary` and `secondary` over the
    whole host of a broker, without the port. `min_primaries`: number of active primary brokers below which the secondary brokers may be
    used too.
    """

    name: str
    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_primaries: int = 1


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Placement rules of a cluster, read before a cycle. `active`: its list of brokers (`host:port`); None: the list was not read, so that
    no broker counts as active.

    `failure_domains` is by broker, `anti_affinity_groups` by namespace.
    """

    active: frozenset[str] | None = None
    isolation: tuple[IsolationPolicy, ...] = ()
    failure_domains: Mapping[str, str] = field(default_factory=dict)
    anti_affinity_groups: Mapping[str, str] = field(default_factory=dict)

    def allowed(self, namespace: str) -> frozenset[str] | None:
        """Return the active brokers that may own the namespace's bundles: those that the first matching isolation policy allows, or, if no
        policy names the namespace, those that are primary in no policy. Empty if none may, None if there is no isolation policy at all,
        so that all may.
        """
        own = self.isolated(namespace)
        return self.shared if own is None else own

    def isolated(self, namespace: str) -> frozenset[str] | None:
        """Return the active brokers that the first isolation policy for the namespace allows: the policy's primary
        brokers. While fewer than `min_primaries` of the primary brokers are active, the policy's secondary brokers are
        included. Empty if no such broker is active; None if no policy names the namespace.

        An expression that Python cannot read matches every namespace, and no broker.
        """
        matching = (
            candidate
            for candidate in self.isolation
            if _any_matches(candidate.namespaces, namespace, unreadable=True)
        )
        policy = next(matching, None)
        if policy is None:
            return None
        active = self.active or ()
        primary = {name for name in active if _names_broker(policy.primary, name)}
        secondary = {name for name in active if _names_broker(policy.secondary, name)}
        return frozenset(primary | secondary if len(primary) < policy.min_primaries else primary)

    @property
    def without_broker(self) -> tuple[IsolationPolicy, ...]:
        """The isolation policies that name no active broker, neither a primary nor a secondary one."""
        return tuple(
            policy
            for policy in self.isolation
            if not any(
                _names_broker((*policy.primary, *policy.secondary), name) for name in self.active or ()
            )
        )

    @property
    def shared(self) -> frozenset[str] | None:
        """The active brokers that no isolation policy names as primary; None if there is no policy. If a policy has a
        primary expression that Python cannot read, the expression counts as naming every broker, so the result is empty.
        """
        if not self.isolation:
            return None
        return frozenset(
            name
            for name in self.active or ()
            if not any(_names_broker(policy.primary, name, unreadable=True) for policy in self.isolation)
        )


def _names_broker(expressions: Iterable[str], broker: str, *, unreadable: bool = False) -> bool:
    """Return True if an expression matches the whole host of the broker (`host:port`). `unreadable`: True if an expression that Python
    cannot read counts as a match.
    """
    return _any_matches(expressions, broker.rpartition(":")[0], unreadable=unreadable)


def _any_matches(expressions: Iterable[str], name: str, *, unreadable: bool) -> bool:
    """Return True if an expression matches the whole name. `unreadable`: True if an expression that Python cannot read counts as a
    match.
    """
    for expression in expressions:
        pattern = _compiled(expression)
        if unreadable if pattern is None else pattern.fullmatch(name):
            return True
    return False


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> re.Pattern[str] | None:
    """Return the compiled expression. None if Python cannot read the expression."""
    try:
        return re.compile(expression)
    except re.error:
        return None


def ruled(cluster: Cluster, rules: PlacementRules) -> Cluster:
    """Return the cluster, which has only active brokers (`with_active_brokers`), with their failure domains, the policies of its namespaces
    that restrict anything, and the shared brokers. If the list of active brokers was not read, the cluster is returned unchanged.
    """
    if rules.active is None:
        return cluster
    brokers = [
        replace(broker, failure_domain=rules.failure_domains.get(broker.name)) for broker in cluster.brokers
    ]
    policies = {}
    for namespace in sorted({bundle.namespace for bundle in cluster.bundles}):
        policy = NamespacePolicy(rules.isolated(namespace), rules.anti_affinity_groups.get(namespace))
        if policy.binds:
            policies[namespace] = policy
    return replace(cluster, brokers=tuple(brokers), policies=policies, shared_brokers=rules.shared)
