"""What people look at again and again, each in one reading of schema `inspect`: the fleet, and a topic with all that concerns it.

The terminal and the server both read here, so that a picture is the same whichever way it comes.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from controller.clock import to_ms
from controller.entrypoints.output import to_json
from controller.questions.evaluations import refusal_row
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
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
Document = dict[str, Any]


def of_fleet(tx: Connection, find: str, limit: int) -> Document:
    """What needs somebody first, then what is hottest: `limit` topics at most that have `find` in their names."""
    [health] = _rows(tx, _HEALTH)
    return {"at": database_now(tx), "health": health, "topics": _rows(tx, _FLEET, find=find, limit=limit)}


def of_topic(tx: Connection, name: str) -> Document:
    """Its segments with their load, the newest operations, why nothing more is done, and who reads it. Raises TopicNotFound."""
    topic_id = inspected.find_topic(tx, name).topic_id
    now = database_now(tx)
    [topic] = _rows(tx, _TOPIC, topic_id=topic_id)
    refusals = _rows(tx, _WHY_NOT, topic_id=topic_id, limit=_REFUSALS)
    return {
        "at": now,
        "topic": topic,
        "segments": _rows(tx, _SEGMENTS, topic_id=topic_id),
        "operations": _rows(tx, _OPERATIONS, topic_id=topic_id, limit=_NEWEST_OPERATIONS),
        "refusals": [refusal_row(one, to_ms(now)) for one in refusals],
        "subscriptions": _rows(tx, _SUBSCRIPTIONS, topic_id=topic_id),
    }


def _rows(tx: Connection, statement: str, **asked: object) -> list[Document]:
    """With numbers as a document has them."""
    return [
        {name: to_json(value) if isinstance(value, Decimal) else value for name, value in row.items()}
        for row in inspection.rows(tx, statement, **asked)
    ]
