"""What a simulated rule cost, in figures that can be compared.

The cost J is in segment-hours: the hours of all segments, plus a price for each hour and capacity of load above what the
segments can take, plus a price for each segment added or removed; a price for the width of the ring that was sealed can
be set beside them. J ÷ J*, the regret, compares it to the least possible (`optimum`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.backtest.simulation import Simulation
from controller.domain.hash_range import RING_SIZE


@dataclass(frozen=True, slots=True)
class Prices:
    """The weights of J. `excess`: segment-hours for an hour of one capacity too much. `change_seconds`: segment-seconds
    for a segment added or removed. `reseal_seconds`: segment-seconds for the whole ring sealed once.
    """

    excess: float = 20.0
    change_seconds: float = 60.0
    reseal_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of one simulation; hours and seconds are of the simulated time."""

    cost: float
    segment_hours: float
    excess_hours: float
    overload_seconds: float
    overloaded_segment_seconds: float
    reshapes: int
    rings_resealed: float


def score(simulation: Simulation, prices: Prices | None = None) -> Score:
    """Counts everything once; `cost` is J in segment-hours."""
    prices = prices or Prices()
    step = simulation.series.step_seconds
    before = simulation.conditions.initial_segments
    changed = np.abs(np.diff(simulation.segments, prepend=before)).sum()
    segment_hours = float(simulation.segments.sum()) * step / 3600
    excess_hours = float(simulation.excess.sum()) * step / 3600
    rings = sum(r.width for act in simulation.acts for r in act.parents) / RING_SIZE
    return Score(
        cost=segment_hours
        + prices.excess * excess_hours
        + (prices.change_seconds * float(changed) + prices.reseal_seconds * rings) / 3600,
        segment_hours=segment_hours,
        excess_hours=excess_hours,
        overload_seconds=float((simulation.overloaded > 0).sum()) * step,
        overloaded_segment_seconds=float(simulation.overloaded.sum()) * step,
        reshapes=len(simulation.acts),
        rings_resealed=rings,
    )
