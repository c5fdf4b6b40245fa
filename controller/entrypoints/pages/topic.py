"""A topic: its ring now and over time, its load, why it is left alone, its consumers, its policy, and what can be asked of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from controller.clock import to_ms
from controller.entrypoints.commands.options import topic_name
from controller.entrypoints.pages import approvals, figures, journal
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.entrypoints.verdict_documents import refusal_row
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
MOST_RECORDS = 20_000

_TOPIC = "SELECT * FROM inspect.fleet WHERE topic_id = :topic_id"
_NOW = """
    SELECT s.segment_id, s.hash_range, s.range_start, s.range_end, s.ring_percent, s.buckets, s.parents, s.created_at, s.busy_in_operation,
           l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.hottest_metric, l.is_hot, l.is_cold, l.cold_since, l.is_stale,
           l.silent_seconds, CASE WHEN NOT l.is_stale THEN l.hottest_ratio END AS hottest_ratio, k.hottest, k.load_on_hottest
      FROM inspect.layout_now s
      LEFT JOIN inspect.load_now l USING (topic_id, segment_id)
      LEFT JOIN inspect.key_sketches k USING (topic_id, segment_id)
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
_RECORDS = """
    SELECT segment_id, recorded_at, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out FROM inspect.load_history
     WHERE topic_id = :topic_id AND recorded_at >= :since ORDER BY recorded_at DESC LIMIT :limit
"""
_WHY_NOT = """
    SELECT lane, reason, segment_id, other_id, metric, value, needed, not_before, decided_at, is_current FROM inspect.why_not
     WHERE topic_id = :topic_id ORDER BY lane, segment_id NULLS FIRST, reason LIMIT :limit
"""
_CONSUMERS = """
    SELECT b.subscription, b.owner, count(*) AS buckets, count(DISTINCT b.segment_id) AS segments, min(b.since) AS since
      FROM inspect.buckets b WHERE b.topic_id = :topic_id AND b.owner IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2 LIMIT :limit
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
    records = inspection.rows(tx, _RECORDS, topic_id=topic_id, since=since, limit=MOST_RECORDS)[::-1]
    some: dict[str, Any] = {"topic_id": topic_id, "limit": MOST_ROWS}
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
        "refusals": [refusal_row(row, to_ms(now)) for row in inspection.rows(tx, _WHY_NOT, **some)],
        "approvals": approvals.waiting(tx, topic_id),
        "decisions": journal.decisions(tx, found.name, None, rows=10)["decisions"],
        "operations": journal.operations(tx, found.name, "", None, rows=10)["operations"],
        "subscriptions": inspection.rows(tx, _SUBSCRIPTIONS, **some),
        "consumers": inspection.rows(tx, _CONSUMERS, **some),
        "waiting": inspection.rows(tx, _WAITING, **some),
        "policy": inspected.effective_policy(tx, found),
        "candidates": inspection.rows(tx, _CANDIDATES, topic_id=topic_id),
    }
