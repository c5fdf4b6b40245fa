"""Equal widths, Pulsar's only way: needs no knowledge of keys, and is blind to where the load lies."""

from __future__ import annotations

from collections.abc import Sequence

from controller.domain.hash_range import HashRange
from controller.domain.split_points.base import HashLoad


def midpoint(
    hash_range: HashRange,
    parts: int = 2,
    loads: Sequence[HashLoad] = (),  # noqa: ARG001 - the protocol's argument, of no use to equal widths
) -> tuple[int, ...]:
    """Cuts of equal width within one hash; `loads` is ignored. See `SplitPoint`."""
    return hash_range.equal_cuts(parts)
