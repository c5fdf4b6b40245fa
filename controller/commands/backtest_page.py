"""The report of a backtest: one self-contained HTML file, which opens without a network.

The report has a table of the cost of each policy. Then it has, for each load, a timeline (load, segments, the hottest segment, actions and
refusals), the ring over time with each policy, and the front: the excess load of each policy and its other cost, compared with the optimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from controller.actions import backtest_rows
from controller.backtest.summary import Row, summary_by_load, summary_by_policy
from controller.clock import to_datetime
from controller.commands.output_files import writing
from controller.domain.errors import Unsupported
from controller.domain.formatting import duration
from controller.pages import figures, ring_over_time

LOADS_DRAWN = 8
"""Maximum number of loads that the page draws, the most costly ones; the table has all loads."""
_MARKS = {"split": "triangle-up", "merge": "triangle-down", "rebucket": "circle", "recut": "diamond"}
_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #222222; --line: #dddddd; }
@media (prefers-color-scheme: dark) { :root { --page: #181818; --text: #dddddd; --line: #444444; } }
body { font-family: system-ui, sans-serif; margin: 2rem; background: var(--page); color: var(--text); }
h1, h2 { overflow-wrap: anywhere; }
h2 { margin-top: 3rem; }
.table { overflow-x: auto; margin: 1rem 0 2rem; }
table { border-collapse: collapse; }
th, td { padding: 0.3rem 0.8rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
[class$="tick"] text, text[class$="title"], .annotation-text, .legendtext { fill: var(--text) !important; }
.bars path { shape-rendering: crispEdges; }
"""
_GRID = "rgba(128, 128, 128, 0.25)"
_BY_HAND = "#8a8a8a"
"""Colour of lines that belong to no policy; visible on a light and on a dark page."""
RING_HEIGHT = 260
"""Height of the ring over time of one policy, in pixels."""
LABEL_LETTERS = 26
"""Maximum length of a policy's name next to a row; the legend has the full name."""
_EXPLAINED = (
    "Costs are in segment-hours: the hours of all segments, a price for load above their capacity, and a price for each "
    "segment added or removed. The regret on one load is the cost divided by the least cost that any policy could reach with knowledge of the "
    "whole load; over several loads it is the geometric mean of the regrets."
)

Pictures = Mapping[tuple[str, str], Mapping[str, Any]]


def demand_plotly() -> None:
    """Raise Unsupported if plotly is not installed."""
    try:
        import plotly
    except ImportError:
        raise Unsupported(
            "a report needs plotly; install it, or this package with the extra 'backtest'"
        ) from None
    del plotly


def write_page(
    path: Path,
    title: str,
    about: str,
    rows: Sequence[Row],
    pictures: Pictures,
    *,
    excess_price: float,
) -> None:
    """Write the report to `path`, replacing the file: the table of the policies, then a table and figures of each of the `LOADS_DRAWN` most
    costly loads with pictures, then a table of the other loads. `about` is the text below the title, and `rows` are those of
    `result_rows`. `pictures` has the documents of `spark_jobs.backtest_picture.picture`, keyed by load and policy.

    `excess_price` is the price of one hour of load one capacity above the limit, in segment-hours. Raises Unsupported if plotly is not
    installed, and InvalidInput if the file cannot be written.
    """
    demand_plotly()
    summary = summary_by_policy(rows)
    parts = [f"<h1>{escape(title)}</h1><p>{escape(about)}</p><p>{escape(_EXPLAINED)}</p>"]
    parts.append(_html_table(backtest_rows.SUMMARY, backtest_rows.cells(summary)))
    by_load = summary_by_load(rows)
    drawn = _most_costly(rows, pictures)
    for number, load in enumerate(drawn):
        pictures_of_load = {policy: picture for (name, policy), picture in pictures.items() if name == load}
        parts.append(f"<h2>{escape(load)}</h2>")
        of_load = [row for row in by_load if row["load"] == load]
        parts.append(_html_table(backtest_rows.SUMMARY, backtest_rows.cells(of_load)))
        parts.append(_figure(_time_line(pictures_of_load), with_library=number == 0))
        parts.append(_figure(_rings(pictures_of_load), with_library=False))
        fronts = [picture["front"] for picture in pictures_of_load.values() if "front" in picture]
        if fronts:
            recorded = [row for row in rows if row["load"] == load and row["seed"] == 0]
            parts.append(_figure(_front(fronts[0], recorded, excess_price), with_library=False))
    not_drawn = [row for row in by_load if row["load"] not in drawn]
    if not_drawn:
        parts.append("<h2>Other loads</h2>")
        parts.append(_html_table(backtest_rows.BY_LOAD, backtest_rows.cells(not_drawn)))
    body = "\n".join(parts)
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title><style>{_STYLE}</style>"
    with writing(path):
        path.write_text(
            f"<!DOCTYPE html><html><head>{head}</head><body>{body}</body></html>", encoding="utf-8"
        )


