"""Bundles in the order of their weight, and the heaviest of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from controller.bundles.domain.load.stats import BundleStats


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
