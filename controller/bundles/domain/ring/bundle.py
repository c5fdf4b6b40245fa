"""One bundle: a range of the 32-bit ring on which a namespace's topics lie.

The ring and its edges are Pulsar's. A bundle is `[lower, upper)`. Only the last bundle of a namespace holds its
upper end, 0xffffffff, too. Whether an end is open or closed follows from its value, so a wrongly closed range,
which is an error in Pulsar, cannot be written here. The boundaries of a whole namespace are in `boundaries`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering
from itertools import pairwise

from controller.bundles.domain.ring.hashes import FIRST_HASH, LAST_HASH, edge_text
from controller.domain.errors import InvalidInput, InvalidRange
from controller.domain.formatting import shown
from controller.domain.pulsar_names import checked_namespace

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
