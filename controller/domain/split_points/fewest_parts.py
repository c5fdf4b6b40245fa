"""Computes the fewest parts in which no part exceeds a limit, and then makes the parts as equal as their number allows.

A bin is the finest unit that was counted, so no cut divides a bin; a bin above the limit is a part by itself. The key
histograms are in `key_sketch`. The profile `adaptive` uses these cuts if it knows where the load lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Bin(NamedTuple):
    """Load of the hashes from `start` up to the next bin."""

    start: int
    load: float


def fewest_cuts(
    bins: Sequence[Bin], max_load: float, *, at_least: int = 1, at_most: int = 65_536
) -> tuple[int, ...]:
    """Divide the bins into consecutive parts, and return the cuts: the start of the first bin of each part except the
    first, ascending. The result is empty for a single part and for no bins. `bins` must be in the order of their
    starts.

    The number of parts is the smallest for which no part has more than `max_load`, where a bin with more than
    `max_load` counts as a part by itself. This number is then lowered to `at_most`, so that a part may have more than
    `max_load`, or raised to `at_least`, but not above the number of bins. `at_most` must not be less than `at_least`.
    For the resulting number of parts, the cuts make the greatest load of a part as small as possible.
    """
    parts = len(_sweep(bins, max(max_load, 0.0))) + 1
    parts = max(min(parts, at_most), min(at_least, len(bins)))
    low, high = 0.0, sum(load_bin.load for load_bin in bins)
    cuts: list[int] = []  # not the sweep at `high`: `sum` rounds less than the sweep from Python 3.12 on
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        candidate_cuts = _sweep(bins, middle)
        if len(candidate_cuts) < parts:
            high, cuts = middle, candidate_cuts
        else:
            low = middle
    return tuple(sorted(_add_cuts(bins, cuts, parts)))


_HALVINGS = 40


def _sweep(bins: Sequence[Bin], max_load: float) -> list[int]:
    """Return the cuts (first hashes of bins, ascending) of a greedy sweep: a part ends before the bin that would raise
    the load of the part above `max_load`. A bin above `max_load` is a part by itself.
    """
    cuts: list[int] = []
    carried = 0.0
    for index, (start, load) in enumerate(bins):
        if index and carried + load > max_load:
            cuts.append(start)
            carried = 0.0
        carried += load
    return cuts


def _add_cuts(bins: Sequence[Bin], cuts: Sequence[int], parts: int) -> set[int]:
    """Return `cuts` and as many further cuts as `parts` parts need. Each additional cut divides the heaviest part that
    has several bins. There must be at least `parts` bins.
    """
    chosen = set(cuts)
    while len(chosen) < parts - 1:
        pieces = _pieces(bins, chosen)
        divisible = [piece for piece in pieces if len(piece) > 1]
        heaviest = max(divisible, key=lambda piece: sum(load_bin.load for load_bin in piece))
        chosen.add(heaviest[_most_even_cut(heaviest)].start)
    return chosen


def _pieces(bins: Sequence[Bin], cuts: set[int]) -> list[list[Bin]]:
    """Return the bins of each part, in order. A part ends before each bin whose first hash is in `cuts`."""
    pieces: list[list[Bin]] = [[]]
    for load_bin in bins:
        if load_bin.start in cuts:
            pieces.append([])
        pieces[-1].append(load_bin)
    return pieces


def _most_even_cut(piece: Sequence[Bin]) -> int:
    """Return the index, in `piece`, of the bin before which a cut leaves the heavier of the two sides as light as
    possible. The piece has at least two bins.
    """
    total, below, best, cut = sum(load_bin.load for load_bin in piece), 0.0, float("inf"), 1
    for index in range(1, len(piece)):
        below += piece[index - 1].load
        if max(below, total - below) < best:
            best, cut = max(below, total - below), index
    return cut
