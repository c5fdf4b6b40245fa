"""The recorded load of a topic, thinned to what a figure can draw."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from controller.questions.question import Row
from controller.services.policy_backtest import Loads
from controller.store.postgres import inspection

# The rates' thresholds are those in force now: what was hot under an older policy shows as it would be today.
_OVER_TIME = """
    SELECT s.segment_id, s.hash_range, s.range_start, s.range_end, greatest(s.created_at, :since) AS created_at, s.sealed_at, peak.ratio AS peak_ratio
      FROM inspect.segments s
      LEFT JOIN LATERAL (
           SELECT max(greatest(h.msg_rate_in / nullif(CAST(:msg_rate_in AS float8), 0), h.byte_rate_in / nullif(CAST(:byte_rate_in AS float8), 0),
                               h.msg_rate_out / nullif(CAST(:msg_rate_out AS float8), 0),
                               h.byte_rate_out / nullif(CAST(:byte_rate_out AS float8), 0))) AS ratio
             FROM inspect.load_history h
            WHERE h.topic_id = s.topic_id AND h.segment_id = s.segment_id AND h.recorded_at >= :since) peak ON true
     WHERE s.topic_id = :topic_id AND coalesce(s.sealed_at, 'infinity') >= :since
     ORDER BY s.created_epoch DESC, s.range_start LIMIT :limit
"""
# A page draws some pixels and not each record: of each part of the time a line keeps its peak, and what it has until the next part.
_RECORDS = """
    WITH record AS (
        SELECT segment_id, recorded_at, CASE CAST(:metric AS text) WHEN 'msg_rate_in' THEN msg_rate_in WHEN 'byte_rate_in' THEN byte_rate_in
                                             WHEN 'msg_rate_out' THEN msg_rate_out ELSE byte_rate_out END AS rate
          FROM inspect.load_history WHERE topic_id = :topic_id AND recorded_at >= :since
    ), hottest AS (
        SELECT segment_id, max(rate) AS peak, count(*) OVER () AS segments
          FROM record GROUP BY segment_id ORDER BY peak DESC NULLS LAST, segment_id LIMIT :lines
    ), placed AS (
        SELECT r.*, h.peak, h.segments,
               width_bucket(extract(epoch FROM r.recorded_at)::float8, extract(epoch FROM CAST(:since AS timestamptz))::float8,
                            extract(epoch FROM CAST(:now AS timestamptz))::float8,
                            CAST(CAST(:parts AS bigint) / least(h.segments, :lines) AS integer)) AS part
          FROM record r JOIN hottest h USING (segment_id)
    ), ranked AS (
        SELECT *, row_number() OVER (PARTITION BY segment_id, part ORDER BY rate DESC NULLS LAST, recorded_at) AS from_peak,
               row_number() OVER (PARTITION BY segment_id, part ORDER BY recorded_at DESC) AS from_last
          FROM placed
    )
    SELECT segment_id, recorded_at, rate, segments FROM ranked
     WHERE from_peak = 1 OR from_last = 1 ORDER BY peak DESC NULLS LAST, segment_id, recorded_at
"""
_RECORDED = """
    SELECT count(DISTINCT h.topic_id) AS topics, count(DISTINCT (h.topic_id, h.segment_id)) AS segments, count(*) AS records,
           min(h.recorded_at) AS since, max(h.recorded_at) AS until
      FROM inspect.load_history h
     WHERE h.recorded_at BETWEEN :since AND :until AND (CAST(:topics AS text[]) IS NULL OR h.topic = ANY (:topics))
       AND (CAST(:namespace AS text) IS NULL OR starts_with(h.topic, 'topic://' || :namespace || '/'))
"""


def segments_over_time(
    tx: Connection, topic_id: int, since: datetime, thresholds: Mapping[str, Any], limit: int
) -> list[Row]:
    """Return segments that were ACTIVE after `since`, the newest first, with the highest ratio of a rate to its threshold."""
    return inspection.rows(tx, _OVER_TIME, topic_id=topic_id, since=since, limit=limit, **thresholds)


def load_records(
    tx: Connection, topic_id: int, metric: str, since: datetime, now: datetime, *, lines: int, parts: int
) -> list[Row]:
    """Return records of the `lines` hottest segments, the hottest first: `segments` is how many segments have records."""
    return inspection.rows(
        tx, _RECORDS, topic_id=topic_id, metric=metric, since=since, now=now, lines=lines, parts=parts
    )


def recorded_load(tx: Connection, loads: Loads) -> Row:
    """Count the topics, segments and records of these loads that PostgreSQL keeps."""
    topics = list(loads.topics) if loads.topics else None
    [counts] = inspection.rows(
        tx, _RECORDED, since=loads.since, until=loads.until, topics=topics, namespace=loads.namespace
    )
    return counts
