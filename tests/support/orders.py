"""Every order in which events may happen, for tests that run all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import TypeVar

Event = TypeVar("Event")


def merges(*sequences: Sequence[Event]) -> Iterator[tuple[Event, ...]]:
    """Yield all orders of all events in which each sequence keeps its own order."""
    if not any(sequences):
        yield ()
    for index, sequence in enumerate(sequences):
        if sequence:
            rest = (*sequences[:index], sequence[1:], *sequences[index + 1 :])
            for order in merges(*rest):
                yield (sequence[0], *order)


def cuts(order: Sequence[Event]) -> Iterator[tuple[tuple[Event, ...], ...]]:
    """Yield all ways to divide the order into pieces, from one event at a time to all at once."""
    for count in range(len(order)):
        for places in combinations(range(1, len(order)), count):
            bounds = (0, *places, len(order))
            yield tuple(tuple(order[i:j]) for i, j in pairwise(bounds))
