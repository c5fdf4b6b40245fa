"""Converts a topic's recorded rates to a load series: the sums of its segments in equal steps, and their distribution
over the ring.

The aggregation stores the rates of every segment in every window. A window ends at the time of a run, so a step has
the last window that ended by the step's end. A step is unmeasured if that window ended a whole step or more before
the step began, or there is no such window. The distribution over the ring is known per segment, whose ranges are
given. Inside a segment the load is distributed evenly.
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
from controller.backtest.load_series import LoadSeries, last_windows
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.load_record import METRICS
from controller.domain.policy import AutoScalePolicy

MOST_BINS = 256
"""Maximum number of parts of the ring that are distinguished in a load; the load of a narrower segment is spread over
its part.
"""

RATE_COLUMNS = pa.schema(
    [("key", pa.int64()), ("window_end_ms", pa.int64()), ("segment_id", pa.int64())]
    + [(metric, pa.float64()) for metric in METRICS]
)
"""Columns of the rates that a backtest reads; `key` is the recording's."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The description of a recorded load, without its rates. Instants are milliseconds since the Unix epoch.

    `key`: the topic's id, negative for a trace. `policy`: the policy in force, as a document. `segments`: number of
    active segments at the start. `ranges`: the range of each segment that has rates; a segment without a range counts
    as the whole ring.
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
        """The topic's id; None for a trace."""
        return self.key if self.key >= 0 else None

    @property
    def steps(self) -> int:
        """Number of whole steps in the time span."""
        return (self.end_ms - self.start_ms) // (self.step_seconds * 1000)

    def to_json(self) -> str:
        """Return the recording as text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the recording that `to_json` wrote."""
        document = json.loads(text)
        return cls(**{**document, "ranges": {int(i): r for i, r in document["ranges"].items()}})

    @property
    def base_policy(self) -> AutoScalePolicy:
        """The policy in force. Its split thresholds are the capacity of a segment, whatever the thresholds of a candidate. Raises
        InvalidPolicy if `policy` has an unknown parameter or a value of a wrong type.
        """
        return AutoScalePolicy.from_document(self.policy)


def series_of(recording: Recording, rows: pa.Table) -> LoadSeries:
    """Return the load series of a recording from its rows of `RATE_COLUMNS`, which may be in any order. A step has
    the rates of the last window that ended by the end of the step, added over the segments. Rates that are negative
    or not finite count as 0. A step is NaN if there is no such window or the window is not recent
    (`load_series.last_windows`).

    The series also has the distribution of the load over the ring, with one row per step (`_shares`); the row of a
    step without a recent window is even. The series has no distribution if all rates are of the whole ring, or if
    there are no rows.

    Raises InvalidInput if the recording has no whole step or a sum is infinite; InvalidRange for a range that is not
    valid; and, if the series has a distribution, the errors of `base_policy`.
    """
    ends = rows.column("window_end_ms").to_numpy()
    windows, window_of_row = np.unique(ends, return_inverse=True)
    rates = np.column_stack([rows.column(metric).to_numpy() for metric in METRICS])
    rates = np.maximum(np.nan_to_num(rates, posinf=0.0, neginf=0.0), 0.0)
    totals = np.zeros((len(windows), len(METRICS)))
    np.add.at(totals, window_of_row, rates)
    window_of_step, is_known = last_windows(
        windows, recording.start_ms, recording.step_seconds, recording.steps
    )
    grid = np.full((recording.steps, len(METRICS)), np.nan)
    grid[is_known] = totals[window_of_step[is_known]]
    shares = _shares(recording, rows, rates, window_of_row, len(windows))
    if shares is not None:
        spread = np.full((recording.steps, shares.shape[1]), 1.0 / shares.shape[1])
        spread[is_known] = shares[window_of_step[is_known]]
        shares = spread
    return LoadSeries(recording.name, recording.start_ms, grid, recording.step_seconds, shares)


def _shares(
    recording: Recording, rows: pa.Table, rates: Floats, window_of_row: Wholes, windows: int
) -> Floats | None:
    """Return the distribution of the load over equal parts of the ring, as an array `[window, part]` whose rows add
    up to 1. The number of parts is the smallest that separates all segments, at most MOST_BINS. The result is None if
    one part suffices: all rates are of the whole ring, or there are no rows.

    `rates` has the valid rates of each row of `rows`, `window_of_row` has the index of the row's window, and
    `windows` is the number of windows. The load of a row is the largest of its four rates, each divided by its split
    threshold in the recording's policy. The load of a segment is even over the segment's range, and a window without
    load has an even distribution. Raises InvalidRange for a range that is not valid, and the errors of `base_policy`.
    """
    segments, segment_of_row = np.unique(rows.column("segment_id").to_numpy(), return_inverse=True)
    ranges = [HashRange.parse(recording.ranges.get(int(i), "0000-ffff")) for i in segments]
    width = RING_SIZE
    for hash_range in ranges:
        width = gcd(width, gcd(hash_range.start, hash_range.end + 1))
    bins = min(RING_SIZE // width, MOST_BINS)
    if bins <= 1:
        return None
    capacity = np.asarray(recording.base_policy.thresholds.split.rates)
    loads = np.zeros((windows, len(segments)))
    np.add.at(loads, (window_of_row, segment_of_row), (rates / capacity).max(axis=1))
    on_bins = loads @ np.array([_spread(hash_range, bins) for hash_range in ranges])
    totals = on_bins.sum(axis=1, keepdims=True)
    even = np.full_like(on_bins, 1.0 / bins)
    return np.divide(on_bins, totals, out=even, where=totals > 0)


def _spread(hash_range: HashRange, bins: int) -> Floats:
    """Return, for each of `bins` equal parts of the ring, the share (0..1) of the range that lies in this part; the shares add up to 1."""
    edges = np.arange(bins + 1) * (RING_SIZE / bins)
    inside = np.minimum(edges[1:], hash_range.end + 1) - np.maximum(edges[:-1], hash_range.start)
    part: Floats = np.maximum(inside, 0.0) / hash_range.width
    return part
