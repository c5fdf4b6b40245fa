"""Every order in which things may happen, for tests that play them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import TypeVar

Event = TypeVar("Event")


def merges(*sequences: Sequence[Event]) -> Iterator[tuple[Event, ...]]:
    """All orders of all of it in which each sequence keeps its own."""
    if not any(sequences):
        yield ()
    for index, sequence in enumerate(sequences):
        if sequence:
            rest = (*sequences[:index], sequence[1:], *sequences[index + 1 :])
            for order in merges(*rest):
                yield (sequence[0], *order)


def cuts(order: Sequence[Event]) -> Iterator[tuple[tuple[Event, ...], ...]]:
    """All ways to take it piece by piece, from one at a time to all at once."""
    for count in range(len(order)):
        for places in combinations(range(1, len(order)), count):
            bounds = (0, *places, len(order))
            yield tuple(tuple(order[i:j]) for i, j in pairwise(bounds))
