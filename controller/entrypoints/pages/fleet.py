"""The fleet: a row a topic, those first that need somebody."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.entrypoints.pages import approvals
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.store.postgres import inspection

_TOPICS = """
    SELECT * FROM inspect.fleet
     WHERE CAST(:find AS text) = '' OR strpos(topic, :find) > 0
     ORDER BY urgency DESC, hottest_ratio DESC NULLS LAST, topic LIMIT :limit OFFSET :after
"""
_SUMS = """
    SELECT count(*) AS topics, count(*) FILTER (WHERE urgency >= 3) AS need_somebody,
           coalesce(sum(hot_segments), 0) AS hot_segments, coalesce(sum(active_segments), 0) AS segments,
           coalesce(sum(stale_segments), 0) AS stale_segments, count(*) FILTER (WHERE budget_until IS NOT NULL) AS wait_for_budget
      FROM inspect.fleet
"""
_WORKERS = "SELECT name, holder, live, expires_at, address FROM inspect.leases WHERE name LIKE 'worker/%' ORDER BY name"
_LAST_LOAD = "SELECT window_end, age_seconds, engine FROM inspect.load_runs ORDER BY window_end DESC LIMIT 1"


def page(tx: Connection, find: str, after: int) -> dict[str, Any]:
    """Topics whose name has `find` in it, from the row `after` on."""
    topics = inspection.rows(tx, _TOPICS, find=find, after=after, limit=MOST_ROWS + 1)
    last = inspection.rows(tx, _LAST_LOAD)
    return {
        "find": find,
        "topics": topics[:MOST_ROWS],
        "next": after + MOST_ROWS if len(topics) > MOST_ROWS else None,
        "sums": inspection.rows(tx, _SUMS)[0],
        "workers": inspection.rows(tx, _WORKERS),
        "last_load": last[0] if last else None,
        "approvals": approvals.waiting(tx),
    }
