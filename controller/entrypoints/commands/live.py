"""`cleave watch` and `cleave top`: a topic, or the fleet, drawn anew every moment until the user leaves.

Each picture is one snapshot of schema `inspect`. Where the output is no terminal one picture is printed, so that both can
be piped. A database that is away is said above the last picture, and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from sqlalchemy import Connection

from controller.clock import to_ms
from controller.domain.errors import Retryable
from controller.entrypoints.commands.options import AsJson, Topic, topic_name
from controller.entrypoints.output import console, emit, rows_table
from controller.entrypoints.reading import reading_store, snapshot
from controller.entrypoints.stop_signals import on_stop_signals
from controller.entrypoints.verdict_documents import refusal_row
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.topics import inspected

Every = Annotated[
    float, typer.Option("--every", min=0.2, max=3600.0, help="Seconds from one picture to the next.")
]
Once = Annotated[bool, typer.Option("--once", help="One picture, and leave.")]

Picture = tuple[Any, RenderableType]
"""What it shows as a document, and for people."""

RING = 0x10000
_LOADS = ((0.5, "blue"), (0.8, "green"), (1.0, "yellow"))
"""Colours up to so much of the split threshold; above it is red, and unknown is grey."""
_HOT, _UNKNOWN = "red", "bright_black"
_BAR_CELLS = 10
_NEWEST_OPERATIONS, _REFUSALS = 6, 8

_FLEET = """
    SELECT topic, needs, urgency, active_segments, hot_segments, hottest_ratio, hottest_metric, msg_rate_in, byte_rate_in, held_back_by
      FROM inspect.fleet WHERE CAST(:find AS text) = '' OR strpos(topic, :find) > 0
     ORDER BY urgency DESC, hottest_ratio DESC NULLS LAST, topic LIMIT :limit
"""
_HEALTH = "SELECT * FROM inspect.health"
_TOPIC = "SELECT * FROM inspect.fleet WHERE topic_id = :topic_id"
_SEGMENTS = """
    SELECT s.segment_id, s.hash_range, s.range_start, s.range_end, s.ring_percent, s.buckets, s.busy_in_operation, s.created_at,
           l.msg_rate_in, l.byte_rate_in, l.hottest_metric, l.is_stale, l.cold_since,
           CASE WHEN NOT l.is_stale THEN l.hottest_ratio END AS hottest_ratio
      FROM inspect.layout_now s LEFT JOIN inspect.load_now l USING (topic_id, segment_id)
     WHERE s.topic_id = :topic_id ORDER BY s.range_start
"""
_OPERATIONS = """
    SELECT operation_id, kind, state, parents, children, age_seconds, actor, reason, last_error FROM inspect.operations
     WHERE topic_id = :topic_id ORDER BY live DESC, operation_id DESC LIMIT :limit
"""
_WHY_NOT = """
    SELECT lane, reason, segment_id, metric, value, needed, not_before FROM inspect.why_not
     WHERE topic_id = :topic_id ORDER BY lane, segment_id NULLS FIRST, reason LIMIT :limit
"""
_SUBSCRIPTIONS = """
    SELECT subscription, kind, consumers FROM inspect.subscriptions WHERE topic_id = :topic_id ORDER BY subscription LIMIT 10
