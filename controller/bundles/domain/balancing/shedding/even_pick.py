"""Chooses the bundle that `even` moves between two brokers: the heaviest that fits, never one that a later move would return."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controller.bundles.domain.balancing.moves import Move, MoveReason, MoveRefusal, MoveRefusalReason
from controller.bundles.domain.balancing.shedding.even_levels import EvenLevels
from controller.bundles.domain.balancing.shedding.movable_bundles import WeighedBundle

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
