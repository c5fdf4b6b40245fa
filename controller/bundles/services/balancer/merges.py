"""Which cold bundles could be one, by the load that is stored now. Shown to people, never carried out.

Each cycle makes the same look and counts how long a bundle has been cold. Asking here counts nothing.
"""

from __future__ import annotations

from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.merging import MergeVerdict, look_for_merges
from controller.bundles.services.balancer.gather import gather
from controller.store.postgres.engine import Store


def merges(store: Store, *, cluster: str, settings: BalanceSettings) -> dict[str, MergeVerdict]:
    """The verdict on each namespace of the cluster, by name. Raises StoreUnavailable."""
    snapshot = gather(store, cluster, settings)
    return look_for_merges(snapshot.inputs, snapshot.state.cold_cycles)
