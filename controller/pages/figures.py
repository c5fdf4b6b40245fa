"""Figures of the pages, as documents that plotly draws in the browser: the ring now, load over time. `mosaic` draws the ring over time.

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
_LINES = ("#3b6fb6", "#d1743b", "#4d9a5b", "#a34d8f", "#b5a23a", "#4fa3a5", "#8b5a3c", "#6d6fb0")


def ring_now(segments: Sequence[Row]) -> Figure:
    """Draw one strip: each active segment is as wide as its range, coloured by load ÷ split threshold."""
    trace = {
        "orientation": "h",
        "x": [one["range_end"] - one["range_start"] + 1 for one in segments],
        "y": ["now"] * len(segments),
        "type": "bar",
        "base": [one["range_start"] for one in segments],
        "marker": {
            "color": [load_colour(one["hottest_ratio"]) for one in segments],
            "line": {"color": BORDER, "width": 1},
        },
        "text": [str(one["segment_id"]) for one in segments],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "customdata": [one["segment_id"] for one in segments],
        "hovertext": [about(one, one["hottest_ratio"]) for one in segments],
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


def load_over_time(records: Sequence[Row], threshold: float | None, metric: str, unit: str) -> Figure:
    """Draw a step line of the rate `metric` for each segment, and the split threshold."""
    names = list(dict.fromkeys(one["segment_id"] for one in records))
    traces: list[Figure] = []
    for number, segment_id in enumerate(names):
        mine = [one for one in records if one["segment_id"] == segment_id]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"segment {segment_id}",
                "x": [one["recorded_at"].isoformat() for one in mine],
                "y": [one["rate"] for one in mine],
                "line": {"shape": "hv", "color": _LINES[number % len(_LINES)]},
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
        line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": threshold, "y1": threshold}
        layout["shapes"] = [{**line, "line": {"dash": "dash", "color": "#a3262a"}}]
        layout["annotations"] = [
            {
                "xref": "paper", "x": 1, "y": threshold, "text": "split threshold", "showarrow": False,
                "yanchor": "bottom", "xanchor": "right",
            }
        ]  # fmt: skip
    return {"data": traces, "layout": layout}


def bundles_by_load(bundles: Sequence[Row]) -> Figure:
    """Draw the 32-bit ring of a namespace: each bundle is as wide as its range and as high as its bytes per second, coloured by broker."""
    brokers = sorted({one["broker"] or "nobody" for one in bundles})
    traces = [
        {
            "type": "bar",
            "name": broker,
            "x": [(one["lower_bound"] + one["upper_bound"]) / 2 for one in mine],
            "width": [one["upper_bound"] - one["lower_bound"] for one in mine],
            "y": [float(one["byte_rate"] or 0.0) for one in mine],
            "hovertext": [f"{one['bundle']}<br>{broker}" for one in mine],
            "marker": {"color": _LINES[number % len(_LINES)], "line": {"color": "white", "width": 1}},
        }
        for number, broker in enumerate(brokers)
        for mine in [[one for one in bundles if (one["broker"] or "nobody") == broker]]
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
    """Draw each policy's regret (cost ÷ least possible cost), the best policy first."""
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [one["policy"] for one in rows],
        "x": [one["regret"] for one in rows],
        "text": ["" if one["regret"] is None else f"{one['regret']:.2f}" for one in rows],
        "marker": {"color": _LINES[0]},
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
    """Return the colour of a load relative to the split threshold; grey if the load is unknown."""
    if ratio is None:
        return UNKNOWN
    place = min(max(float(ratio) / 2, 0.0), 1.0)
    for (low, first), (high, second) in pairwise(_LOAD_SCALE):
        if place <= high:
            share = (place - low) / (high - low)
            return _between(first, second, share)
    return _LOAD_SCALE[-1][1]


def _between(first: str, second: str, share: float) -> str:
    parts = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def about(one: Row, ratio: Any) -> str:
    """Return the id, the range and the load of a segment."""
    load = "load unknown" if ratio is None else f"{float(ratio):.2f} of the split threshold"
    return f"segment {one['segment_id']} [{one['hash_range']}]<br>{load}"
