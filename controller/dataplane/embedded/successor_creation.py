"""Creates many embedded logs at once, each with the subscriptions of its predecessors: one message to PostgreSQL, one
transaction, all or nothing.

Used only by `plane`. Logs are locked in the order of their names, before any cursor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import psycopg2.extensions

from controller.dataplane.base import CreatedLog, LogState, Successor
from controller.dataplane.embedded.disk_wait import NO_DISK_WAIT
from controller.dataplane.embedded.names import ARRIVALS, checked
from controller.domain.log_origin import LogOrigin

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


def create_successors(
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
    statement = ("" if waits_for_disk else NO_DISK_WAIT) + _CREATE
    cursor.execute(statement, {"logs": logs, "successors": json.dumps(documents)})
    return {
        name: CreatedLog(
            LogState.TERMINATED if is_terminated else LogState.OPEN,
            tuple(subscriptions),
            LogOrigin.from_properties(properties or {}),
        )
        for name, is_terminated, subscriptions, properties, _ in cursor.fetchall()
    }
