"""`topic_count_equally_divide`: as many topics on either side, idle ones included; of an odd number the upper has one more.

Pulsar's answer wherever its answer parts the two middle topics. Mended: neighbouring hashes, where the
midpoint is the lower topic itself and takes it to the other side or falls on the bundle's end; and equal
hashes in the middle, where upstream cuts at a useless place: here the nearest gap that leaves the counts closest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from controller.bundles.domain.splitting.algorithms.base import BundleTopic, CutPoints, Midpoint, SplitRequest
from controller.bundles.domain.splitting.algorithms.places import cut_between, places, too_few
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal


def topic_count_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """One cut between the two middle topics; refused with fewer than two topics, or all at one place."""
    if refusal := too_few(request.bundle, request.topics):
        return refusal
    return CutPoints([middle_cut(request.topics, request.options.midpoint or Midpoint.LOWER)])


def middle_cut(topics: Sequence[BundleTopic], midpoint: Midpoint) -> int:
    """The cut that halves the number of topics, which lie at two places at least; the lower of two equally good."""
    below = 0
    gaps: list[tuple[int, int, int]] = []
    for low, high in pairwise(places(topics)):
        below += len(low.topics)
        gaps.append((abs(2 * below - len(topics)), low.at, high.at))
    _, low_at, high_at = min(gaps)
    return cut_between(low_at, high_at, midpoint)
