"""`specified_topic_count_equally_divide`: halve one topic's partitions, whatever else is in the bundle.

Proposal A of issue 13761, which Pulsar did not release: two children, cut midway between the two middle partitions
of the named topic. The other topics do not count. Otherwise it works as `topic_count_equally`. It takes one topic;
for several there is `isolate_outstanding`.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.bundles.domain.splitting.algorithms.base import BundleTopic, CutPoints, Midpoint, SplitRequest
from controller.bundles.domain.splitting.algorithms.places import too_few
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal, CutRefusalReason
from controller.bundles.domain.splitting.algorithms.topic_count_equally import middle_cut
from controller.domain.errors import InvalidInput
from controller.domain.pulsar_names import canonical_topic_name, partitioned_topic_of


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
