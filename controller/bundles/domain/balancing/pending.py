"""Moves that were decided and are not seen yet: they wait for a person, or run. A cycle counts them as made.

Otherwise each cycle would decide on the same uneven figures again, with other bundles, and propose the whole distance
again. What a bundle takes along is its share of its broker's traffic, of each resource, as `even` estimates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from controller.bundles.domain.cluster import BrokerReport, Bundle, Cluster
from controller.bundles.domain.load.resources import RESOURCES, BrokerResources, ResourceUsage
from controller.bundles.domain.load.stats import BundleStats, figures_of, share_of, totals


@dataclass(frozen=True, slots=True, order=True)
class PendingMove:
    """A bundle that is with `source` by the last reading, and is to be with `destination`."""

    bundle_id: str
    source: str
    destination: str


def as_if_made(cluster: Cluster, pending: Iterable[PendingMove]) -> Cluster:
    """The cluster with these moves made: owners, and what both brokers report.

    A bundle that is unknown, or is no longer with its source, stays as it is.
    """
    bundles = cluster.bundle_by_id
    made = [one for one in pending if one.bundle_id in bundles and bundles[one.bundle_id].owner == one.source]
    if not made:
        return cluster
    reports = dict(cluster.report_of)
    for one in made:
        source, destination = cluster.report_of.get(one.source), reports.get(one.destination)
        if source is None:
            continue
        bundle = bundles[one.bundle_id]
        taken = _taken_along(bundle, source, cluster.bundles_of(one.source))
        reports[one.source] = _changed(reports[one.source], taken, bundle, -1)
        if destination is not None:
            reports[one.destination] = _changed(destination, taken, bundle, 1)
    brokers = tuple(replace(one, report=reports.get(one.name)) for one in cluster.brokers)
    moved = cluster.with_owners({one.bundle_id: one.destination for one in made})
    return replace(moved, brokers=brokers)


def _taken_along(bundle: Bundle, source: BrokerReport, owned: Iterable[Bundle]) -> dict[str, float]:
    """Return the usage of the bundle for each resource of its broker, in the unit of the report."""
    stats = [one.stats for one in owned if one.stats is not None]
    own = bundle.stats or BundleStats()
    return {
        name: getattr(source.resources, name).usage
        * share_of(own, totals(stats, figures_of(name)), figures_of(name))
        for name in RESOURCES
    }


def _changed(report: BrokerReport, taken: Mapping[str, float], bundle: Bundle, sign: int) -> BrokerReport:
    usages = {}
    for name in RESOURCES:
        was: ResourceUsage = getattr(report.resources, name)
        usages[name] = ResourceUsage(max(was.usage + sign * taken[name], 0.0), was.limit)
    own = bundle.stats or BundleStats()
    stats = {f.name: max(getattr(report.stats, f.name) + sign * getattr(own, f.name), 0) for f in fields(own)}
    return replace(report, resources=BrokerResources(**usages), stats=BundleStats(**stats))
