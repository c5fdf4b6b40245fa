"""Selects the bundles to split now: the rules of both of Pulsar's load managers, applied to the hot bundles in one pass.

`modular` (the leader, for all bundles): rates are long-term averages, one hot cycle is enough, and at least two brokers must be known.
`extensible` (each broker, for its own bundles): rates are the present ones, a bundle must be hot in more consecutive cycles than a
threshold, and a cycle makes a limited number of splits. Neither splits bundles with fewer than two topics, and both keep namespaces at or
under their cap.

Differences from Pulsar:

- Bundles are taken in a fixed order: hottest first (the reading furthest above its limit), then by name.
- A bundle that cannot be cut is refused with the reason and does not count towards the cycle's limit of splits.
- A bundle beyond the cycle's limit still has this cycle counted.
- A bundle that is passed over (too few topics, owned elsewhere, too narrow) starts its count again; Pulsar keeps it.
- A plan counts for all the bundles it adds, not for one.
- An action in progress blocks only bundles of the same range. Pulsar compares texts, and `t/ns` also matches `t/ns2`.
- The cool-down is not in Pulsar. The policy of a namespace has it at 120 s unless set otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import CutRefusal, SplitPlan
from controller.bundles.domain.splitting.thresholds import (
    MIN_TOPICS_TO_SPLIT,
    BundleReport,
    Reading,
    SplitThresholds,
)
from controller.domain.errors import InvalidInput
from controller.domain.named import entry_named


class SplitRefusalReason(StrEnum):
    """Reason for which a hot bundle is not split. The comment says what `value` and `needed` hold."""

    # The whole cycle.
    DISABLED = "disabled"  # 0; 1
    TOO_FEW_BROKERS = "too-few-brokers"  # brokers known; the fewest that make a split worth while
    # The bundle.
    TOO_FEW_TOPICS = "too-few-topics"  # topics; 2
    NOT_OWNER = "not-owner"  # 0; 1
    NOT_SPLITTABLE = "not-splittable"  # upper - lower; the least that can be cut
    NO_CUT = "no-cut"  # the figures of the algorithm's own refusal
    # Time.
    HIT_COUNT = "hit-count"  # consecutive hot cycles, this one included; cycles needed
    COOL_DOWN = "cool-down"  # milliseconds since the last split of its range; milliseconds to wait
    IN_FLIGHT = "in-flight"  # actions in progress, or awaiting approval, on its range; 0
    # Limits.
    AT_MAX_BUNDLES = "at-max-bundles"  # bundles of the namespace with this cycle's splits; the cap
    CYCLE_LIMIT = "cycle-limit"  # splits chosen in this cycle; the most a cycle makes


@dataclass(frozen=True, slots=True)
class SplitInputs:
    """All data that the decision on one cycle's splits may use.

    `bundle_counts`: bundles of each namespace that is reported on. `broker_count`: number of brokers that have reported. `hit_counts` and
    `last_split_at_ms`: the values that the previous cycle returned; the latter is by the bundle that was split, in milliseconds since the
    Unix epoch like `now_ms`. `in_flight`: bundles with an action in progress (a split or an unload), which are not split. Collections may
    be in any order.
    """

    now_ms: int
    reports: Sequence[BundleReport]
    bundle_counts: Mapping[str, int]
    broker_count: int
    hit_counts: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    in_flight: Collection[NamespaceBundle] = ()


@dataclass(frozen=True, slots=True)
class ChosenSplit:
    """A bundle to split, the first limit it is above (Pulsar's reason), and where to cut."""

    bundle: NamespaceBundle
    because: Reading
    plan: SplitPlan


@dataclass(frozen=True, slots=True)
class SplitRefusal:
    """A hot bundle that is not split. `SplitRefusalReason` says what `value` and `needed` hold.

    `cut_refusal`: the algorithm's own refusal if the reason is NO_CUT.
    """

    bundle: NamespaceBundle
    because: Reading
    reason: SplitRefusalReason
    metric: str
    value: float
    needed: float
    cut_refusal: CutRefusal | None = None


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    """Splits and refusals, hottest bundle first, and the counts and instants to give to the next cycle."""

    chosen: tuple[ChosenSplit, ...]
    refusals: tuple[SplitRefusal, ...]
    hit_counts: Mapping[NamespaceBundle, int]
    last_split_at_ms: Mapping[NamespaceBundle, int]


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """The rules of one load manager.

    `long_term_rates`: True if long-term averages decide which bundle is hot, False if the present rates do. `min_brokers`: number of
    brokers below which nothing is split. `hit_count_threshold` >= 0: a bundle is split once it was hot in more consecutive cycles;
    None: hits are not counted. `max_splits_per_cycle` >= 1, None: any number. Raises InvalidInput at construction for other values.
    """

    long_term_rates: bool
    min_brokers: int
    hit_count_threshold: int | None
    max_splits_per_cycle: int | None

    def __post_init__(self) -> None:
        for name, least in (("min_brokers", 1), ("hit_count_threshold", 0), ("max_splits_per_cycle", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidInput(f"trigger rule {name} = {value}; give {least} or more")


TRIGGER_RULES: Mapping[str, TriggerRules] = {
    "modular": TriggerRules(
        long_term_rates=True, min_brokers=2, hit_count_threshold=None, max_splits_per_cycle=None
    ),
    "extensible": TriggerRules(
        long_term_rates=False, min_brokers=1, hit_count_threshold=3, max_splits_per_cycle=10
    ),
}


def trigger_rules(manager: str) -> TriggerRules:
    """Return the rules of that load manager with Pulsar's defaults. Raises InvalidInput for an unknown name; the message lists the
    names.
    """
    return entry_named("load manager", manager, TRIGGER_RULES)


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """Parameters of a cycle; `enabled` is `loadBalancerAutoBundleSplitEnabled`, `max_bundles` the cap of a namespace.

    `cooldown_seconds`: time for which a range is not split again after a split. Raises InvalidInput at construction if `max_bundles` is
    below 1 or `cooldown_seconds` is negative.
    """

    rules: TriggerRules = TRIGGER_RULES["modular"]
    thresholds: SplitThresholds = field(default_factory=SplitThresholds)
    enabled: bool = True
    max_bundles: int = 128
    cooldown_seconds: int = 0

    def __post_init__(self) -> None:
        if self.max_bundles < 1:
            raise InvalidInput(f"trigger setting max_bundles = {self.max_bundles}; give 1 or more")
        if self.cooldown_seconds < 0:
            raise InvalidInput(f"trigger setting cooldown_seconds = {self.cooldown_seconds}; give 0 or more")


CutFinder = Callable[[NamespaceBundle, int], SplitPlan | CutRefusal]
"""Finds the cuts of a bundle once everything else allows a split; adds at most as many bundles as the number says."""


def decide_splits(
    inputs: SplitInputs, find_cuts: CutFinder, settings: TriggerSettings | None = None
) -> SplitVerdict:
    """Return the splits of this cycle, and a refusal for each other hot bundle. Also return, for the next cycle, the
    hit counts (hot cycles in a row) and the instants of all splits within the cool-down, this cycle's splits
    included. Pure if `find_cuts` is pure. `settings` None: the defaults, with the rules of the modular manager.

    A hot bundle has the first refusal of: splits disabled, too few brokers, fewer than two topics, not owned, too
    narrow, too few hot cycles, an action on its range in progress, a split of its range in the cool-down, too many
    splits in the cycle, too many bundles, no cut. A bundle that is not hot, is split, or has one of the first five
    refusals has no hit count for the next cycle. If the rules do not count hot cycles, no bundle has a hit count.

    Raises InvalidInput for a bundle reported twice, and if `bundle_counts` lacks the namespace of a hot bundle whose
    limit is checked.
    """
    decision = _Decision(inputs, find_cuts, settings or TriggerSettings())
    for hot in _hottest_first(inputs, decision.settings):
        decision.decide(hot)
    return SplitVerdict(
        tuple(decision.chosen), tuple(decision.refusals), decision.hit_counts, decision.last_split_at_ms
    )


@dataclass(frozen=True, slots=True)
class _HotBundle:
    """A report above a limit, and the first limit it is above (`because`), in Pulsar's order of the limits."""

    report: BundleReport
    because: Reading

    def refusal(
        self,
        reason: SplitRefusalReason,
        metric: str,
        value: float,
        needed: float,
        cut_refusal: CutRefusal | None = None,
    ) -> SplitRefusal:
        return SplitRefusal(
            self.report.bundle, self.because, reason, metric, value, needed, cut_refusal=cut_refusal
        )


def _hottest_first(inputs: SplitInputs, settings: TriggerSettings) -> list[_HotBundle]:
    """Return the hot bundles, each with the first reading above its limit. The bundle with the largest share of a
    limit comes first; equal bundles are in the order of their names. Raises InvalidInput for a bundle that is
    reported twice.
    """
    names = sorted(str(report.bundle) for report in inputs.reports)
    for name, next_name in pairwise(names):
        if name == next_name:
            raise InvalidInput(f"bundle {name} is reported twice in one cycle; keep its owner's report")
    ranked: list[tuple[float, str, _HotBundle]] = []
    for report in inputs.reports:
        rates = report.long_term if settings.rules.long_term_rates else report.latest
        readings = list(settings.thresholds.readings(report.latest, rates))
        above = [reading for reading in readings if reading.is_hot]
        if above:
            hottest = max(reading.share for reading in above)
            ranked.append((-hottest, str(report.bundle), _HotBundle(report, above[0])))
    ranked.sort(key=lambda item: item[:2])
    return [hot for _, _, hot in ranked]


class _Decision:
    """One pass over the hot bundles. Every gate returns a refusal, or None to let the bundle pass to the next gate. `added`: number of
    bundles that the splits chosen so far add to each namespace. `last_split_at_ms`: the splits within the cool-down, and those chosen so
    far.
    """

    def __init__(self, inputs: SplitInputs, find_cuts: CutFinder, settings: TriggerSettings) -> None:
        self.inputs, self.find_cuts, self.settings = inputs, find_cuts, settings
        self.chosen: list[ChosenSplit] = []
        self.refusals: list[SplitRefusal] = []
        self.hit_counts: dict[NamespaceBundle, int] = {}
        self.added: Counter[str] = Counter()
        cooldown_ms = settings.cooldown_seconds * 1000
        self.last_split_at_ms = {
            bundle: min(at, inputs.now_ms)
            for bundle, at in inputs.last_split_at_ms.items()
            if max(0, inputs.now_ms - at) < cooldown_ms
        }

    def decide(self, hot: _HotBundle) -> None:
        """Ask the gates in order about the hot bundle. Append the first refusal to `refusals`, and ask no further
        gate. If no gate refuses, the last gate (`_cut`) has appended the split to `chosen`. Raises InvalidInput if
        the number of bundles of the namespace is needed and missing.
        """
        gates: tuple[Callable[[_HotBundle], SplitRefusal | None], ...] = (
            self._cycle_gate,
            self._bundle_gate,
            self._hit_gate,
            self._time_gate,
            self._limit_gate,
            self._cut,
        )
        for gate in gates:
            if refusal := gate(hot):
                self.refusals.append(refusal)
                return

    def _cycle_gate(self, hot: _HotBundle) -> SplitRefusal | None:
        """Return the refusal if splits are disabled, or if the cluster has fewer brokers than `min_brokers` of the
        rules. None if the bundle may pass to the next gate.
        """
        if not self.settings.enabled:
            return hot.refusal(SplitRefusalReason.DISABLED, "enabled", 0, 1)
        brokers, least = self.inputs.broker_count, self.settings.rules.min_brokers
        if brokers < least:
            return hot.refusal(SplitRefusalReason.TOO_FEW_BROKERS, "brokers", brokers, least)
        return None

    def _bundle_gate(self, hot: _HotBundle) -> SplitRefusal | None:
        """Return the refusal for a bundle with fewer than two topics, a bundle that the reporting broker no longer
        owns, or a bundle that is too narrow to cut; the first that applies. None if the bundle may pass to the next
        gate.
        """
        bundle, topics = hot.report.bundle, hot.report.latest.topic_count
        if topics < MIN_TOPICS_TO_SPLIT:
            return hot.refusal(SplitRefusalReason.TOO_FEW_TOPICS, "topics", topics, MIN_TOPICS_TO_SPLIT)
        if not hot.report.owned:
            return hot.refusal(SplitRefusalReason.NOT_OWNER, "owned", 0, 1)
        if not bundle.can_split:
            return hot.refusal(SplitRefusalReason.NOT_SPLITTABLE, "hashes", bundle.upper - bundle.lower, 2)
        return None

    def _hit_gate(self, hot: _HotBundle) -> SplitRefusal | None:
        """Store the bundle's number of hot cycles in a row in `hit_counts`: the number of the previous cycle, plus 1
        if the report is new (`is_new`). Return the refusal if the number is at most `hit_count_threshold`; None if it
        is above. If the threshold is None, store nothing and return None.
        """
        threshold = self.settings.rules.hit_count_threshold
        if threshold is None:
            return None
        hits = self.inputs.hit_counts.get(hot.report.bundle, 0) + hot.report.is_new
        self.hit_counts[hot.report.bundle] = hits
        if hits > threshold:
            return None
        return hot.refusal(SplitRefusalReason.HIT_COUNT, "hot_cycles", hits, threshold + 1)

    def _time_gate(self, hot: _HotBundle) -> SplitRefusal | None:
        """Return the refusal for a bundle whose range overlaps a bundle with an action in progress (`in_flight`), or
        a bundle that was split within `cooldown_seconds`, in this cycle included. A split in the future, as after the
        clock was set back, counts as one of this instant. None if the bundle may pass to the next gate.
        """
        bundle, now_ms = hot.report.bundle, self.inputs.now_ms
        under_way = sum(bundle.overlaps(splitting) for splitting in self.inputs.in_flight)
        if under_way:
            return hot.refusal(SplitRefusalReason.IN_FLIGHT, "splits", under_way, 0)
        since = [now_ms - at for split, at in self.last_split_at_ms.items() if split.overlaps(bundle)]
        if since:
            wait_ms = self.settings.cooldown_seconds * 1000
            return hot.refusal(SplitRefusalReason.COOL_DOWN, "milliseconds", min(since), wait_ms)
        return None

    def _limit_gate(self, hot: _HotBundle) -> SplitRefusal | None:
        """Return the refusal if the cycle already has its maximum number of splits, or the namespace its maximum
        number of bundles (counting the splits chosen so far). None if the bundle may pass to the next gate. Raises
        InvalidInput if the inputs lack the number of bundles of the namespace.
        """
        max_splits = self.settings.rules.max_splits_per_cycle
        if max_splits is not None and len(self.chosen) >= max_splits:
            return hot.refusal(SplitRefusalReason.CYCLE_LIMIT, "splits", len(self.chosen), max_splits)
        count, cap = self._bundle_count(hot.report.bundle.namespace), self.settings.max_bundles
        if count >= cap:
            return hot.refusal(SplitRefusalReason.AT_MAX_BUNDLES, "bundles", count, cap)
        return None

    def _bundle_count(self, namespace: str) -> int:
        """Return the number of bundles of the namespace, including those that the chosen splits add. Raises
        InvalidInput if the inputs lack the namespace.
        """
        if namespace not in self.inputs.bundle_counts:
            raise InvalidInput(f"no bundle count for namespace {namespace}, which is reported on; give it")
        return self.inputs.bundle_counts[namespace] + self.added[namespace]

    def _cut(self, hot: _HotBundle) -> SplitRefusal | None:
        """The last gate: choose the split if the algorithm finds cuts within the cap, end the bundle's hit count, begin the cool-down
        of its range, and return None. Otherwise return the refusal.
        """
        bundle, cap = hot.report.bundle, self.settings.max_bundles
        count = self._bundle_count(bundle.namespace)
        answer = self.find_cuts(bundle, cap - count)
        if isinstance(answer, CutRefusal):
            needed = answer.value if answer.needed is None else answer.needed
            return hot.refusal(SplitRefusalReason.NO_CUT, answer.metric, answer.value, needed, answer)
        after = count + len(answer.cuts)
        if after > cap:
            return hot.refusal(SplitRefusalReason.AT_MAX_BUNDLES, "bundles", after, cap)
        self.chosen.append(ChosenSplit(bundle, hot.because, answer))
        self.added[bundle.namespace] += len(answer.cuts)
        self.hit_counts.pop(bundle, None)
        self.last_split_at_ms[bundle] = self.inputs.now_ms
        return None