def _most_costly(rows: Sequence[Row], pictures: Pictures) -> list[str]:
    """Return the names of up to `LOADS_DRAWN` loads that have pictures and rows, by their highest cost with any policy in any draw, the
    most costly first. `pictures` are keyed by load and policy.
    """
    costs: dict[str, float] = {}
    for row in rows:
        if any(load == row["load"] for load, _ in pictures):
            costs[row["load"]] = max(costs.get(row["load"], 0.0), row["cost"])
    return sorted(costs, key=lambda load: (-costs[load], load))[:LOADS_DRAWN]


def _html_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as an HTML table with these columns; texts are escaped."""
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in columns) + "</tr>"
        for row in rows
    )
    return f"<div class='table'><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: Any) -> str:
    """Return the text of a cell: empty for None, one decimal for a float."""
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _figure(figure: Any, *, with_library: bool) -> str:
    """Return a plotly figure as HTML. `with_library`: True to include the JavaScript of plotly, which the first figure of a page needs."""
    return str(figure.to_html(full_html=False, include_plotlyjs=with_library))


def _time_line(pictures: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a figure of one load with four plots: load and segments, the hottest segment, actions, and refusals. `pictures` has the
    document of `spark_jobs.backtest_picture.picture` for each policy, at least one; a policy has the same colour in all plots.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=4,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.36, 0.22, 0.16, 0.26],
        vertical_spacing=0.05,
        subplot_titles=(
            "Load, and the segments of each policy",
            "The hottest segment; above 1 it exceeds its capacity",
            "Acts",
            "Refusals and their reasons",
        ),
    )
    first = next(iter(pictures.values()))
    _line(figure, 1, "load", _times(first), first["load"], {"color": _BY_HAND, "width": 1})
    labels = _labels(pictures)
    for number, (policy, picture) in enumerate(pictures.items()):
        colour = figures.LINES[number % len(figures.LINES)]
        line = {"color": colour, "shape": "hv"}
        _line(figure, 1, policy, _times(picture), picture["segments"], line)
        _line(
            figure,
            2,
            f"{policy}, hottest",
            _times(picture),
            picture["max_load"],
            line | {"width": 1},
            legend=False,
        )
        _draw_acts(figure, labels[policy], picture, colour)
        _draw_refusals(figure, labels[policy], picture, colour)
    figure.add_hline(y=1, line={"dash": "dash", "color": _BY_HAND}, row=2, col=1)
    for row, unit in (
        (1, "segments; load in capacities"),
        (2, "load, capacities"),
        (3, "policy"),
        (4, "policy: reason"),
    ):
        figure.update_yaxes(title_text=unit, automargin=True, row=row, col=1)
    figure.update_xaxes(title_text="time, UTC", row=4, col=1)
    rows = sum(len(picture["refusals"]) for picture in pictures.values())
    return _on_any_page(figure, height=1000 + 12 * rows)


def _on_any_page(figure: Any, *, height: int) -> Any:
    """Make the figure transparent, so that it follows the page's colours, and put the legend below, so that plots have the full width.
    Return the same figure. `height` is in pixels.
    """
    transparent = "rgba(0, 0, 0, 0)"
    figure.update_layout(
        height=height,
        template="plotly_white",
        paper_bgcolor=transparent,
        plot_bgcolor=transparent,
        margin={"l": 80, "r": 30, "t": 60, "b": 90},
        legend={"orientation": "h", "yanchor": "top", "y": -90 / height, "x": 0},
        modebar={"bgcolor": transparent, "color": _BY_HAND},
    )
    figure.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID)
    figure.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID)
    return figure


def _labels(policies: Iterable[str]) -> dict[str, str]:
    """Return a label for each policy, keyed by the policy: its name, cut to `LABEL_LETTERS`. The second of two equal labels gets ` #2`, and
    so on.
    """
    labels: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for policy in policies:
        short = policy if len(policy) <= LABEL_LETTERS else f"{policy[: LABEL_LETTERS - 1]}…"
        counts[short] += 1
        labels[policy] = f"{short} #{counts[short]}" if counts[short] > 1 else short
    return labels


def _line(
    figure: Any,
    row: int,
    name: str,
    x: list[Any],
    y: Sequence[float],
    line: dict[str, Any],
    *,
    legend: bool = True,
) -> None:
    """Add a line to the plot in row `row` of the figure. `line` has the colour and the shape."""
    import plotly.graph_objects as go

    figure.add_trace(go.Scattergl(x=x, y=y, name=name, line=line, showlegend=legend), row=row, col=1)


def _draw_acts(figure: Any, policy: str, picture: Mapping[str, Any], colour: str) -> None:
    """Add the actions of a policy to the third plot: a marker for each of `picture["acts"]`, with its kind, range and reason as hover text.
    `policy` is the policy's label.
    """
    import plotly.graph_objects as go

    acts = picture["acts"]
    figure.add_trace(
        go.Scattergl(
            x=[to_datetime(act["at"]) for act in acts],
            y=[policy] * len(acts),
            mode="markers",
            showlegend=False,
            text=[
                f"{act['kind']} {act['from']} → {act['to']} of {act['range']} ({act['reason']})"
                for act in acts
            ],
            hoverinfo="text+x",
            marker={"color": colour, "size": 7, "symbol": [_MARKS.get(act["kind"], "x") for act in acts]},
        ),
        row=3,
        col=1,
    )


def _draw_refusals(figure: Any, policy: str, picture: Mapping[str, Any], colour: str) -> None:
    """Add the refusals of a policy to the fourth plot: a bar for each span of time in which a reason held. `picture["refusals"]` has these
    spans by reason, as begin and end in milliseconds since the Unix epoch. `policy` is the policy's label.
    """
    import plotly.graph_objects as go

    x: list[Any] = []
    y: list[str | None] = []
    text: list[str | None] = []
    for reason, spans in picture["refusals"].items():
        for begin, end in spans:
            label = f"{policy}: {reason}"
            x += [to_datetime(begin), to_datetime(end), None]
            y += [label, label, None]
            text += [f"{reason} for {duration((end - begin) / 1000)}"] * 2 + [None]
    figure.add_trace(
        go.Scattergl(
            x=x,
            y=y,
            text=text,
            hoverinfo="text+x",
            mode="lines",
            showlegend=False,
            line={"color": colour, "width": 5},
        ),
        row=4,
        col=1,
    )


def _rings(pictures: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a figure of the ring over time with each policy, one plot below the other. `pictures` are keyed by policy; at least one."""
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=len(pictures),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.15 / len(pictures),
        subplot_titles=[f"Load of each segment over time: {policy}" for policy in pictures],
    )
    for row, picture in enumerate(pictures.values(), start=1):
        for trace in _ring(picture)["data"]:
            figure.add_trace(trace, row=row, col=1)
    figure.update_yaxes(figures.HASHES | {"tick0": 0, "dtick": 0x4000})
    figure.update_xaxes(title_text="time, UTC", row=len(pictures), col=1)
    figure.update_layout(barmode="overlay", showlegend=False)
    return _on_any_page(figure, height=150 + RING_HEIGHT * len(pictures))


