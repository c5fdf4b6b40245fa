"""The results that the demo shows at the end: a table of every operation, the counts, and one self-contained page of
charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from rich.console import RenderableType

from controller.client.history_check import OF_ORDER, Kind, Verdict
from controller.command_output import rows_table
from controller.demo.story import TOPIC, DayRecord
from controller.pages.figures import LINES

LONGEST_WAIT_SECONDS = 10.0
"""Longest time that a consumer may wait for its first message; a longer wait fails the demo."""


def count_lines(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return one line with the most important figures for each subscription."""
    return [f"{subscription}: {counts(verdict)}" for subscription, verdict in verdicts.items()]


def counts(verdict: Verdict) -> str:
    """Return the most important figures in one line. Consumed messages are counted without redeliveries."""
    return (
        f"{verdict.sent:,} messages produced, {verdict.delivered - verdict.redelivered:,} consumed, "
        f"{verdict.counts[Kind.LOST]} lost, {sum(verdict.counts[kind] for kind in OF_ORDER)} out of key order, "
        f"{verdict.redelivered} delivered again"
    )


def waits(day: DayRecord) -> str:
    """Return one line with the seconds for which each consumer that joined in the day's busy hours waited for its first message."""
    texts = (
        f"{name} {seconds:.1f} s" if seconds is not None else f"{name} got no message"
        for name, seconds in sorted(day.waits.items())
    )
    return "waited for the first message: " + (", ".join(texts) or "no consumer joined")


