"""A topic's load over time: the input of a backtest.

A series has steps of equal length. Its four rates are those of the whole topic, and its shares are their distribution
over the ring. NaN marks a step without a measurement.

Recorded traces (`read_csv`) have no unit. They are interpolated linearly on a grid of equal steps, and multiplied so
that their mean is a given number of capacities: 5.6 in the project's figures, which gives a topic of about 8 segments
with peaks of 12 to 60. The figures use the first seven days, in steps of 10 s. Several files are added up over the
time that all of them cover.

`trace` reads the recorded loads of the project's figures, three traces of the Numenta Anomaly Benchmark: taxi passengers in
New York (one reading per 30 minutes), requests at a load balancer (5 minutes) and the sum of mentions of ten companies in
tweets (5 minutes).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.domain.errors import InvalidInput
from controller.domain.hash_range import RING_SIZE
from controller.domain.load_record import METRICS

MEAN_LOAD = 5.6
"""Mean load to which a recorded trace is scaled, in capacities of one segment."""

DAY_SECONDS = 86_400


@dataclass(frozen=True, eq=False)
class LoadSeries:
    """`rates[step, metric]` per second (the metrics of `METRICS`; NaN: not measured), from `start_ms` on (milliseconds
    since the Unix epoch). Each step has `step_seconds` seconds.

    `shares[row, bin]` are the parts of the load on bins of equal width that tile the ring, each of a whole number
    of hashes; each row adds up to 1. There is one row for all steps, or one row per step. None: keys are
    distributed evenly, as they are within a bin. All four metrics have the same distribution. Raises InvalidInput
    for arrays of another shape, no steps, rates that are negative or infinite, a step below 1 s, and shares that are
    negative or do not add up to 1.
    """

    name: str
    start_ms: int
    rates: Floats
    step_seconds: int = 60
    shares: Floats | None = None

    def __post_init__(self) -> None:
        if self.rates.ndim != 2 or self.rates.shape[1] != len(METRICS) or not len(self.rates):
            raise InvalidInput(
                f"rates of {self.name} have shape {self.rates.shape}; give one row of 4 per step"
            )
        if np.any(self.rates < 0) or np.any(np.isinf(self.rates)):
            raise InvalidInput(f"rates of {self.name} are negative or infinite; give NaN for unknown rates")
        _demand_step(self.name, self.step_seconds)
        if self.shares is not None:
            self._check_shares(self.shares)

    def _check_shares(self, shares: Floats) -> None:
        """Raise InvalidInput unless `shares` has one row or one row per step, a number of bins that divides 65536, and
        values of at least 0 that add up to 1 in each row.
        """
        if shares.ndim != 2 or shares.shape[0] not in (1, self.steps):
            raise InvalidInput(
                f"shares of {self.name} have shape {shares.shape}; give one row, or one per step"
            )
        if not shares.shape[1] or RING_SIZE % shares.shape[1]:
            raise InvalidInput(
                f"shares of {self.name} have {shares.shape[1]} bins; give a number that divides {RING_SIZE}"
            )
        if not np.all(shares >= 0) or not np.allclose(shares.sum(axis=1), 1.0):
            raise InvalidInput(f"shares of {self.name} must be >= 0 and add up to 1 in each row")

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.rates)

    @property
    def days(self) -> float:
        """Length of the series in days."""
        return self.steps * self.step_seconds / DAY_SECONDS

    @property
    def measured(self) -> Mask:
        """True for each step whose four rates are known."""
        return ~any_along(is_nan(self.rates), 1)

    def load(self, split_rates: Sequence[float]) -> Floats:
        """Return the topic's load at each step in capacities of one segment: the largest of rate ÷ split threshold over the
        metrics. A rate that was not measured counts as 0. `split_rates`: split threshold of each metric, above 0.
        """
        ratios: Floats = np.nan_to_num(self.rates / np.asarray(split_rates)).max(axis=1)
        return ratios


def last_windows(windows: Wholes, start_ms: int, step_seconds: int, steps: int) -> tuple[Wholes, Mask]:
    """Return two arrays with an entry for each step: the index of the last window that ended at or before the step's end
    (-1: none), and True if this window ended less than one step before the step began, or later. `windows`: the ends of the
    windows, ascending, in milliseconds since the Unix epoch. A step without such a window is a gap, not a step without load.
    """
    step_ms = step_seconds * 1000
    step_ends = start_ms + step_ms * np.arange(1, steps + 1)
    window_of_step = np.searchsorted(windows, step_ends, side="right") - 1
    if not len(windows):
        return window_of_step, np.zeros(steps, dtype=np.bool_)
    ages = step_ends - windows[np.maximum(window_of_step, 0)]
    return window_of_step, (window_of_step >= 0) & (ages < 2 * step_ms)


def of_messages(
    name: str,
    messages_per_second: Sequence[float] | Floats,
    *,
    start_ms: int = 0,
    step_seconds: int = 60,
    **options: Any,
) -> LoadSeries:
    """Return a series of incoming messages only; the other three rates are 0. `options` are further fields of
    `LoadSeries`. Raises InvalidInput as `LoadSeries` does.
    """
    rates = np.zeros((len(messages_per_second), len(METRICS)))
    rates[:, 0] = messages_per_second
    return LoadSeries(name, start_ms, rates, step_seconds, **options)


def read_csv(
    name: str,
    paths: Sequence[Path],
    *,
    capacity: float = 10_000.0,
    mean_load: float = MEAN_LOAD,
    first_day: int = 0,
    days: int = 7,
    step_seconds: int = 60,
) -> LoadSeries:
    """Return the sum of recorded CSV files, whose first line is `timestamp,value`, as a load of incoming messages: values
    are interpolated linearly, and scaled to a mean of `mean_load` × `capacity` messages/s over the selected days.
    `capacity` is the capacity of a segment in messages/s. Timestamps without an offset are read as UTC.

    `days` days are selected after `first_day` days, counted from the first instant that all files cover; a file that ends
    within them continues with its last value. At least one path must be given. Raises InvalidInput for a step below 1 s,
    a malformed file, or a file with fewer than two readings; if a file ends before the last step by more than the largest
    median time between readings of the files; and if the days contain no step, no load, or a step with a negative sum.
    Raises OSError for a file that cannot be read.
    """
    _demand_step(name, step_seconds)
    readings = [_readings(path) for path in paths]
    start = max(float(instants[0]) for instants, _ in readings) + first_day * DAY_SECONDS
    step_starts = start + np.arange(days * DAY_SECONDS // step_seconds) * float(step_seconds)
    end = min(float(instants[-1]) for instants, _ in readings)
    if not len(step_starts) or step_starts[-1] > end + max(_spacing(instants) for instants, _ in readings):
        raise InvalidInput(f"{name} ends before day {first_day + days}; choose earlier or fewer days")
    loads = np.sum([np.interp(step_starts, instants, values) for instants, values in readings], axis=0)
    if not loads.mean() > 0:
        raise InvalidInput(f"{name} contains no load on the selected days; choose other days")
    scaled = loads * (mean_load * capacity / loads.mean())
    return of_messages(name, scaled, start_ms=round(start * 1000), step_seconds=step_seconds)


def _readings(path: Path) -> tuple[Floats, Floats]:
    """Return the instants (seconds since the Unix epoch) and the values of a trace, in the order of time. Values may be
    negative. Raises InvalidInput for fewer than two readings, without a column `timestamp` or `value`, and for a
    malformed line, and OSError for a file that cannot be read.
    """
    with path.open(newline="") as lines:
        rows = csv.DictReader(lines)
        try:
            readings = [
                (_instant(row.get("timestamp") or ""), _finite(row.get("value") or "")) for row in rows
            ]
        except (ValueError, csv.Error) as error:
            raise InvalidInput(
                f"{path.name}: line {rows.line_num} is no reading ({error}); give a file whose first line is `timestamp,value` "
                "and whose other lines follow it"
            ) from error
    if len(readings) < 2:
        raise InvalidInput(f"{path.name} has {len(readings)} reading(s); give a trace with at least two")
    instants = [instant for instant, _ in readings]
    order = np.argsort(instants, kind="stable")
    return np.asarray(instants)[order], np.asarray([value for _, value in readings])[order]


def _instant(text: str) -> float:
    """Return an ISO 8601 timestamp in seconds since the Unix epoch; a timestamp without an offset counts as UTC. Raises
    ValueError for another text.
    """
    timestamp = datetime.fromisoformat(text)
    return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()


def _finite(text: str) -> float:
    """Return the number. Raises ValueError for another text, NaN and infinities."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _demand_step(name: str, step_seconds: int) -> None:
    """Raise InvalidInput for a step below 1 s."""
    if step_seconds < 1:
        raise InvalidInput(f"step of {name} = {step_seconds} s; give at least 1")


def _spacing(instants: Floats) -> float:
    """Return the median time between two readings, in seconds."""
    return float(np.median(np.diff(instants)))


_TICKERS = ("AAPL", "AMZN", "CRM", "CVS", "FB", "GOOG", "IBM", "KO", "PFE", "UPS")

FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "taxi": ("realKnownCause/nyc_taxi.csv",),
        "tweets": tuple(f"realTweets/Twitter_volume_{ticker}.csv" for ticker in _TICKERS),
        "elb": ("realAWSCloudwatch/elb_request_count_8c0756.csv",),
    }
)
"""The files of each trace below the directory of the benchmark's data."""


def trace(traces: Path, name: str, **options: Any) -> LoadSeries:
    """Return the recorded load with this name, a key of `FILES`. `traces` is the directory that contains `nab`; `options`
    are keyword arguments of `read_csv`, such as `days`. Raises InvalidInput and OSError as `read_csv` does.
    """
    return read_csv(name, [traces / "nab" / file for file in FILES[name]], **options)
