"""Moves that are decided but not yet visible: awaiting approval, or running. A cycle treats them as done.

Otherwise each cycle would decide on the same uneven figures again, and propose the whole difference once more with other bundles. The
load that a bundle takes along is its share of its broker's traffic, of each resource, as `even` estimates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from controller.bundles.domain.cluster import BrokerReport, Bundle, Cluster
from controller.bundles.domain.load.broker_usage import RESOURCES, BrokerResources, ResourceUsage
from controller.bundles.domain.load.stats import BundleStats, figures_of, share_of, totals


@dataclass(frozen=True, slots=True, order=True)
class PendingMove:
    """A bundle that `source` owns by the last reading, and that `destination` is to own."""

    bundle_id: str
    source: str
    destination: str


def as_if_made(cluster: Cluster, pending: Iterable[PendingMove]) -> Cluster:
    """Return the cluster with these moves made: the owners of the bundles, and the resources and totals in the
    reports of source and destination. `pending` has at most one move of a bundle.

    A move is ignored if its bundle is unknown or its source does not own the bundle. If the source has no report, no
    report changes. If only the destination has no report, only the report of the source changes.
    """
    bundles = cluster.bundle_by_id
    made = [
        move for move in pending if move.bundle_id in bundles and bundles[move.bundle_id].owner == move.source
    ]
    if not made:
        return cluster
    reports = dict(cluster.report_of)
    for move in made:
        source, destination = cluster.report_of.get(move.source), reports.get(move.destination)
        if source is None:
            continue
        bundle = bundles[move.bundle_id]
        taken = _taken_along(bundle, source, cluster.bundles_of(move.source))
        reports[move.source] = _changed(reports[move.source], taken, bundle, -1)
        if destination is not None:
            reports[move.destination] = _changed(destination, taken, bundle, 1)
    brokers = tuple(replace(broker, report=reports.get(broker.name)) for broker in cluster.brokers)
    moved = cluster.with_owners({move.bundle_id: move.destination for move in made})
    return replace(moved, brokers=brokers)


def _taken_along(bundle: Bundle, source: BrokerReport, owned: Iterable[Bundle]) -> dict[str, float]:
    """Return the usage that the bundle takes along from its broker (`source`), by resource, in the unit of the report: the broker's usage
    times the bundle's share (`share_of`) of the traffic of `owned`, all bundles of the broker, the bundle included. 0 for a bundle without
    figures.
    """
    stats = [owned_bundle.stats for owned_bundle in owned if owned_bundle.stats is not None]
    own = bundle.stats or BundleStats()
    return {
        name: getattr(source.resources, name).usage
        * share_of(own, totals(stats, figures_of(name)), figures_of(name))
        for name in RESOURCES
    }


def _changed(report: BrokerReport, taken: Mapping[str, float], bundle: Bundle, sign: int) -> BrokerReport:
    """Return the broker's report after the bundle has arrived (`sign` 1) or left (-1). `taken` is the bundle's usage of each resource, in
    the unit of the report. Limits and `reported_at` stay, and no figure falls below 0.
    """
    usages = {}
    for name in RESOURCES:
        was: ResourceUsage = getattr(report.resources, name)
        usages[name] = ResourceUsage(max(was.usage + sign * taken[name], 0.0), was.limit)
    own = bundle.stats or BundleStats()
    stats = {f.name: max(getattr(report.stats, f.name) + sign * getattr(own, f.name), 0) for f in fields(own)}
    return replace(report, resources=BrokerResources(**usages), stats=BundleStats(**stats))
