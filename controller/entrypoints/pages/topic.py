"""A topic: its ring now and over time, its load, why it is left alone, its consumers, its policy, and what can be asked of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from controller.clock import to_ms
from controller.domain.names import topic_name
from controller.entrypoints.pages import approvals, figures, journal
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.entrypoints.pages.journal import DecisionFilter, OperationFilter
from controller.questions.evaluations import refusal_row
from controller.store.postgres import inspection
from controller.store.topics import inspected

SPANS_HOURS = (1, 6, 24, 24 * 7, 24 * 30)
UNITS = {
    "msg_rate_in": "messages/s",
    "byte_rate_in": "bytes/s",
    "msg_rate_out": "messages/s",
    "byte_rate_out": "bytes/s",
}
MOST_SEGMENTS = 3_000
"""Segments drawn over time, the newest; a browser draws as many at once."""
MOST_LINES = 32
"""Segments whose load is drawn, the hottest; more could not be told apart."""
MOST_PARTS = 3_000
"""Of the time, over all lines together; of each part the highest rate is drawn and the last."""

_TOPIC = "SELECT * FROM inspect.fleet WHERE topic_id = :topic_id"
# Each view is read once and not once a segment: both know thresholds that are made of every level's policy.
_NOW = """
    WITH load AS MATERIALIZED (SELECT * FROM inspect.load_now WHERE topic_id = :topic_id),
    sketch AS MATERIALIZED (SELECT segment_id, hottest, load_on_hottest FROM inspect.key_sketches WHERE topic_id = :topic_id)
    SELECT s.segment_id, s.hash_range, s.range_start, s.range_end, s.ring_percent, s.buckets, s.parents, s.created_at, s.busy_in_operation,
           l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.hottest_metric, l.is_hot, l.is_cold, l.cold_since, l.is_stale,
           l.silent_seconds, CASE WHEN NOT l.is_stale THEN l.hottest_ratio END AS hottest_ratio, k.hottest, k.load_on_hottest
      FROM inspect.layout_now s
      LEFT JOIN load l USING (segment_id)
      LEFT JOIN sketch k USING (segment_id)
     WHERE s.topic_id = :topic_id ORDER BY s.range_start
"""
_THRESHOLDS = """
    SELECT knob, value FROM inspect.policy_effective WHERE topic_id = :topic_id AND knob ~ '^split_(msg|byte)_rate_(in|out)$'
"""
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
_WHY_NOT = """
    SELECT lane, reason, segment_id, other_id, metric, value, needed, not_before, decided_at, is_current FROM inspect.why_not
     WHERE topic_id = :topic_id ORDER BY lane, segment_id NULLS FIRST, reason LIMIT :limit
"""
_CONSUMERS = """
    WITH bucket AS MATERIALIZED (SELECT * FROM inspect.buckets WHERE topic_id = :topic_id AND owner IS NOT NULL),
    holder AS (
        SELECT subscription, unnest(consumer_names) AS consumer, true AS is_registered FROM inspect.subscriptions WHERE topic_id = :topic_id
         UNION ALL SELECT DISTINCT subscription, owner, false FROM bucket)
    SELECT h.subscription, h.consumer, bool_or(h.is_registered) AS is_registered, count(DISTINCT b.segment_id) AS segments,
           count(DISTINCT (b.segment_id, b.bucket)) AS buckets, min(b.since) AS since,
           coalesce(array_agg(DISTINCT b.segment_id || ':' || b.bucket) FILTER (WHERE b.bucket IS NOT NULL), '{}') AS held
      FROM holder h LEFT JOIN bucket b ON b.subscription = h.subscription AND b.owner = h.consumer
     GROUP BY 1, 2 ORDER BY 1, 2 LIMIT :limit
"""
_FAILING = """
    SELECT subscription, segment_id, bucket, owner, position, deliveries, deaths, is_in_hand, error, first_at, last_at
      FROM inspect.failing_messages WHERE topic_id = :topic_id ORDER BY last_at DESC LIMIT :limit
"""
_WAITING = """
    SELECT subscription, segment_id, bucket, reason, since, waits_for, owner, successor, held_by FROM inspect.buckets
     WHERE topic_id = :topic_id AND reason NOT IN ('owned', 'no data', 'no data beyond what is in hand') ORDER BY since NULLS LAST LIMIT :limit
"""
_SUBSCRIPTIONS = (
    "SELECT * FROM inspect.subscriptions WHERE topic_id = :topic_id ORDER BY subscription LIMIT :limit"
)
_CANDIDATES = """
    SELECT candidate_id, state, override, proposed_by, reason, regret, live_regret, run_id FROM inspect.policy_candidates
     WHERE topic_id = :topic_id ORDER BY candidate_id DESC LIMIT 5
"""


def page(tx: Connection, name: str, hours: float, now: datetime) -> dict[str, Any]:
    """The topic of that name over the last `hours`. Raises InvalidInput, TopicNotFound."""
    found = inspected.find_topic(tx, topic_name(name))
    topic_id, since = found.topic_id, now - timedelta(hours=hours)
    topic = inspection.rows(tx, _TOPIC, topic_id=topic_id)[0]
    segments = inspection.rows(tx, _NOW, topic_id=topic_id)
    metric = str(topic["hottest_metric"] or "msg_rate_in")
    thresholds = {
        row["knob"].removeprefix("split_"): row["value"]
        for row in inspection.rows(tx, _THRESHOLDS, topic_id=topic_id)
    }
    over_time = inspection.rows(
        tx, _OVER_TIME, topic_id=topic_id, since=since, limit=MOST_SEGMENTS, **thresholds
    )
    records = load_records(tx, topic_id, metric, since, now)
    some: dict[str, Any] = {"topic_id": topic_id, "limit": MOST_ROWS + 1}
    return {
        "topic": topic,
        "properties": found.properties,
        "segments": segments,
        "hours": hours,
        "spans": SPANS_HOURS,
        "ring": figures.ring_now(segments),
        "history": figures.ring_over_time(over_time, now),
        "is_cut_off": len(over_time) == MOST_SEGMENTS,
        "load_figure": figures.load_over_time(records, thresholds.get(metric), metric, UNITS[metric]),
        "metric": metric,
        "lines": MOST_LINES,
        "loaded_segments": records[0]["segments"] if records else 0,
        "refusals": [refusal_row(row, to_ms(now)) for row in inspection.rows(tx, _WHY_NOT, **some)],
        "approvals": approvals.waiting(tx, topic_id),
        "decisions": journal.decisions(tx, DecisionFilter(found.name), rows=10)["decisions"],
        "operations": journal.operations(tx, OperationFilter(found.name), rows=10)["operations"],
        "subscriptions": inspection.rows(tx, _SUBSCRIPTIONS, **some),
        "consumers": inspection.rows(tx, _CONSUMERS, **some),
        "failing": inspection.rows(tx, _FAILING, **some),
        "waiting": inspection.rows(tx, _WAITING, **some),
        "policy": inspected.effective_policy(tx, found),
        "candidates": inspection.rows(tx, _CANDIDATES, topic_id=topic_id),
    }


def load_records(
    tx: Connection, topic_id: int, metric: str, since: datetime, now: datetime
) -> list[dict[str, Any]]:
    """What is drawn of the recorded load, the hottest segments first: `segments` is how many have any."""
    return inspection.rows(
        tx,
        _RECORDS,
        topic_id=topic_id,
        metric=metric,
        since=since,
        now=now,
        lines=MOST_LINES,
        parts=MOST_PARTS,
    )
