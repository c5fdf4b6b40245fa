"""Decides one whole cycle: splits and moves are decided from the same readings and combined. Pure.

`splitting.triggers` decides the splits, `balancing.balance` the moves. A bundle that is to be split does not move in the same cycle. The
state of balancing, the averages of each bundle, and the counts and instants of splits pass from cycle to cycle. `cycle_text` makes texts
of all these. The same text of inputs gives the same text of the outcome, byte for byte, under the same code version.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from controller.bundles.domain.balancing.balance import (
    BalanceInputs,
    BalanceVerdict,
    already_counted,
    balance,
)
from controller.bundles.domain.balancing.moves import BalanceState, Move, exchanges
from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.load import BundleLoad
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import (
    BundleTopic,
    CutRefusal,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.domain.splitting.thresholds import report_of
from controller.bundles.domain.splitting.triggers import (
    ChosenSplit,
    SplitInputs,
    SplitRefusal,
    TriggerSettings,
    decide_splits,
)

CODE_VERSION = "6"
"""Version of the rules. Every change that would answer a stored cycle differently must raise the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleState:
    """State passed from cycle to cycle. `averages` are by bundle id, as of the window of reports that ended at `sampled_at` (ms since the
    Unix epoch; 0: no window yet, None: no cycle yet). `hit_counts` and `last_split_at_ms` are those of `SplitVerdict`.
    """

    balance: BalanceState = field(default_factory=BalanceState)
    averages: Mapping[str, BundleLoad] = field(default_factory=dict)
    sampled_at: int | None = None
    hit_counts: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    cold_cycles: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    """Number of cycles in a row in which each bundle was cold; see `merging`."""

    def sampled(self, cluster: Cluster, sampled_at: int) -> CycleState:
        """Return the state with the latest readings of the cluster's bundles added to the averages if `sampled_at` (ms since the Unix
        epoch) is later than that of the state, or the state has none; otherwise these readings were added before. A bundle without a
        reading keeps its averages. In both cases the averages of bundles that no longer exist are removed, and the later
        `sampled_at` is kept.
        """
        averages = {
            b.bundle_id: self.averages[b.bundle_id] for b in cluster.bundles if b.bundle_id in self.averages
        }
        if self.sampled_at is None or sampled_at > self.sampled_at:
            for bundle in cluster.bundles:
                if bundle.stats is not None:
                    averages[bundle.bundle_id] = averages.get(bundle.bundle_id, BundleLoad()).with_sample(
                        bundle.stats
                    )
        return replace(self, averages=averages, sampled_at=max(sampled_at, self.sampled_at or sampled_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleInputs:
    """All data that one cycle may use.

    `balance` holds the cluster with every bundle of its namespaces, loads included, and the state of balancing. `policies` is by
    namespace; a namespace without one is not split. `topics`: the topics of hot bundles, by bundle id. `busy`: bundles with a proposal that
    waits for its approval, is approved, or is applied and not yet verified; they are neither split nor moved. `awaited_bundles`: number of
    bundles that each namespace gains by such proposals of splits.
    """

    balance: BalanceInputs
    policies: Mapping[str, SplitPolicy] = field(default_factory=dict)
    topics: Mapping[str, tuple[BundleTopic, ...]] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    awaited_bundles: Mapping[str, int] = field(default_factory=dict)
    hit_counts: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CycleOutcome:
    """Splits, moves (without exchanges of bundles that are split or busy), and the refusals of both."""

    splits: tuple[ChosenSplit, ...]
    split_refusals: tuple[SplitRefusal, ...]
    balance: BalanceVerdict
    passed_over: tuple[str, ...]
    """Ids of the bundles whose move was dropped because a bundle of its exchange is split or has an action in progress."""
    hit_counts: Mapping[NamespaceBundle, int]
    last_split_at_ms: Mapping[NamespaceBundle, int]


def run_cycle(inputs: CycleInputs) -> CycleOutcome:
    """Return the splits and moves of one cycle. Pure. If a bundle of an exchange (`exchanges`) is split or busy, all
    moves of the exchange are dropped, and `passed_over` names their bundles. The state in `balance` of the result
    does not count the moves as made.

    Namespaces with equal split policies are decided together. Their splits and refusals are ordered hottest first,
    and the limit of splits in a cycle holds for them together. Hits and last splits of namespaces without a policy
    are dropped. Raises InvalidPolicy for settings that are not valid together.
    """
    verdicts = [decide_splits(*question) for question in _split_questions(inputs)]
    splits = tuple(chain.from_iterable(verdict.chosen for verdict in verdicts))
    balanced = balance(inputs.balance)
    taken = {str(split.bundle) for split in splits} | inputs.busy
    kept: list[Move] = []
    dropped: list[Move] = []
    for exchange in exchanges(balanced.moves):
        gives_way = any(move.bundle_id in taken for move in exchange)
        (dropped if gives_way else kept).extend(exchange)
    return CycleOutcome(
        splits,
        tuple(chain.from_iterable(verdict.refusals for verdict in verdicts)),
        replace(balanced, moves=tuple(kept)),
        tuple(move.bundle_id for move in dropped),
        {bundle: hits for verdict in verdicts for bundle, hits in verdict.hit_counts.items()},
        {bundle: at for verdict in verdicts for bundle, at in verdict.last_split_at_ms.items()},
    )


@dataclass(frozen=True, slots=True)
class _PolicyCuts:
    """Finds the cuts of a hot bundle by its namespace's policy, from the topics of the inputs (by bundle id; none if the id is missing).
    A call returns the plan or the refusal; `budget` is the number of bundles that the namespace may still gain.
    """

    policy: SplitPolicy
    topics: Mapping[str, tuple[BundleTopic, ...]]

    def __call__(self, bundle: NamespaceBundle, budget: int) -> SplitPlan | CutRefusal:
        topics = self.topics.get(str(bundle), ())
        return self.policy.plan(SplitRequest(bundle, topics, self.policy.options(budget)))


def _split_questions(inputs: CycleInputs) -> list[tuple[SplitInputs, _PolicyCuts, TriggerSettings]]:
    """Return the inputs, the cut finder and the settings of one split decision for each distinct policy, which decides all namespaces with
    this policy.

    Bundles without a reading are left out, but count in `bundle_counts`, as do awaited bundles. A reading is new if its owner has a report
    that no earlier cycle has counted. The reading of an owner without a report is an old one and never new. The order is that of the
    policies' first namespaces by name.
    """
    cluster = inputs.balance.cluster
    counts = Counter(bundle.namespace for bundle in cluster.bundles)
    counts.update(inputs.awaited_bundles)
    newly_reporting = cluster.report_of.keys() - already_counted(cluster, inputs.balance.state)
    groups: dict[SplitPolicy, set[str]] = defaultdict(set)
    for namespace, policy in sorted(inputs.policies.items()):
        groups[policy].add(namespace)
    questions = []
    for policy, namespaces in groups.items():
        split_inputs = SplitInputs(
            now_ms=inputs.balance.now_ms,
            reports=[
                replace(report_of(b), is_new=b.owner in newly_reporting)
                for b in cluster.bundles
                if b.namespace in namespaces and b.stats is not None
            ],
            bundle_counts={namespace: counts[namespace] for namespace in namespaces},
            broker_count=len(cluster.reporting),
            hit_counts=_of(namespaces, inputs.hit_counts),
            last_split_at_ms=_of(namespaces, inputs.last_split_at_ms),
            in_flight=[
                bundle
                for bundle in map(NamespaceBundle.parse, sorted(inputs.busy))
                if bundle.namespace in namespaces
            ],
        )
        questions.append((split_inputs, _PolicyCuts(policy, inputs.topics), policy.trigger_settings))
    return questions


def _of(namespaces: set[str], values: Mapping[NamespaceBundle, int]) -> dict[NamespaceBundle, int]:
    """Return the values of the bundles of these namespaces."""
    return {bundle: value for bundle, value in values.items() if bundle.namespace in namespaces}
