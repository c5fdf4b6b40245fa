"""`flow_or_qps_equally_divide` (PIP-169): fill parts from the low end up to the limits. Not even, despite its name.

One pass over the loaded places: a part is closed before the place that would take it *strictly above* the limit of
messages or of bytes. So no part exceeds a limit unless a single place does, and the last part may be tiny.
`load_equally` divides evenly. The answer is Pulsar's, the cut one above the midpoint included, with these errors
corrected:

- Rates of topics of one hash are added. In Pulsar the last topic's rate replaces the others' and counts once for
  each.
- No cut falls on 0xffffffff and none is given twice. Either makes the whole split fail in Pulsar.
- The margin is limit * (100 + d) / 100, so exactly 10 % above the limit is cut. Pulsar's 100 * 1.1 is
  110.00000000000001.
- Any number of cuts may be automatic. Pulsar's extensible manager discards answers of more than one cut (issue
  22254).
"""

from __future__ import annotations

import math
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
    peak,
)


def flow_or_qps_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cuts that keep each part at or under the limits, from the low end on. A `Place` (a topic, or topics
    that no cut can separate) that alone exceeds a limit gets a part of its own, and the answer has a refusal for the
    place. If the budget (not 0) has fewer cuts, only the lowest cuts are returned, with a refusal, and the last part
    holds the rest.

    Return only a refusal if no cut can separate two topics with load, if the rate nearest to its limit is below the
    limit plus `difference_percent`, or if a single part may hold all topics.
    """
    bundle, options = request.bundle, request.options
    loaded = loaded_places(request)
    if isinstance(loaded, CutRefusal):
        return loaded
    metric, rate, limit = peak(
        math.fsum(place.msg_rate for place in loaded),
        math.fsum(place.byte_rate for place in loaded),
        options,
    )
    gate = limit * (100 + options.difference_percent) / 100
    cuts = _walk(loaded, options) if rate >= gate else []
    if not cuts:
        return CutRefusal(str(bundle), CutRefusalReason.BELOW_LIMIT, metric, rate, gate)
    return _within_budget(request, cuts, _too_hot_alone(loaded, options))


def _walk(loaded: Sequence[Place], options: SplitOptions) -> list[int]:
    """Return the cuts, rising, that keep each part at or under both limits, unless a single place exceeds a limit. Empty if all places fit
    into one part. `loaded`: places in the order of their hashes, at least one.
    """
    cuts: list[int] = []
    before = loaded[0]
    msg_rate, byte_rate = before.msg_rate, before.byte_rate
    for place in loaded[1:]:
        msg_rate += place.msg_rate
        byte_rate += place.byte_rate
        if msg_rate > options.max_msg_rate or byte_rate > options.max_byte_rate:
            cuts.append(cut_between(before.at, place.at, options.midpoint or Midpoint.UPPER))
            msg_rate, byte_rate = place.msg_rate, place.byte_rate
        before = place
    return cuts


def _too_hot_alone(loaded: Sequence[Place], options: SplitOptions) -> tuple[CutRefusal, ...]:
    """Return a refusal for each place that exceeds a limit alone."""
    peaks = ((place, *place.peak(options)) for place in loaded)
    return tuple(
        CutRefusal(place.label, CutRefusalReason.ABOVE_LIMIT_ALONE, metric, rate, limit)
        for place, metric, rate, limit in peaks
        if rate > limit
    )


def _within_budget(request: SplitRequest, cuts: list[int], left_undone: tuple[CutRefusal, ...]) -> CutPoints:
    """Return the cuts (rising) and the refusals in `left_undone`. If the budget of the options (the maximum number of
    cuts; None: no limit) is smaller than the number of cuts, return only the lowest cuts that fit, and one more
    refusal.
    """
    budget = request.options.bundle_budget
    if budget is None or len(cuts) <= budget:
        return CutPoints(cuts, left_undone)
    capped = CutRefusal(str(request.bundle), CutRefusalReason.AT_MAX_BUNDLES, "bundles", budget, len(cuts))
    return CutPoints(cuts[:budget], (*left_undone, capped))
