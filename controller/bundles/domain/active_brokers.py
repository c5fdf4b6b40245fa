"""Reduces a cluster to its active brokers, and removes the reports of silent brokers, before a cycle. Pure.

The stored load of a broker is a last reading; a broker that failed minutes ago still has one. So destinations are taken from the
cluster's own list of active brokers. A broker on the list that does not report is known, but receives no bundle.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from controller.bundles.domain.cluster import Broker, Cluster

SILENT_TICKS = 2
"""Number of the collector's last ticks; a broker that reported in none of these ticks gets no bundle."""


def with_active_brokers(
    cluster: Cluster, active: Collection[str] | None, reporting: Collection[str] | None
) -> Cluster:
    """Return the cluster with exactly the `active` brokers, which are given by name. An active broker that is not in the cluster is added
    without a report. Reports of brokers that are not in `reporting` are removed.

    `active` None: the list of active brokers was not read, so the cluster is returned unchanged. `reporting` None: fewer than SILENT_TICKS
    ticks are stored, so silent brokers cannot be recognized, and every report stays.
    """
    if active is None:
        return cluster
    stored = cluster.broker_by_name
    brokers = [stored.get(name, Broker(name)) for name in active]
    if reporting is not None:
        brokers = [broker if broker.name in reporting else replace(broker, report=None) for broker in brokers]
    return replace(cluster, brokers=tuple(brokers))
