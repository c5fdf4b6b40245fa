"""Terminates, lists and describes many embedded logs at once: one message to PostgreSQL, one transaction, all or
nothing. `successor_creation` creates logs.

Used only by `plane`. Logs are locked in the order of their names, before any cursor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg2.errors
import psycopg2.extensions

from controller.dataplane.base import MISSING_LOG, CursorReport, LogReport, LogState
from controller.dataplane.embedded.disk_wait import NO_DISK_WAIT
from controller.dataplane.embedded.names import ARRIVALS
from controller.domain.log_origin import LogOrigin
from controller.domain.segment import is_segment_descriptor

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
    no_disk_wait, parameters = ("" if waits_for_disk else NO_DISK_WAIT), {"logs": list(backing_topics)}
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
            LogState.TERMINATED if is_terminated else LogState.OPEN,
            LogOrigin.from_properties(properties or {}),
            has_carried,
            {subscription: CursorReport(unread, is_queue) for subscription, unread, is_queue in cursors},
        )
        for name, is_terminated, properties, has_carried, cursors in cursor.fetchall()
    }
    return {name: reports.get(name, MISSING_LOG) for name in backing_topics}