"""


def watch(topic: Topic, every: Every = 1.0, once: Once = False, as_json: AsJson = False) -> None:
    name = topic_name(topic)
    _show(lambda tx: topic_picture(tx, name), every, once=once, as_json=as_json)


def top(
    find: Annotated[str, typer.Option(help="Only topics with this in their names.")] = "",
    every: Every = 2.0,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    _show(lambda tx: fleet_picture(tx, find), every, once=once, as_json=as_json)


def _show(
    picture: Callable[[Connection], Picture], every_seconds: float, *, once: bool, as_json: bool
) -> None:
    with reading_store("cleave-live") as store:
        document, drawn = _taken(store, picture)
        if once or as_json or not console.is_terminal:
            emit(as_json, document, drawn)
            return
        leave = threading.Event()
        on_stop_signals(leave.set)
        with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
            while not leave.wait(every_seconds):
                try:
                    _, drawn = _taken(store, picture)
                    live.update(drawn, refresh=True)
                except Retryable as error:
                    said = Text(f"{error}; trying again", style="bold red")
                    live.update(Group(said, drawn), refresh=True)


def _taken(store: Store, picture: Callable[[Connection], Picture]) -> Picture:
    with snapshot(store) as tx:
        return picture(tx)


def fleet_picture(tx: Connection, find: str) -> Picture:
    """What needs somebody first, then what is hottest; as many topics as the terminal has lines."""
    [health] = inspection.rows(tx, _HEALTH)
    rows = inspection.rows(tx, _FLEET, find=find, limit=max(console.height - 8, 5))
    head = Text.assemble(
        (f"{database_now(tx):%H:%M:%S}Z  ", "bold"),
        f"{health['topics']} topics, {health['active_segments']} segments, {health['workers']} workers up; "
        f"{health['live_operations']} operations under way; load {_ago(health['load_age_seconds'])}",
    )
    alarms = [Text(said, style="bold red") for said in _alarms(health)]
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
    return {"health": health, "topics": rows}, Group(head, *alarms, Text(), rows_table(body))


def _alarms(health: Mapping[str, Any]) -> list[str]:
    """What cannot wait, in words."""
    found = (
        (health["uncovered_ranges"], "range(s) of hashes have no active segment"),
        (health["stuck_operations"], "operation(s) do not move on"),
        (health["shards_without_worker"], "shard(s) of topics have no worker"),
    )
    return [f"{count} {said}" for count, said in found if count]


def topic_picture(tx: Connection, name: str) -> Picture:
    """The ring, its segments with their load, what is being done, and why nothing more is. Raises TopicNotFound."""
    topic_id = inspected.find_topic(tx, name).topic_id
    [topic] = inspection.rows(tx, _TOPIC, topic_id=topic_id)
    segments = inspection.rows(tx, _SEGMENTS, topic_id=topic_id)
    operations = inspection.rows(tx, _OPERATIONS, topic_id=topic_id, limit=_NEWEST_OPERATIONS)
    refusals = inspection.rows(tx, _WHY_NOT, topic_id=topic_id, limit=_REFUSALS)
    subscriptions = inspection.rows(tx, _SUBSCRIPTIONS, topic_id=topic_id)
    now = database_now(tx)
    head = Text.assemble(
        (f"{now:%H:%M:%S}Z  {topic['topic']}", "bold"),
        f"  {topic['state']}, epoch {topic['epoch']}, {len(segments)} segments on {topic['data_plane']}",
    )
    needs = (
        [Text(topic["needs"], style="bold red" if topic["urgency"] >= 4 else "yellow")]
        if topic["needs"]
        else []
    )
    readers = ", ".join(f"{one['subscription']}: {one['consumers']}" for one in subscriptions) or "none"
    picture = Group(
        head,
        *needs,
        Text(f"subscriptions and their consumers: {readers}"),
        Text(),
        ring(segments, console.width),
        Text(),
        rows_table(_segment_rows(segments)),
        *_titled("operations", _operation_rows(operations)),
        *_titled("left alone", _refusal_rows(refusals, to_ms(now))),
    )
    document = {
        "topic": topic,
        "segments": segments,
        "operations": operations,
        "refusals": refusals,
        "subscriptions": subscriptions,
    }
    return document, picture


def ring(segments: Sequence[Mapping[str, Any]], width: int) -> Text:
    """The ring as one line: each segment as wide as its range, in the colour of its load, its id where there is room."""
    line = Text()
    for number, one in enumerate(segments):
        start, end = (edge * width // RING for edge in (one["range_start"], one["range_end"] + 1))
        name = str(one["segment_id"])
        cells = name.center(end - start) if len(name) <= end - start else " " * (end - start)
        shade = "reverse" if number % 2 else "reverse dim"  # so that neighbours of one colour are told apart
        line.append(cells, style=f"{shade} {_colour(one['hottest_ratio'])}")
    return line


def _colour(ratio: float | None) -> str:
    if ratio is None:
        return _UNKNOWN
    return next((colour for upto, colour in _LOADS if ratio <= upto), _HOT)


def _bar(ratio: float | None) -> str:
    """Ten cells up to the split threshold, and the percentage; nothing where no fresh load is known."""
    if ratio is None:
        return "?"
    filled = min(int(ratio * _BAR_CELLS), _BAR_CELLS)
    return f"{'█' * filled}{'·' * (_BAR_CELLS - filled)} {ratio:>5.0%}"


def _segment_rows(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "segment": one["segment_id"],
            "range": one["hash_range"],
            "of ring": f"{one['ring_percent']:.1f}%",
            "buckets": one["buckets"],
            "load": _bar(one["hottest_ratio"]),
            "of": one["hottest_metric"],
            "msg/s in": one["msg_rate_in"],
            "now": _doing(one),
        }
        for one in segments
    ]


def _doing(segment: Mapping[str, Any]) -> str:
    if segment["busy_in_operation"] is not None:
        return f"in operation {segment['busy_in_operation']}"
    if segment["is_stale"] is not False:
        return "no fresh load"
    return f"cold since {segment['cold_since']:%H:%M}" if segment["cold_since"] is not None else ""


def _operation_rows(operations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "operation": one["operation_id"],
            "kind": one["kind"],
            "state": one["state"],
            "segments": f"{', '.join(map(str, one['parents']))} → {', '.join(one['children'])}".strip(" →"),
            "seconds": one["age_seconds"],
            "by": one["actor"],
            "why": one["last_error"] or one["reason"],
        }
        for one in operations
    ]


def _refusal_rows(refusals: Sequence[Mapping[str, Any]], now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "lane": one["lane"],
            "segment": one["segment_id"],
            "reason": one["reason"],
            "how far": refusal_row(one, now_ms)["how_far"],
        }
        for one in refusals
    ]


def _titled(title: str, rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    return [Text(), rows_table(rows, title=title)] if rows else []


def _ago(seconds: Any) -> str:
    return "never aggregated" if seconds is None else f"{float(seconds):.0f} s old"
