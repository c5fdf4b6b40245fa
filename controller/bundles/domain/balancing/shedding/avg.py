"""Pairs the least loaded broker with the most loaded one, and so on inward: Pulsar's `AvgShedder` (PIP-364).

A pair acts if its usage differs by `avg_low_usage` for `avg_low_hits` cycles, or by `avg_high_usage` for `avg_high_hits`. The higher
broker then gives `unload_fraction` (0.5 is advised) of the difference in messages to the lower one, or of the difference in bytes where
messages are too few. Usage is the present reading, without history. The destination is kept as a plan for the placement `planned`.

Different from Pulsar: plans are kept by bundle id (Pulsar keeps them by mutable statistics and lost them: #26246). The order is total
(#24954). A broker's only bundle stays, as Pulsar's own warning says it would. As in Pulsar, counts are cleared before the floors are
checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerReading,
    Move,
    MoveReason,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import (
    Shedding,
    heaviest_first,
    too_few_brokers,
)
from controller.bundles.domain.cluster import BrokerReport, Cluster
from controller.bundles.domain.load import weighted_max_usage


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two brokers, `high` with at least the usage of `low`, with the difference of their usage, in percent."""

    low: str
    high: str
    difference: float
    score: float
    """Usage of the higher broker in percent."""


def avg(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> Shedding:
    """Return moves from the higher to the lower broker of each pair (lowest with highest usage, and so on inward),
    and a refusal for each pair of two brokers without moves. A pair may move bundles once one of its brokers has
    `avg_high_hits` high hits or `avg_low_hits` low hits. In each cycle a broker with a new report gets a low hit if
    its usage differs from its partner's by at least `avg_low_usage`, and a high hit from `avg_high_usage` on; the
    partner may change between cycles.

    The state holds the hits, and the destinations of the moves as plans. If no pair differs by `avg_low_usage`, all
    hits are cleared. A pair that may move bundles loses its hits, even if no bundle can be moved. With fewer than two
    reporting brokers, return one refusal and the unchanged state.
    """
    few = too_few_brokers(cluster)
    if few is not None:
        return Shedding((), (few,), state)
    reports = cluster.report_of
    # In percent, as Pulsar compares them, so that results agree to the last bit.
    scores = {name: weighted_max_usage(r.resources, settings.weights) * 100 for name, r in reports.items()}
    low_hits, high_hits = dict(state.low_hits), dict(state.high_hits)
    pairs = []
    refusals: list[MoveRefusal] = []
    for pair in _pairs(scores):
        if _count(pair, settings, low_hits, high_hits, cluster):
            pairs.append(pair)
        elif pair.low != pair.high:
            refusals.append(_too_close(pair, settings))
    if not pairs:
        return Shedding((), tuple(refusals), replace(state, low_hits={}, high_hits={}))
    moves: list[Move] = []
    for pair in pairs:
        refusal = _too_early(pair, settings, low_hits, high_hits)
        if refusal is None:
            for name in (pair.low, pair.high):
                low_hits.pop(name, None)
                high_hits.pop(name, None)
            shed, refusal = _shed(cluster, pair, reports, settings, state, now_ms)
            moves += shed
        refusals += [refusal] if refusal else []
    planned = {move.bundle_id: move.destination for move in moves if move.destination is not None}
    return Shedding(
        tuple(moves),
        tuple(refusals),
        replace(state, low_hits=low_hits, high_hits=high_hits, planned={**state.planned, **planned}),
    )


def _pairs(scores: Mapping[str, float]) -> Iterator[_Pair]:
    """Yield pairs of brokers: the broker with the lowest score and the broker with the highest, then the next lowest
    and the next highest, and so on. Brokers with equal scores are ordered by name. The middle broker of an odd number
    is paired with itself. `scores`: usage in percent, by broker. Without scores nothing is yielded.
    """
    ordered = sorted(scores, key=lambda name: (scores[name], name))
    for index in range((len(ordered) + 1) // 2):
        low, high = ordered[index], ordered[-1 - index]
        yield _Pair(low, high, scores[high] - scores[low], scores[high])


def _count(
    pair: _Pair,
    settings: BalanceSettings,
    low_hits: dict[str, int],
    high_hits: dict[str, int],
    cluster: Cluster,
) -> bool:
    """Update the hits of both brokers of the pair in `low_hits` and `high_hits`. For each threshold that the pair's
    difference reaches, add a hit to each broker with a new report; a broker with a repeated report keeps its hits.
    For a threshold that the difference does not reach, clear the hits of both brokers.

    Return True if the difference reaches the low threshold.
    """
    beyond_low = pair.difference >= settings.avg_low_usage * 100
    beyond_high = beyond_low and pair.difference >= settings.avg_high_usage * 100
    for name in {pair.low, pair.high}:
        for beyond, hits in ((beyond_low, low_hits), (beyond_high, high_hits)):
            if beyond:
                hits[name] = hits.get(name, 0) + cluster.is_new(name)
            else:
                hits.pop(name, None)
    return beyond_low


def _too_close(pair: _Pair, settings: BalanceSettings) -> MoveRefusal:
    """Return the refusal of a pair whose usage differs by less than `avg_low_usage`."""
    needed = settings.avg_low_usage
    return MoveRefusal(
        MoveRefusalReason.BELOW_THRESHOLD,
        pair.high,
        None,
        f"usage above {pair.low}",
        pair.difference / 100,
        needed,
    )


def _too_early(
    pair: _Pair, settings: BalanceSettings, low_hits: Mapping[str, int], high_hits: Mapping[str, int]
) -> MoveRefusal | None:
    """Return the refusal of a pair that has differed for too few cycles. None if the pair may act: one broker has `avg_high_hits` high
    hits or `avg_low_hits` low hits.
    """
    low = max(low_hits.get(name, 0) for name in (pair.low, pair.high))
    high = max(high_hits.get(name, 0) for name in (pair.low, pair.high))
    if high >= settings.avg_high_hits or low >= settings.avg_low_hits:
        return None
    return MoveRefusal(MoveRefusalReason.HIT_COUNT, pair.high, None, "cycles", low, settings.avg_low_hits)


def _shed(
    cluster: Cluster,
    pair: _Pair,
    reports: Mapping[str, BrokerReport],
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> tuple[list[Move], MoveRefusal | None]:
    """Return moves off the higher broker of the pair to the lower broker, heaviest bundles first, and None; or no moves and the refusal.
    Together the bundles carry at most `unload_fraction` of the difference in messages, or in bytes if that fraction is not above the floor
    `min_unload_msg_rate`. Bundles that do not fit are skipped, and one bundle stays.

    The refusal says that neither fraction is above its floor, that the broker has fewer than two bundles, or that none fits.
    """
    owned = cluster.bundles_of(pair.high)
    high, low = reports[pair.high].stats, reports[pair.low].stats
    metric = "msg_rate"
    remaining = (high.msg_rate - low.msg_rate) * settings.unload_fraction
    if not remaining > settings.min_unload_msg_rate:
        metric = "byte_rate"
        remaining = (high.byte_rate - low.byte_rate) * settings.unload_fraction
        if not remaining > settings.min_unload_byte_rate:
            floor = settings.min_unload_byte_rate
            return [], MoveRefusal(MoveRefusalReason.BELOW_FLOOR, pair.high, None, metric, remaining, floor)
    if len(owned) < 2:
        return [], MoveRefusal(MoveRefusalReason.SOLE_BUNDLE, pair.high, None, "bundles", len(owned), 2)
    room = remaining
    bound = pair.score - pair.difference + settings.avg_low_usage * 100
    because = BrokerReading(pair.high, "usage", pair.score / 100, bound / 100)
    weighed = heaviest_first(cluster, pair.high, metric, settings, state, now_ms)
    moves: list[Move] = []
    for bundle in weighed:
        if 0 < bundle.load <= remaining and len(moves) < len(owned) - 1:
            remaining -= bundle.load
            moves.append(
                Move(
                    bundle.bundle_id, pair.high, pair.low, bundle.load, metric, MoveReason.OVERLOADED, because
                )
            )
    if moves:
        return moves, None
    lightest = weighed[-1].load if weighed else None
    return [], MoveRefusal(MoveRefusalReason.NOTHING_FITS, pair.high, None, metric, lightest, room)
