"""A topic: its ring now and over time, its load, the reasons for no action, its consumers, its policy, and the forms of its actions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Query

from controller.domain.names import topic_name
from controller.pages import approvals, figures, journal, ring_over_time
from controller.pages.context import MAX_ROWS, Reading, Text
from controller.pages.load_over_time import LONGEST_HOURS, MOST_LINES, MOST_PARTS, SPANS_HOURS, load_over_time
from controller.questions.consumers import LIST_BUCKETS, readers_of
from controller.questions.decisions import LIST_DECISIONS, LIST_REFUSALS_OF_TOPIC
from controller.questions.history import load_cells, load_records, segments_over_time
from controller.questions.operations import LIST_OPERATIONS
from controller.questions.overviews import active_segments, fleet_topic
from controller.questions.policies import LIST_CANDIDATES
from controller.questions.question import read_answers, read_view
from controller.questions.subscriptions import LIST_SUBSCRIPTIONS
from controller.store.topics import inspector_reads

UNITS = {
    "msg_rate_in": "messages/s",
    "byte_rate_in": "bytes/s",
    "msg_rate_out": "messages/s",
    "byte_rate_out": "bytes/s",
}


def page(
    tx: Reading, name: Text, hours: Annotated[float, Query(gt=0, le=LONGEST_HOURS)] = 6.0
) -> dict[str, Any]:
    """Return all data of a topic's page: the present, and the ring and load over the last `hours`. Lists are cut at their
    maximum lengths.

    Raises InvalidInput, TopicNotFound.
    """
    inspected_topic = inspector_reads.find_topic(tx, topic_name(name))
    now = datetime.now(UTC)
    since = now - timedelta(hours=hours)
    topic, segments = fleet_topic(tx, inspected_topic), active_segments(tx, inspected_topic)
    metric = str(topic["hottest_metric"] or "msg_rate_in")
    policy = inspector_reads.effective_policy(tx, inspected_topic)
    thresholds = {
        rate: row["value"] for row in policy for rate in UNITS if row["parameter"] == f"split_{rate}"
    }
    over_time = segments_over_time(tx, inspected_topic.topic_id, since, ring_over_time.MOST_SEGMENTS)
    grid = ring_over_time.grid(over_time, since, now, ring_over_time.MOST_CELLS)
    drawn = [segment["segment_id"] for segment in over_time]
    cells = load_cells(tx, inspected_topic.topic_id, drawn, since, thresholds, cell_seconds=grid.seconds)
    records = load_records(
        tx, inspected_topic.topic_id, drawn, metric, since, now, lines=MOST_LINES, parts=MOST_PARTS
    )
    ends = {segment["segment_id"]: segment["sealed_at"] or now for segment in over_time}
    rows: dict[str, Any] = {"limit": MAX_ROWS + 1, **inspected_topic.key}
    return {
        "topic": topic,
        "properties": inspected_topic.properties,
        "segments": segments,
        "hours": hours,
        "spans": SPANS_HOURS,
        "ring": figures.ring_now(segments),
        "history": ring_over_time.ring_over_time(over_time, cells, grid),
        "is_cut_off": len(over_time) == ring_over_time.MOST_SEGMENTS,
        "load_figure": load_over_time(records, ends, thresholds.get(metric), metric, UNITS[metric]),
        "metric": metric,
        "lines": MOST_LINES,
        "loaded_segments": records[0]["segments"] if records else 0,
        "refusals": read_answers(tx, LIST_REFUSALS_OF_TOPIC, **rows),
        "approvals": approvals.waiting(tx, inspected_topic.topic_id),
        "decisions": journal.shown(read_answers(tx, LIST_DECISIONS, 10, **inspected_topic.key)),
        "operations": read_answers(tx, LIST_OPERATIONS, 10, **inspected_topic.key),
        "subscriptions": read_answers(tx, LIST_SUBSCRIPTIONS, **rows),
        "consumers": readers_of(tx, inspected_topic, MAX_ROWS + 1),
        "failing": read_view(
            tx, "inspect.failing_messages", "topic_id = :topic_id", order="last_at DESC", **rows
        ),
        "waiting": read_answers(tx, LIST_BUCKETS, order="since NULLS LAST", unread=True, **rows),
        "policy": policy,
        "candidates": read_answers(tx, LIST_CANDIDATES, 5, **inspected_topic.key),
    }
