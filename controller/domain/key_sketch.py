"""Where in a segment's range its load lies: a histogram of bins of equal width, in any unit.

Sketches of one segment add up, whoever counted: a client its own sends, or somebody who read a sample off the log. A
segment of fewer hashes than `MOST_BINS` has a bin a hash, so that a single hot hash can be told from its neighbours. The
evaluator reads sketches from a situation; where to cut by them is `split_points.fewest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import HashRange
from controller.domain.shown import shown
from controller.domain.split_points.fewest import Bin

MOST_BINS = 1_024


def bin_count(hash_range: HashRange) -> int:
    """How many bins a sketch of this range has."""
    return min(MOST_BINS, hash_range.width)


def bin_starts(hash_range: HashRange, bins: int) -> list[int]:
    """First hash of each bin; widths are equal within one."""
    return [hash_range.start, *hash_range.equal_cuts(bins)]


def count_hashes(hash_range: HashRange, hashes: Iterable[int]) -> list[int]:
    """The sketch of these segment hashes (0..65535). Raises InvalidInput for one outside the range."""
    bins, width = bin_count(hash_range), hash_range.width
    counts = [0] * bins
    for one in hashes:
        if not hash_range.contains(one):
            raise InvalidInput(f"hash {shown(one)} is not in {hash_range}; it is of another segment")
        counts[((one - hash_range.start) * bins) // width] += 1
    return counts


def add_counts(bins: list[float], hash_range: HashRange, counts: Iterable[tuple[int, int, float]]) -> None:
    """Adds to the sketch of a range what was counted: first hash, how many hashes, messages. What lies beyond the range is left
    out; within a count messages are taken as even.
    """
    width = hash_range.width
    starts = [*bin_starts(hash_range, len(bins)), hash_range.end + 1]
    for first, hashes, messages in counts:
        low, high = max(first, hash_range.start), min(first + hashes - 1, hash_range.end)
        if low > high:
            continue
        place = ((low - hash_range.start) * len(bins)) // width
        while low <= high:
            end = min(high, starts[place + 1] - 1)
            bins[place] += messages * (end - low + 1) / hashes
            low, place = end + 1, place + 1


def as_bins(hash_range: HashRange, sketch: Sequence[float], load: float) -> list[Bin]:
    """The load of the segment spread as its sketch says; evenly where that counted nothing."""
    total = sum(sketch)
    share = [one / total for one in sketch] if total > 0 else [1 / len(sketch)] * len(sketch)
    return [
        Bin(start, load * part)
        for start, part in zip(bin_starts(hash_range, len(sketch)), share, strict=True)
    ]


def share_within(hash_range: HashRange, sketch: Sequence[float], part: HashRange) -> float | None:
    """How much of the load lies within that part of the range (0..1); the two overlap.

    None where the sketch is too coarse to say how it lies there: within one bin of several hashes.
    """
    starts = [*bin_starts(hash_range, len(sketch)), hash_range.end + 1]
    low, high = max(part.start, hash_range.start), min(part.end, hash_range.end)
    first, last = (((one - hash_range.start) * len(sketch)) // hash_range.width for one in (low, high))
    if first == last and starts[first + 1] - starts[first] > 1:
        return None
    inside = sum(
        sketch[i] * (min(high + 1, starts[i + 1]) - max(low, starts[i])) / (starts[i + 1] - starts[i])
        for i in range(first, last + 1)
    )
    return inside / sum(sketch)
