"""A topic's recorded rates become a load series: the sums of its segments on a grid of equal steps, and how they lay on the
ring.

The aggregation keeps the rates of every segment in every window. Windows end when a run came, so a step of the grid has
what was known at its end: the last window that ended then or up to one step before. A step that has none is unmeasured.
How the load lay on the ring is known by segments, whose ranges are given. Inside a segment it is taken as even.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import gcd
from typing import Any, Self

import numpy as np
import pyarrow as pa

from controller.backtest.arrays import Floats, Wholes
from controller.backtest.load_series import LoadSeries
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.load import METRICS
from controller.domain.policy import AutoScalePolicy

MOST_BINS = 256
"""Parts of the ring that a load is told apart in; a narrower segment's load is spread over its part."""

RATE_COLUMNS = pa.schema(
    [("key", pa.int64()), ("window_end_ms", pa.int64()), ("segment_id", pa.int64())]
    + [(metric, pa.float64()) for metric in METRICS]
)
"""Rates as a backtest reads them; `key` is that of the recording."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What is known of a recorded load beside its rates. Instants are milliseconds since the Unix epoch.

    `key`: the topic's id, below 0 for a trace. `policy`: the one in force, as a document. `segments`: how many were active
    at the start. `ranges`: the range of each segment that has rates; one that is not named is taken for the whole ring.
    """

    key: int
    name: str
    start_ms: int
    end_ms: int
    policy: Mapping[str, Any]
    segments: int = 1
    step_seconds: int = 60
    ranges: Mapping[int, str] = field(default_factory=dict)

    @property
    def topic_id(self) -> int | None:
        """None for a trace."""
        return self.key if self.key >= 0 else None

    @property
    def steps(self) -> int:
        """Whole steps of the span."""
        return (self.end_ms - self.start_ms) // (self.step_seconds * 1000)

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `to_json`'s."""
        document = json.loads(text)
        return cls(**{**document, "ranges": {int(i): r for i, r in document["ranges"].items()}})

    @property
    def base_policy(self) -> AutoScalePolicy:
        """The policy in force. Its split thresholds are the capacity of a segment, whatever a candidate's are."""
        return AutoScalePolicy.from_document(self.policy)


def series_of(recording: Recording, rows: pa.Table) -> LoadSeries:
    """The series of a recording from its rows of `RATE_COLUMNS`, in any order."""
    ends = rows.column("window_end_ms").to_numpy()
    windows, place = np.unique(ends, return_inverse=True)
    rates = np.column_stack([rows.column(metric).to_numpy() for metric in METRICS])
    rates = np.maximum(np.nan_to_num(rates, posinf=0.0, neginf=0.0), 0.0)
    totals = np.zeros((len(windows), len(METRICS)))
    np.add.at(totals, place, rates)
    chosen, known = _windows_of_steps(recording, windows)
    grid = np.full((recording.steps, len(METRICS)), np.nan)
    grid[known] = totals[chosen[known]]
    shares = _shares(recording, rows, rates, place, len(windows))
    if shares is not None:
        spread = np.full((recording.steps, shares.shape[1]), 1.0 / shares.shape[1])
        spread[known] = shares[chosen[known]]
        shares = spread
    return LoadSeries(recording.name, recording.start_ms, grid, recording.step_seconds, shares)


def _windows_of_steps(recording: Recording, windows: Wholes) -> tuple[Wholes, Any]:
    """For each step the window that was the last one known at its end, and whether it is recent enough."""
    step_ms = recording.step_seconds * 1000
    step_ends = recording.start_ms + step_ms * np.arange(1, recording.steps + 1)
    chosen = np.searchsorted(windows, step_ends, side="right") - 1
    if not len(windows):
        return chosen, np.zeros(recording.steps, dtype=np.bool_)
    ages = step_ends - windows[np.maximum(chosen, 0)]
    return chosen, (chosen >= 0) & (ages < 2 * step_ms)


def _shares(
    recording: Recording, rows: pa.Table, rates: Floats, place: Wholes, windows: int
) -> Floats | None:
    """`[window, bin]`; None where all that is known lies on the whole ring."""
    segments, of_row = np.unique(rows.column("segment_id").to_numpy(), return_inverse=True)
    ranges = [HashRange.parse(recording.ranges.get(int(i), "0000-ffff")) for i in segments]
    width = RING_SIZE
    for one in ranges:
        width = gcd(width, gcd(one.start, one.end + 1))
    bins = min(RING_SIZE // width, MOST_BINS)
    if bins <= 1:
        return None
    capacity = np.asarray(recording.base_policy.thresholds.split.rates)
    loads = np.zeros((windows, len(segments)))
    np.add.at(loads, (place, of_row), (rates / capacity).max(axis=1))
    on_bins = loads @ np.array([_spread(one, bins) for one in ranges])
    totals = on_bins.sum(axis=1, keepdims=True)
    even = np.full_like(on_bins, 1.0 / bins)
    return np.divide(on_bins, totals, out=even, where=totals > 0)


def _spread(hash_range: HashRange, bins: int) -> Floats:
    """The part of the range that lies in each bin."""
    edges = np.arange(bins + 1) * (RING_SIZE / bins)
    inside = np.minimum(edges[1:], hash_range.end + 1) - np.maximum(edges[:-1], hash_range.start)
    part: Floats = np.maximum(inside, 0.0) / hash_range.width
    return part
