"""The cluster as one cycle reads it: brokers with their reports, bundles with owner and load.

Values only, independent of the order in which they were collected. Services collect them; shedding, placement and splitting decide by
them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from controller.bundles.domain.load import BrokerResources, BundleLoad, BundleStats
from controller.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """Report of a broker about its resources and totals, made at `reported_at` (ms since the Unix epoch)."""

    resources: BrokerResources
    stats: BundleStats
    reported_at: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that may own bundles now. `report` None: the broker has not reported. `failure_domain` is any label."""

    name: str
    report: BrokerReport | None = None
    failure_domain: str | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle by its text id `tenant/namespace/0x…_0x…`.

    `owner` None: no broker serves the bundle. `stats` is the latest reading and `load` its averages. Both are None where
    nothing was reported yet; such a bundle is never moved.
    """

    bundle_id: str
    owner: str | None = None
    stats: BundleStats | None = None
    load: BundleLoad | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the bundle, as `tenant/namespace`."""
        return self.bundle_id.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """Placement constraints of the bundles of a namespace.

    `brokers`: the names of those that its isolation policy allows; None: it has no such policy. Namespaces of one
    `anti_affinity_group` are placed on different brokers as far as possible.
    """

    brokers: frozenset[str] | None = None
    anti_affinity_group: str | None = None

    @property
    def binds(self) -> bool:
        """True if the policy restricts the placement in any way."""
        return self.brokers is not None or self.anti_affinity_group is not None


@dataclass(frozen=True)
class Cluster:
    """Brokers and bundles, sorted by name; policies by namespace.

    `shared_brokers`: the brokers that a namespace without an isolation policy may be on; None: all. `repeated`: brokers whose report
    an earlier cycle has counted; a repeated report counts as no further hit. `resting`: ids of bundles that have an action in
    progress and are not proposed for another.

    Raises InvalidInput for a name that occurs twice. An owner that is missing among the brokers has left the cluster, and no broker
    can move its bundles.
    """

    brokers: tuple[Broker, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    policies: Mapping[str, NamespacePolicy] = field(default_factory=dict)
    shared_brokers: frozenset[str] | None = None
    repeated: frozenset[str] = frozenset()
    resting: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _refuse_repeats("broker", (broker.name for broker in self.brokers))
        _refuse_repeats("bundle", (bundle.bundle_id for bundle in self.bundles))
        object.__setattr__(self, "brokers", tuple(sorted(self.brokers, key=lambda b: b.name)))
        object.__setattr__(self, "bundles", tuple(sorted(self.bundles, key=lambda b: b.bundle_id)))

    @cached_property
    def broker_by_name(self) -> Mapping[str, Broker]:
        """Brokers by name."""
        return {broker.name: broker for broker in self.brokers}

    @cached_property
    def bundle_by_id(self) -> Mapping[str, Bundle]:
        """Bundles by text id."""
        return {bundle.bundle_id: bundle for bundle in self.bundles}

    @cached_property
    def _bundles_by_owner(self) -> Mapping[str | None, tuple[Bundle, ...]]:
        """Bundles by their owner, each tuple by bundle id; the key None holds those without an owner."""
        owned = defaultdict(list)
        for bundle in self.bundles:
            owned[bundle.owner].append(bundle)
        return {owner: tuple(bundles) for owner, bundles in owned.items()}

    def bundles_of(self, broker: str) -> tuple[Bundle, ...]:
        """Return the bundles of a broker, by bundle id."""
        return self._bundles_by_owner.get(broker, ())

    @cached_property
    def reporting(self) -> tuple[tuple[str, BrokerReport], ...]:
        """Brokers that have reported, by name."""
        return tuple((broker.name, broker.report) for broker in self.brokers if broker.report is not None)

    @cached_property
    def report_of(self) -> Mapping[str, BrokerReport]:
        """The reports by broker name."""
        return dict(self.reporting)

    def is_new(self, broker: str) -> bool:
        """Return True if the broker's report counts as a hit: no earlier cycle has counted it."""
        return broker not in self.repeated

    def policy_of(self, namespace: str) -> NamespacePolicy:
        """Return the policy of the namespace; a policy that restricts nothing if the namespace has none."""
        return self.policies.get(namespace, _NO_POLICY)

    def allowed_for(self, namespace: str) -> frozenset[str] | None:
        """Return the brokers that may own the namespace's bundles: those of its policy, or the shared brokers if it has none. None: all."""
        own = self.policy_of(namespace).brokers
        return self.shared_brokers if own is None else own

    def with_owners(self, owners: Mapping[str, str | None]) -> Self:
        """Return the cluster with the owners in `owners`, by bundle id; None: no owner. Other bundles keep their owners, unknown ids are
        ignored, and no load changes.
        """
        return replace(
            self,
            bundles=tuple(
                replace(bundle, owner=owners[bundle.bundle_id]) if bundle.bundle_id in owners else bundle
                for bundle in self.bundles
            ),
        )


_NO_POLICY = NamespacePolicy()


def _refuse_repeats(kind: str, names: Iterable[str]) -> None:
    """Raise InvalidInput if a name occurs more than once. The error names the `kind` of the names and, of several
    repeated names, the first in alphabetical order.
    """
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InvalidInput(f"{kind} {repeated[0]} is given more than once; give each {kind} once")