def _ring(picture: Mapping[str, Any]) -> figures.Figure:
    """Return the figure of the ring over time of one simulation. `picture` is the document of `spark_jobs.backtest_picture.picture`."""
    ring = picture["ring"]
    names = "segment_id", "range_start", "range_end", "created_at", "sealed_at"
    segments = [
        dict(zip(names, (*row[:3], to_datetime(row[3]), to_datetime(row[4])), strict=True))
        | {"hash_range": f"{row[1]:04x}-{row[2]:04x}"}
        for row in ring["segments"]
    ]
    loads = [
        {"segment_id": segment_id, "cell": cell, "highest": ratio, "last": None}
        for segment_id, cell, ratio in ring["loads"]
    ]
    since, until = _times(picture)[0], max(segment["sealed_at"] for segment in segments)
    return ring_over_time.ring_over_time(
        segments, loads, ring_over_time.Grid(since, until, ring["cell_ms"] / 1000)
    )


def _front(
    best: Sequence[Mapping[str, float]], rows: Sequence[Mapping[str, Any]], excess_price: float
) -> Any:
    """Return a figure of excess against all other cost (left), and of the regret at each price of excess (right). `best` has, for each
    price of an hour of excess (`weight`), the least possible cost in segment-hours (`least_cost`, not 0) and its `excess_hours`. `rows` has
    one row for each policy: `policy`, `cost` and `excess_hours` in the first draw.

    `excess_price` is the price of an hour of excess in the costs of `rows`.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    prices = [point["weight"] for point in best]
    figure = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=(
            "No policy can reach the area left of and below the line",
            "Regret at each price of excess",
        ),
    )
    figure.add_trace(
        go.Scatter(
            x=[point["least_cost"] - point["weight"] * point["excess_hours"] for point in best],
            y=[point["excess_hours"] for point in best],
            text=[f"price {weight:g}" for weight in prices],
            name="the best there is",
            mode="lines+markers",
            line={"color": _BY_HAND, "dash": "dash"},
        ),
        row=1,
        col=1,
    )
    for number, row in enumerate(rows):
        colour = figures.LINES[number % len(figures.LINES)]
        cost_without_excess = row["cost"] - excess_price * row["excess_hours"]
        figure.add_trace(
            go.Scatter(
                x=[cost_without_excess],
                y=[row["excess_hours"]],
                name=row["policy"],
                mode="markers",
                marker={"color": colour, "size": 11},
                legendgroup=row["policy"],
            ),
            row=1,
            col=1,
        )
        figure.add_trace(
            go.Scatter(
                x=prices,
                y=[
                    (cost_without_excess + point["weight"] * row["excess_hours"]) / point["least_cost"]
                    for point in best
                ],
                name=row["policy"],
                line={"color": colour},
                legendgroup=row["policy"],
                showlegend=False,
            ),
            row=1,
            col=2,
        )
    figure.update_xaxes(title_text="cost without excess, segment-hours", row=1, col=1)
    figure.update_yaxes(title_text="excess, capacity-hours", row=1, col=1)
    figure.update_xaxes(title_text="price of excess, segment-hours a capacity-hour", type="log", row=1, col=2)
    figure.update_yaxes(title_text="regret, cost ÷ least cost", row=1, col=2)
    return _on_any_page(figure, height=520)


def _times(picture: Mapping[str, Any]) -> list[Any]:
    """Return the start of each step of a simulation, as datetimes in UTC."""
    return [
        to_datetime(picture["start_ms"] + number * picture["step_ms"])
        for number in range(len(picture["load"]))
    ]
