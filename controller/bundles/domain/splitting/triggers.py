"""Which bundles to split now: the rules of both of Pulsar's load managers, as one walk over the hot ones.

``modular`` (the leader, for all bundles): rates are long-term averages, one hot cycle is enough, two brokers must
be known. ``extensible`` (each broker, for its own bundles): rates are those of the moment, a bundle must be hot in
more consecutive cycles than a threshold, and a cycle makes a limited number of splits. Both leave
bundles with fewer than two topics alone and keep namespaces at or under their cap.

Unlike upstream the walk is in a fixed order, hottest first (the reading furthest above its limit), then by
name. A bundle that cannot be cut is held with the reason and uses up no room. A bundle beyond the
cycle's limit still has this cycle counted. One that is passed over (too few topics, owned elsewhere, too narrow)
begins its count anew, where upstream keeps it. A plan counts for all the bundles it adds, not for one. And a
split under way holds only bundles of the same range: upstream compares texts, and ``t/ns`` also means
``t/ns2``. The cool-down is not in Pulsar; it is 0 unless set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import SplitPlan
from controller.bundles.domain.splitting.algorithms.refusal import SplitRefusal
from controller.bundles.domain.splitting.thresholds import (
    MIN_TOPICS_TO_SPLIT,
    BundleReport,
    Reading,
    SplitThresholds,
)
from controller.domain.errors import InvalidInput


class HoldReason(StrEnum):
    """Why a hot bundle is left alone. The comment says what ``value`` and ``needed`` hold."""

    # The whole cycle.
    DISABLED = "disabled"  # 0; 1
    TOO_FEW_BROKERS = "too-few-brokers"  # brokers known; the least that makes a split worth while
    # The bundle.
    TOO_FEW_TOPICS = "too-few-topics"  # topics; 2
    NOT_OWNER = "not-owner"  # 0; 1
    NOT_SPLITTABLE = "not-splittable"  # upper - lower; the least that can be cut
    NO_CUT = "no-cut"  # the figures of the refusal in ``refusal``
    # Time.
    HIT_COUNT = "hit-count"  # consecutive hot cycles, this one included; cycles it takes
    COOL_DOWN = "cool-down"  # milliseconds since the last split of its range; milliseconds to wait
    IN_FLIGHT = "in-flight"  # splits of its range under way; 0
    # Limits.
    AT_MAX_BUNDLES = "at-max-bundles"  # bundles of the namespace with this cycle's splits; the cap
    CYCLE_LIMIT = "cycle-limit"  # splits chosen in this cycle; the most a cycle makes


@dataclass(frozen=True, slots=True)
class SplitCycle:
    """All that one cycle may look at.

    ``bundle_counts``: bundles of each namespace that is reported on. ``hit_counts`` and
    ``last_split_at_ms`` as the cycle before returned them; the latter by the bundle that was split,
    milliseconds since the Unix epoch like ``now_ms``. ``in_flight``: bundles being split now. The order of
    anything does not matter.
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
class HeldSplit:
    """A hot bundle that is left alone. What ``value`` and ``needed`` hold: see ``HoldReason``."""

    bundle: NamespaceBundle
    because: Reading
    reason: HoldReason
    metric: str
    value: float
    needed: float
    refusal: SplitRefusal | None = None


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    """Hottest first, and what the next cycle is to be given."""

    chosen: tuple[ChosenSplit, ...]
    held: tuple[HeldSplit, ...]
    hit_counts: Mapping[NamespaceBundle, int]
    last_split_at_ms: Mapping[NamespaceBundle, int]


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """A load manager's rules.

    ``hit_count_threshold`` >= 0, None: hits are not counted; ``max_splits_per_cycle`` >= 1, None: any number.
    Raises InvalidInput at construction for other values.
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
    """The rules of that load manager with Pulsar's defaults; raises InvalidInput listing the known ones."""
    try:
        return TRIGGER_RULES[manager]
    except KeyError:
        known = ", ".join(TRIGGER_RULES)
        raise InvalidInput(f"load manager {manager!r} is unknown; choose one of {known}") from None


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """Knobs of a cycle; ``enabled`` is ``loadBalancerAutoBundleSplitEnabled``, ``max_bundles`` the cap of a namespace.

    ``cooldown_seconds``: how long a range is left alone after a split.
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


class Where(Protocol):
    """Asked for the cuts of a bundle once everything else allows a split; adds at most ``budget`` bundles."""

    def __call__(self, bundle: NamespaceBundle, budget: int) -> SplitPlan | SplitRefusal: ...


def decide_splits(cycle: SplitCycle, where: Where, settings: TriggerSettings | None = None) -> SplitVerdict:
    """The splits of this cycle; pure as long as ``where`` is.

    Raises InvalidInput for a bundle reported twice and for a namespace that ``bundle_counts`` leaves out.
    """
    walk = _Walk(cycle, where, settings or TriggerSettings())
    for report, because in _hot_first(cycle, walk.settings):
        walk.visit(report, because)
    return SplitVerdict(tuple(walk.chosen), tuple(walk.held), walk.hits, walk.stamps)


def _hot_first(cycle: SplitCycle, settings: TriggerSettings) -> list[tuple[BundleReport, Reading]]:
    """Hot reports with the first limit they are above, hottest first, then by name."""
    names = sorted(str(report.bundle) for report in cycle.reports)
    for one, other in pairwise(names):
        if one == other:
            raise InvalidInput(f"bundle {one} is reported twice in one cycle; keep its owner's report")
    found: list[tuple[float, str, BundleReport, Reading]] = []
    for report in cycle.reports:
        rates = report.long_term if settings.rules.long_term_rates else report.latest
        readings = list(settings.thresholds.readings(report.latest, rates))
        hot = [reading for reading in readings if reading.is_hot]
        if hot:
            hottest = max(reading.share for reading in hot)
            found.append((-hottest, str(report.bundle), report, hot[0]))
    found.sort(key=lambda item: item[:2])
    return [(report, because) for _, _, report, because in found]


class _Walk:
    """One pass over the hot bundles; every gate answers a hold or lets the bundle pass to the next one."""

    def __init__(self, cycle: SplitCycle, where: Where, settings: TriggerSettings) -> None:
        self.cycle, self.where, self.settings = cycle, where, settings
        self.chosen: list[ChosenSplit] = []
        self.held: list[HeldSplit] = []
        self.hits: dict[NamespaceBundle, int] = {}
        self.added: Counter[str] = Counter()
        cooldown_ms = settings.cooldown_seconds * 1000
        self.stamps = {
            bundle: at
            for bundle, at in cycle.last_split_at_ms.items()
            if max(0, cycle.now_ms - at) < cooldown_ms
        }

    def visit(self, report: BundleReport, because: Reading) -> None:
        gates: tuple[Callable[[BundleReport], _Hold | None], ...] = (
            self._cycle_gate,
            self._bundle_gate,
            self._hit_gate,
            self._time_gate,
            self._limit_gate,
        )
        for gate in gates:
            if hold := gate(report):
                self._hold(report, because, hold)
                return
        self._cut(report, because)

    def _hold(self, report: BundleReport, because: Reading, hold: _Hold) -> None:
        self.held.append(
            HeldSplit(report.bundle, because, hold.reason, hold.metric, hold.value, hold.needed, hold.refusal)
        )

    def _cycle_gate(self, report: BundleReport) -> _Hold | None:  # noqa: ARG002 - a gate like the others
        if not self.settings.enabled:
            return _Hold(HoldReason.DISABLED, "enabled", 0, 1)
        least = self.settings.rules.min_brokers
        if self.cycle.broker_count < least:
            return _Hold(HoldReason.TOO_FEW_BROKERS, "brokers", self.cycle.broker_count, least)
        return None

    def _bundle_gate(self, report: BundleReport) -> _Hold | None:
        bundle, topics = report.bundle, report.latest.topic_count
        if topics < MIN_TOPICS_TO_SPLIT:
            return _Hold(HoldReason.TOO_FEW_TOPICS, "topics", topics, MIN_TOPICS_TO_SPLIT)
        if not report.owned:
            return _Hold(HoldReason.NOT_OWNER, "owned", 0, 1)
        if not bundle.can_split:
            return _Hold(HoldReason.NOT_SPLITTABLE, "hashes", bundle.upper - bundle.lower, 2)
        return None

    def _hit_gate(self, report: BundleReport) -> _Hold | None:
        threshold = self.settings.rules.hit_count_threshold
        if threshold is None:
            return None
        hits = self.cycle.hit_counts.get(report.bundle, 0) + 1
        self.hits[report.bundle] = hits
        return None if hits > threshold else _Hold(HoldReason.HIT_COUNT, "hot_cycles", hits, threshold + 1)

    def _time_gate(self, report: BundleReport) -> _Hold | None:
        under_way = sum(report.bundle.overlaps(other) for other in self.cycle.in_flight)
        if under_way:
            return _Hold(HoldReason.IN_FLIGHT, "splits", under_way, 0)
        since = [self.cycle.now_ms - at for split, at in self.stamps.items() if split.overlaps(report.bundle)]
        if since:
            wait_ms = self.settings.cooldown_seconds * 1000
            return _Hold(HoldReason.COOL_DOWN, "milliseconds", min(since), wait_ms)
        return None

    def _limit_gate(self, report: BundleReport) -> _Hold | None:
        most = self.settings.rules.max_splits_per_cycle
        if most is not None and len(self.chosen) >= most:
            return _Hold(HoldReason.CYCLE_LIMIT, "splits", len(self.chosen), most)
        count = self._bundle_count(report.bundle.namespace)
        if count >= self.settings.max_bundles:
            return _Hold(HoldReason.AT_MAX_BUNDLES, "bundles", count, self.settings.max_bundles)
        return None

    def _bundle_count(self, namespace: str) -> int:
        """Bundles of the namespace with the splits already chosen."""
        if namespace not in self.cycle.bundle_counts:
            raise InvalidInput(f"no bundle count for namespace {namespace}, which is reported on; give it")
        return self.cycle.bundle_counts[namespace] + self.added[namespace]

    def _cut(self, report: BundleReport, because: Reading) -> None:
        bundle, cap = report.bundle, self.settings.max_bundles
        count = self._bundle_count(bundle.namespace)
        answer = self.where(bundle, cap - count)
        if isinstance(answer, SplitRefusal):
            needed = answer.value if answer.needed is None else answer.needed
            self._hold(report, because, _Hold(HoldReason.NO_CUT, answer.metric, answer.value, needed, answer))
        elif count + len(answer.cuts) > cap:
            self._hold(
                report, because, _Hold(HoldReason.AT_MAX_BUNDLES, "bundles", count + len(answer.cuts), cap)
            )
        else:
            self.chosen.append(ChosenSplit(bundle, because, answer))
            self.added[bundle.namespace] += len(answer.cuts)
            self.hits.pop(bundle, None)
            self.stamps[bundle] = self.cycle.now_ms


@dataclass(frozen=True, slots=True)
class _Hold:
    reason: HoldReason
    metric: str
    value: float
    needed: float
    refusal: SplitRefusal | None = None
