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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller.bundles.domain.balancing.moves import Move, MoveReason, MoveRefusal, MoveRefusalReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.even_levels import EvenLevels
from controller.bundles.domain.balancing.shedding.even_pick import pick_for
from controller.bundles.domain.balancing.shedding.shedder import Shedding, stale_reports, too_few_brokers
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import BrokerReport, Cluster


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
