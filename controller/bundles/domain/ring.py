"""The 32-bit ring on which a namespace's topics lie: the hash of a topic, one bundle, and the boundaries of all bundles of a namespace.

A topic lies at the crc32 of its complete name: zlib's (polynomial 0xEDB88320), over the UTF-8 bytes of the name, as in Pulsar.

The ring and its edges are Pulsar's. A bundle is `[lower, upper)`. Only the last bundle of a namespace holds its
upper end, 0xffffffff, too. Whether an end is open or closed follows from its value, so a wrongly closed range,
which is an error in Pulsar, cannot be written here.

The boundaries of a namespace are an immutable list that covers the ring without gaps. The algorithms under `splitting` choose the cuts, and
the brokers insert them.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering
from itertools import pairwise

from controller.domain.errors import BundleNotFound, InvalidInput, InvalidRange
from controller.domain.formatting import shown
from controller.domain.pulsar_names import canonical_topic_name, checked_namespace, namespace_of

FIRST_HASH = 0x00000000
LAST_HASH = 0xFFFFFFFF


def topic_hash(topic: str) -> int:
    """Return the hash of a topic, 0..0xffffffff; a short name is completed first (`x` is `persistent://public/default/x`).
    Raises InvalidInput for a text that is no topic name.
    """
    return zlib.crc32(canonical_topic_name(topic).encode())


def edge_text(edge: int) -> str:
    """Format a hash or a boundary as Pulsar prints it: `0x` and eight lower-case digits."""
    return f"0x{edge:08x}"


def parse_edge(text: str) -> int:
    """Read one boundary, cut point or hash written as `0x40000000`. Raises InvalidRange for other texts."""
    match = re.fullmatch(r"0[xX]([0-9a-fA-F]{1,8})", text)
    if match is None:
        raise InvalidRange(
            f"{shown(text)} is not a hash; write it as 0x40000000, up to eight hexadecimal digits"
        )
    return int(match[1], 16)


_RANGE = re.compile(r"0[xX]([0-9a-fA-F]{1,8})_0[xX]([0-9a-fA-F]{1,8})")


@total_ordering
@dataclass(frozen=True, slots=True)
class NamespaceBundle:
    """`[lower, upper)` of a namespace, closed at 0xffffffff; text `tenant/namespace/0x00000000_0x40000000`.

    Ordered by namespace, then range. `<`, `>`, `<=` and `>=` between different bundles that overlap raise InvalidRange,
    because they cannot exist at the same time. Raises InvalidInput or InvalidRange at construction for a namespace that is no
    name, for edges off the ring and for an empty range.
    """

    namespace: str
    lower: int
    upper: int

    def __post_init__(self) -> None:
        checked_namespace(self.namespace)
        if not FIRST_HASH <= self.lower <= self.upper <= LAST_HASH:
            raise InvalidRange(
                f"bundle {self} of lower {self.lower}, upper {self.upper} is not on the ring; "
                f"give {edge_text(FIRST_HASH)} <= lower < upper <= {edge_text(LAST_HASH)}"
            )
        if self.lower == self.upper != LAST_HASH:
            raise InvalidRange(f"bundle {self} is empty: both ends are {self.lower}; give lower < upper")

    @property
    def is_last(self) -> bool:
        """True of the bundle that holds 0xffffffff."""
        return self.upper == LAST_HASH

    @property
    def width(self) -> int:
        """Number of hashes covered, 1..2^32."""
        return self.upper - self.lower + self.is_last

    @property
    def can_split(self) -> bool:
        """True if upper - lower > 1, which is Pulsar's rule. So the last two hashes of the ring stay together."""
        return self.upper - self.lower > 1

    @property
    def range_text(self) -> str:
        """`0x40000000_0x80000000`, as brokers and admin clients write a bundle within its namespace."""
        return f"{edge_text(self.lower)}_{edge_text(self.upper)}"

    def contains(self, hash_value: int) -> bool:
        return self.lower <= hash_value < self.upper or hash_value == self.upper == LAST_HASH

    def parts(self, cuts: Iterable[int]) -> tuple[NamespaceBundle, ...]:
        """Return the parts, rising, that cuts at these points make, each point being the first hash of a part.

        Without points, the bundle itself. Raises InvalidRange for a point on or outside its ends, also for 0xffffffff if the bundle holds
        it, and for a point given twice.
        """
        points = sorted(cuts)
        for point in points:
            if not self.lower < point < self.upper:
                raise InvalidRange(
                    f"cut {edge_text(point)} is not inside bundle {self}; "
                    "give points above its lower end and below its upper end"
                )
        edges = pairwise((self.lower, *points, self.upper))
        return tuple(NamespaceBundle(self.namespace, low, high) for low, high in edges)

    def overlaps(self, other: NamespaceBundle) -> bool:
        """Return True if both bundles are of one namespace and have a hash in common."""
        return self.namespace == other.namespace and (
            self.contains(other.lower) or other.contains(self.lower)
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range_text}"

    def __lt__(self, other: object) -> bool:
        """Return True if the bundle comes first, by namespace, then by range. Raises InvalidRange for different bundles that overlap."""
        if not isinstance(other, NamespaceBundle):
            return NotImplemented
        if self != other and self.overlaps(other):
            raise InvalidRange(
                f"bundles {self} and {other} overlap and have no order; read the namespace's bundles again"
            )
        return (self.namespace, self.lower) < (other.namespace, other.lower)

    @classmethod
    def parse(cls, text: str) -> NamespaceBundle:
        """Read `tenant/namespace/0x…_0x…`. Digits may be of either case, and leading zeros may be missing. Raises InvalidInput, or its kind
        InvalidRange for a wrong range, for another text.
        """
        namespace, slash, range_text = text.rpartition("/")
        if not slash:
            raise InvalidInput(
                f"bundle {shown(text)} names no namespace; write it as tenant/namespace/0x00000000_0x40000000"
            )
        return cls(namespace, *parse_range(range_text))


def parse_range(text: str) -> tuple[int, int]:
    """Return the ends of `0x00000000_0x40000000`, not compared with each other. Raises InvalidRange for other texts."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidRange(
            f"bundle range {shown(text)} is not two hexadecimal ends; write it as 0x00000000_0x40000000"
        )
    return int(match[1], 16), int(match[2], 16)


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
