"""The rates of the demo's traffic: a synthetic day, or a real trace, compressed into the demo's minutes.

A profile is a list of rates, one for each step of equal length. `traffic` sends the messages.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from controller.domain.errors import InvalidInput, InvariantViolated

STEPS = 240
FIRST_HOUR = 5
"""Hour of the day at which the synthetic day begins: shortly before the morning's load."""
BURST_HOURS = (13.5, 16.0)
BURST_MESSAGES_PER_SECOND = 2_000.0
HOURLY_RATES: tuple[tuple[float, float], ...] = (
    (5.0, 100.0),
    (5.5, 300.0),
    (6.0, 800.0),
    (9.0, 1_150.0),
    (12.0, 1_500.0),
    (13.0, 1_000.0),
    (17.0, 900.0),
    (19.5, 600.0),
    (22.0, 150.0),
    (24.0, 60.0),
    (28.0, 40.0),
    (29.0, 60.0),
)
"""Hours since midnight, and messages per second, which are interpolated linearly. The burst replaces these rates during
`BURST_HOURS`.
"""
TRACE_PEAK_MESSAGES_PER_SECOND = 1_900.0
"""Mean to which the busiest stretch of `PEAK_STEPS` of a trace is scaled; it is too much for three segments."""
PEAK_STEPS = 10
SPIKE_MESSAGES_PER_SECOND = 4_800.0
"""Maximum rate of a single step, however sharp the trace's spikes are, since the whole demo runs on one machine."""


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Messages per second over the demo; `name` is shown to people."""

    name: str
    rates: tuple[float, ...]

    def rate_at(self, share: float) -> float:
        """Return the rate when `share` (0..1) of the time has passed; the last rate from 1 on."""
        return self.rates[min(int(share * len(self.rates)), len(self.rates) - 1)]

    @property
    def busiest_share(self) -> float:
        """Share of the time at which the busiest stretch of `PEAK_STEPS` steps is about to end: the beginning of the last step in the
        stretch whose rate is at least the mean of the stretch. The last of equally busy stretches counts.
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
        """Return the same profile with `factor` times the rates."""
        return replace(self, rates=tuple(rate * factor for rate in self.rates))


def synthetic_day() -> LoadProfile:
    """Return 24 hours from `FIRST_HOUR` on: morning, a peak at noon, a burst in the afternoon, evening and night."""
    return LoadProfile(
        "a synthetic day with a burst",
        tuple(_rate_at_hour(FIRST_HOUR + 24 * step / STEPS) for step in range(STEPS)),
    )


def _rate_at_hour(hour: float) -> float:
    """Return the messages per second at an hour since midnight, 5 to 29. Raises InvariantViolated for another hour."""
    first, last = BURST_HOURS
    if first <= hour < last:
        return BURST_MESSAGES_PER_SECOND
    for (begin, before), (end, after) in pairwise(HOURLY_RATES):
        if begin <= hour < end:
            return before + (after - before) * (hour - begin) / (end - begin)
    raise InvariantViolated(f"hour {hour} lies outside of the synthetic day; add it to HOURLY_RATES")


def from_trace(path: Path) -> LoadProfile:
    """Return the profile of a CSV file with a header whose last column is a load: averaged into STEPS steps, raised to at least 2 % of
    their median, scaled to the demo's peak, raised to at least 5 messages per second, and cut at SPIKE_MESSAGES_PER_SECOND.

    Of a long trace, the stretch around its highest value is used, so that the topic both grows and shrinks. Raises
    InvalidInput for a file that cannot be read, or without a load above 0.
    """
    values = _read(path)
    width = min(len(values), STEPS * 2)
    top = values.index(max(values))
    first = max(0, min(top - width // 3, len(values) - width))
    stretch = values[first : first + width]
    steps = _resample(stretch, STEPS)
    lowest = median(steps) * 0.02
    peak = max(fmean(steps[first : first + PEAK_STEPS]) for first in range(len(steps) - PEAK_STEPS + 1))
    if peak <= 0:
        raise InvalidInput(f"trace {path} contains no load above 0; choose another file")
    scaled = (max(value, lowest) * TRACE_PEAK_MESSAGES_PER_SECOND / peak for value in steps)
    return LoadProfile(
        f"{path.name}, samples {first} to {first + width}",
        tuple(min(max(rate, 5.0), SPIKE_MESSAGES_PER_SECOND) for rate in scaled),
    )


def _read(path: Path) -> list[float]:
    """Return the last column of a CSV file, without its header. Raises InvalidInput for a file that cannot be read, and
    unless the column has at least two values, all of them finite and not negative.
    """
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
            f"trace {path} has too few or invalid values in its last column; give at least two finite values that are not negative"
        )
    return values


def _resample(values: Sequence[float], steps: int) -> list[float]:
    """Return `steps` values: the mean of the values in each step, or the last value before a step without values."""
    result: list[float] = []
    for step in range(steps):
        inside = values[step * len(values) // steps : (step + 1) * len(values) // steps]
        result.append(sum(inside) / len(inside) if inside else values[step * len(values) // steps])
    return result
