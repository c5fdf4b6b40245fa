"""Equal load: cuts at the quantiles of what was observed, for skewed keys.

The best any cut can do is bounded by the hottest single hash, which no cut divides. With nothing
observed inside the range it answers as `midpoint` does.

Nothing in production runs it yet: the evaluator splits at the midpoint. Its tests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from controller.domain.hash_range import HashRange
from controller.domain.split_points.base import HashLoad


def weighted(hash_range: HashRange, parts: int = 2, loads: Sequence[HashLoad] = ()) -> tuple[int, ...]:
    """Cuts into pieces of load as equal as whole hashes allow; loads outside the range do not count."""
    even = hash_range.equal_cuts(parts)
    curve = _cumulative(hash_range, loads)
    total = curve[-1][1]
    if total <= 0:
        return even
    cuts: list[int] = []
    for index in range(1, parts):
        lowest = (cuts[-1] if cuts else hash_range.start) + 1
        highest = hash_range.end - (parts - 1 - index)
        cuts.append(min(max(_hash_at(curve, total * index / parts), lowest), highest))
    return tuple(cuts)


def _cumulative(hash_range: HashRange, loads: Sequence[HashLoad]) -> list[tuple[int, float]]:
    """Steps `(hash, load below that hash)` from the start of the range to one past its end."""
    slopes: dict[int, float] = {hash_range.start: 0.0, hash_range.end + 1: 0.0}
    heaviest = max((seen.load for seen in loads), default=0.0)  # as the unit, so that no sum overflows
    for seen in loads:
        if seen.load > 0 and seen.hash_range.overlaps(hash_range):
            density = seen.load / heaviest / seen.hash_range.width
            low = max(seen.hash_range.start, hash_range.start)
            high = min(seen.hash_range.end, hash_range.end) + 1
            slopes[low] = slopes.get(low, 0.0) + density
            slopes[high] = slopes.get(high, 0.0) - density
    edges = sorted(slopes)
    densities = accumulate(slopes[edge] for edge in edges)
    steps = (max(0.0, d) * (high - low) for (low, high), d in zip(pairwise(edges), densities, strict=False))
    return list(zip(edges, accumulate(steps, initial=0.0), strict=True))


def _hash_at(curve: Sequence[tuple[int, float]], wanted: float) -> int:
    """The whole hash whose load below comes nearest to `wanted`."""
    for (low, below), (high, reached) in pairwise(curve):
        if reached >= wanted and reached > below:
            return round(low + (wanted - below) / (reached - below) * (high - low))
    return curve[-1][0]
