"""Owners of bundles while a cycle decides, and the brokers that may take a bundle.

It begins with the owners in the cluster, and each move of the decision changes it. An instance serves one decision.

The filters are those of Pulsar's modular manager, in its order: isolation policy, too many topics, anti-affinity, even spread of the
namespace. If they leave no broker, every broker that the isolation policy allows is a candidate again. A bundle of an anti-affinity group
then has no candidate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.load import UNKNOWN_LOAD
from controller.domain.pulsar_names import is_system_namespace


class Occupancy:
    """The owners of a cluster's bundles, at first those in the cluster. `move` changes them; the other public methods only read. `settings`
    gives the limit of topics and whether namespaces are spread.
    """

    def __init__(self, cluster: Cluster, settings: BalanceSettings) -> None:
        """Count the topics, bundles and long-term rates of each broker by the owners in the cluster."""
        self.cluster = cluster
        self._settings = settings
        self._active = tuple(name for name, _ in cluster.reporting)
        self._topics: Counter[str] = Counter()
        self._bundles: Counter[tuple[str, str]] = Counter()  # (broker, namespace)
        self._long_term: defaultdict[str, float] = defaultdict(float)
        self._owner: dict[str, str | None] = {}
        for bundle in cluster.bundles:
            self._settle(bundle, bundle.owner)

    def long_term_msg_rate(self, broker: str) -> float:
        """Return the sum of the long-term rates (messages per second) of the broker's bundles, after the moves so far. A bundle without
        averages counts with the 100 of `UNKNOWN_LOAD`.
        """
        return self._long_term[broker]

    def move(self, bundle_id: str, destination: str) -> None:
        """Change the owner of the bundle to the destination, and the counts of both brokers; no filter is checked. The cluster itself does
        not change. Raises KeyError for a bundle that is not in the cluster.
        """
        bundle = self.cluster.bundle_by_id[bundle_id]
        source = self._owner[bundle_id]
        if source is not None:
            self._count(bundle, source, -1)
        self._settle(bundle, destination)

    def allowed(self, bundle: Bundle) -> tuple[str, ...]:
        """Return the brokers with a report that isolation policies allow for the namespace of the bundle, by name."""
        brokers = self.cluster.allowed_for(bundle.namespace)
        return self._active if brokers is None else tuple(name for name in self._active if name in brokers)

    def may_take(self, bundle: Bundle, broker: str) -> bool:
        """Return True if the broker has a report, the isolation policy allows the broker, and the bundle's topics
        would not bring the broker above `max_topics_per_broker`. For a bundle of an anti-affinity group the broker
        must also be among the best brokers for the group. The even spread of namespaces is not checked.

        `broker` must not be the bundle's owner: the topics of the bundle would count twice.
        """
        policy, allowed = self.cluster.policy_of(bundle.namespace), self.cluster.allowed_for(bundle.namespace)
        if broker not in self._active or (allowed is not None and broker not in allowed):
            return False
        if self._topics[broker] + _topics_of(bundle) > self._settings.max_topics_per_broker:
            return False
        if policy.anti_affinity_group is None:
            return True
        return broker in self._apart(bundle, self._with_room(self.allowed(bundle)))

    def candidates(self, bundle: Bundle) -> tuple[str, ...]:
        """Return the brokers to choose from, by name: the brokers with a report that the isolation policy allows,
        without those that would exceed `max_topics_per_broker` or that are not the best for the anti-affinity group.
        With `spread_namespaces`, and for a system namespace, only the brokers with the fewest bundles of the
        namespace remain.

        If these filters leave no broker, all allowed brokers are candidates; for a bundle of an anti-affinity group
        the result is empty. Empty also if the policy allows no broker with a report.
        """
        allowed = self.allowed(bundle)
        candidates = self._apart(bundle, self._with_room(allowed))
        if not candidates and self.cluster.policy_of(bundle.namespace).anti_affinity_group is not None:
            return ()
        if self._settings.spread_namespaces or is_system_namespace(bundle.namespace):
            candidates = _fewest(candidates, lambda name: (self._bundles[name, bundle.namespace],))
        return candidates or allowed

    def _with_room(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the brokers with at most `max_topics_per_broker` topics, not counting those of a bundle that may come."""
        max_topics = self._settings.max_topics_per_broker
        return tuple(name for name in names if self._topics[name] <= max_topics)

    def _apart(self, bundle: Bundle, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the brokers of `names` with the fewest namespaces of the bundle's anti-affinity group: the fewest in
        the broker's failure domain, and among equal brokers the fewest on the broker itself. For a namespace without
        a group, return all `names`.

        From this result, brokers are removed that have more of the group's *other* namespaces than the present owner,
        compared in the same way, even if no broker remains; Pulsar makes this check before it unloads a bundle. If
        the bundle has no owner in the cluster, no broker is removed.
        """
        group = self.cluster.policy_of(bundle.namespace).anti_affinity_group
        if group is None:
            return names
        members = [ns for ns, policy in self.cluster.policies.items() if policy.anti_affinity_group == group]
        company = self._company(members)
        fewest = _fewest(names, lambda name: company[name])
        owner = self._owner.get(bundle.bundle_id)
        if owner is None or owner not in company:
            return fewest
        counts_of_others = self._company([name for name in members if name != bundle.namespace])
        return tuple(name for name in fewest if counts_of_others[name] <= counts_of_others[owner])

    def _company(self, namespaces: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return, by broker of the cluster (with or without a report), the number of these namespaces in its failure domain, and the number
        on the broker itself. A namespace on two brokers of a domain counts twice in the first number.

        A broker without a failure domain is a domain of its own.
        """
        on_broker = {
            broker.name: sum(self._bundles[broker.name, namespace] > 0 for namespace in namespaces)
            for broker in self.cluster.brokers
        }
        domain_of = {broker.name: broker.failure_domain or broker.name for broker in self.cluster.brokers}
        in_domain: Counter[str] = Counter()
        for name, count in on_broker.items():
            in_domain[domain_of[name]] += count
        return {name: (in_domain[domain_of[name]], count) for name, count in on_broker.items()}

    def _settle(self, bundle: Bundle, owner: str | None) -> None:
        """Record the owner of the bundle, and add the bundle to the owner's counts. The counts of a previous owner do not change."""
        self._owner[bundle.bundle_id] = owner
        if owner is not None:
            self._count(bundle, owner, 1)

    def _count(self, bundle: Bundle, broker: str, sign: int) -> None:
        """Add the bundle to the counts of the broker (`sign` 1), or subtract the bundle from them (-1)."""
        self._topics[broker] += sign * _topics_of(bundle)
        self._bundles[broker, bundle.namespace] += sign
        self._long_term[broker] += sign * (bundle.load or UNKNOWN_LOAD).long_term.msg_rate


def _topics_of(bundle: Bundle) -> int:
    return bundle.stats.topic_count if bundle.stats else 0


def _fewest(names: tuple[str, ...], counts_of: Callable[[str], tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names whose counts are lowest, in their order; empty without names. The first counts are compared
    first, and later counts decide between equal ones.
    """
    counts = {name: counts_of(name) for name in names}
    least = min(counts.values(), default=())
    return tuple(name for name in names if counts[name] == least)
