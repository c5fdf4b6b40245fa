"""One source and one destination of `transfer`: selects the bundles to move, and the bundles that return in exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.bundles.domain.balancing.moves import (
    BrokerReading,
    Move,
    MoveReason,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.movable_bundles import may_move
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import BrokerReport, Bundle, Cluster
from controller.bundles.domain.load.bundle_weight import top_bundles
from controller.domain.pulsar_names import is_system_namespace

_SWAP_DONE_BELOW = 0.75  # a swap must leave the source below this share of what it had


def transferable(
    cluster: Cluster,
    source: str,
    destination: str,
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> tuple[Bundle, ...]:
    """Return those of the source's `transfer_top_bundles` heaviest bundles that may move and that the destination may take, the
    lightest first.
    """
    return tuple(
        bundle
        for bundle in reported_bundles(cluster, source, settings)
        if may_move(cluster, bundle, settings, state, now_ms) and occupancy.may_take(bundle, destination)
    )


def reported_bundles(cluster: Cluster, broker: str, settings: BalanceSettings) -> tuple[Bundle, ...]:
    """Return the `transfer_top_bundles` heaviest of the broker's bundles, or all if there are fewer, the lightest of them first.

    Bundles of Pulsar's own namespaces, of excluded namespaces and without traffic do not count, nor bundles with placement policies
    unless `shed_bundles_with_policies` is set.
    """

    def counts(bundle: Bundle) -> bool:
        namespace = bundle.namespace
        if is_system_namespace(namespace) or settings.excludes(namespace) or not byte_rate_of(bundle) > 0:
            return False
        return settings.shed_bundles_with_policies or not cluster.policy_of(namespace).binds

    stats = {
        bundle.bundle_id: bundle.stats
        for bundle in cluster.bundles_of(broker)
        if bundle.stats is not None and counts(bundle)
    }
    return tuple(cluster.bundle_by_id[name] for name in top_bundles(stats, settings.transfer_top_bundles))


def byte_rate_of(bundle: Bundle) -> float:
    """Return the bytes per second of the latest reading; 0 without a reading."""
    return bundle.stats.byte_rate if bundle.stats else 0.0


@dataclass(slots=True)
class Exchange:
    """The bundles moved between two brokers while moves are decided. Rates are bytes per second.

    `spare`: number of its own bundles that the destination may return.
    """

    source: str
    destination: str
    reason: MoveReason
    because: BrokerReading
    reports: Mapping[str, BrokerReport]
    settings: BalanceSettings
    spare: int
    moves: list[Move] = field(default_factory=list)
    _given: float = 0.0
    _gained: float = 0.0
    _returned: int = 0

    @property
    def net_share(self) -> float:
        """The load that leaves the source, as a share of the source's load before the exchange; 0 if the source had no load."""
        had = self.reports[self.source].stats.byte_rate
        return (self._given - self._gained) / had if had else 0.0

    def refusal(self, cluster: Cluster, usage: float) -> MoveRefusal | None:
        """Return the reason for which the source can give nothing: fewer than two bundles in `reported_bundles`, or a `usage` (the average
        usage of the source) of 0. None otherwise.
        """
        reported = len(reported_bundles(cluster, self.source, self.settings))
        if reported < 2:
            return MoveRefusal(MoveRefusalReason.SOLE_BUNDLE, self.source, None, "bundles", reported, 2)
        if not usage > 0:
            return MoveRefusal(MoveRefusalReason.NO_LOAD, self.source, None, "usage", usage, 0)
        return None

    def run(
        self, bundles: Sequence[Bundle], back: Iterator[Bundle], share: float, reported: int
    ) -> MoveRefusal | None:
        """Add to `moves` moves of up to `share` of the source's reported byte rate. Return None, or a refusal if no bundle could be moved.

        A bundle with which the source would give more than the share goes only in exchange for bundles from `back`, and may then exceed the
        share; the first bundle without a possible exchange ends the moves. `bundles` are tried in their order. `reported` is the number of
        the source's reported bundles, including those that may not move; one of them stays.
        """
        target = self.reports[self.source].stats.byte_rate * share
        remaining = reported
        for bundle in bundles:
            if remaining <= 1:
                break
            rate = byte_rate_of(bundle)
            swapped: list[Bundle] | None = []
            if self._given - self._gained + rate > target:
                swapped = self._swap(rate, back)
            if swapped is None:
                break
            self._give(bundle, swapped)
            remaining -= 1
        if self.moves:
            return None
        lightest = byte_rate_of(bundles[0]) if bundles else None
        return MoveRefusal(MoveRefusalReason.NOTHING_FITS, self.source, None, "byte_rate", lightest, target)

    def _swap(self, rate: float, back: Iterator[Bundle]) -> list[Bundle] | None:
        """Return the bundles of the destination that must return so that a bundle of `rate` bytes per second can go.
        None if no exchange makes the bundle fit, or if the destination would return more than `spare` bundles in all.

        The bundle fits if the source is then below 75 % of its reported byte rate, and at least at the level of the
        destination. A bundle whose return would bring either broker to the source's reported rate is skipped. `back`
        is one pass over the destination's bundles for all bundles of the source. The pass is consumed even without an
        exchange, and never started again, as in Pulsar.
        """
        had = self.reports[self.source].stats.byte_rate
        net = self._given - self._gained + rate
        source, destination = had - net, self.reports[self.destination].stats.byte_rate + net
        accepted: list[Bundle] = []
        for bundle in back:
            if self._returned + len(accepted) >= self.spare:
                return None
            returned = byte_rate_of(bundle)
            if source + returned < had and destination - returned < had:
                accepted.append(bundle)
                source, destination = source + returned, destination - returned
                if destination <= source < had * _SWAP_DONE_BELOW:
                    return accepted
        return None

    def _give(self, bundle: Bundle, swapped: list[Bundle]) -> None:
        """Add to `moves` the returns of the bundles in `swapped`, then the move of the bundle. Add their rates
        to the totals of the exchange (under `strict_pulsar` only the rate of the bundle), and the number of
        returns to the number that `spare` limits; `reports` does not change. Without `transfer_enabled` the
        move of the bundle has no destination.
        """
        transfer = self.settings.transfer_enabled
        for returning in swapped:
            rate = byte_rate_of(returning)
            self.moves.append(
                Move(
                    returning.bundle_id,
                    self.destination,
                    self.source,
                    rate,
                    "byte_rate",
                    MoveReason.SWAP,
                    self.because,
                )
            )
            self._returned += 1
            self._gained += 0.0 if self.settings.strict_pulsar else rate
        rate = byte_rate_of(bundle)
        destination = self.destination if transfer else None
        self.moves.append(
            Move(bundle.bundle_id, self.source, destination, rate, "byte_rate", self.reason, self.because)
        )
        self._given += rate
