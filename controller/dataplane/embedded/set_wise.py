"""Calls about many embedded logs at once: one message to PostgreSQL, one transaction, all or nothing.

Serves `plane` alone. Logs are locked in the order of their names, before any cursor. Where the journal is in the same
server such a transaction need not wait for the disk: a crash loses commits from the end only. So what the journal
records of this transaction, which is committed later, cannot survive without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import psycopg2.errors
import psycopg2.extensions

from controller.dataplane.base import MISSING_LOG, Born, CursorReport, LogReport, LogState, Successor
from controller.dataplane.embedded.names import ARRIVALS, checked
from controller.domain.log_origin import LogOrigin
from controller.domain.segment import is_segment_descriptor

_LATE = "SELECT set_config('synchronous_commit', 'off', true);"
# As in `plane`: statements of one message, each with its own view. Nobody can be waiting at a log that this transaction
# has made, so only older logs are notified of. Rows are looked up one by one where a join would do too: the planner
# does not know how few there are, and would read whole tables for a join.
_CREATE = f"""
    INSERT INTO embedded.log (name, origin)
    SELECT w.log, w.origin FROM jsonb_to_recordset(%(successors)s::jsonb) AS w (log text, origin jsonb)
     ORDER BY 1 ON CONFLICT (name) DO NOTHING;
    SELECT FROM embedded.log WHERE name = ANY (%(logs)s) ORDER BY name FOR KEY SHARE;
    INSERT INTO embedded.cursor (log_id, subscription, position)
    SELECT DISTINCT (SELECT l.log_id FROM embedded.log l WHERE l.name = w.log), s.subscription,
                    (SELECT l.first_offset FROM embedded.log l WHERE l.name = w.log)
      FROM jsonb_to_recordset(%(successors)s::jsonb)
           AS w (log text, predecessors text[], subscriptions text[], excepted text[])
     CROSS JOIN LATERAL (
           SELECT unnest(w.subscriptions) AS subscription
            UNION SELECT c.subscription
                    FROM unnest(w.predecessors) AS p (name)
                   CROSS JOIN LATERAL (
                         SELECT subscription FROM embedded.cursor
                          WHERE log_id = (SELECT l.log_id FROM embedded.log l WHERE l.name = p.name) OFFSET 0) c) s
     WHERE s.subscription <> ALL (w.excepted)
     ORDER BY 1, 2 ON CONFLICT DO NOTHING;
    SELECT l.name, l.terminated_at IS NOT NULL,
           ARRAY(SELECT c.subscription FROM embedded.cursor c WHERE c.log_id = l.log_id AND c.first_hash = 0 ORDER BY 1),
           l.origin,
           CASE WHEN l.created_at < transaction_timestamp() THEN pg_notify('{ARRIVALS}', l.log_id::text) END
      FROM embedded.log l WHERE l.name = ANY (%(logs)s)
"""  # noqa: S608 - a constant
_LONGEST_WAIT = "SELECT set_config('lock_timeout', '100ms', true);"
"""How long to wait for appends in progress. A log that is held for longer is left out, since the others are locked
meanwhile.
"""
_CLOSE = f"""
    WITH held AS MATERIALIZED (
        SELECT log_id FROM embedded.log WHERE name = ANY (%(logs)s) ORDER BY name FOR NO KEY UPDATE {{skipping}})
    , closed AS (
        UPDATE embedded.log SET terminated_at = coalesce(terminated_at, clock_timestamp())
         WHERE log_id = ANY (ARRAY(SELECT log_id FROM held)) RETURNING name, log_id, next_offset - 1 AS position)
    SELECT name, position, pg_notify('{ARRIVALS}', log_id::text) FROM closed
"""  # noqa: S608
_TERMINATE, _TERMINATE_FREE = (
    _LONGEST_WAIT + _CLOSE.format(skipping=""),
    _CLOSE.format(skipping="SKIP LOCKED"),
)
_SUBSCRIPTIONS = """
    SELECT l.name, ARRAY(SELECT c.subscription FROM embedded.cursor c WHERE c.log_id = l.log_id AND c.first_hash = 0 ORDER BY 1)
      FROM embedded.log l WHERE l.name = ANY (%(logs)s)
