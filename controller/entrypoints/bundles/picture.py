"""A namespace's bundles as a ring: each an arc as wide as its range, as dark as its load; before and after side by side.

One HTML file that needs nothing else. What to draw is the caller's; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.domain.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Arc:
    """One bundle to draw: who owns it, and its bytes a second."""

    bundle: NamespaceBundle
    broker: str
    byte_rate: float


@dataclass(frozen=True, slots=True)
class Ring:
    """One ring with what it says above it."""

    title: str
    arcs: Sequence[Arc]


def write_rings(path: Path, title: str, rings: Sequence[Ring]) -> None:
    """Write the page; the rings share one scale of load. Raises Unsupported without plotly."""
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise Unsupported("a picture needs plotly; run pip install plotly") from None
    figure = make_subplots(
        rows=1,
        cols=len(rings),
        specs=[[{"type": "domain"}] * len(rings)],
        subplot_titles=[ring.title for ring in rings],
    )
    highest = max((arc.byte_rate for ring in rings for arc in ring.arcs), default=0.0) or 1.0
    for column, ring in enumerate(rings, start=1):
        figure.add_trace(_pie(ring, highest, last=column == len(rings)), row=1, col=column)
    figure.update_layout(title=title, template="plotly_white", showlegend=False, height=640)
    figure.write_html(path, include_plotlyjs=True, full_html=True)


def _pie(ring: Ring, highest: float, *, last: bool) -> Any:
    import plotly.graph_objects as go

    arcs = sorted(ring.arcs, key=lambda arc: arc.bundle.lower)
    return go.Pie(
        values=[arc.bundle.width for arc in arcs],
        labels=[f"{arc.bundle.range_text} {arc.broker}" for arc in arcs],
        text=[_words(arc) for arc in arcs],
        textinfo="text",
        hovertemplate="%{label}<br>%{text}<extra></extra>",
        hole=0.45,
        sort=False,
        direction="clockwise",
        marker={
            "colors": [_colour(arc.byte_rate / highest) for arc in arcs],
            "line": {"color": "white", "width": 2},
        },
        textposition="inside" if last else "auto",
    )


def _words(arc: Arc) -> str:
    return f"{arc.byte_rate / 1e6:.2f} MB/s on {arc.broker}"


def _colour(share: float) -> str:
    """From pale to dark blue."""
    light = (222, 235, 247)
    dark = (8, 48, 107)
    mixed = (round(a + (b - a) * min(max(share, 0.0), 1.0)) for a, b in zip(light, dark, strict=True))
    return "rgb({}, {}, {})".format(*mixed)
