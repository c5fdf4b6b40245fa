"""Overviews: the fleet, and a topic with all that concerns it, each from one snapshot of schema `inspect`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.responses import Document, InstantRow
from controller.clock import to_ms
from controller.domain.whole_numbers import plain_number
from controller.questions.evaluations import refusal_row
from controller.questions.question import QuestionRequest, TopicQuestion
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import inspected

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
    SELECT operation_id, kind, state, parents, creates, age_seconds, actor, reason, last_error FROM inspect.operations
     WHERE topic_id = :topic_id ORDER BY live DESC, operation_id DESC LIMIT :limit
"""
_WHY_NOT = """
    SELECT lane, reason, segment_id, metric, value, needed, not_before FROM inspect.why_not
     WHERE topic_id = :topic_id ORDER BY lane, segment_id NULLS FIRST, reason LIMIT :limit
"""
_SUBSCRIPTIONS = """
    SELECT subscription, kind, consumers FROM inspect.subscriptions WHERE topic_id = :topic_id ORDER BY subscription LIMIT 10
"""


class ShowFleet(QuestionRequest):
    """Show the fleet: its health, and the topics that need somebody first, then the hottest."""

    find: str = Field(
        "", max_length=2000, description="Only topics with this in their names.", examples=["orders"]
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(50, description="Topics at most.", examples=[20])


class FleetAnswer(Document):
    """`health` has the columns of `inspect.health`, and each topic those of `inspect.fleet`."""

    at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    health: InstantRow = Field(examples=[{"topics": 12, "active_segments": 40, "workers": 2}])
    topics: list[InstantRow] = Field(examples=[[{"topic": "topic://acme/shop/orders", "urgency": 0}]])


class ShowOverview(TopicQuestion):
    """Show a topic: its segments with their load, the newest operations, why nothing more is done, and its subscriptions."""


class OverviewAnswer(Document):
    """`topic` has the columns of `inspect.fleet`; segments stand in the order of their ranges."""

    at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    topic: InstantRow = Field(examples=[{"topic": "topic://acme/shop/orders", "epoch": 7}])
    segments: list[InstantRow] = Field(examples=[[{"segment_id": 0, "hash_range": "0000-ffff"}]])
    operations: list[InstantRow]
    refusals: list[InstantRow]
    subscriptions: list[InstantRow]


def show_fleet(context: Context, request: ShowFleet) -> FleetAnswer:
    """Return at most `limit` topics."""
    with snapshot(context.store) as tx:
        return read_fleet(tx, request)


def read_fleet(tx: Connection, request: ShowFleet) -> FleetAnswer:
    """Return at most `limit` topics, as of the snapshot."""
    [health] = _rows(tx, _HEALTH)
    topics = _rows(tx, _FLEET, find=request.find, limit=request.limit)
    return FleetAnswer(at=database_now(tx), health=health, topics=topics)


def show_overview(context: Context, request: ShowOverview) -> OverviewAnswer:
    """Raises TopicNotFound."""
    with snapshot(context.store) as tx:
        return read_overview(tx, request)


def read_overview(tx: Connection, request: ShowOverview) -> OverviewAnswer:
    """Return the overview as of the snapshot. Raises TopicNotFound."""
    topic_id = inspected.find_topic(tx, request.topic).topic_id
    now = database_now(tx)
    [topic] = _rows(tx, _TOPIC, topic_id=topic_id)
    refusals = _rows(tx, _WHY_NOT, topic_id=topic_id, limit=_REFUSALS)
    return OverviewAnswer(
        at=now,
        topic=topic,
        segments=_rows(tx, _SEGMENTS, topic_id=topic_id),
        operations=_rows(tx, _OPERATIONS, topic_id=topic_id, limit=_NEWEST_OPERATIONS),
        refusals=[refusal_row(refusal, to_ms(now)) for refusal in refusals],
        subscriptions=_rows(tx, _SUBSCRIPTIONS, topic_id=topic_id),
    )


def _rows(tx: Connection, statement: str, **values: object) -> list[InstantRow]:
    rows = inspection.rows(tx, statement, **values)
    return [{name: plain_number(value) for name, value in row.items()} for row in rows]


SHOW_FLEET = report("topics fleet", "/fleet", ShowFleet, FleetAnswer, show_fleet, is_command=False)
SHOW_OVERVIEW = report(
    "topics overview",
    "/topics/{topic}/overview",
    ShowOverview,
    OverviewAnswer,
    show_overview,
    is_command=False,
)
ACTIONS = (SHOW_FLEET, SHOW_OVERVIEW)
