"""Returns cold bundles that could be merged, by the stored load. Merges are only shown, never performed.

Each cycle makes the same check and counts for how many cycles a bundle has been cold. This query does not change the counts.
"""

from __future__ import annotations

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.merging import MergeVerdict, look_for_merges
from controller.bundles.services.balancer.gather import gather
from controller.store.postgres.engine import Store


def merges(store: Store, *, cluster: str, settings: BalanceSettings) -> dict[str, MergeVerdict]:
    """Return the merge verdict on each namespace of the cluster that has bundles and a readable split policy, by name.
    Raises StoreUnavailable, and InvalidInput if the stored state of balancing cannot be read.
    """
    snapshot = gather(store, cluster, settings)
    return look_for_merges(snapshot.inputs, snapshot.state.cold_cycles)
