"""The levels that `even` works on: the brokers' usage and the bundles' shares of it while moves are decided."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from controller.bundles.domain.balancing.moves import BrokerReading, Move
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.movable_bundles import WeighedBundle, may_move
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.load.broker_usage import dominating_resource, weighted_max_usage
from controller.bundles.domain.load.stats import BundleStats, figures_of, share_of, totals

_TRIED_DESTINATIONS: Final = 8  # where a policy forbids the emptiest, the next ones are tried


class EvenLevels:
    """Usage by broker (`load`, a share of its limit), changed by `perform`. The mean, the goals and the bounds stay those before the first
    move. The mean weighs the brokers with their limits of the resource that dominates on the fullest broker; equally, if a limit is
    unknown. The brokers in `without` are left out; at least 1 other broker must have a report.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: BalanceSettings,
        state: BalanceState,
        now_ms: int,
        without: frozenset[str],
    ) -> None:
        """Compute the usage of each reporting broker that is not in `without`, and the mean usage, weighted by the
        brokers' capacity. At least one such broker must exist; otherwise ValueError is raised. `state` and `now_ms`
        (milliseconds since the Unix epoch) decide which bundles may move.
        """
        self.cluster = cluster
        self.settings = settings
        self._state = state
        self._now_ms = now_ms
        self.occupancy = Occupancy(cluster, settings)
        reports = {name: report for name, report in cluster.reporting if name not in without}
        self.load = {name: weighted_max_usage(r.resources, settings.weights) for name, r in reports.items()}
        self._before = dict(self.load)
        fullest = min(self.load, key=lambda name: (-self.load[name], name))
        self._resource = dominating_resource(reports[fullest].resources, settings.weights)
        limits = {name: float(getattr(r.resources, self._resource).limit) for name, r in reports.items()}
        all_limited = all(limit > 0 for limit in limits.values())
        self._capacity = limits if all_limited else dict.fromkeys(limits, 1.0)
        total = sum(self._capacity.values())
        # The usage that every broker would have if all were equally used, whatever their size.
        self.mean = sum(self.load[name] * self._capacity[name] for name in self.load) / total
        self._bundles: dict[str, list[WeighedBundle]] = {}
        self.remaining = {name: len(cluster.bundles_of(name)) for name in self.load}

    @property
    def hot_goal(self) -> float:
        """Usage to which a hot broker is brought down."""
        return self.mean * (1 + self.settings.even_hot_goal)

    @property
    def cold_goal(self) -> float:
        """Usage to which a cold broker is brought up."""
        return self.mean * (1 - self.settings.even_cold_goal)

    @property
    def hot_bound(self) -> float:
        """The upper end of the band; a broker above it is hot."""
        return self.mean + max(self.mean * self.settings.even_hot_band, self.settings.even_min_usage_gap)

    @property
    def cold_bound(self) -> float:
        """The lower end of the band; a broker below it is cold."""
        return self.mean - max(self.mean * self.settings.even_cold_band, self.settings.even_min_usage_gap)

    @cached_property
    def spread(self) -> float:
        """Population standard deviation of usage, as a share of the mean, at the first access to the property; read the property before
        any move.
        """
        middle = sum(self.load.values()) / len(self.load)
        return float((sum((u - middle) ** 2 for u in self.load.values()) / len(self.load)) ** 0.5 / self.mean)

    def is_hot(self, name: str) -> bool:
        """Return True if the broker is above the band now."""
        return self.load[name] > self.hot_bound

    def is_cold(self, name: str) -> bool:
        """Return True if the broker is below the band now."""
        return self.load[name] < self.cold_bound

    def reading(self, name: str) -> BrokerReading:
        """Return the reading that explains a move: the broker's usage before the first move of the cycle, with the
        bound of the band that this usage may have crossed (the upper bound at or above the mean, otherwise the lower
        bound).
        """
        usage = self._before[name]
        bound = self.hot_bound if usage >= self.mean else self.cold_bound
        return BrokerReading(name, "usage", usage, bound)

    def above_mean(self, name: str) -> float:
        """Return the usage above the mean; negative below it."""
        return self.load[name] - self.mean

    def scale(self, source: str, destination: str) -> float:
        """Return the usage on the destination that equals one unit of usage on the source."""
        return self._capacity[source] / self._capacity[destination]

    def emptiest(self, names: Iterable[str]) -> list[str]:
        """Return the 8 (`_TRIED_DESTINATIONS`) least loaded of these brokers, or all if there are fewer, by load, then by name."""
        return heapq.nsmallest(_TRIED_DESTINATIONS, names, key=lambda name: (self.load[name], name))

    def bundles_of(self, broker: str) -> list[WeighedBundle]:
        """Return the bundles that may leave the broker and have traffic, each with the usage that it takes along, lightest first, then by
        name. Bundles that this cycle moves off or to the broker are missing. The shares are of the broker's usage at the first call.
        """
        if broker not in self._bundles:
            owned = self.cluster.bundles_of(broker)
            figures = figures_of(self._resource)
            whole = totals((bundle.stats or _NOTHING for bundle in owned), figures)
            listed: list[WeighedBundle] = []
            for bundle in owned:
                share = share_of(bundle.stats or _NOTHING, whole, figures) * self.load[broker]
                if share > 0 and may_move(self.cluster, bundle, self.settings, self._state, self._now_ms):
                    insort(listed, WeighedBundle(share, bundle.bundle_id))
            self._bundles[broker] = listed
        return self._bundles[broker]

    def perform(self, move: Move) -> Move:
        """Record the move as made, in the usages, the bundles and the numbers of bundles of both brokers, and in the
        occupancy. Return the same move. The move must come from `pick_for` with these levels and have a destination.
        """
        destination = str(move.destination)
        self._bundles[move.source].remove(WeighedBundle(move.load, move.bundle_id))
        self.bundles_of(destination)  # to compute its shares from the load before anything was moved to it
        self.load[move.source] -= move.load
        self.load[destination] += move.load * self.scale(move.source, destination)
        self.remaining[move.source] -= 1
        self.remaining[destination] += 1
        self.occupancy.move(move.bundle_id, destination)
        return move


_NOTHING = BundleStats()