def judge(day: DayRecord, verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return the unmet expectations of the day: one for each operation that was not seen, each consumer that got no message
    or waited longer than `LONGEST_WAIT_SECONDS` for its first message, and each subscription that lost messages or received
    them out of order. `verdicts` maps subscriptions to the results of their checks.
    """
    problems = [f"did not see {name}" for name in day.missing]
    problems += [
        f"{name} waited longer than {LONGEST_WAIT_SECONDS:g} s for its first message"
        for name, seconds in sorted(day.waits.items())
        if seconds is None or seconds > LONGEST_WAIT_SECONDS
    ]
    problems += [
        f"messages of {subscription} were lost or out of key order"
        for subscription, verdict in verdicts.items()
        if not verdict.in_order_and_complete
    ]
    return problems


def judgement(problems: Sequence[str]) -> str:
    """Return the result of the day in one line; `problems` are the unmet expectations."""
    return "; ".join(problems) or "all expectations met"


def operation_rows(day: DayRecord) -> list[dict[str, Any]]:
    """Return every operation with trigger, reason and latency."""
    return [
        {
            "operation": row["operation_id"],
            "kind": row["kind"],
            "trigger": row["origin"],
            "reason": row["reason"],
            "sealed": row["parents"],
            "created": [f"{child['segment_id']}:{child['hash_range']}" for child in row["creates"]],
            "epoch": row["epoch"],
            "intent to commit": _milliseconds(row["intended_at"], row["committed_at"]),
            "fenced": _milliseconds(row["fenced_at"], row["committed_at"]),
        }
        for row in day.operations
    ]


def _milliseconds(start: Any, end: Any) -> str:
    """Return the time from `start` to `end` as text, such as `12 ms`; empty if either time is missing."""
    return f"{(end - start).total_seconds() * 1000:.0f} ms" if start and end else ""


def operations_table(day: DayRecord) -> RenderableType:
    """Return every operation as a table for the terminal."""
    return rows_table(operation_rows(day), title=f"Every operation on {TOPIC}")


def write_page(path: Path, day: DayRecord, verdicts: Mapping[str, Verdict], profile_name: str) -> None:
    """Write one HTML file that contains all charts and opens without a network. Replaces the file."""
    figure = make_subplots(
        rows=4,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.3, 0.14, 0.34, 0.22],
        vertical_spacing=0.05,
        subplot_titles=(
            "Load of each active segment and the thresholds",
            "Active segments and consumers",
            "Which segment owned which part of the ring",
            "Automatic operations, from intent to commit",
        ),
    )
    _draw_load(figure, day)
    _draw_counts(figure, day)
    _draw_ranges(figure, day)
    _draw_decisions(figure, day)
    lines = (
        f"Verdict: {judgement(judge(day, verdicts))}",
        f"Load: {profile_name}",
        *count_lines(verdicts),
        waits(day),
    )
    figure.update_layout(
        height=1300,
        template="plotly_white",
        legend={"title": "Lines", "tracegroupgap": 20},
        title={"text": f"{TOPIC}<br><sup>{'<br>'.join(lines)}</sup>", "y": 0.985},
        margin={"l": 70, "r": 30, "t": 140},
    )
    for row, unit in enumerate(
        ("messages per second", "count", "hash (hexadecimal)", "milliseconds"), start=1
    ):
        figure.update_yaxes(title_text=unit, row=row, col=1)
    figure.update_xaxes(title_text="seconds since the day began", row=4, col=1)
    figure.write_html(path, include_plotlyjs=True, full_html=True)


def _draw_load(figure: go.Figure, day: DayRecord) -> None:
    times = [moment.at_seconds for moment in day.moments]
    for index, segment_id in enumerate(sorted({s for moment in day.moments for s in moment.load})):
        rates = [moment.load.get(segment_id) for moment in day.moments]
        line = {"color": LINES[index % len(LINES)], "shape": "hv"}
        figure.add_trace(go.Scatter(x=times, y=rates, name=f"segment {segment_id}", line=line), row=1, col=1)
    whole = [moment.messages_per_second for moment in day.moments]
    figure.add_trace(
        go.Scatter(x=times, y=whole, name="whole topic", line={"color": "#cccccc", "width": 1}), row=1, col=1
    )
    for parameter, dash in (("split_msg_rate_in", "dash"), ("merge_msg_rate_in", "dot")):
        figure.add_hline(
            y=day.policy[parameter],
            line={"dash": dash, "color": "#444444"},
            annotation_text=parameter,
            row=1,
            col=1,
        )


def _draw_counts(figure: go.Figure, day: DayRecord) -> None:
    times = [moment.at_seconds for moment in day.moments]
    for name, colour, values in (
        ("segments", LINES[0], [moment.segments for moment in day.moments]),
        ("consumers", LINES[1], [moment.consumers for moment in day.moments]),
    ):
        line = {"shape": "hv", "color": colour}
        figure.add_trace(go.Scatter(x=times, y=values, name=name, line=line), row=2, col=1)


def _draw_ranges(figure: go.Figure, day: DayRecord) -> None:
    """Add one rectangle per segment to the figure: from the time of its first epoch to that of its last, over its range."""
    # negative for a commit before the day
    seconds_of_epoch = {row["epoch"]: row["committed_at"].timestamp() - day.began_at for row in day.changes}
    end = max((moment.at_seconds for moment in day.moments), default=0.0)
    for row in _one_row_per_segment(day.segments):
        begin = max(seconds_of_epoch.get(row["created_epoch"], 0.0), 0.0)
        until = seconds_of_epoch.get(row["sealed_epoch"], end) if row["sealed_epoch"] is not None else end
        low, high = row["range_start"], row["range_end"] + 1
        text = f"segment {row['segment_id']} [{row['hash_range']}]"
        figure.add_trace(
            go.Scatter(
                x=[begin, until, until, begin, begin],
                y=[low, low, high, high, low],
                fill="toself",
                mode="lines",
                line={"color": "white", "width": 1},
                fillcolor=LINES[row["segment_id"] % len(LINES)],
                text=text,
                hoverinfo="text",
                showlegend=False,
            ),
            row=3,
            col=1,
        )
        figure.add_annotation(
            x=(begin + until) / 2, y=(low + high) / 2, text=str(row["segment_id"]), showarrow=False,
            font={"color": "white", "size": 11}, row=3, col=1,
        )  # fmt: skip
    ticks = [0, 0x4000, 0x8000, 0xC000, 0x10000]
    figure.update_yaxes(
        range=[0, 0x10000], tickvals=ticks, ticktext=[f"{tick:04x}" for tick in ticks], row=3, col=1
    )


def _one_row_per_segment(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per segment. A segment is listed for each epoch in which it existed; the row with its sealing is
    kept.
    """
    latest: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["segment_id"] not in latest or row["sealed_epoch"] is not None:
            latest[row["segment_id"]] = row
    return [latest[segment_id] for segment_id in sorted(latest)]


def _draw_decisions(figure: go.Figure, day: DayRecord) -> None:
    """Add one point per committed automatic operation: the time from its intent to its commit."""
    done = [row for row in day.operations if row["committed_at"] and row["origin"] == "auto"]
    figure.add_trace(
        go.Scatter(
            x=[row["committed_at"].timestamp() - day.began_at for row in done],
            y=[(row["committed_at"] - row["intended_at"]).total_seconds() * 1000 for row in done],
            mode="markers+text",
            showlegend=False,
            text=[f"{row['kind']} ({row['reason']})" for row in done],
            textposition="top center",
            marker={
                "size": 10,
                "color": ["#d1743b" if row["kind"] == "split" else "#3b6fb6" for row in done],
            },
        ),
        row=4,
        col=1,
    )
