"""Computes the cost and the saving of a run of neighbouring segments: the price of sealing the run, and the saving that
fewer segments would have brought.

A scale-out of a run is priced by the segments that it adds. A scale-in is made only if the saving that was forgone during the
remembered ticks exceeds its cost (`forgone_saving`); overload counts `OVERLOAD_WEIGHT` times.

The module computes with numbers only: loads are shares of a segment's capacity, widths are shares of the ring,
costs are segment-seconds (the cost of one segment for one second). `ring_plan` chooses the parts of a run, and
among the priced runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_RUN = 4
"""Maximum number of segments that one action seals. More than 6 had no benefit in any trace, and each additional segment
makes a plan more expensive to compute.
"""

OVERLOAD_WEIGHT = 20.0
"""Number of segments whose cost equals the cost of an overload as large as one segment's capacity."""

TICKS_PER_SEGMENT = 1.0
"""Cost of adding or removing a segment, whatever its width: ticks for which a segment is kept."""

TICKS_PER_GROWTH = 10.0
"""Cost of each segment that a scale-out adds, in ticks for which a segment is kept, so that it adds no more than
necessary.
"""

WHOLE_MEMORY = 0.9
"""Part of the memory after which two neighbours are joined that one segment could have carried, whatever their share of
the ring. Without it, a cost that no memory could ever reach would keep two idle segments permanently.
"""


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs from the policy, in segment-seconds, and capabilities of the data plane.

    `target`: load that a segment should carry. `reseal`: cost of sealing the whole ring. `reconnections`: cost of
    reconnecting all clients of one segment. `tick_seconds`: seconds between two ticks, of which there are at most
    `memory_ticks`. `most_parts`: maximum number of children of one action. `most_spared`: maximum number of
    segments that one action may remove. `recut`: True if several segments may become several others. `longest_run`:
    maximum number of segments that one action seals.
    """

    target: float = 0.9
    reseal: float = 7_800.0
    reconnections: float = 0.0
    tick_seconds: float = 60.0
    memory_ticks: int = 45
    most_parts: int = 65_536
    most_spared: int = MAX_RUN
    recut: bool = True
    longest_run: int = MAX_RUN

    @property
    def segment(self) -> float:
        """Cost of adding or removing a segment."""
        return TICKS_PER_SEGMENT * self.tick_seconds

    def reshape_cost(self, width: float, segments: int) -> float:
        """Return the cost of sealing this number of segments, which have this width together."""
        return self.reseal * width + self.reconnections * segments

    def scale_in_cost(self, width: float, segments: int, spared: int) -> float:
        """Return the cost of sealing this number of segments, which have this width together, and of having `spared`
        fewer segments afterwards. For two segments the cost of their width is at most the cost of one segment for
        the part `WHOLE_MEMORY` of the remembered time.
        """
        reseal = self.reseal * width
        if segments == 2:
            reseal = min(reseal, WHOLE_MEMORY * self.memory_ticks * self.tick_seconds)
        return reseal + self.reconnections * segments + self.segment * spared


class Run(NamedTuple):
    """Members `first` to `first + length - 1`, which become `parts` segments. `price` is the cost of sealing them;
    `cost` is what the plan minimizes: for a scale-in `price - saved`. `saved` is the forgone saving of a scale-in,
    0 for a scale-out.
    """

    first: int
    length: int
    parts: int
    cost: float
    price: float
    saved: float
    is_scale_out: bool


class Candidate(NamedTuple):
    """A scale-in that was priced, performed or not: `saved` is its forgone saving, `price` its cost.
    `is_kept_apart`: a member forbids it.
    """

    first: int
    length: int
    saved: float
    price: float
    is_kept_apart: bool = False


def forgone_saving(
    ticks: Sequence[float], count: int, parts: int, price: float, tick_seconds: float
) -> float:
    """Return the largest saving, in segment-seconds, that `parts` instead of `count` segments would have brought over
    any span of ticks that ends at the present tick. The result is at least 0.

    The saving of a tick is the cost of the removed segments for `tick_seconds`. If the load of the tick exceeds
    `parts`, the cost of this overload is subtracted (`OVERLOAD_WEIGHT`). `ticks` has the sum of the members' loads at
    each tick, newest first, and must not be empty. The search in older ticks ends as soon as the loss exceeds
    `price`, the cost of the scale-in.
    """
    spared = tick_seconds * (count - parts)
    if max(ticks) <= parts:
        return spared * len(ticks)
    weight = tick_seconds * OVERLOAD_WEIGHT
    total = best = 0.0
    for load in ticks:
        total += spared - weight * (load - parts) if load > parts else spared
        if total > best:
            best = total
        elif total < -price:
            break
    return best
