"""How much traffic, when: a synthetic day with a burst, or a real trace, squeezed into the demo's minutes.

A profile is a list of rates, one a step of equal length. Pure; `traffic` sends.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from controller.domain.errors import InvalidInput

STEPS = 240
BASE_MESSAGES_PER_SECOND = 100.0
BURST_FACTOR = 20.0
TRACE_PEAK_MESSAGES_PER_SECOND = 1_900.0
"""A trace is scaled so that its busiest stretch of `PEAK_STEPS` has this mean, which is too much for three segments."""
PEAK_STEPS = 10
SPIKE_MESSAGES_PER_SECOND = 4_800.0
"""A single step never sends more, however sharp the trace's spikes are, since all of it runs on one machine."""


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Messages per second over the demo; `name` is shown to people."""

    name: str
    rates: tuple[float, ...]

    def rate_at(self, share: float) -> float:
        """The rate when `share` (0..1) of the time has passed."""
        return self.rates[min(int(share * len(self.rates)), len(self.rates) - 1)]

    @property
    def busiest_share(self) -> float:
        """The share of the time at which the busiest stretch is about to end: the last of its steps with no less than its
        mean.
        """
        rates = self.rates
        firsts = range(max(len(rates) - PEAK_STEPS, 0) + 1)
        first = max(firsts, key=lambda i: (fmean(rates[i : i + PEAK_STEPS]), i))
        mean = fmean(rates[first : first + PEAK_STEPS])
        last = max(
            i for i in range(first, min(first + PEAK_STEPS, len(rates))) if rates[i] >= mean * (1 - 1e-9)
        )
        return last / len(rates)

    def scaled(self, factor: float) -> LoadProfile:
        """The same shape at `factor` times the rates."""
        return replace(self, rates=tuple(rate * factor for rate in self.rates))


def synthetic_day() -> LoadProfile:
    """Night, a burst of twenty times the base in the morning, then an evening that fades away."""
    rates = []
    for step in range(STEPS):
        share = step / STEPS
        day = BASE_MESSAGES_PER_SECOND * (0.6 + 0.4 * math.sin(2 * math.pi * (share - 0.1)))
        in_burst = 0.12 <= share < 0.46
        rates.append(BASE_MESSAGES_PER_SECOND * BURST_FACTOR if in_burst else day)
    return LoadProfile("a synthetic day with a 20x burst", tuple(rates))


def from_trace(path: Path) -> LoadProfile:
    """A CSV file with a header whose last column is a load: averaged into steps, scaled to the demo's peak.

    Of a long trace the stretch around its highest value is taken, so that growing and shrinking are both seen.
    """
    values = _read(path)
    width = min(len(values), STEPS * 2)
    top = values.index(max(values))
    first = max(0, min(top - width // 3, len(values) - width))
    stretch = values[first : first + width]
    steps = _averaged(stretch, STEPS)
    lowest = median(steps) * 0.02
    peak = max(fmean(steps[first : first + PEAK_STEPS]) for first in range(len(steps) - PEAK_STEPS + 1))
    if peak <= 0:
        raise InvalidInput(f"trace {path} holds no load above 0; choose another file")
    scaled = (max(value, lowest) * TRACE_PEAK_MESSAGES_PER_SECOND / peak for value in steps)
    return LoadProfile(
        f"{path.name}, samples {first} to {first + width}",
        tuple(min(max(rate, 5.0), SPIKE_MESSAGES_PER_SECOND) for rate in scaled),
    )


def _read(path: Path) -> list[float]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.reader(lines))[1:]
        values = [float(row[-1]) for row in rows if row]
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"trace {path}: {error}; give a CSV file with a header and the load in its last column"
        ) from error
    if len(values) < 2 or any(not math.isfinite(value) or value < 0 for value in values):
        raise InvalidInput(
            f"trace {path} needs at least two finite values that are not negative in its last column"
        )
    return values


def _averaged(values: Sequence[float], steps: int) -> list[float]:
    """Resample to `steps` values: means of what falls into a step, the last value seen where nothing does."""
    result: list[float] = []
    for step in range(steps):
        inside = values[step * len(values) // steps : (step + 1) * len(values) // steps]
        result.append(sum(inside) / len(inside) if inside else values[step * len(values) // steps])
    return result
