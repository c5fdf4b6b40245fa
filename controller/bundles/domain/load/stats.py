"""Rates and counts that a broker reports of one bundle or topic, and the order of bundles by weight. All rules about bundles use them.

`averages` holds averages over time, `cluster` the owners of bundles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BundleStats:
    """Rates of messages and bytes per second, and counts, at one instant. No value is negative."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_in: float = 0.0
    byte_rate_out: float = 0.0
    topic_count: int = 0
    producer_count: int = 0
    consumer_count: int = 0
    cache_size_bytes: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages per second, in and out together. Pulsar calls it the rate of a bundle."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def byte_rate(self) -> float:
        """Bytes per second, in and out together. Pulsar calls it throughput."""
        return self.byte_rate_in + self.byte_rate_out

    @property
    def session_count(self) -> int:
        """Producers and consumers together."""
        return self.producer_count + self.consumer_count


_DIRECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "bandwidth_in": ("byte_rate_in",),
    "bandwidth_out": ("byte_rate_out",),
}


def figures_of(resource: str) -> tuple[str, ...]:
    """Return the names of the figures of a bundle that stand for its use of a resource: the byte rate of one direction for a bandwidth,
    `msg_rate` and `byte_rate` for any other name.
    """
    return _DIRECTIONS.get(resource, ("msg_rate", "byte_rate"))


def totals(all_stats: Iterable[BundleStats], figures: Sequence[str]) -> tuple[float, ...]:
    """Return the sum of each of these figures, in their order, over a broker's bundles."""
    bundles = list(all_stats)
    return tuple(sum(float(getattr(stats, figure)) for stats in bundles) for figure in figures)


def share_of(stats: BundleStats, sums: Sequence[float], figures: Sequence[str]) -> float:
    """Return a bundle's share of its broker's load, 0 to 1: the mean of its shares of the totals `sums` over the figures whose total is
    above 0; 0 if no total is. `sums` are the `totals` of the same `figures`, in the same order.
    """
    shares = [
        float(getattr(stats, figure)) / total
        for figure, total in zip(figures, sums, strict=True)
        if total > 0
    ]
    return sum(shares) / len(shares) if shares else 0.0


def bundle_order(stats: BundleStats) -> tuple[int, int, int, int, int]:
    """Return the key that sorts bundles by weight, lightest first. Bundles in the same buckets are equal.

    Byte rates in and out (buckets of 1e5) and messages (of 100) are rounded. Topics with sessions (of 500) and cache (of 1e5) are cut
    off. An older rule of Pulsar's, "equal if the difference is small", is not transitive and broke sorting (apache/pulsar#24754).
    """
    return (
        _rounded(stats.byte_rate_in / 1e5),
        _rounded(stats.byte_rate_out / 1e5),
        _rounded(stats.msg_rate / 100),
        int((stats.topic_count + stats.session_count) / 500),
        int(stats.cache_size_bytes / 1e5),
    )


def _rounded(value: float) -> int:
    """Round as Java does: halves go up."""
    return math.floor(value + 0.5)


def top_bundles(bundles: Mapping[str, BundleStats], count: int) -> tuple[str, ...]:
    """Return the `count` heaviest bundles, the lightest of them first, equal ones by name.

    If not all of several equal bundles fit, the first by name are taken.
    """
    heaviest_first = sorted(
        bundles,
        key=lambda bundle: ([-part for part in bundle_order(bundles[bundle])], bundle),
    )[:count]
    return tuple(sorted(heaviest_first, key=lambda bundle: (bundle_order(bundles[bundle]), bundle)))
