"""Metrics of bundle balancing, read from the database at each scrape.

Cycles and their actions run in tasks that end before they can be scraped. So `cleave bundles collect`, which keeps running, serves
their metrics from the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller import telemetry
from controller.bundles.store import views as bundle_views
from controller.domain.errors import StoreUnavailable
from controller.domain.formatting import printable
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "cleave_bundle_broker_usage": (
        "Usage of a broker as last aggregated, a share of its limit.",
        ("broker",),
    ),
    "cleave_bundle_broker_silent_seconds": ("Time since the broker's last report.", ("broker",)),
    "cleave_bundle_usage_spread": (
        "Standard deviation of the brokers' usage as a share of the mean, as of the last aggregation.",
        (),
    ),
    "cleave_bundle_cycle_age_seconds": ("Time since the last cycle; nothing before the first.", ()),
    "cleave_bundle_proposals": (
        "Proposals changed in the last 24 hours, by kind and state.",
        ("kind", "state"),
    ),
    "cleave_bundle_namespaces": ("Namespaces whose bundles are known, by mode.", ("mode",)),
}
"""Help text and labels of each gauge. All gauges describe the cluster in the settings."""


class BundleMetrics(Collector):
    """The gauges of one cluster. There are none while the database is unreachable."""

    def __init__(self, store: Store, cluster: str) -> None:
        self._store, self._cluster = store, cluster

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges without values, and without a query."""
        return (GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in GAUGES.items())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the gauges of the cluster from the database and yield one family for each. Yields nothing, and logs a warning, while
        PostgreSQL is unreachable.
        """
        try:
            with self._store.transaction() as tx:
                rows = bundle_views.gauges(tx, self._cluster)
        except StoreUnavailable as error:
            log.warning("cannot read metrics of bundles", error=str(error))
            return
        for family in self.describe():
            for labels, value in rows.get(family.name, ()):
                family.add_metric(list(map(printable, labels)), value)
            yield family
