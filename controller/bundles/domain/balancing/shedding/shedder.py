"""Interface of a shedder, and the choice of bundles and the refusals that shedders share.

Every order is total: by load, then by name. In Pulsar, equal bundles follow the order of a hash map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerReading,
    Move,
    MoveReason,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Bundle, Cluster
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
    metric: str,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> list[WeighedBundle]:
    """Return the bundles of a broker that may move, by load descending, then by name. The load is the `byte_rate` or the
    `msg_rate` (`metric`) per second, in and out together, averaged over the last samples.
    """
    weighed = [
        WeighedBundle(getattr(bundle.load.short_term, metric), bundle.bundle_id)
        for bundle in cluster.bundles_of(broker)
        if bundle.load is not None and may_move(cluster, bundle, settings, state, now_ms)
    ]
    return sorted(weighed, key=lambda bundle: (-bundle.load, bundle.bundle_id))


@dataclass(frozen=True, slots=True)
class Shedding:
    """Proposed moves, refusals with reasons (of a bundle, a broker or the cluster), and the state after the decision.

    The moves do not count as made in `state`; see `BalanceState.after`.
    """

    moves: tuple[Move, ...]
    refusals: tuple[MoveRefusal, ...]
    state: BalanceState


Shedder = Callable[[Cluster, BalanceSettings, BalanceState, int], Shedding]
"""A pure function of the cluster, the settings, the state and the instant (ms since the Unix epoch).

It never takes the last bundle of a broker. It proposes no bundle twice, none that is resting or was moved within
`grace_seconds`, and none of a broker's own namespaces. A destination is never the source.
"""


def enough_to_cover(weighed: Sequence[WeighedBundle], needed: float) -> list[WeighedBundle]:
    """Return the first bundles whose loads add up to `needed`, at least one if there is any; all if their loads add up to less.
    `overload` and `threshold` choose in this way.
    """
    taken = 0.0
    picked: list[WeighedBundle] = []
    for bundle in weighed:
        if picked and taken >= needed:
            break
        picked.append(bundle)
        taken += bundle.load
    return picked


def shed_byte_rate(
    cluster: Cluster,
    broker: str,
    because: BrokerReading,
    needed: float,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> tuple[list[Move], MoveRefusal | None]:
    """Return moves of at least `needed` bytes per second off the broker, heaviest bundles first and without a destination, and None. If
    the movable bundles have less, all of them are moved. If no bundle may be moved, or the broker has fewer than two, return no moves
    and the refusal. `because` is the reading that causes the moves.

    One bundle stays; Pulsar takes the last one too if the broker reports more than the sum of its bundles.
    """
    owned = cluster.bundles_of(broker)
    if len(owned) < 2:
        return [], MoveRefusal(
            MoveRefusalReason.SOLE_BUNDLE, broker, metric="bundles", value=len(owned), needed=2
        )
    weighed = heaviest_first(cluster, broker, "byte_rate", settings, state, now_ms)
    picked = enough_to_cover(weighed, needed)[: len(owned) - 1]
    if not picked:
        return [], MoveRefusal(MoveRefusalReason.NO_BUNDLES, broker, metric="bundles", value=0, needed=1)
    return [
        Move(bundle.bundle_id, broker, None, bundle.load, "byte_rate", MoveReason.OVERLOADED, because)
        for bundle in picked
    ], None


def stale_reports(cluster: Cluster, settings: BalanceSettings, now_ms: int) -> dict[str, MoveRefusal]:
    """Return, by broker, a refusal for each broker whose report is older than `report_ttl_seconds`. Brokers without a report are left
    out.
    """
    most_ms = settings.report_ttl_seconds * 1_000
    ages = {name: now_ms - report.reported_at for name, report in cluster.reporting}
    return {
        name: MoveRefusal(MoveRefusalReason.STALE_REPORT, name, None, "age_ms", age, most_ms)
        for name, age in ages.items()
        if age > most_ms
    }


def too_few_brokers(cluster: Cluster) -> MoveRefusal | None:
    """Return the refusal for a cluster with fewer than two reporting brokers, in which no other broker could take a
    bundle. None if at least two brokers have a report.
    """
    reporting = len(cluster.reporting)
    if reporting >= 2:
        return None
    return MoveRefusal(MoveRefusalReason.FEW_BROKERS, metric="brokers", value=reporting, needed=2)
