"""Cleave's own shedder, and the default: brings brokers far from the mean usage back towards it, with few moves.

There is a band around the mean usage. A broker is *hot* above it by more than `even_hot_band`, *cold* below it by more than
`even_cold_band` (shares of the mean). If all brokers are inside, the standard deviation is at most the mean times the square root of
`even_hot_band` x `even_cold_band`, and the settings keep this product below the square of `even_target_spread`. A broker outside for
`even_hits` cycles in a row is brought to the goal, which is a little closer to the mean. A hot broker gives to the emptiest brokers, a
cold one takes from the fullest. Further rules:

- Usage is the present reading, never smoothed, so load that has ended moves nothing (PIP-217).
- The hits keep noise out, and so does `even_min_usage_gap` if the whole cluster is idle.
- A broker that gave or received a bundle waits for a report at least `even_settle_seconds` newer than the move. The other brokers do not
  wait.
- No later move can undo a move. Either both brokers stay on their side of the mean, or the fuller of the two becomes emptier by a whole
  band; the reverse move cannot meet this condition.
- Of the bundles that fit, the heaviest goes first, so that few move.

A bundle counts as its share of its broker's traffic, times the broker's usage. Between brokers of different size this usage is scaled by
the brokers' limits. Usage that no bundle causes is counted as caused by the bundles, so a move relieves the broker of less than
estimated.

`EvenLevels` holds the levels while moves are decided: the brokers' usage, and the bundles' shares of it. `pick_for` chooses the bundle that
moves between two brokers: the heaviest that fits, never one that a later move would return.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerReading,
    Move,
    MoveReason,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.placement import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import (
    Shedding,
    WeighedBundle,
    may_move,
    stale_reports,
    too_few_brokers,
)
from controller.bundles.domain.cluster import BrokerReport, Cluster
from controller.bundles.domain.load import (
    BundleStats,
    dominating_resource,
    figures_of,
    share_of,
    totals,
    weighted_max_usage,
)

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


_ROUNDING: Final = 1e-9  # a gain of exactly the gap counts, whatever the last bit is


def pick_for(
    levels: EvenLevels, source: str, destinations: Sequence[str], needed: float, reason: MoveReason
) -> Move | MoveRefusal:
    """Return the best move off `source` of about `needed` usage, to the first of `destinations` that may take a
    fitting bundle. `levels` does not change. Return a refusal if the source has fewer than two bundles, no bundle may
    leave the source, or no bundle fits that a destination may take.

    The heaviest bundle within `needed` and within the destination's room (up to `hot_goal`) is best. While the broker
    to be relieved or filled (`reason` says which) is outside its band, heavier bundles follow: first the lightest
    with which both brokers stay on their side of the mean, then the lightest that relieves the fuller broker by the
    distance from the mean to the upper end of the band.
    """
    if levels.remaining[source] < 2:
        return MoveRefusal(
            MoveRefusalReason.SOLE_BUNDLE, source, None, "bundles", levels.remaining[source], 2
        )
    bundles = levels.bundles_of(source)
    for destination in destinations:
        in_need = source if reason is MoveReason.OVERLOADED else destination
        exceed = levels.is_hot(in_need) or levels.is_cold(in_need)
        for bundle in _in_order(levels, source, destination, bundles, needed, exceed=exceed):
            if levels.occupancy.may_take(levels.cluster.bundle_by_id[bundle.bundle_id], destination):
                because = levels.reading(in_need)
                return Move(bundle.bundle_id, source, destination, bundle.load, "usage", reason, because)
    if not bundles:
        return MoveRefusal(MoveRefusalReason.NO_BUNDLES, source, None, "bundles", 0, 1)
    return MoveRefusal(MoveRefusalReason.NOTHING_FITS, source, None, "usage", bundles[0].load, needed)


def _in_order(
    levels: EvenLevels,
    source: str,
    destination: str,
    bundles: list[WeighedBundle],
    needed: float,
    *,
    exceed: bool,
) -> Iterator[WeighedBundle]:
    """Yield the candidates from best to worst: the bundles within `needed` and the destination's room (up to `hot_goal`), heaviest first.
    With `exceed`, heavier bundles follow, lightest first: bundles that leave both brokers on their side of the mean, then bundles that
    relieve the fuller broker enough. Lazy, because the first is nearly always taken. `bundles`: lightest share first.
    """
    scale = levels.scale(source, destination)
    wanted = min(needed, (levels.hot_goal - levels.load[destination]) / scale)
    fitting = bisect_right(bundles, wanted, key=lambda bundle: bundle.load)
    yield from (bundles[index] for index in range(fitting - 1, -1, -1))
    if not exceed:
        return
    beyond = bundles[fitting:]
    side = min(levels.above_mean(source), -levels.above_mean(destination) / scale)
    kept_sides = bisect_right(beyond, side, key=lambda bundle: bundle.load)
    yield from beyond[:kept_sides]
    yield from _relieving(levels, source, destination, beyond[kept_sides:])


def _relieving(
    levels: EvenLevels, source: str, destination: str, bundles: Iterable[WeighedBundle]
) -> Iterator[WeighedBundle]:
    """Return, lazily and in their order, the bundles after whose move both brokers are below the source's present usage by at least the
    distance from the mean to the upper end of the band.

    Also, the difference between the two must not grow. Between brokers of different size the first condition does not imply the second: a
    small broker could be emptied into a large one whose usage hardly changes.
    """
    before, scale = levels.load[source], levels.scale(source, destination)
    apart = before - levels.load[destination]
    gain = max(levels.mean * levels.settings.even_hot_band, levels.settings.even_min_usage_gap)
    max_usage = before - gain * (1 - _ROUNDING)
    return (
        bundle
        for bundle in bundles
        if before - bundle.load <= max_usage
        and levels.load[destination] + bundle.load * scale <= max_usage
        and bundle.load * (1 + scale) <= 2 * apart
    )


def even(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> Shedding:
    """Return moves that bring hot brokers down and cold brokers up to their goals, with destinations, and the refusals. The state counts
    the cycles outside the band.

    Without two fresh reports or without load nothing moves, and the state is unchanged. A broker is relieved or filled after `even_hits`
    cycles outside its band; the other broker of a move may be inside. A broker that settles after its last move neither gives nor takes,
    and loses its hits.
    """
    old = stale_reports(cluster, settings, now_ms)
    refusals = list(old.values())
    few = too_few_brokers(cluster)
    if few is not None or len(cluster.reporting) - len(old) < 2:
        return Shedding((), (*refusals, *([few] if few else [])), state)
    levels = EvenLevels(cluster, settings, state, now_ms, frozenset(old))
    if not levels.mean > 0:
        return Shedding(
            (), (*refusals, MoveRefusal(MoveRefusalReason.NO_LOAD, metric="usage", value=0, needed=0)), state
        )
    waiting = _settling(cluster.report_of, settings, state)
    refusals += [w for name, w in waiting.items() if name not in old]
    state = _counted(levels, state, frozenset(waiting))
    ready = frozenset(levels.load) - frozenset(waiting)
    hot = frozenset(name for name, hits in state.hot_hits.items() if hits >= settings.even_hits)
    cold = frozenset(name for name, hits in state.cold_hits.items() if hits >= settings.even_hits)
    refusals += _early(state, settings, hot | cold)
    if not (state.hot_hits or state.cold_hits or waiting):
        target = settings.even_target_spread
        refusals.append(
            MoveRefusal(MoveRefusalReason.WITHIN_TARGET, metric="spread", value=levels.spread, needed=target)
        )
    moves, further_refusals = _level(levels, ready, hot, cold, settings)
    return Shedding(tuple(moves), (*refusals, *further_refusals), state)


def _settling(
    reports: Mapping[str, BrokerReport], settings: BalanceSettings, state: BalanceState
) -> dict[str, MoveRefusal]:
    """Return, by broker, a refusal for each broker whose report was made less than `even_settle_seconds` after the
    broker last gave or took a bundle, and so may describe the time before that move. Brokers with stale reports are
    included; brokers that never gave or took a bundle are not.
    """
    refusals = {}
    for name, report in reports.items():
        touched = max(state.unloaded_brokers.get(name, -1), state.filled_brokers.get(name, -1))
        counts_from = touched + settings.even_settle_seconds * 1_000
        if touched >= 0 and report.reported_at < counts_from:
            refusals[name] = MoveRefusal(
                MoveRefusalReason.SETTLING, name, None, "reported_at", report.reported_at, counts_from
            )
    return refusals


def _counted(levels: EvenLevels, state: BalanceState, waiting: frozenset[str]) -> BalanceState:
    """Return the state with one more hit for each broker outside its band whose report is new; with a repeated report the broker keeps its
    hits. Brokers inside their band lose their hits, and so do brokers that `levels` leaves out and the brokers in `waiting`.
    """
    counted = [name for name in levels.load if name not in waiting]
    hit = {name: int(levels.cluster.is_new(name)) for name in counted}
    hot = {name: state.hot_hits.get(name, 0) + hit[name] for name in counted if levels.is_hot(name)}
    cold = {name: state.cold_hits.get(name, 0) + hit[name] for name in counted if levels.is_cold(name)}
    return replace(state, hot_hits=hot, cold_hits=cold)


def _early(state: BalanceState, settings: BalanceSettings, confirmed: frozenset[str]) -> list[MoveRefusal]:
    """Return a refusal for each broker that is outside its band but not in `confirmed`, because it has been outside for too few cycles.
    The order is by name.
    """
    hits = {**state.hot_hits, **state.cold_hits}
    return [
        MoveRefusal(MoveRefusalReason.HIT_COUNT, name, None, "cycles", count, settings.even_hits)
        for name, count in sorted(hits.items())
        if name not in confirmed
    ]


def _level(
    levels: EvenLevels,
    ready: frozenset[str],
    hot: frozenset[str],
    cold: frozenset[str],
    settings: BalanceSettings,
) -> tuple[list[Move], list[MoveRefusal]]:
    """Relieve the brokers in `hot`, fullest first, then fill the brokers in `cold`, emptiest first, up to
    `max_moves_per_cycle` moves (0: no limit). `ready`: brokers that may be the other side of a move. Changes
    `levels`, which may also count one move that the limit keeps back.

    Return the moves in this order. Also return a refusal for each hot broker that could give nothing, and one refusal
    if the limit keeps back a move. Cold brokers, and brokers whose turn does not come before the limit, have no
    refusal.
    """
    moves: list[Move] = []
    refusals: list[MoveRefusal] = []
    max_moves = settings.max_moves_per_cycle or len(levels.cluster.bundles)
    # One move more is planned than is returned: only that shows that the limit keeps a move back.
    for source in sorted(hot, key=lambda name: (-levels.load[name], name)):
        gave = 0
        while levels.load[source] > levels.hot_goal and len(moves) <= max_moves:
            needed = levels.load[source] - levels.hot_goal
            move = pick_for(levels, source, levels.emptiest(ready - {source}), needed, MoveReason.OVERLOADED)
            if isinstance(move, MoveRefusal):
                refusals += [] if gave else [move]
                break
            moves.append(levels.perform(move))
            gave += 1
    for destination in sorted(cold, key=lambda name: (levels.load[name], name)):
        moves += _fill(levels, destination, ready - {destination}, max_moves + 1 - len(moves))
    if len(moves) > max_moves:
        refusals.append(
            MoveRefusal(MoveRefusalReason.MOVE_LIMIT, metric="moves", value=len(moves), needed=max_moves)
        )
    return moves[:max_moves], refusals


def _fill(levels: EvenLevels, destination: str, sources: frozenset[str], max_moves: int) -> list[Move]:
    """Move bundles from the fullest of the brokers `sources` to the destination until the destination has reached
    `cold_goal`, no bundle fits, or `max_moves` are made. A source gives only while its usage is above the mean.
    Return the moves, empty if none is possible. Changes `levels`.
    """
    moves: list[Move] = []
    givers = {name for name in sources if levels.load[name] > levels.mean}
    while givers and levels.load[destination] < levels.cold_goal and len(moves) < max_moves:
        source = min(givers, key=lambda name: (-levels.load[name], name))
        needed = (levels.cold_goal - levels.load[destination]) / levels.scale(source, destination)
        move = pick_for(
            levels, source, [destination], min(needed, levels.above_mean(source)), MoveReason.UNDERLOADED
        )
        if isinstance(move, MoveRefusal):
            givers.discard(source)
            continue
        moves.append(levels.perform(move))
        if not levels.load[source] > levels.mean:
            givers.discard(source)
    return moves
