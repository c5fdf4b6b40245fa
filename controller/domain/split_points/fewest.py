"""Fewest parts: cuts between bins so that no part carries more than it should, and then as evenly as so many parts can.

A bin is the finest that anybody counted, so no cut goes through one; a bin above the limit stands alone. Which sketches
there are: `key_sketch`. The profile `adaptive` cuts so where it knows where the load lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Bin(NamedTuple):
    """Load of the hashes from `start` up to the next bin."""

    start: int
    load: float


def fewest_cuts(
    bins: Sequence[Bin], most: float, *, at_least: int = 1, at_most: int = 65_536
) -> tuple[int, ...]:
    """First hashes of the parts but the first; bins ascend. Of the parts of several bins the greatest load is as small as it
    can be for their number, which is between `at_least` and `at_most` and no more than there are bins. So a bin that is
    heavier than what it could be put together with stands alone, and the rest is as even as it can be beside it.
    """
    parts = len(_sweep(bins, max(most, 0.0))) + 1
    parts = max(min(parts, at_most), min(at_least, len(bins)))
    low, high = 0.0, sum(one.load for one in bins)
    cuts = _sweep(bins, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _sweep(bins, middle)
        if len(found) < parts:
            high, cuts = middle, found
        else:
            low = middle
    return tuple(sorted(_filled_up(bins, cuts, parts)))


_HALVINGS = 40


def _sweep(bins: Sequence[Bin], most: float) -> list[int]:
    """The cuts of a greedy sweep: a part ends before the bin that would lift it above `most`."""
    cuts: list[int] = []
    carried = 0.0
    for index, (start, load) in enumerate(bins):
        if index and carried + load > most:
            cuts.append(start)
            carried = 0.0
        carried += load
    return cuts


def _filled_up(bins: Sequence[Bin], cuts: Sequence[int], parts: int) -> set[int]:
    """As many cuts as asked for, where fewer parts would do: the further ones halve the heaviest part by number of bins."""
    chosen = set(cuts)
    while len(chosen) < parts - 1:
        pieces = _pieces(bins, chosen)
        divisible = [piece for piece in pieces if len(piece) > 1]
        heaviest = max(divisible, key=lambda piece: sum(one.load for one in piece))
        chosen.add(heaviest[_even_place(heaviest)].start)
    return chosen


def _pieces(bins: Sequence[Bin], cuts: set[int]) -> list[list[Bin]]:
    pieces: list[list[Bin]] = [[]]
    for one in bins:
        if one.start in cuts:
            pieces.append([])
        pieces[-1].append(one)
    return pieces


def _even_place(piece: Sequence[Bin]) -> int:
    """The bin before which a cut leaves the most even halves."""
    total, below, best, place = sum(one.load for one in piece), 0.0, float("inf"), 1
    for index in range(1, len(piece)):
        below += piece[index - 1].load
        if max(below, total - below) < best:
            best, place = max(below, total - below), index
    return place
