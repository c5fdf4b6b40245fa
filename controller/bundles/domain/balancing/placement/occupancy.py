"""Which broker has which bundle while a cycle decides, and which brokers may take a bundle.

It begins with the owners in the cluster, and each move of the decision changes it. It serves one decision.

The filters are those of Pulsar's modular manager, in its order: isolation policy, too many topics, anti-affinity, even
spread of the namespace. If they leave no broker, every broker that the isolation policy allows is a candidate again. A
bundle of an anti-affinity group has no candidate then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Bundle, Cluster, is_system_namespace
from controller.bundles.domain.load.averages import UNKNOWN_LOAD


class Occupancy:
    """The owners of a cluster's bundles. `move` changes them, everything else reads."""

    def __init__(self, cluster: Cluster, settings: BalanceSettings) -> None:
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
        """The sum of the long-term rates of the broker's bundles, after the moves so far."""
        return self._long_term[broker]

    def move(self, bundle_id: str, destination: str) -> None:
        """The bundle counts as the destination's from now on."""
        bundle = self.cluster.bundle_by_id[bundle_id]
        source = self._owner[bundle_id]
        if source is not None:
            self._count(bundle, source, -1)
        self._settle(bundle, destination)

    def allowed(self, bundle: Bundle) -> tuple[str, ...]:
        """Brokers that isolation policies leave to the namespace, by name."""
        brokers = self.cluster.allowed_for(bundle.namespace)
        return self._active if brokers is None else tuple(name for name in self._active if name in brokers)

    def may_take(self, bundle: Bundle, broker: str) -> bool:
        """Return True if a broker may take the bundle: policy, room for topics, anti-affinity."""
        policy, allowed = self.cluster.policy_of(bundle.namespace), self.cluster.allowed_for(bundle.namespace)
        if broker not in self._active or (allowed is not None and broker not in allowed):
            return False
        if self._topics[broker] + _topics_of(bundle) > self._settings.max_topics_per_broker:
            return False
        if policy.anti_affinity_group is None:
            return True
        return broker in self._apart(bundle, self._with_room(self.allowed(bundle)))

    def candidates(self, bundle: Bundle) -> tuple[str, ...]:
        """Brokers to choose from, by name; empty where the policies allow none."""
        allowed = self.allowed(bundle)
        kept = self._apart(bundle, self._with_room(allowed))
        if not kept and self.cluster.policy_of(bundle.namespace).anti_affinity_group is not None:
            return ()
        if self._settings.spread_namespaces or is_system_namespace(bundle.namespace):
            kept = _fewest(kept, lambda name: (self._bundles[name, bundle.namespace],))
        return kept or allowed

    def _with_room(self, names: Iterable[str]) -> tuple[str, ...]:
        most = self._settings.max_topics_per_broker
        return tuple(name for name in names if self._topics[name] <= most)

    def _apart(self, bundle: Bundle, names: tuple[str, ...]) -> tuple[str, ...]:
        """The brokers with the fewest of the group's namespaces: in their failure domain, then by themselves.

        Among those, none where more of the *other* namespaces of the group are than where the bundle is now. Pulsar
        asks this before it unloads a bundle.
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
        others = self._company([name for name in members if name != bundle.namespace])
        return tuple(name for name in fewest if others[name] <= others[owner])

    def _company(self, namespaces: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Count these namespaces in the failure domain of each broker, and on the broker itself.

        A broker without a failure domain is a domain of its own.
        """
        here = {
            broker.name: sum(self._bundles[broker.name, namespace] > 0 for namespace in namespaces)
            for broker in self.cluster.brokers
        }
        domain_of = {broker.name: broker.failure_domain or broker.name for broker in self.cluster.brokers}
        nearby: Counter[str] = Counter()
        for name, count in here.items():
            nearby[domain_of[name]] += count
        return {name: (nearby[domain_of[name]], count) for name, count in here.items()}

    def _settle(self, bundle: Bundle, owner: str | None) -> None:
        self._owner[bundle.bundle_id] = owner
        if owner is not None:
            self._count(bundle, owner, 1)

    def _count(self, bundle: Bundle, broker: str, sign: int) -> None:
        self._topics[broker] += sign * _topics_of(bundle)
        self._bundles[broker, bundle.namespace] += sign
        self._long_term[broker] += sign * (bundle.load or UNKNOWN_LOAD).long_term.msg_rate


def _topics_of(bundle: Bundle) -> int:
    return bundle.stats.topic_count if bundle.stats else 0


def _fewest(names: tuple[str, ...], counts_of: Callable[[str], tuple[int, ...]]) -> tuple[str, ...]:
    """The names with the lowest first count, of these those with the lowest second count, and so on."""
    counts = {name: counts_of(name) for name in names}
    least = min(counts.values(), default=())
    return tuple(name for name in names if counts[name] == least)
