"""The fleet: a row a topic, those first that need somebody."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.entrypoints.pages import approvals
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.store.postgres import inspection

# One look at the view: on a large fleet it is the page's whole cost.
_FLEET = """
    WITH fleet AS MATERIALIZED (SELECT * FROM inspect.fleet),
    sums AS (
        SELECT count(*) AS topics, count(*) FILTER (WHERE urgency >= 3) AS need_somebody,
               coalesce(sum(hot_segments), 0) AS hot_segments, coalesce(sum(active_segments), 0) AS segments,
               coalesce(sum(stale_segments), 0) AS stale_segments, count(*) FILTER (WHERE budget_until IS NOT NULL) AS wait_for_budget
          FROM fleet),
    chosen AS (
        SELECT * FROM fleet
         WHERE (CAST(:find AS text) = '' OR strpos(topic, :find) > 0)
           AND CASE CAST(:show AS text) WHEN 'hot' THEN hot_segments > 0 WHEN 'stuck' THEN urgency = 6
                    WHEN 'suppressed' THEN hot_segments > 0 AND held_back_by <> '{}' WHEN 'waiting for budget' THEN budget_until IS NOT NULL
                    WHEN 'in need' THEN urgency >= 3 ELSE true END
         ORDER BY urgency DESC, hottest_ratio DESC NULLS LAST, topic LIMIT :limit OFFSET :after)
    SELECT to_jsonb(sums) AS sums, chosen.* FROM sums LEFT JOIN chosen ON true
     ORDER BY urgency DESC, hottest_ratio DESC NULLS LAST, topic
"""
_WORKERS = "SELECT name, holder, live, expires_at, address FROM inspect.leases WHERE name LIKE 'worker/%' ORDER BY name"
_LAST_LOAD = "SELECT window_end, age_seconds, engine FROM inspect.load_runs ORDER BY window_end DESC LIMIT 1"


SHOWN = ("in need", "hot", "stuck", "suppressed", "waiting for budget")
"""What the list can be narrowed to. Suppressed: hot, and something holds it back."""


def page(tx: Connection, find: str, show: str, after: int) -> dict[str, Any]:
    """Topics whose name has `find` in it, those that are `show` if it is given, from the row `after` on."""
    rows = inspection.rows(tx, _FLEET, find=find, show=show, after=after, limit=MOST_ROWS + 1)
    topics = [row for row in rows if row["topic"] is not None]
    last = inspection.rows(tx, _LAST_LOAD)
    return {
        "find": find,
        "show": show,
        "shown": SHOWN,
        "topics": topics[:MOST_ROWS],
        "next": after + MOST_ROWS if len(topics) > MOST_ROWS else None,
        "sums": rows[0]["sums"],
        "workers": inspection.rows(tx, _WORKERS),
        "last_load": last[0] if last else None,
        "approvals": approvals.waiting(tx),
    }
