"""One whole cycle: splits and moves from the same readings, joined; a pure function with a text both ways.

``balance_cycle`` decides moves, ``triggers`` splits. A bundle that is to be split does not move in the same cycle. What is
carried from cycle to cycle is the moves' state, the averages of each bundle, and the splits' counts and stamps. The
inputs' text gives the same outcome's text again, byte by byte, under the same code version.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from controller.bundles.domain.balancing.balance import BalanceInputs, Proposals, balance
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.load.averages import BundleLoad
from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import BundleTopic, SplitPlan, SplitRequest
from controller.bundles.domain.splitting.algorithms.refusal import SplitRefusal
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.domain.splitting.thresholds import BundleReport
from controller.bundles.domain.splitting.triggers import (
    ChosenSplit,
    HeldSplit,
    SplitCycle,
    TriggerSettings,
    decide_splits,
)

CODE_VERSION = "2"
"""Raised whenever a stored cycle would be answered otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleState:
    """What goes from cycle to cycle. ``averages`` by bundle id, as of the reports taken in at ``sampled_at`` (ms)."""

    balance: BalanceState = field(default_factory=BalanceState)
    averages: Mapping[str, BundleLoad] = field(default_factory=dict)
    sampled_at: int | None = None
    hit_counts: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    cold_cycles: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    """How often in a row each bundle was seen cold, see ``merge_look``."""

    def sampled(self, cluster: Cluster, sampled_at: int) -> CycleState:
        """The averages one sample on; once for each ``sampled_at``. Bundles that are no more are forgotten."""
        known = {
            b.bundle_id: self.averages[b.bundle_id] for b in cluster.bundles if b.bundle_id in self.averages
        }
        if self.sampled_at is None or sampled_at > self.sampled_at:
            for bundle in cluster.bundles:
                if bundle.stats is not None:
                    known[bundle.bundle_id] = known.get(bundle.bundle_id, BundleLoad()).with_sample(
                        bundle.stats
                    )
        return replace(self, averages=known, sampled_at=max(sampled_at, self.sampled_at or sampled_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleInputs:
    """All that one cycle may look at.

    ``balance`` holds the cluster with every bundle of its namespaces, loads included, and the moves' state.
    ``policies`` is by namespace; one that is absent is not split. ``topics``: those of hot bundles, by bundle id.
    ``busy``: bundles with an act under way, which are neither split nor moved.
    """

    balance: BalanceInputs
    policies: Mapping[str, SplitPolicy] = field(default_factory=dict)
    topics: Mapping[str, tuple[BundleTopic, ...]] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    hit_counts: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CycleOutcome:
    """Splits, moves without those of bundles that are split or busy, and everything that was left alone."""

    splits: tuple[ChosenSplit, ...]
    held_splits: tuple[HeldSplit, ...]
    proposals: Proposals
    passed_over: tuple[str, ...]
    """Bundles whose move gave way to a split, or to an act under way."""
    hit_counts: Mapping[NamespaceBundle, int]
    last_split_at_ms: Mapping[NamespaceBundle, int]


def run_cycle(inputs: CycleInputs) -> CycleOutcome:
    """Decides one cycle. Raises InvalidPolicy for settings that are not valid together."""
    verdicts = [decide_splits(*asked) for asked in _asked(inputs)]
    splits = tuple(chain.from_iterable(verdict.chosen for verdict in verdicts))
    proposals = balance(inputs.balance)
    taken = {str(split.bundle) for split in splits} | inputs.busy
    kept = tuple(move for move in proposals.moves if move.bundle_id not in taken)
    passed_over = tuple(move.bundle_id for move in proposals.moves if move.bundle_id in taken)
    return CycleOutcome(
        splits,
        tuple(chain.from_iterable(verdict.held for verdict in verdicts)),
        replace(proposals, moves=kept),
        passed_over,
        {bundle: hits for verdict in verdicts for bundle, hits in verdict.hit_counts.items()},
        {bundle: at for verdict in verdicts for bundle, at in verdict.last_split_at_ms.items()},
    )


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a hot bundle is cut: as its namespace's policy says, on the topics that were handed over."""

    policy: SplitPolicy
    topics: Mapping[str, tuple[BundleTopic, ...]]

    def __call__(self, bundle: NamespaceBundle, budget: int) -> SplitPlan | SplitRefusal:
        known = self.topics.get(str(bundle), ())
        return self.policy.plan(SplitRequest(bundle, known, self.policy.options(budget)))


def _asked(inputs: CycleInputs) -> list[tuple[SplitCycle, _Where, TriggerSettings]]:
    """One question for all namespaces of one policy, in the order of the policies' first namespace."""
    cluster = inputs.balance.cluster
    counts = Counter(bundle.namespace for bundle in cluster.bundles)
    groups: dict[SplitPolicy, set[str]] = defaultdict(set)
    for namespace, policy in sorted(inputs.policies.items()):
        groups[policy].add(namespace)
    asked = []
    for policy, namespaces in groups.items():
        cycle = SplitCycle(
            now_ms=inputs.balance.now_ms,
            reports=[
                report_of(b) for b in cluster.bundles if b.namespace in namespaces and b.stats is not None
            ],
            bundle_counts={namespace: counts[namespace] for namespace in namespaces},
            broker_count=len(cluster.reporting),
            hit_counts=_of(inputs.hit_counts, namespaces),
            last_split_at_ms=_of(inputs.last_split_at_ms, namespaces),
            in_flight=[
                bundle
                for bundle in map(NamespaceBundle.parse, sorted(inputs.busy))
                if bundle.namespace in namespaces
            ],
        )
        asked.append((cycle, _Where(policy, inputs.topics), policy.trigger_settings))
    return asked


def _of(held: Mapping[NamespaceBundle, int], namespaces: set[str]) -> dict[NamespaceBundle, int]:
    return {bundle: value for bundle, value in held.items() if bundle.namespace in namespaces}


def report_of(bundle: Bundle) -> BundleReport:
    """A bundle as the split and merge rules see it; one without figures carries nothing."""
    stats = bundle.stats or BundleStats()
    if bundle.load is None:
        return BundleReport(NamespaceBundle.parse(bundle.bundle_id), stats)
    long = bundle.load.long_term
    rates = BundleStats(long.msg_rate_in, long.msg_rate_out, long.byte_rate_in, long.byte_rate_out)
    return BundleReport(NamespaceBundle.parse(bundle.bundle_id), stats, rates)
