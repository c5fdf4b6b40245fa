"""`cleave watch` and `cleave top`: a topic, or the fleet, redrawn at an interval until the user exits.

Each picture is one snapshot of schema `inspect` (`questions.overviews`). If the output is not a terminal, one picture
is printed, so that both commands can be piped. If the database or server is unavailable, the command says so above the
last picture and retries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from controller.actions.fields import fill_in
from controller.command_output import console, created, emit, rows_table
from controller.commands.options import AsJson, Topic
from controller.commands.server_choice import Perform, performing
from controller.commands.stop_signals import on_stop_signals
from controller.domain.errors import Retryable
from controller.questions.overviews import SHOW_FLEET, SHOW_OVERVIEW, ShowFleet, ShowOverview

Every = Annotated[float, typer.Option("--every", min=0.2, max=3600.0, help="Seconds between two pictures.")]
Once = Annotated[bool, typer.Option("--once", help="Print one picture and exit.")]

Picture = tuple[Any, RenderableType]
"""One picture: as a document for programs, and as a renderable for people."""

RING = 0x10000
_LOADS = ((0.5, "blue"), (0.8, "green"), (1.0, "yellow"))
"""Colours by the upper bound of the load relative to the split threshold; higher loads are red, unknown ones grey."""
_HOT, _UNKNOWN = "red", "bright_black"
_BAR_CELLS = 10


def watch(topic: Topic, every: Every = 1.0, once: Once = False, as_json: AsJson = False) -> None:
    request = fill_in(ShowOverview, {"topic": topic})
    _show(
        lambda perform: topic_picture(perform(SHOW_OVERVIEW, request).model_dump()),
        every,
        once=once,
        as_json=as_json,
    )


def top(
    find: Annotated[str, typer.Option(help="Only topics whose names contain this text.")] = "",
    every: Every = 2.0,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    request = fill_in(ShowFleet, {"find": find, "limit": min(max(console.height - 8, 5), 1000)})
    _show(
        lambda perform: fleet_picture(perform(SHOW_FLEET, request).model_dump()),
        every,
        once=once,
        as_json=as_json,
    )


def _show(picture: Callable[[Perform], Picture], every_seconds: float, *, once: bool, as_json: bool) -> None:
    """Print the picture, or with a terminal draw it every `every_seconds` until the user exits. If a later picture raises Retryable, the
    error is shown above the last picture; any error of the first picture, and any other error, is raised. With `once`, with JSON output or
    without a terminal, one picture is printed.
    """
    with performing(name="cleave-live") as perform:
        document, drawn = picture(perform)
        if once or as_json or not console.is_terminal:
            emit(as_json, document, drawn)
            return
        leave = threading.Event()
        on_stop_signals(leave.set)
        with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
            while not leave.wait(every_seconds):
                try:
                    _, drawn = picture(perform)
                    live.update(drawn, refresh=True)
                except Retryable as error:
                    notice = Text(f"{error}; trying again", style="bold red")
                    live.update(Group(notice, drawn), refresh=True)


def fleet_picture(overview: Mapping[str, Any]) -> Picture:
    """Return two forms of the overview: the document unchanged, and a drawing of the fleet's health, its alarms, and a row for each topic
    in the order of the overview. `overview` has the keys of `FleetAnswer`.
    """
    health, rows = overview["health"], overview["topics"]
    head = Text.assemble(
        (f"{overview['at']:%H:%M:%S}Z  ", "bold"),
        f"{health['topics']} topics, {health['active_segments']} segments, {health['workers']} workers up; "
        f"{health['live_operations']} operations in progress; load {_ago(health['load_age_seconds'])}",
    )
    alarms = [Text(alarm, style="bold red") for alarm in _alarms(health)]
    body = [
        {
            "topic": row["topic"],
            "segments": row["active_segments"],
            "load": _bar(row["hottest_ratio"]),
            "msg/s in": row["msg_rate_in"],
            "MB/s in": None if row["byte_rate_in"] is None else row["byte_rate_in"] / 1e6,
            "needs": row["needs"] or ", ".join(row["held_back_by"][:2]),
        }
        for row in rows
    ]
    return overview, Group(head, *alarms, Text(), rows_table(body))


def _alarms(health: Mapping[str, Any]) -> list[str]:
    """Return a text for each alarm of the fleet; none if there is no alarm."""
    counts = (
        (health["uncovered_ranges"], "range(s) of hashes have no active segment"),
        (health["stuck_operations"], "operation(s) make no progress"),
        (health["shards_without_worker"], "shard(s) of topics have no worker"),
    )
    return [f"{count} {alarm}" for count, alarm in counts if count]


def topic_picture(overview: Mapping[str, Any]) -> Picture:
    """Return two forms of the overview: the document unchanged, and a drawing of the topic's subscriptions, the ring, the segments with
    their load, the newest operations, and the reasons for no further action. `overview` has the keys of `OverviewAnswer`.
    """
    topic, segments = overview["topic"], overview["segments"]
    head = Text.assemble(
        (f"{overview['at']:%H:%M:%S}Z  {topic['topic']}", "bold"),
        f"  {topic['state']}, epoch {topic['epoch']}, {len(segments)} segments on {topic['data_plane']}",
    )
    needs = (
        [Text(topic["needs"], style="bold red" if topic["urgency"] >= 4 else "yellow")]
        if topic["needs"]
        else []
    )
    readers = (
        ", ".join(
            f"{subscription['subscription']}: {subscription['consumers']}"
            for subscription in overview["subscriptions"]
        )
        or "none"
    )
    picture = Group(
        head,
        *needs,
        Text(f"subscriptions and their consumers: {readers}"),
        Text(),
        ring(segments, console.width),
        Text(),
        rows_table(_segment_rows(segments)),
        *_titled("operations", _operation_rows(overview["operations"])),
        *_titled("no action", _refusal_rows(overview["refusals"])),
    )
    return overview, picture


def ring(segments: Sequence[Mapping[str, Any]], width: int) -> Text:
    """Return the ring as one line of `width` cells: each segment is as wide as its share of the ring, in the colour of its load, with its
    id if it fits. `segments` must be in the order of their ranges and cover the whole ring; a narrow segment may have no cell.
    """
    line = Text()
    for number, segment in enumerate(segments):
        start, end = (edge * width // RING for edge in (segment["range_start"], segment["range_end"] + 1))
        name = str(segment["segment_id"])
        cells = name.center(end - start) if len(name) <= end - start else " " * (end - start)
        shade = "reverse" if number % 2 else "reverse dim"  # separates neighbours of the same colour
        line.append(cells, style=f"{shade} {_colour(segment['hottest_ratio'])}")
    return line


def _colour(ratio: float | None) -> str:
    """Return the colour of a load, given relative to the split threshold; None is an unknown load."""
    if ratio is None:
        return _UNKNOWN
    return next((colour for upto, colour in _LOADS if ratio <= upto), _HOT)


def _bar(ratio: float | None) -> str:
    """Return a bar of ten cells, which is full from the split threshold on, and the percentage. `ratio` is the load relative to the split
    threshold; for None, which means no fresh load, return `?`.
    """
    if ratio is None:
        return "?"
    filled = min(int(ratio * _BAR_CELLS), _BAR_CELLS)
    return f"{'█' * filled}{'·' * (_BAR_CELLS - filled)} {ratio:>5.0%}"


def _segment_rows(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row of the table for each segment."""
    return [
        {
            "segment": segment["segment_id"],
            "range": segment["hash_range"],
            "of ring": f"{segment['ring_percent']:.1f}%",
            "buckets": segment["buckets"],
            "load": _bar(segment["hottest_ratio"]),
            "of": segment["hottest_metric"],
            "msg/s in": segment["msg_rate_in"],
            "now": _doing(segment),
        }
        for segment in segments
    ]


