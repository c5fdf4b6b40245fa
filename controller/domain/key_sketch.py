"""Key histograms: the distribution of a segment's load over its range, in bins of equal width and in any unit.

Histograms of one segment can be added, whether a client counted its own messages or a reader sampled the log. A
segment with fewer hashes than `MOST_BINS` has one bin per hash, so that a single hot hash can be distinguished from
its neighbours. The evaluator reads the histograms from its input; `split_points.fewest_parts` computes cuts from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.hash_range import HashRange
from controller.domain.split_points.fewest_parts import Bin

MOST_BINS = 1_024
"""Maximum number of bins of a histogram."""


def bin_count(hash_range: HashRange) -> int:
    """Return the number of bins in a histogram of this range: one for each hash, but at most `MOST_BINS`."""
    return min(MOST_BINS, hash_range.width)


def bin_starts(hash_range: HashRange, bins: int) -> list[int]:
    """Return the first hash of each of `bins` bins of the range; the widths differ by at most one. Raises
    InvalidRange unless 1 <= bins <= width.
    """
    return [hash_range.start, *hash_range.equal_cuts(bins)]


def count_hashes(hash_range: HashRange, hashes: Iterable[int]) -> list[int]:
    """Return the histogram of segment hashes: the number of `hashes` in each of the `bin_count` bins of the range, the
    lowest bin first. Raises InvalidInput for a hash outside the range.
    """
    bins, width = bin_count(hash_range), hash_range.width
    counts = [0] * bins
    for segment_hash in hashes:
        if not hash_range.contains(segment_hash):
            raise InvalidInput(
                f"hash {shown(segment_hash)} is not in {hash_range}; count it for the segment that covers it"
            )
        counts[((segment_hash - hash_range.start) * bins) // width] += 1
    return counts


def add_counts(bins: list[float], hash_range: HashRange, counts: Iterable[tuple[int, int, float]]) -> None:
    """Add key counts to `bins`, the histogram of `hash_range`, in place. A count consists of the first hash, the
    number of hashes (at least 1) and the number of messages.

    The messages of a count are spread evenly over its hashes. Messages that fall on hashes outside `hash_range` are
    ignored. Raises InvalidRange if `bins` is empty or has more bins than the range has hashes.
    """
    width = hash_range.width
    starts = [*bin_starts(hash_range, len(bins)), hash_range.end + 1]
    for first, hashes, messages in counts:
        low, high = max(first, hash_range.start), min(first + hashes - 1, hash_range.end)
        if low > high:
            continue
        index = ((low - hash_range.start) * len(bins)) // width
        while low <= high:
            end = min(high, starts[index + 1] - 1)
            bins[index] += messages * (end - low + 1) / hashes
            low, index = end + 1, index + 1


def as_bins(hash_range: HashRange, sketch: Sequence[float], load: float) -> list[Bin]:
    """Return the bins of the range, each with its first hash and its part of `load`. The load is divided in proportion to
    the histogram `sketch` (one value for each bin, at least one), or evenly if all its values are 0.
    """
    total = sum(sketch)
    shares = [messages / total for messages in sketch] if total > 0 else [1 / len(sketch)] * len(sketch)
    return [
        Bin(start, load * share)
        for start, share in zip(bin_starts(hash_range, len(sketch)), shares, strict=True)
    ]


def share_within(hash_range: HashRange, sketch: Sequence[float], part: HashRange) -> float | None:
    """Return the share (0..1) of the load of `hash_range` that lies within `part`, according to `sketch`, the
    histogram of `hash_range`. The two ranges must overlap, and the histogram must contain messages. The load of a bin
    counts as evenly spread over the hashes of the bin.

    The result is None if the histogram is too coarse: the hashes common to both ranges lie in a single bin, and this
    bin has more than one hash.
    """
    starts = [*bin_starts(hash_range, len(sketch)), hash_range.end + 1]
    low, high = max(part.start, hash_range.start), min(part.end, hash_range.end)
    first, last = (((edge - hash_range.start) * len(sketch)) // hash_range.width for edge in (low, high))
    if first == last and starts[first + 1] - starts[first] > 1:
        return None
    inside = sum(
        sketch[i] * (min(high + 1, starts[i + 1]) - max(low, starts[i])) / (starts[i + 1] - starts[i])
        for i in range(first, last + 1)
    )
    return inside / sum(sketch)
