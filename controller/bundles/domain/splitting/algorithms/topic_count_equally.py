"""`topic_count_equally_divide`: as many topics on either side, idle ones included.

Of an odd number the upper side has one more. The answer is Pulsar's wherever Pulsar's separates the two middle
topics. Two cases are corrected. Between neighbouring hashes Pulsar's midpoint is the lower topic itself, which then
changes sides, or the bundle's end. With equal hashes in the middle Pulsar cuts where nothing is gained; here the
cut is in the gap that leaves the counts closest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from controller.bundles.domain.splitting.algorithms.base import BundleTopic, CutPoints, Midpoint, SplitRequest
from controller.bundles.domain.splitting.algorithms.places import cut_between, places, too_few
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal


def topic_count_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cut between the two middle topics by hash. If no cut can separate the two middle topics, return the
    nearest possible cut. Return a refusal if the bundle has fewer than two topics, or if no cut can separate any two
    of them.
    """
    if refusal := too_few(request.bundle, request.topics):
        return refusal
    return CutPoints([middle_cut(request.topics, request.options.midpoint or Midpoint.LOWER)])


def middle_cut(topics: Sequence[BundleTopic], midpoint: Midpoint) -> int:
    """Return the cut that halves the number of topics, or that leaves the two numbers closest; of two equally good
    cuts, the lower. `midpoint` says where between two places the cut lies. The caller must make sure that a cut can
    separate at least two of the topics; otherwise ValueError is raised.
    """
    below = 0
    gaps: list[tuple[int, int, int]] = []
    for low, high in pairwise(places(topics)):
        below += len(low.topics)
        gaps.append((abs(2 * below - len(topics)), low.at, high.at))
    _, low_at, high_at = min(gaps)
    return cut_between(low_at, high_at, midpoint)
