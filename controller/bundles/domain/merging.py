"""Which cold neighbours could be one bundle: a plan, never an act. Pulsar splits bundles and never merges them.

Kept from undoing what splits do by a wide gap: both neighbours, and what they make together, stay at or under
``low_water_percent`` of every split threshold, by the latest figures and by the long-term ones; each has been so
for ``cold_cycles`` looks in a row; and neither lies in a range that was split a short time ago. The percentage is 50
at most, so no bundle of a plan is hot for ``triggers``.

The coldest pair is joined first, the lower of two equally cold ones, and what came of it may be joined on, down to
``min_bundles``.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import chain, pairwise

from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs, report_of
from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.ring.boundaries import DEFAULT_BUNDLES, NamespaceBundles
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import edge_text
from controller.bundles.domain.splitting.thresholds import BundleReport, Reading, SplitThresholds
from controller.domain.errors import InvalidInput


class ApartReason(StrEnum):
    """Why a bundle stays as it is. The comment says what ``value`` and ``needed`` hold."""

    # The bundle.
    NOT_REPORTED = "not-reported"  # reports; 1: silence is not cold
    ISOLATED = "isolated"  # upper - lower; the least of a bundle that was not cut around one topic
    # Time.
    COLD_CYCLES = "cold-cycles"  # consecutive cold cycles, this one included; cycles it takes
    COOL_DOWN = "cool-down"  # milliseconds since the last split of its range; milliseconds to wait
    IN_FLIGHT = "in-flight"  # splits of its range under way; 0
    # Neighbours.
    NO_COLD_NEIGHBOUR = "no-cold-neighbour"  # neighbours that could be merged with; 1
    ABOVE_LOW_WATER = "above-low-water"  # the figure of both together; the most it may be
    # Limits.
    AT_MIN_BUNDLES = "at-min-bundles"  # bundles after the merges planned; the least there may be


@dataclass(frozen=True, slots=True)
class MergeCycle:
    """One namespace, all that a look may see.

    ``reports``: of any of its bundles, those of bundles that are no more are ignored. A bundle nobody
    serves is reported by no broker: the caller reports it, empty, if it knows that. ``cold_cycles`` as the
    look before returned them. ``last_split_at_ms`` by the bundle that was split, milliseconds since the Unix
    epoch like ``now_ms``. ``in_flight``: bundles being split now.
    """

    now_ms: int
    bundles: NamespaceBundles
    reports: Sequence[BundleReport]
    cold_cycles: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    in_flight: Collection[NamespaceBundle] = ()


@dataclass(frozen=True, slots=True)
class BundleMerge:
    """Neighbours, rising, the bundle they would make, and what it would carry now and over a long time."""

    members: tuple[NamespaceBundle, ...]
    merged: NamespaceBundle
    latest: BundleStats
    long_term: BundleStats


@dataclass(frozen=True, slots=True)
class KeptApart:
    """A bundle that is not merged. What ``value`` and ``needed`` hold: see ``ApartReason``."""

    bundle: NamespaceBundle
    reason: ApartReason
    metric: str
    value: float
    needed: float


class MergeAct(StrEnum):
    """What an operator does, in this order."""

    RECORD = "record"
    STOP_CLIENTS = "stop-clients"
    DRAIN = "drain"
    DELETE = "delete"
    CREATE = "create"
    RESTORE = "restore"
    START_CLIENTS = "start-clients"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One step, with a sentence for the one who does it."""

    act: MergeAct
    sentence: str


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Merges on disjoint bundles, rising, and the namespace's list before and after them, at one version."""

    before: NamespaceBundles
    after: NamespaceBundles
    merges: tuple[BundleMerge, ...]
    steps: tuple[MergeStep, ...]


@dataclass(frozen=True, slots=True)
class MergeVerdict:
    """A plan, or None; a reason for every bundle that is cold or silent and stays; what the next look is given."""

    plan: MergePlan | None
    apart: tuple[KeptApart, ...]
    cold_cycles: Mapping[NamespaceBundle, int]


MAX_LOW_WATER_PERCENT = 50.0


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """Knobs of a look. Raises InvalidInput at construction for values out of their bounds.

    ``low_water_percent`` of every split threshold, above 0 and at most 50. ``cold_cycles`` >= 1.
    ``min_bundles`` >= 1: never fewer. ``cooldown_seconds``: how long a range stays as it is after a split.
    ``keep_isolated``: bundles too narrow to split were cut around one topic on purpose and stay.
    """

    thresholds: SplitThresholds = field(default_factory=SplitThresholds)
    low_water_percent: float = 10.0
    cold_cycles: int = 60
    min_bundles: int = DEFAULT_BUNDLES
    cooldown_seconds: int = 3600
    keep_isolated: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.low_water_percent <= MAX_LOW_WATER_PERCENT:
            raise InvalidInput(
                f"merge setting low_water_percent = {self.low_water_percent}; "
                f"give more than 0 and at most {MAX_LOW_WATER_PERCENT}, well under the split thresholds"
            )
        for name, least in (("cold_cycles", 1), ("min_bundles", 1), ("cooldown_seconds", 0)):
            if (value := getattr(self, name)) < least:
                raise InvalidInput(f"merge setting {name} = {value}; give {least} or more")

    def warmest(self, latest: BundleStats, long_term: BundleStats) -> Reading:
        """Of all figures the one nearest to its limit; the limit is the low-water mark, not the split threshold."""
        marks = (
            replace(reading, limit=reading.limit * self.low_water_percent / 100)
            for reading in chain(
                self.thresholds.readings(latest, latest), self.thresholds.readings(latest, long_term)
            )
        )
        return max(marks, key=lambda reading: (reading.is_hot, reading.share))


