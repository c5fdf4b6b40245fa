"""The boundaries of one namespace, and the bundle of a topic.

An immutable list that covers the ring without gaps. The algorithms under `splitting` choose the cuts, and the brokers insert them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import FIRST_HASH, LAST_HASH, edge_text, topic_hash
from controller.domain.errors import BundleNotFound, InvalidInput, InvalidRange
from controller.domain.pulsar_names import checked_namespace, namespace_of

DEFAULT_BUNDLES = 4
"""`defaultNumberOfNamespaceBundles`."""

MAX_BUNDLES = 65_536
"""The most bundles a namespace is created with here: far above any use, far below what memory holds."""


@dataclass(frozen=True, slots=True)
class NamespaceBundles:
    """n + 1 rising boundaries from 0x00000000 to 0xffffffff; bundle i lies between boundaries i and i + 1.

    Raises InvalidRange at construction for any other list, and InvalidInput for an invalid name of the namespace.
    """

    namespace: str
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        checked_namespace(self.namespace)
        edges = self.boundaries
        if len(edges) < 2:
            raise InvalidRange(
                f"namespace {self.namespace} has {len(edges)} boundaries ({_texts(edges)}); give at least two"
            )
        for low, high in pairwise(edges):
            if low > high:
                raise InvalidRange(
                    f"boundaries of {self.namespace} fall from {edge_text(low)} to {edge_text(high)}; give them rising"
                )
            if low == high:
                raise InvalidRange(
                    f"boundary {edge_text(low)} of {self.namespace} is repeated and makes an empty range; give it once"
                )
        for edge, end, name in ((edges[0], FIRST_HASH, "first"), (edges[-1], LAST_HASH, "last")):
            if edge != end:
                raise InvalidRange(
                    f"the {name} boundary of {self.namespace} is {edge_text(edge)}; it must be {edge_text(end)}"
                )

    @classmethod
    def equal(cls, namespace: str, count: int = DEFAULT_BUNDLES) -> NamespaceBundles:
        """Create bundles as Pulsar does: `count` widths of 2^32 // count; the last bundle takes the remainder.

        Raises InvalidInput unless 1 <= count <= MAX_BUNDLES, and for an invalid namespace.
        """
        if not 1 <= count <= MAX_BUNDLES:
            raise InvalidInput(
                f"namespace {namespace} cannot have {count} bundles; give a number from 1 to {MAX_BUNDLES}"
            )
        width = (LAST_HASH + 1) // count
        return cls(namespace, (*(index * width for index in range(count)), LAST_HASH))

    @property
    def bundles(self) -> tuple[NamespaceBundle, ...]:
        """Every bundle, rising."""
        return tuple(NamespaceBundle(self.namespace, low, high) for low, high in pairwise(self.boundaries))

    @property
    def count(self) -> int:
        return len(self.boundaries) - 1

    def bundle_at(self, hash_value: int) -> NamespaceBundle:
        """Return the bundle that holds a hash; a boundary belongs to the bundle above it.

        0xffffffff is in the last bundle (in Pulsar its look-up runs past the list). Raises InvalidRange for a hash off the ring.
        """
        if not FIRST_HASH <= hash_value <= LAST_HASH:
            raise InvalidRange(f"hash {hash_value} is not on the ring; give 0 to {LAST_HASH}")
        index = min(bisect_right(self.boundaries, hash_value) - 1, self.count - 1)
        return NamespaceBundle(self.namespace, self.boundaries[index], self.boundaries[index + 1])

    def bundle_of(self, topic: str) -> NamespaceBundle:
        """Return the bundle of a topic. Raises InvalidInput if the topic is of another namespace, or the text is no topic name."""
        if (namespace := namespace_of(topic)) != self.namespace:
            raise InvalidInput(
                f"topic {topic} is in namespace {namespace}, not in {self.namespace}; ask that one's bundles"
            )
        return self.bundle_at(topic_hash(topic))

    def require(self, bundle: NamespaceBundle) -> NamespaceBundle:
        """Return the bundle itself if it is in the list. Raises InvalidInput for another namespace, and BundleNotFound, which says whether
        no bundle starts at its lower end or the bundle from there ends elsewhere.

        The usual cause is a split since the bundle was read.
        """
        if bundle.namespace != self.namespace:
            raise InvalidInput(f"bundle {bundle} is not of namespace {self.namespace}; ask its own namespace")
        index = bisect_left(self.boundaries, bundle.lower)
        if index >= self.count or self.boundaries[index] != bundle.lower:
            raise BundleNotFound(
                f"bundle {bundle} is not in the list: no bundle starts at {edge_text(bundle.lower)}; "
                f"that hash is in {self.bundle_at(bundle.lower).range_text}: read the bundles again"
            )
        if (upper := self.boundaries[index + 1]) != bundle.upper:
            raise BundleNotFound(
                f"bundle {bundle} has an invalid upper boundary: the bundle from {edge_text(bundle.lower)} "
                f"ends at {edge_text(upper)}; read the bundles again"
            )
        return bundle


def equal_cuts(bundle: NamespaceBundle, parts: int) -> tuple[int, ...]:
    """Return Pulsar's `parts - 1` cuts into equal widths, rising; the last part takes the remainder. Raises InvalidRange unless 2 <= parts
    <= upper - lower.
    """
    span = bundle.upper - bundle.lower
    if not 2 <= parts <= span:
        raise InvalidRange(f"bundle {bundle} cannot be split into {parts} parts; give 2 to {span}")
    width = span // parts
    return tuple(bundle.lower + index * width for index in range(1, parts))


def _texts(edges: Iterable[int]) -> str:
    return ", ".join(map(edge_text, edges)) or "none"