"""
_LISTED = "SELECT topic_path, name FROM embedded.log WHERE topic_path = ANY (%(paths)s) ORDER BY name"
# No part of a cursor lies behind a message that a subscription has not acknowledged. So messages are counted only for a
# subscription with a part before the end of the log.
_DESCRIBED = """
    SELECT l.name, l.terminated_at IS NOT NULL, l.origin, l.next_offset > 0,
           ARRAY(SELECT jsonb_build_array(
                            c.subscription,
                            CASE WHEN min(c.position) < l.next_offset THEN embedded.backlog(l.name, c.subscription) ELSE 0 END,
                            CASE WHEN max(c.frontier) IS NOT NULL THEN true WHEN max(c.owner) IS NOT NULL THEN false END)
                   FROM embedded.cursor c WHERE c.log_id = l.log_id GROUP BY c.subscription)
      FROM embedded.log l WHERE l.name = ANY (%(logs)s)
"""


def create(
    cursor: psycopg2.extensions.cursor, successors: Sequence[Successor], *, waits_for_disk: bool
) -> dict[str, Born]:
    """What each log is afterwards, by name."""
    documents = [
        {
            "log": checked("segment", one.backing_topic),
            "predecessors": one.predecessors,
            "subscriptions": [checked("subscription", name) for name in one.subscriptions],
            "excepted": one.excepted,
            "origin": one.origin and one.origin.to_properties(),
        }
        for one in successors
    ]
    logs = [one.backing_topic for one in successors]
    statement = ("" if waits_for_disk else _LATE) + _CREATE
    cursor.execute(statement, {"logs": logs, "successors": json.dumps(documents)})
    return {
        name: Born(
            _state(is_terminated),
            tuple(subscriptions),
            LogOrigin.from_properties(properties or {}),
        )
        for name, is_terminated, subscriptions, properties, _ in cursor.fetchall()
    }


def terminate(
    cursor: psycopg2.extensions.cursor, backing_topics: Sequence[str], *, waits_for_disk: bool
) -> dict[str, str]:
    """The last offset of each log that exists, by name; without those that somebody holds."""
    late, logs = ("" if waits_for_disk else _LATE), {"logs": list(backing_topics)}
    try:
        cursor.execute(late + _TERMINATE, logs)
    except psycopg2.errors.LockNotAvailable:
        cursor.execute(late + _TERMINATE_FREE, logs)
    return {name: str(position) for name, position, _ in cursor.fetchall()}


def subscriptions(
    cursor: psycopg2.extensions.cursor, backing_topics: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Cursors by the log's name."""
    cursor.execute(_SUBSCRIPTIONS, {"logs": list(backing_topics)})
    return {name: names for name, names in cursor.fetchall() if names}


def segments(cursor: psycopg2.extensions.cursor, paths: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Logs of segments, sorted, by topic; `paths` says under which path those of each topic are."""
    cursor.execute(_LISTED, {"paths": list(paths.values())})
    found: dict[str, list[str]] = {path: [] for path in paths.values()}
    for path, name in cursor.fetchall():
        if is_segment_descriptor(name.removeprefix(f"{path}/")):
            found[path].append(name)
    return {topic: found[path] for topic, path in paths.items()}


def describe(cursor: psycopg2.extensions.cursor, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    """Return a report on each log, by name; MISSING_LOG for a log that does not exist."""
    cursor.execute(_DESCRIBED, {"logs": list(backing_topics)})
    found = {
        name: LogReport(
            _state(is_terminated),
            LogOrigin.from_properties(properties or {}),
            has_carried,
            {subscription: CursorReport(unread, is_queue) for subscription, unread, is_queue in cursors},
        )
        for name, is_terminated, properties, has_carried, cursors in cursor.fetchall()
    }
    return {name: found.get(name, MISSING_LOG) for name in backing_topics}


def _state(is_terminated: bool) -> LogState:
    return LogState.TERMINATED if is_terminated else LogState.OPEN
