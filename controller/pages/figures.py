"""Figures of the pages, as documents that plotly draws in the browser: the ring now, bundles, regrets. `ring_over_time`
draws the ring over time, `load_over_time` the load.

Pure: the functions turn rows of schema `inspect` into figures. Every axis has a name and a unit; hashes are hexadecimal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Row = Mapping[str, Any]
Figure = dict[str, Any]

RING = 0x10000
HASHES = {"title": {"text": "hash (hexadecimal)"}, "range": [0, RING - 1], "tickformat": "04x"}
"""Axis of hashes. The browser chooses the labelled hashes again when the user zooms."""
_LOAD_SCALE = ((0.0, "#3b6fb6"), (0.4, "#7fb0a6"), (0.5, "#e8c75a"), (0.75, "#d1743b"), (1.0, "#a3262a"))
"""Colours from idle over the split threshold (the middle) to twice the threshold."""
UNKNOWN = "#9aa0a6"
BORDER = "rgba(255, 255, 255, 0.7)"
LINES = ("#3b6fb6", "#d1743b", "#4d9a5b", "#a34d8f", "#b5a23a", "#4fa3a5", "#8b5a3c", "#6d6fb0")


def ring_now(segments: Sequence[Row]) -> Figure:
    """Return a figure of the ring as one strip: each of the segments, which are active, is as wide as its range, coloured by load ÷ split
    threshold.
    """
    trace = {
        "orientation": "h",
        "x": [segment["range_end"] - segment["range_start"] + 1 for segment in segments],
        "y": ["now"] * len(segments),
        "type": "bar",
        "base": [segment["range_start"] for segment in segments],
        "marker": {
            "color": [load_colour(segment["hottest_ratio"]) for segment in segments],
            "line": {"color": BORDER, "width": 1},
        },
        "text": [str(segment["segment_id"]) for segment in segments],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "customdata": [segment["segment_id"] for segment in segments],
        "hovertext": [about(segment, segment["hottest_ratio"]) for segment in segments],
        "hoverinfo": "text",
    }
    return {
        "data": [trace],
        "layout": {
            "height": 170,
            "margin": {"l": 60, "r": 20, "t": 10, "b": 45},
            "xaxis": HASHES,
            "yaxis": {"visible": False, "fixedrange": True},
            "showlegend": False,
        },
    }


def bundles_by_load(bundles: Sequence[Row]) -> Figure:
    """Return a figure of the 32-bit ring of a namespace: each bundle is as wide as its range and as high as its bytes per second (0 if
    unknown), coloured by broker.
    """
    brokers = sorted({bundle["broker"] or "nobody" for bundle in bundles})
    traces = [
        {
            "type": "bar",
            "name": broker,
            "x": [(bundle["lower_bound"] + bundle["upper_bound"]) / 2 for bundle in bundles_of_broker],
            "width": [bundle["upper_bound"] - bundle["lower_bound"] for bundle in bundles_of_broker],
            "y": [float(bundle["byte_rate"] or 0.0) for bundle in bundles_of_broker],
            "hovertext": [f"{bundle['bundle']}<br>{broker}" for bundle in bundles_of_broker],
            "marker": {"color": LINES[number % len(LINES)], "line": {"color": "white", "width": 1}},
        }
        for number, broker in enumerate(brokers)
        for bundles_of_broker in [[bundle for bundle in bundles if (bundle["broker"] or "nobody") == broker]]
    ]
    return {
        "data": traces,
        "layout": {
            "height": 260,
            "margin": {"l": 80, "r": 20, "t": 10, "b": 45},
            "barmode": "overlay",
            "xaxis": {
                "title": {"text": "hash of the topic's name (hexadecimal, 32 bits)"},
                "range": [0, 0xFFFFFFFF],
                "tickformat": "08x",
            },
            "yaxis": {"title": {"text": "bytes in and out (bytes/s)"}, "rangemode": "tozero"},
        },
    }


def regrets(rows: Sequence[Row]) -> Figure:
    """Return a figure with a bar for each policy's regret (cost ÷ least possible cost), in the order of the rows from top to bottom."""
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [row["policy"] for row in rows],
        "x": [row["regret"] for row in rows],
        "text": ["" if row["regret"] is None else f"{row['regret']:.2f}" for row in rows],
        "marker": {"color": LINES[0]},
        "hoverinfo": "x+y",
    }
    return {
        "data": [trace],
        "layout": {
            "height": 90 + 32 * len(rows),
            "margin": {"l": 170, "r": 20, "t": 10, "b": 45},
            "xaxis": {"title": {"text": "regret: cost ÷ least possible cost (1 is optimal)"}},
            "yaxis": {"autorange": "reversed", "title": {"text": "policy"}},
            "showlegend": False,
        },
    }


def load_colour(ratio: Any) -> str:
    """Return the colour of a load, given relative to the split threshold; grey for None, an unknown load."""
    if ratio is None:
        return UNKNOWN
    place = min(max(float(ratio) / 2, 0.0), 1.0)
    for (low, first), (high, second) in pairwise(_LOAD_SCALE):
        if place <= high:
            share = (place - low) / (high - low)
            return _between(first, second, share)
    return _LOAD_SCALE[-1][1]


def _between(first: str, second: str, share: float) -> str:
    """Return the colour at `share` (0 to 1) of the way from the first to the second colour, all as `#rrggbb`."""
    parts = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def about(segment: Row, ratio: Any) -> str:
    """Return the id, the range and the load of a segment as hover text. `ratio` is load ÷ split threshold; None if it is unknown."""
    load = "load unknown" if ratio is None else f"{float(ratio):.2f} of the split threshold"
    return f"segment {segment['segment_id']} [{segment['hash_range']}]<br>{load}"
