"""Equal widths, Pulsar's only way. It needs no knowledge of keys, and does not look at where the load lies."""

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
