"""Acts on many embedded logs at once: one message to PostgreSQL, one transaction, all or nothing.

Used only by `plane`. Logs are locked in the order of their names, before any cursor. If the journal is in the
same server, such a transaction need not wait for the disk, because a crash loses only the latest commits: the
journal's record of this transaction is committed later, and cannot survive without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import psycopg2.errors
import psycopg2.extensions

from controller.dataplane.base import MISSING_LOG, CreatedLog, CursorReport, LogReport, LogState, Successor
from controller.dataplane.embedded.names import ARRIVALS, checked
from controller.domain.log_origin import LogOrigin
from controller.domain.segment import is_segment_descriptor

_LATE = "SELECT set_config('synchronous_commit', 'off', true);"
# The statements of one message each have their own view of committed data, as in `plane`. No reader can wait
# for a log that this transaction creates, so only older logs are notified. Rows are looked up one by one
# instead of by a join, because the planner does not know how few they are, and would scan whole tables for a
# join.
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
"""Longest wait for appends in progress. A log that is locked for longer is omitted, because the other logs
are locked meanwhile.
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
# No part of a cursor is behind a message that its subscription has not acknowledged. Messages are therefore
# counted only for a subscription with a part before the end of the log.
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
) -> dict[str, CreatedLog]:
    """Create the missing logs with their origins. Give each log, new or existing, its own subscriptions and those of
    its predecessors, without those in `excepted`, at the first stored message. Subscriptions that exist keep their
    positions, and an existing log keeps its origin. A missing predecessor contributes no subscription. The readers of
    logs that existed are notified.

    Return the state, all subscriptions (sorted) and the origin of each log after the call, by name. `cursor` must be
    in autocommit mode; the call commits one transaction. Without `waits_for_disk` the commit does not wait for the
    disk, so a crash of the server may lose the transaction. Raises InvalidInput for an invalid name of a log or
    subscription, and psycopg2.Error. All logs are changed, or none.
    """
    documents = [
        {
            "log": checked("segment", successor.backing_topic),
            "predecessors": successor.predecessors,
            "subscriptions": [checked("subscription", name) for name in successor.subscriptions],
            "excepted": successor.excepted,
            "origin": successor.origin and successor.origin.to_properties(),
        }
        for successor in successors
    ]
    logs = [successor.backing_topic for successor in successors]
    statement = ("" if waits_for_disk else _LATE) + _CREATE
    cursor.execute(statement, {"logs": logs, "successors": json.dumps(documents)})
    return {
        name: CreatedLog(
            _state(is_terminated),
            tuple(subscriptions),
            LogOrigin.from_properties(properties or {}),
        )
        for name, is_terminated, subscriptions, properties, _ in cursor.fetchall()
    }


def terminate(
    cursor: psycopg2.extensions.cursor, backing_topics: Sequence[str], *, waits_for_disk: bool
) -> dict[str, str]:
    """Make the logs refuse appends permanently, notify their readers, and return the offset of the last message of
    each log as text, by name. The text is `-1` for a log that never had a message. For a log that is already
    terminated, the result is the same.

    A missing log is absent from the result. If another session keeps a log locked for 100 ms, all logs that are then
    locked are absent too, and are not terminated. `cursor` must be in autocommit mode; the call commits one
    transaction. Without `waits_for_disk` the commit does not wait for the disk, so a crash of the server may lose the
    transaction. Raises psycopg2.Error.
    """
    no_disk_wait, parameters = ("" if waits_for_disk else _LATE), {"logs": list(backing_topics)}
    try:
        cursor.execute(no_disk_wait + _TERMINATE, parameters)
    except psycopg2.errors.LockNotAvailable:
        cursor.execute(no_disk_wait + _TERMINATE_FREE, parameters)
    return {name: str(position) for name, position, _ in cursor.fetchall()}


def subscriptions(
    cursor: psycopg2.extensions.cursor, backing_topics: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Return the subscriptions of each log that has any, sorted, by the log's name."""
    cursor.execute(_SUBSCRIPTIONS, {"logs": list(backing_topics)})
    return {name: names for name, names in cursor.fetchall() if names}


def segments(cursor: psycopg2.extensions.cursor, paths: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Return the names of the logs of each topic's segments, sorted, by topic; an empty list for a topic without
    logs. `paths` contains, by topic, the common beginning of the names of the topic's logs: the name without the
    segment's descriptor and without the slash before the descriptor. A log with this beginning whose name does not
    end in a descriptor is left out. Raises psycopg2.Error.
    """
    cursor.execute(_LISTED, {"paths": list(paths.values())})
    logs_of_path: dict[str, list[str]] = {path: [] for path in paths.values()}
    for path, name in cursor.fetchall():
        if is_segment_descriptor(name.removeprefix(f"{path}/")):
            logs_of_path[path].append(name)
    return {topic: logs_of_path[path] for topic, path in paths.items()}


def describe(cursor: psycopg2.extensions.cursor, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    """Return a report on each log, by name; `MISSING_LOG` for a log that does not exist. The statement takes longer
    for a subscription with unread messages, because the messages are counted. Raises psycopg2.Error.
    """
    cursor.execute(_DESCRIBED, {"logs": list(backing_topics)})
    reports = {
        name: LogReport(
            _state(is_terminated),
            LogOrigin.from_properties(properties or {}),
            has_carried,
            {subscription: CursorReport(unread, is_queue) for subscription, unread, is_queue in cursors},
        )
        for name, is_terminated, properties, has_carried, cursors in cursor.fetchall()
    }
    return {name: reports.get(name, MISSING_LOG) for name in backing_topics}


def _state(is_terminated: bool) -> LogState:
    return LogState.TERMINATED if is_terminated else LogState.OPEN