def plan_merges(cycle: MergeCycle, settings: MergeSettings | None = None) -> MergeVerdict:
    """The merges that would be safe now, and why the other cold bundles stay; pure.

    Raises InvalidInput for a bundle that is reported twice.
    """
    settings = settings or MergeSettings()
    reports = _by_bundle(cycle)
    cold = {
        bundle: cycle.cold_cycles.get(bundle, 0) + 1
        for bundle, report in reports.items()
        if not settings.warmest(report.latest, report.long_term).is_hot
    }
    apart: dict[NamespaceBundle, KeptApart] = {}
    runs: list[_Run] = []
    for bundle in cycle.bundles.bundles:
        kept = _kept(cycle, settings, bundle, cold.get(bundle), bundle in reports)
        if kept is not None:
            apart[bundle] = kept
        is_free = bundle in cold and kept is None
        report = reports.get(bundle, BundleReport(bundle, BundleStats()))
        runs.append(_Run((bundle,), report.latest, report.long_term, is_free))
    joined = _joined(runs, settings)
    for index, run in enumerate(joined):
        if run.is_free and len(run.members) == 1:
            apart[run.members[0]] = _alone(joined, index, settings)
    return MergeVerdict(_plan(cycle, joined), tuple(apart[bundle] for bundle in sorted(apart)), cold)


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours taken as one; ``is_free``: they may be joined to others."""

    members: tuple[NamespaceBundle, ...]
    latest: BundleStats
    long_term: BundleStats
    is_free: bool

    def joined_to(self, upper: _Run) -> _Run:
        return _Run(
            (*self.members, *upper.members),
            _sum(self.latest, upper.latest),
            _sum(self.long_term, upper.long_term),
            self.is_free and upper.is_free,
        )

    @property
    def whole(self) -> NamespaceBundle:
        return replace(self.members[0], upper=self.members[-1].upper)


def _by_bundle(cycle: MergeCycle) -> dict[NamespaceBundle, BundleReport]:
    current = set(cycle.bundles.bundles)
    found: dict[NamespaceBundle, BundleReport] = {}
    for report in cycle.reports:
        if report.bundle in found:
            raise InvalidInput(f"bundle {report.bundle} is reported twice; keep its owner's report")
        if report.bundle in current:
            found[report.bundle] = report
    return found


def _kept(
    cycle: MergeCycle, settings: MergeSettings, bundle: NamespaceBundle, cold: int | None, reported: bool
) -> KeptApart | None:
    """What of its own keeps a bundle as it is; None for a warm one too, which needs no reason."""
    if not reported:
        return KeptApart(bundle, ApartReason.NOT_REPORTED, "reports", 0, 1)
    if cold is None:
        return None
    if settings.keep_isolated and not bundle.can_split:
        return KeptApart(bundle, ApartReason.ISOLATED, "hashes", bundle.upper - bundle.lower, 2)
    if cold < settings.cold_cycles:
        return KeptApart(bundle, ApartReason.COLD_CYCLES, "cold_cycles", cold, settings.cold_cycles)
    if under_way := sum(bundle.overlaps(other) for other in cycle.in_flight):
        return KeptApart(bundle, ApartReason.IN_FLIGHT, "splits", under_way, 0)
    wait_ms = settings.cooldown_seconds * 1000
    since = min(
        (max(0, cycle.now_ms - at) for split, at in cycle.last_split_at_ms.items() if bundle.overlaps(split)),
        default=math.inf,
    )
    if since < wait_ms:
        return KeptApart(bundle, ApartReason.COOL_DOWN, "milliseconds", since, wait_ms)
    return None


def _joined(runs: list[_Run], settings: MergeSettings) -> list[_Run]:
    """Coldest free pair first, again and again, as long as the pair stays under the mark and enough are left."""
    runs = list(runs)
    shares = [_share(low, high, settings) for low, high in pairwise(runs)]
    while len(runs) > settings.min_bundles and (coldest := min(shares, default=math.inf)) < math.inf:
        index = shares.index(coldest)
        runs[index : index + 2] = [runs[index].joined_to(runs[index + 1])]
        del shares[index]
        for beside in (index - 1, index):
            if 0 <= beside < len(shares):
                shares[beside] = _share(runs[beside], runs[beside + 1], settings)
    return runs


def _share(low: _Run, high: _Run, settings: MergeSettings) -> float:
    """How near to the low-water mark both together come; infinite where they may not be joined."""
    both = low.joined_to(high)
    warmest = settings.warmest(both.latest, both.long_term)
    return warmest.share if both.is_free and not warmest.is_hot else math.inf


def _alone(runs: list[_Run], index: int, settings: MergeSettings) -> KeptApart:
    """Why a bundle that might be merged was not."""
    bundle = runs[index].members[0]
    pairs = [
        low.joined_to(high)
        for low, high in pairwise(runs[max(0, index - 1) : index + 2])
        if low.is_free and high.is_free
    ]
    if not pairs:
        return KeptApart(bundle, ApartReason.NO_COLD_NEIGHBOUR, "neighbours", 0, 1)
    warmest = min(
        (settings.warmest(pair.latest, pair.long_term) for pair in pairs), key=lambda reading: reading.share
    )
    if warmest.is_hot:
        return KeptApart(bundle, ApartReason.ABOVE_LOW_WATER, warmest.metric, warmest.value, warmest.limit)
    return KeptApart(bundle, ApartReason.AT_MIN_BUNDLES, "bundles", len(runs), settings.min_bundles)


def _plan(cycle: MergeCycle, runs: list[_Run]) -> MergePlan | None:
    merges = tuple(
        BundleMerge(run.members, run.whole, run.latest, run.long_term) for run in runs if len(run.members) > 1
    )
    if not merges:
        return None
    before = cycle.bundles
    edges = (runs[0].whole.lower, *(run.whole.upper for run in runs))
    after = replace(before, boundaries=edges)
    return MergePlan(before, after, merges, operator_steps(before, after))


def _sum(one: BundleStats, other: BundleStats) -> BundleStats:
    return BundleStats(
        **{item.name: getattr(one, item.name) + getattr(other, item.name) for item in fields(BundleStats)}
    )


def look_for_merges(
    inputs: CycleInputs, cold_cycles: Mapping[NamespaceBundle, int]
) -> dict[str, MergeVerdict]:
    """The verdict on each namespace that has a policy, by name; `cold_cycles` as the last look returned them."""
    cluster = inputs.balance.cluster
    of_namespace: defaultdict[str, list[Bundle]] = defaultdict(list)
    for bundle in cluster.bundles:
        of_namespace[bundle.namespace].append(bundle)
    busy = [NamespaceBundle.parse(text) for text in sorted(inputs.busy)]
    verdicts = {}
    for namespace, policy in sorted(inputs.policies.items()):
        if not of_namespace[namespace]:
            continue
        cut = sorted(NamespaceBundle.parse(one.bundle_id) for one in of_namespace[namespace])
        cycle = MergeCycle(
            now_ms=inputs.balance.now_ms,
            bundles=NamespaceBundles(namespace, (*(one.lower for one in cut), cut[-1].upper)),
            reports=[report_of(one) for one in of_namespace[namespace] if one.stats is not None]
            + [report_of(one) for one in of_namespace[namespace] if _is_empty(one, cluster)],
            cold_cycles={one: count for one, count in cold_cycles.items() if one.namespace == namespace},
            last_split_at_ms={
                one: at for one, at in inputs.last_split_at_ms.items() if one.namespace == namespace
            },
            in_flight=[one for one in busy if one.namespace == namespace],
        )
        verdicts[namespace] = plan_merges(cycle, MergeSettings(thresholds=policy.thresholds))
    return verdicts


def _is_empty(bundle: Bundle, cluster: Cluster) -> bool:
    """Nobody serves it, and every broker was heard: it has no topic in use. Else its silence says nothing."""
    everybody_reports = len(cluster.reporting) == len(cluster.brokers)
    return bundle.stats is None and bundle.owner is None and everybody_reports


def operator_steps(before: NamespaceBundles, after: NamespaceBundles) -> tuple[MergeStep, ...]:
    """The steps in order, each with the call to make where there is one."""
    name = before.namespace
    path = f"/admin/v2/namespaces/{name}"
    edges = {"boundaries": [edge_text(edge) for edge in after.boundaries], "numBundles": after.count}
    body = json.dumps({"bundles": edges})
    return (
        MergeStep(
            MergeAct.RECORD,
            f"Write down the policies of {name} (GET {path}), its topics with their partitions, their subscriptions "
            f"and schemas, and the boundaries of its {before.count} bundles.",
        ),
        MergeStep(MergeAct.STOP_CLIENTS, f"Stop the producers of {name}."),
        MergeStep(
            MergeAct.DRAIN,
            "Wait until every subscription has read everything; copy what must be kept beyond that: "
            "the next step deletes it.",
        ),
        MergeStep(
            MergeAct.DELETE,
            f"Stop the consumers, delete the topics, then the empty namespace (DELETE {path}).",
        ),
        MergeStep(
            MergeAct.CREATE,
            f"Create it under the same name with {after.count} bundles: PUT {path} with the body {body}",
        ),
        MergeStep(
            MergeAct.RESTORE, "Set the policies again; create topics, schemas and subscriptions again."
        ),
        MergeStep(MergeAct.START_CLIENTS, "Start the consumers, then the producers."),
        MergeStep(
            MergeAct.VERIFY, f"GET {path}/bundles must answer the boundaries of the step {MergeAct.CREATE}."
        ),
    )
