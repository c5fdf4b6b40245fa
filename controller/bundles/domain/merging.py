"""Selects cold neighbours that could be one bundle, as a plan for a person. Cleave never performs it.

Pulsar splits bundles and never merges them, and its admin API has no call for it. So the plan lists the steps of an operator.

A wide gap keeps a merge from undoing splits. Both neighbours, and the bundle that they would form, stay at or under `low_water_percent`
of every split threshold, by the latest figures and by the long-term ones. Each has been so for `cold_cycles` cycles in a row. Neither
lies in a range that was split a short time ago. The percentage is at most 50, so no bundle of a plan is hot for the split triggers.

The coldest pair is joined first, the lower one of two equally cold pairs. The bundle that results may be joined further, down to
`min_bundles`.
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
from controller.bundles.domain.cycle import CycleInputs
from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import DEFAULT_BUNDLES, NamespaceBundle, NamespaceBundles, edge_text
from controller.bundles.domain.splitting.thresholds import BundleReport, Reading, SplitThresholds, report_of
from controller.domain.errors import InvalidInput

MAX_LOW_WATER_PERCENT = 50.0


class MergeRefusalReason(StrEnum):
    """Reason for which a bundle is not merged. The comment says what `value` and `needed` hold."""

    # The bundle.
    NOT_REPORTED = "not-reported"  # reports; 1: silence is not cold
    ISOLATED = "isolated"  # upper - lower; the least of a bundle that was not cut around one topic
    # Time.
    COLD_CYCLES = "cold-cycles"  # consecutive cold cycles, this one included; cycles needed
    COOL_DOWN = "cool-down"  # milliseconds since the last split of its range; milliseconds to wait
    IN_FLIGHT = "in-flight"  # actions in progress, or awaiting approval, on its range; 0
    # Neighbours.
    NO_COLD_NEIGHBOUR = "no-cold-neighbour"  # neighbours that could be merged with; 1
    ABOVE_LOW_WATER = "above-low-water"  # the figure of both together; the most it may be
    # Limits.
    AT_MIN_BUNDLES = "at-min-bundles"  # bundles after the merges planned; the fewest there may be


@dataclass(frozen=True, slots=True)
class MergeInputs:
    """All data that the plan for one namespace may use.

    `reports`: reports of any of its bundles; reports of bundles that no longer exist are ignored. No broker reports a bundle that no
    broker serves. If the caller knows that no broker serves a bundle, the caller adds an empty report of the bundle. `cold_cycles`: the
    counts that the previous plan returned. `last_split_at_ms` is by the bundle that was split, in milliseconds since the Unix epoch like
    `now_ms`. `in_flight`: bundles with an action in progress (a split or an unload), which are not merged.
    """

    now_ms: int
    bundles: NamespaceBundles
    reports: Sequence[BundleReport]
    cold_cycles: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    in_flight: Collection[NamespaceBundle] = ()


@dataclass(frozen=True, slots=True)
class BundleMerge:
    """Neighbours in rising order that are treated as one bundle, and their load together now (`latest`) and over a long time. `is_free`: they
    may be joined to others.
    """

    members: tuple[NamespaceBundle, ...]
    latest: BundleStats
    long_term: BundleStats
    is_free: bool

    def joined_to(self, upper: BundleMerge) -> BundleMerge:
        return BundleMerge(
            (*self.members, *upper.members),
            _sum(self.latest, upper.latest),
            _sum(self.long_term, upper.long_term),
            self.is_free and upper.is_free,
        )

    @property
    def merged(self) -> NamespaceBundle:
        """The bundle that the members would form."""
        return replace(self.members[0], upper=self.members[-1].upper)


@dataclass(frozen=True, slots=True)
class MergeRefusal:
    """A bundle that is not merged. What `value` and `needed` hold: see `MergeRefusalReason`."""

    bundle: NamespaceBundle
    reason: MergeRefusalReason
    metric: str
    value: float
    needed: float


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Merges of disjoint bundles, rising, and the namespace's list before and after them. `steps`: what the operator does, in this order,
    a sentence for each step by its name.
    """

    before: NamespaceBundles
    after: NamespaceBundles
    merges: tuple[BundleMerge, ...]
    steps: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MergeVerdict:
    """A plan, or None; a refusal for every cold or silent bundle that is not merged; the counts for the next plan."""

    plan: MergePlan | None
    refusals: tuple[MergeRefusal, ...]
    cold_cycles: Mapping[NamespaceBundle, int]


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """Parameters of a plan. Raises InvalidInput at construction for values out of their bounds.

    `low_water_percent` of every split threshold, above 0 and at most 50. `cold_cycles` >= 1. `min_bundles` >= 1: a namespace never gets
    fewer. `cooldown_seconds`: time for which a range is not merged after a split. `keep_isolated`: bundles too narrow to split were cut
    around one topic on purpose and are not merged.
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
        """Return the reading of either load that is the largest share of its limit, which is the low-water mark instead of the split
        threshold: the reading is hot if the bundle is not cold. Topics and sessions are those of `latest` in both.
        """
        marks = (
            replace(reading, limit=reading.limit * self.low_water_percent / 100)
            for reading in chain(
                self.thresholds.readings(latest, latest), self.thresholds.readings(latest, long_term)
            )
        )
        return max(marks, key=lambda reading: (reading.is_hot, reading.share))


def look_for_merges(
    inputs: CycleInputs, cold_cycles: Mapping[NamespaceBundle, int]
) -> dict[str, MergeVerdict]:
    """Return the merge verdict on each namespace of the cycle that has a policy and bundles, by name, from the readings of the cycle, by
    the namespace's split thresholds and the defaults of `MergeSettings`. Pure.

    A bundle without a reading counts as empty if it has no owner and all brokers reported, at least one; otherwise as silent.
    `cold_cycles`: number of cycles in a row in which each bundle was cold, as the previous verdicts returned it. Raises InvalidRange if the
    bundles of a namespace overlap or do not reach both ends of the ring.
    """
    cluster = inputs.balance.cluster
    of_namespace: defaultdict[str, list[Bundle]] = defaultdict(list)
    for bundle in cluster.bundles:
        of_namespace[bundle.namespace].append(bundle)
    busy = [NamespaceBundle.parse(text) for text in sorted(inputs.busy)]
    verdicts = {}
    for namespace, policy in sorted(inputs.policies.items()):
        if not of_namespace[namespace]:
            continue
        listed = of_namespace[namespace]
        ranges = sorted(NamespaceBundle.parse(bundle.bundle_id) for bundle in listed)
        look = MergeInputs(
            now_ms=inputs.balance.now_ms,
            bundles=NamespaceBundles(namespace, (*(bundle.lower for bundle in ranges), ranges[-1].upper)),
            reports=[report_of(bundle) for bundle in listed if bundle.stats is not None]
            + [report_of(bundle) for bundle in listed if _is_empty(bundle, cluster)],
            cold_cycles={key: count for key, count in cold_cycles.items() if key.namespace == namespace},
            last_split_at_ms={
                key: at for key, at in inputs.last_split_at_ms.items() if key.namespace == namespace
            },
            in_flight=[key for key in busy if key.namespace == namespace],
        )
        verdicts[namespace] = plan_merges(look, MergeSettings(thresholds=policy.thresholds))
    return verdicts


def _is_empty(bundle: Bundle, cluster: Cluster) -> bool:
    """Return True if the missing reading of the bundle shows that none of its topics is in use: no broker serves it, and all brokers
    reported, at least one.
    """
    all_report = 0 < len(cluster.brokers) == len(cluster.reporting)
    return bundle.stats is None and bundle.owner is None and all_report


def plan_merges(look: MergeInputs, settings: MergeSettings | None = None) -> MergeVerdict:
    """Return the merges that would be safe now in one namespace, the refusals in the order of the ring, and the
    counts of cold cycles, this cycle included, for the next call. Pure. `settings` None: the defaults.

    Each cold bundle that is in no merge, and each silent bundle (without a report), has a refusal. Only cold bundles
    have a count: the count of a warm or silent bundle starts again at 0. Reports of bundles outside the present
    boundaries are ignored. Raises InvalidInput if a present bundle is reported twice.
    """
    settings = settings or MergeSettings()
    reports = _by_bundle(look)
    cold = {
        bundle: look.cold_cycles.get(bundle, 0) + 1
        for bundle, report in reports.items()
        if not settings.warmest(report.latest, report.long_term).is_hot
    }
    refusals: dict[NamespaceBundle, MergeRefusal] = {}
    runs: list[BundleMerge] = []
    for bundle in look.bundles.bundles:
        refusal = _refused_by_itself(look, settings, bundle, cold.get(bundle), bundle in reports)
        if refusal is not None:
            refusals[bundle] = refusal
        is_free = bundle in cold and refusal is None
        report = reports.get(bundle, BundleReport(bundle, BundleStats()))
        runs.append(BundleMerge((bundle,), report.latest, report.long_term, is_free))
    joined = _joined(runs, settings)
    for index, run in enumerate(joined):
        if run.is_free and len(run.members) == 1:
            refusals[run.members[0]] = _refused_by_neighbours(joined, index, settings)
    return MergeVerdict(_plan(look, joined), tuple(refusals[bundle] for bundle in sorted(refusals)), cold)


def _by_bundle(look: MergeInputs) -> dict[NamespaceBundle, BundleReport]:
    """Return the reports of present bundles, by bundle; other reports are ignored. Raises InvalidInput if a present
    bundle is reported twice.
    """
    current = set(look.bundles.bundles)
    by_bundle: dict[NamespaceBundle, BundleReport] = {}
    for report in look.reports:
        if report.bundle in by_bundle:
            raise InvalidInput(f"bundle {report.bundle} is reported twice; keep its owner's report")
        if report.bundle in current:
            by_bundle[report.bundle] = report
    return by_bundle


def _refused_by_itself(
    look: MergeInputs, settings: MergeSettings, bundle: NamespaceBundle, cold: int | None, reported: bool
) -> MergeRefusal | None:
    """Return the first reason in the bundle itself that prevents a merge: no report, isolated, cold for fewer than `cold_cycles` cycles, an
    action on its range in progress, or a split of its range within `cooldown_seconds`. None if none applies, and for a reported warm bundle
    (`cold` None), which needs no reason. `cold` is the number of consecutive cycles in which the bundle was cold, this one included.
    """
    if not reported:
        return MergeRefusal(bundle, MergeRefusalReason.NOT_REPORTED, "reports", 0, 1)
    if cold is None:
        return None
    if settings.keep_isolated and not bundle.can_split:
        return MergeRefusal(bundle, MergeRefusalReason.ISOLATED, "hashes", bundle.upper - bundle.lower, 2)
    if cold < settings.cold_cycles:
        return MergeRefusal(bundle, MergeRefusalReason.COLD_CYCLES, "cold_cycles", cold, settings.cold_cycles)
    if under_way := sum(bundle.overlaps(splitting) for splitting in look.in_flight):
        return MergeRefusal(bundle, MergeRefusalReason.IN_FLIGHT, "splits", under_way, 0)
    wait_ms = settings.cooldown_seconds * 1000
    since = min(
        (max(0, look.now_ms - at) for split, at in look.last_split_at_ms.items() if bundle.overlaps(split)),
        default=math.inf,
    )
    if since < wait_ms:
        return MergeRefusal(bundle, MergeRefusalReason.COOL_DOWN, "milliseconds", since, wait_ms)
    return None


def _joined(runs: list[BundleMerge], settings: MergeSettings) -> list[BundleMerge]:
    """Return the runs, in their order, after joining the coldest free pair of neighbours repeatedly (the lower of equally cold pairs),
    while the pair stays at or under the low-water mark and more than `min_bundles` runs remain. `runs` are in the order of the ring, and do
    not change.
    """
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


def _share(low: BundleMerge, high: BundleMerge, settings: MergeSettings) -> float:
    """Return the load of both runs together as a share of the low-water mark. Return infinity if this load is above
    the mark, or if one of the runs is not free to merge.
    """
    both = low.joined_to(high)
    warmest = settings.warmest(both.latest, both.long_term)
    return warmest.share if both.is_free and not warmest.is_hot else math.inf


def _refused_by_neighbours(runs: list[BundleMerge], index: int, settings: MergeSettings) -> MergeRefusal:
    """Return the reason for which the free run at `index`, which has a single bundle, was joined to neither
    neighbour: no neighbour is free, the load of each pair is above the low-water mark, or a merge would leave fewer
    than `min_bundles` bundles. `runs` are the result of `_joined`.
    """
    bundle = runs[index].members[0]
    pairs = [
        low.joined_to(high)
        for low, high in pairwise(runs[max(0, index - 1) : index + 2])
        if low.is_free and high.is_free
    ]
    if not pairs:
        return MergeRefusal(bundle, MergeRefusalReason.NO_COLD_NEIGHBOUR, "neighbours", 0, 1)
    warmest = min(
        (settings.warmest(pair.latest, pair.long_term) for pair in pairs), key=lambda reading: reading.share
    )
    if warmest.is_hot:
        return MergeRefusal(
            bundle, MergeRefusalReason.ABOVE_LOW_WATER, warmest.metric, warmest.value, warmest.limit
        )
    return MergeRefusal(bundle, MergeRefusalReason.AT_MIN_BUNDLES, "bundles", len(runs), settings.min_bundles)


def _plan(look: MergeInputs, runs: list[BundleMerge]) -> MergePlan | None:
    """Return the plan that merges the bundles of each run. None if no run has several bundles. `runs` are in rising order of the ring,
    without gaps, and cover the namespace.
    """
    merges = tuple(run for run in runs if len(run.members) > 1)
    if not merges:
        return None
    before = look.bundles
    edges = (runs[0].merged.lower, *(run.merged.upper for run in runs))
    after = replace(before, boundaries=edges)
    return MergePlan(before, after, merges, operator_steps(before, after))


def _sum(first: BundleStats, second: BundleStats) -> BundleStats:
    """Return the sum of each figure."""
    return BundleStats(
        **{item.name: getattr(first, item.name) + getattr(second, item.name) for item in fields(BundleStats)}
    )


def operator_steps(before: NamespaceBundles, after: NamespaceBundles) -> dict[str, str]:
    """Return the steps in order, with their admin calls: the operator deletes the namespace and creates it again under the same name.

    The name must stay: a topic's hash is that of its complete name, so in a namespace with another name every topic lies elsewhere and
    these boundaries do not fit. A namespace can be created with any boundaries, and Pulsar forgets the old ones when it is deleted (pull
    request 352; these steps were done on 4.2.4). Messages that have not been read are lost.
    """
    name = before.namespace
    path = f"/admin/v2/namespaces/{name}"
    edges = {"boundaries": [edge_text(edge) for edge in after.boundaries], "numBundles": after.count}
    body = json.dumps({"bundles": edges})
    return {
        "record": f"Write down the policies of {name} (GET {path}), its topics with their partitions, their subscriptions "
        f"and schemas, and the boundaries of its {before.count} bundles.",
        "stop-clients": f"Stop the producers of {name}.",
        "drain": "Wait until every subscription has read everything; copy what must be kept beyond that: "
        "the next step deletes it.",
        "delete": f"Stop the consumers, delete the topics, then the empty namespace (DELETE {path}).",
        "create": f"Create it under the same name with {after.count} bundles: PUT {path} with the body {body}",
        "restore": "Set the policies again; create topics, schemas and subscriptions again.",
        "start-clients": "Start the consumers, then the producers.",
        "verify": f"GET {path}/bundles must answer the boundaries of the step create.",
    }
