"""Algorithms that do not look at load: equal widths, positions that a person gives, equal numbers of topics or of partitions.

- `range_equally_divide`: parts of the same width. Pulsar's default; it does not look at where topics lie. It has an answer for any bundle
  that can be split. An empty half is common, and the sums of the parts show it.
- `specified_positions_divide` (PIP-143): cuts at positions that the operator gives. The answers are Pulsar's with two exceptions. A
  repeated position counts once; in Pulsar the whole split fails on it later. Positions outside the bundle are named; in Pulsar they are
  dropped silently.
- `topic_count_equally_divide`: as many topics on either side, idle ones included. Of an odd number the upper side has one more. The answer
  is Pulsar's wherever Pulsar's separates the two middle topics. Two cases are corrected. Between neighbouring hashes Pulsar's midpoint is
  the lower topic itself, which then changes sides, or the bundle's end. With equal hashes in the middle Pulsar cuts where nothing is
  gained; here the cut is in the gap that leaves the counts closest.
- `specified_topic_count_equally_divide`: halve one topic's partitions, whatever else is in the bundle. Proposal A of issue 13761, which
  Pulsar did not release: two children, cut midway between the two middle partitions of the named topic. The other topics do not count.
  Otherwise it works as `topic_count_equally_divide`. It takes one topic; for several there is `isolate_outstanding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from controller.bundles.domain.ring import LAST_HASH, equal_cuts
from controller.bundles.domain.splitting.algorithms.base import (
    BundleTopic,
    CutPoints,
    CutRefusal,
    CutRefusalReason,
    Midpoint,
    SplitRequest,
    cut_between,
    places,
    too_few,
)
from controller.domain.errors import InvalidInput
from controller.domain.pulsar_names import canonical_topic_name, partitioned_topic_of


def range_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cuts into `options.parts` equal widths; fewer parts, with a refusal, if the bundle is narrower or the budget smaller. The
    topics play no part. Raises InvalidRange for a budget of 0 or a bundle that is too narrow to split.
    """
    bundle, options = request.bundle, request.options
    budget = LAST_HASH if options.bundle_budget is None else options.bundle_budget
    parts = min(options.parts, bundle.upper - bundle.lower, budget + 1)
    cuts = equal_cuts(bundle, parts)
    if parts == options.parts:
        return CutPoints(cuts)
    fewer = CutRefusal(str(bundle), CutRefusalReason.FEWER_PARTS, "bundles", parts, options.parts)
    return CutPoints(cuts, (fewer,))


def specified_positions(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the positions of the options that are strictly inside the bundle, rising and each once, with a refusal
    for each position that is not. Return only a refusal if no position is inside, or if the bundle has fewer than two
    topics and `force` is not set. Raises InvalidInput, whatever the topics, if no position is given.
    """
    bundle, positions = request.bundle, request.options.positions
    if not positions:
        raise InvalidInput(f"no positions to split bundle {bundle} at; give at least one, strictly inside it")
    if len(request.topics) < 2 and not request.options.force:
        return CutRefusal(str(bundle), CutRefusalReason.TOO_FEW_TOPICS, "topics", len(request.topics), 2)
    inside = sorted({position for position in positions if bundle.lower < position < bundle.upper})
    if not inside:
        return CutRefusal(str(bundle), CutRefusalReason.NO_POSITION_INSIDE, "positions", len(positions), 1)
    outside = sorted(set(positions) - set(inside))
    return CutPoints(
        inside,
        tuple(
            CutRefusal(
                str(bundle),
                CutRefusalReason.POSITION_OUTSIDE,
                "hash",
                position,
                bundle.lower if position <= bundle.lower else bundle.upper,
            )
            for position in outside
        ),
    )


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


def specified_topic_count_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cut that halves, as nearly as possible, the number of partitions of the named topic that are in the
    bundle. A name with a partition number stands for this partition alone. Return a refusal if fewer than two of
    these partitions are in the bundle, or if no cut can separate them. Raises InvalidInput unless `options.topics` is
    a single valid topic name.
    """
    names = request.options.topics
    if len(names) != 1:
        raise InvalidInput(
            f"{len(names)} topics to halve in bundle {request.bundle}; name one, or use isolate_outstanding"
        )
    partitions = topics_named(names[0], request.topics)
    if not partitions:
        return CutRefusal(names[0], CutRefusalReason.TOPIC_NOT_HERE, "topics", 0, 1)
    if refusal := too_few(request.bundle, partitions):
        return refusal
    return CutPoints([middle_cut(partitions, request.options.midpoint or Midpoint.LOWER)])


def topics_named(name: str, topics: Sequence[BundleTopic]) -> tuple[BundleTopic, ...]:
    """Return the topic of that name, and its partitions if the name has no partition number. Empty if `topics` has none of these.
    Raises InvalidInput for an invalid topic name.
    """
    wanted = canonical_topic_name(name)
    return tuple(topic for topic in topics if wanted in (topic.name, partitioned_topic_of(topic.name)))