def _doing(segment: Mapping[str, Any]) -> str:
    """Return the state of a segment as text: the operation that it is part of, otherwise that it has no fresh load, otherwise the time
    since which it is cold; empty if none of these applies.
    """
    if segment["busy_in_operation"] is not None:
        return f"in operation {segment['busy_in_operation']}"
    if segment["is_stale"] is not False:
        return "no fresh load"
    return f"cold since {segment['cold_since']:%H:%M}" if segment["cold_since"] is not None else ""


def _operation_rows(operations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row of the table for each operation."""
    return [
        {
            "operation": operation["operation_id"],
            "kind": operation["kind"],
            "state": operation["state"],
            "segments": f"{', '.join(map(str, operation['parents']))} → {created(operation['creates'])}".strip(
                " →"
            ),
            "seconds": operation["age_seconds"],
            "by": operation["actor"],
            "why": operation["last_error"] or operation["reason"],
        }
        for operation in operations
    ]


def _refusal_rows(refusals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row of the table for each refusal."""
    return [
        {
            "lane": refusal["lane"],
            "segment": refusal["segment_id"],
            "reason": refusal["reason"],
            "how far": refusal["how_far"],
        }
        for refusal in refusals
    ]


def _titled(title: str, rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Return an empty line and the table; nothing for no rows."""
    return [Text(), rows_table(rows, title=title)] if rows else []


def _ago(seconds: Any) -> str:
    """Return the age of the last aggregation as text. `seconds` is None if there was no aggregation."""
    return "never aggregated" if seconds is None else f"{float(seconds):.0f} s old"
