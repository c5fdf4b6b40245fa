"""`load_equally_divide`: k parts, of which the heaviest is as light as k - 1 cuts can make it. Not in Pulsar.

PIP-169's early text wanted an even division. The released algorithm fills parts up to a fixed limit and leaves the rest to the last part.
Here the load of a part is the larger of its two rates, each as a share of its limit, so that a part full of bytes and one full of
messages can be compared.

The load of a part never shrinks when a place is added. So the least possible maximum can be found exactly. For a given bound, filling
parts from the low end uses the fewest parts. A bound that fails is raised to the lightest part that was above it. A bound that holds is
lowered to the heaviest part it made. Both ends of the search are always loads of real parts, and they meet.

Under that maximum each part, from the low end on, takes the load nearest to an even share of the remaining load. Idle places do not
count: a cut lies midway between two loaded places. No division can be lighter than the hottest single place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from controller.bundles.domain.splitting.algorithms.base import (
    CutPoints,
    CutRefusal,
    CutRefusalReason,
    Midpoint,
    Place,
    SplitOptions,
    SplitRequest,
    cut_between,
    loaded_places,
)


def load_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cuts into `options.parts` parts, of which the heaviest is as light as possible. If the budget (not
    0) is smaller, or the topics with load cannot be divided into that many parts, return the cuts into fewer parts,
    with a refusal. Return only a refusal if no cut can separate two topics with load.
    """
    bundle, options = request.bundle, request.options
    loaded = loaded_places(request)
    if isinstance(loaded, CutRefusal):
        return loaded
    budget = len(loaded) if options.bundle_budget is None else options.bundle_budget
    parts = min(options.parts, len(loaded), budget + 1)
    midpoint = options.midpoint or Midpoint.LOWER
    cuts = [
        cut_between(loaded[first - 1].at, loaded[first].at, midpoint)
        for first in even_starts(loaded, parts, options)
    ]
    if parts == options.parts:
        return CutPoints(cuts)
    fewer = CutRefusal(str(bundle), CutRefusalReason.FEWER_PARTS, "bundles", parts, options.parts)
    return CutPoints(cuts, (fewer,))


def even_starts(loaded: Sequence[Place], parts: int, options: SplitOptions) -> list[int]:
    """Return the index in `loaded` of the first place of every part but the lowest, rising, if `loaded` (places by hash) is divided into
    `parts` parts, of which the heaviest is as light as possible; 2 <= parts <= number of places.
    """
    max_share = _least_maximum(loaded, parts, options)
    starts: list[int] = []
    first = 0
    for parts_after in range(parts - 1, 0, -1):
        first = _even_end(loaded, first, parts_after, max_share, options)
        starts.append(first)
    return starts


def _least_maximum(loaded: Sequence[Place], parts: int, options: SplitOptions) -> float:
    """Return the smallest load, as a share of a limit, that the heaviest part can have if `loaded` is divided into at most `parts` runs of
    neighbouring places.
    """
    low = max(options.load_share(place.msg_rate, place.byte_rate) for place in loaded)
    _, high, _ = _filled(loaded, 0, float("inf"), options)
    while low < high:
        bound = (low + high) / 2
        bound = bound if bound < high else low
        used, heaviest, broken = _filled(loaded, 0, bound, options)
        if used <= parts:
            high = heaviest
        else:
            low = broken
    return high


def _filled(
    loaded: Sequence[Place], first: int, bound: float, options: SplitOptions
) -> tuple[int, float, float]:
    """Fill parts from place `first` to the last, each up to the bound (a share of a limit), which is at least the load of the heaviest
    place. Return the number of parts, the heaviest load of a part, and the lightest load that exceeded the bound (infinite if none did).

    Rates are added place by place from the low end of a part, here and in `_even_end`, so that the same part always has the same sum. The
    loop works on plain numbers, because nearly all the time is spent in it.
    """
    max_msgs, max_bytes = options.max_msg_rate, options.max_byte_rate
    used, heaviest, broken = 1, 0.0, float("inf")
    msg_rate = byte_rate = 0.0
    for place in loaded[first:]:
        msg_rate += place.msg_rate
        byte_rate += place.byte_rate
        share = max(msg_rate / max_msgs, byte_rate / max_bytes)
        if share > bound:
            broken = min(broken, share)
            used += 1
            msg_rate, byte_rate = place.msg_rate, place.byte_rate
            share = max(msg_rate / max_msgs, byte_rate / max_bytes)
        heaviest = max(heaviest, share)
    return used, heaviest, broken


def _even_end(
    loaded: Sequence[Place], first: int, parts_after: int, max_share: float, options: SplitOptions
) -> int:
    """Return the index of the first place after the part that begins with place `first`. The load of the part is nearest to an even share
    of the remaining load, at most `max_share`, and `parts_after` parts of at most `max_share` can take the rest, each with a place at
    least. Of two equally near ends, return the lower.
    """
    lowest = bisect_left(
        range(len(loaded)),
        True,  # the later this part ends, the easier the rest
        first + 1,
        len(loaded) - parts_after,
        key=lambda end: _filled(loaded, end, max_share, options)[0] <= parts_after,
    )
    _, remaining, _ = _filled(loaded, first, float("inf"), options)
    wanted = remaining / (parts_after + 1)
    msg_rate = byte_rate = 0.0
    best, distance = lowest, float("inf")
    for end in range(first + 1, len(loaded) - parts_after + 1):
        msg_rate += loaded[end - 1].msg_rate
        byte_rate += loaded[end - 1].byte_rate
        share = options.load_share(msg_rate, byte_rate)
        if share > max_share:
            break
        if end >= lowest and abs(share - wanted) < distance:
            best, distance = end, abs(share - wanted)
    return best
