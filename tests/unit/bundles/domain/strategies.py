"""Hypothesis strategies: bundles, boundaries and topics of one namespace, with many of the hard cases."""

from __future__ import annotations

from hypothesis import strategies as st

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import LAST_HASH, NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.algorithms.base import BundleTopic

NAMESPACE = "public/default"

hashes = st.integers(0, LAST_HASH) | st.sampled_from([0, 1, 0x80000000, LAST_HASH - 1, LAST_HASH])
rates = st.sampled_from([0.0, 0.0, 100.0, 250.0, 450.0, 451.0, 1000.0, 2000.0])


@st.composite
def boundaries(draw: st.DrawFn, max_bundles: int = 8) -> NamespaceBundles:
    """Any list of boundaries, narrow bundles and the ends of the ring preferred."""
    inner = st.integers(1, LAST_HASH - 1) | st.sampled_from([1, 2, 3, 0x7FFFFFFF, 0x80000000, LAST_HASH - 1])
    edges = draw(st.sets(inner, max_size=max_bundles - 1))
    return NamespaceBundles(NAMESPACE, (0, *sorted(edges), LAST_HASH))


@st.composite
def splittable_bundles(draw: st.DrawFn) -> NamespaceBundle:
    """Wide ones, narrow ones, and both at the end of the ring, where the last hash has no edge of its own."""
    span = draw(st.integers(2, 20) | st.integers(2, LAST_HASH))
    lower = draw(st.sampled_from([0, LAST_HASH - span]) | st.integers(0, LAST_HASH - span))
    return NamespaceBundle(NAMESPACE, lower, lower + span)


def topics_in(bundle: NamespaceBundle, max_size: int = 9) -> st.SearchStrategy[list[BundleTopic]]:
    """Topics of a bundle, hashes that collide or are neighbours preferred, in any order."""
    top = bundle.upper if bundle.is_last else bundle.upper - 1
    few = [
        bundle.lower,
        min(bundle.lower + 1, top),
        (bundle.lower + top) // 2,
        max(top - 1, bundle.lower),
        top,
    ]
    places = st.sampled_from(few) | st.integers(bundle.lower, top)
    return st.lists(st.tuples(places, rates, rates), max_size=max_size).map(_topics)


def _topics(figures: list[tuple[int, float, float]]) -> list[BundleTopic]:
    return [
        BundleTopic(
            f"persistent://{NAMESPACE}/t-partition-{index}",
            at,
            BundleStats(msg_rate_in=msg_rate, byte_rate_out=kilobyte_rate * 1000),
        )
        for index, (at, msg_rate, kilobyte_rate) in enumerate(figures)
    ]
