"""The load of a topic's segments over time, as a document that plotly draws, with its limits: how far the page of a
topic looks back, and how many segments have a line. `ring_over_time` has the limits of the ring.

Pure: the functions turn rows of schema `inspect` into a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from controller.pages.figures import LINES, Figure, Row

LONGEST_HOURS = 24.0 * 400
"""Longest time that the page looks back, for the load and for the ring; a request for more is refused."""
SPANS_HOURS = (1, 6, 24, 24 * 7, 24 * 30)
"""Times that the page offers to look back."""
MOST_LINES = 32
"""Maximum number of segments whose load is drawn, the hottest; more lines could not be distinguished."""
MOST_PARTS = 3_000
"""Number of parts of the time, over all lines together; for each part the highest and the last rate are drawn."""


def load_over_time(
    records: Sequence[Row], ends: Mapping[int, datetime], threshold: float | None, metric: str, unit: str
) -> Figure:
    """Return a figure with a step line of the rate `metric` for each segment in `records`, and a line at the split
    threshold unless it is None. `records` have `segment_id`, `recorded_at` and `rate`, in the order of time for each
    segment. A record holds until the next one, the last one until the time in `ends`, which are keyed by segment id.
    `unit` is the text of the rate's unit.
    """
    names = list(dict.fromkeys(record["segment_id"] for record in records))
    traces: list[Figure] = []
    for number, segment_id in enumerate(names):
        records_of_segment = [record for record in records if record["segment_id"] == segment_id]
        times = [record["recorded_at"] for record in records_of_segment]
        rates = [record["rate"] for record in records_of_segment]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"segment {segment_id}",
                "x": [time.isoformat() for time in (*times, max(times[-1], ends[segment_id]))],
                "y": [*rates, rates[-1]],
                "line": {"shape": "hv", "color": LINES[number % len(LINES)]},
                "meta": segment_id,
            }
        )
    layout: Figure = {
        "height": 300,
        "margin": {"l": 70, "r": 20, "t": 10, "b": 45},
        "xaxis": {"type": "date", "title": {"text": "time (UTC)"}},
        "yaxis": {"title": {"text": f"{metric} ({unit})"}, "rangemode": "tozero"},
    }
    if threshold is not None:
        layout |= _threshold_line(threshold)
    return {"data": traces, "layout": layout}


def _threshold_line(threshold: float) -> Figure:
    """Return the parts of a layout that draw a dashed line at the split threshold, and name it."""
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": threshold, "y1": threshold}
    return {
        "shapes": [{**line, "line": {"dash": "dash", "color": "#a3262a"}}],
        "annotations": [
            {
                "xref": "paper", "x": 1, "y": threshold, "text": "split threshold", "showarrow": False,
                "yanchor": "bottom", "xanchor": "right",
            }
        ],
    }  # fmt: skip
