"""Topics grouped by place (topics that no cut can separate), and the cut between two places.

Topics of one hash can never be separated. Nor can those at 0xfffffffe and 0xffffffff, because no boundary can lie between them: the last
boundary is 0xffffffff. Grouping by *place* first keeps every answer valid. Loads of topics at one place are added, and a cut is never
given twice and never on an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import LAST_HASH
from controller.bundles.domain.splitting.algorithms.base import (
    BundleTopic,
    Midpoint,
    SplitOptions,
    SplitRequest,
)
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal, CutRefusalReason

LAST_PLACE = LAST_HASH - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A group of topics that no cut can separate: its hash, and its summed rates per second, in and out."""

    at: int
    topics: tuple[BundleTopic, ...]
    msg_rate: float
    byte_rate: float

    @property
    def label(self) -> str:
        """The names of the topics, for a sentence."""
        return ", ".join(topic.name for topic in self.topics)

    def peak(self, options: SplitOptions) -> tuple[str, float, float]:
        """Return `(metric, rate, limit)` of the rate that is nearer to its limit; messages if both are equally near."""
        return peak(self.msg_rate, self.byte_rate, options)


def peak(msg_rate: float, byte_rate: float, options: SplitOptions) -> tuple[str, float, float]:
    """Return `(metric, rate, limit)` of the rate that is nearer to its limit; messages if both are equally near."""
    if msg_rate / options.max_msg_rate >= byte_rate / options.max_byte_rate:
        return "msg_rate", msg_rate, options.max_msg_rate
    return "byte_rate", byte_rate, options.max_byte_rate


def place_of(hash_value: int) -> int:
    """Return the hash that identifies the place of a topic: its own hash, except that the last two hashes of the ring are one place."""
    return min(hash_value, LAST_PLACE)


def places(topics: Sequence[BundleTopic]) -> tuple[Place, ...]:
    """Group the topics that no cut can separate into places, and return the places by rising hash, each with the sums
    of its topics' rates. Empty without topics. The sums do not depend on the order of the topics.
    """
    ordered = sorted(topics, key=lambda topic: (topic.hash_value, topic.name))
    groups = ((at, tuple(group)) for at, group in groupby(ordered, lambda topic: place_of(topic.hash_value)))
    return tuple(
        Place(
            at,
            group,
            math.fsum(topic.stats.msg_rate for topic in group),
            math.fsum(topic.stats.byte_rate for topic in group),
        )
        for at, group in groups
    )


def cut_between(low: int, high: int, midpoint: Midpoint) -> int:
    """Return a cut that leaves place `low` below and `high` (> `low`) at or above it: low < cut <= high.

    By the lower rule, neighbouring hashes would give `low` itself, and the lower topic would change sides. The cut is then `high`.
    """
    middle = low + (high - low) // 2 + (midpoint is Midpoint.UPPER)
    return max(middle, low + 1)


def too_few(bundle: NamespaceBundle, topics: Sequence[BundleTopic]) -> CutRefusal | None:
    """Return the refusal for a bundle with fewer than two topics, or whose topics no cut can separate. None for other bundles."""
    subject = str(bundle)
    if len(topics) < 2:
        return CutRefusal(subject, CutRefusalReason.TOO_FEW_TOPICS, "topics", len(topics), 2)
    if (distinct := len({place_of(topic.hash_value) for topic in topics})) < 2:
        return CutRefusal(subject, CutRefusalReason.ONE_HASH, "hashes", distinct, 2)
    return None


def loaded_places(request: SplitRequest) -> tuple[Place, ...] | CutRefusal:
    """Return the groups of inseparable topics that have any load, by hash, at least two of them. Return the refusal if the bundle has fewer
    such groups.
    """
    if refusal := too_few(request.bundle, request.topics):
        return refusal
    loaded = tuple(place for place in places(request.topics) if place.msg_rate > 0 or place.byte_rate > 0)
    if len(loaded) < 2:
        return CutRefusal(str(request.bundle), CutRefusalReason.NO_LOAD, "hashes", len(loaded), 2)
    return loaded
