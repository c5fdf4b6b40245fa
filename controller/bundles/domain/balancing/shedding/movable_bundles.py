"""Which bundles a shedder may propose to move, and their order.

Every order is total: by load, then by name. In Pulsar, equal bundles follow the order of a hash map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.load.averages import BundleLoad
from controller.domain.pulsar_names import belongs_to_a_broker


@dataclass(frozen=True, slots=True, order=True)
class WeighedBundle:
    """A bundle that may move, with the figure by which it is chosen."""

    load: float
    bundle_id: str


def may_move(
    cluster: Cluster, bundle: Bundle, settings: BalanceSettings, state: BalanceState, now_ms: int
) -> bool:
    """Return True if a bundle may be proposed: its load is known, its namespace is neither a broker's own nor excluded, no action on it is
    in progress (`resting` of the cluster), and it was never moved or its last move is more than `grace_seconds` ago.
    """
    if bundle.load is None or bundle.bundle_id in cluster.resting:
        return False
    namespace = bundle.namespace
    if belongs_to_a_broker(namespace) or settings.excludes(namespace):
        return False
    moved_at = state.unloaded_bundles.get(bundle.bundle_id)
    # As in Pulsar, the grace period is over when the move is strictly older than it.
    return moved_at is None or now_ms - moved_at > settings.grace_seconds * 1_000


def heaviest_first(
    cluster: Cluster,
    broker: str,
    figure: Callable[[BundleLoad], float],
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> list[WeighedBundle]:
    """Return the bundles of a broker that may move, by load descending, then by name. `figure` computes the load from the averages of a
    bundle.
    """
    weighed = [
        WeighedBundle(figure(bundle.load), bundle.bundle_id)
        for bundle in cluster.bundles_of(broker)
        if bundle.load is not None and may_move(cluster, bundle, settings, state, now_ms)
    ]
    return sorted(weighed, key=lambda bundle: (-bundle.load, bundle.bundle_id))
