"""A namespace's bundles as a ring: each bundle is an arc as wide as its range and as dark as its load.

The picture shows the present ring next to the ring after the live proposals. It is one self-contained HTML file. The caller reads the rows
to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.store.proposals import ProposalKind, ProposalRow
from controller.commands.output_files import writing
from controller.domain.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Arc:
    """One bundle to draw, with its owner (`nobody` without an owner) and its bytes per second, in and out."""

    bundle: NamespaceBundle
    broker: str
    byte_rate: float


def draw_namespace(
    path: Path, namespace: str, rows: Sequence[Mapping[str, Any]], proposals: Sequence[ProposalRow]
) -> None:
    """Write an HTML file with the namespace's bundles now (`rows` of `bundles_now`), and after its proposals, in whatever state, if there
    are any; `proposals` of other namespaces are ignored. Replaces the file. Raises the errors of `arcs_after` and `write_rings`.
    """
    arcs = [
        Arc(
            NamespaceBundle(namespace, row["lower_bound"], row["upper_bound"]),
            row["broker"] or "nobody",
            float(row["byte_rate"] or 0),
        )
        for row in rows
    ]
    own_proposals = [proposal for proposal in proposals if proposal.namespace == namespace]
    rings: dict[str, Sequence[Arc]] = {"now": arcs}
    if own_proposals:
        rings["after the proposals"] = arcs_after(arcs, own_proposals)
    write_rings(path, f"Bundles of {namespace}", rings)


def arcs_after(arcs: Sequence[Arc], proposals: Sequence[ProposalRow]) -> list[Arc]:
    """Return the arcs as they would be after the proposals: an unload changes the broker, a split replaces an arc by its parts. An unload
    without a destination leaves the bundle without a broker (`nobody`); merges are ignored. A split divides the load by width, because the
    load of topics is not available here. Of two proposals of one kind for a bundle, the last one counts. Raises
    InvalidRange for a cut point that is not inside its bundle.
    """
    moved: Mapping[str, str] = {
        str(proposal.bundle): proposal.destination or "nobody"
        for proposal in proposals
        if proposal.kind is ProposalKind.UNLOAD
    }
    cut = {
        str(proposal.bundle): proposal.cut_points
        for proposal in proposals
        if proposal.kind is ProposalKind.SPLIT
    }
    return [
        Arc(part, moved.get(str(arc.bundle), arc.broker), arc.byte_rate * part.width / arc.bundle.width)
        for arc in arcs
        for part in arc.bundle.parts(cut.get(str(arc.bundle), ()))
    ]


def write_rings(path: Path, title: str, rings: Mapping[str, Sequence[Arc]]) -> None:
    """Write the page with the rings (their arcs by title), at least one, side by side; the rings share one scale of
    load. Replaces the file. Raises Unsupported if plotly is not installed, and InvalidInput if the file cannot be
    written.
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise Unsupported(
            "a picture needs plotly; install it, or this package with the extra 'pictures'"
        ) from None
    figure = make_subplots(
        rows=1,
        cols=len(rings),
        specs=[[{"type": "domain"}] * len(rings)],
        subplot_titles=[*rings],
    )
    highest = max((arc.byte_rate for arcs in rings.values() for arc in arcs), default=0.0) or 1.0
    for column, arcs in enumerate(rings.values(), start=1):
        figure.add_trace(_pie(arcs, highest, last=column == len(rings)), row=1, col=column)
    figure.update_layout(title=title, template="plotly_white", showlegend=False, height=640)
    with writing(path):
        figure.write_html(path, include_plotlyjs=True, full_html=True)


def _pie(ring: Sequence[Arc], highest: float, *, last: bool) -> Any:
    """Return the plotly trace of a ring. `highest` is the load in bytes per second of the darkest colour; the texts of the `last` ring stay
    inside the arcs.
    """
    import plotly.graph_objects as go

    arcs = sorted(ring, key=lambda arc: arc.bundle.lower)
    return go.Pie(
        values=[arc.bundle.width for arc in arcs],
        labels=[f"{arc.bundle.range_text} {arc.broker}" for arc in arcs],
        text=[f"{arc.byte_rate / 1e6:.2f} MB/s on {arc.broker}" for arc in arcs],
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


def _colour(share: float) -> str:
    """Return a CSS colour between pale blue (`share` 0) and dark blue (`share` 1)."""
    light = (222, 235, 247)
    dark = (8, 48, 107)
    mixed = (round(a + (b - a) * min(max(share, 0.0), 1.0)) for a, b in zip(light, dark, strict=True))
    return "rgb({}, {}, {})".format(*mixed)
