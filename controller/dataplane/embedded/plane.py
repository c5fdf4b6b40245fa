"""Performs the controller's actions on embedded logs. Every call checks the present state, so a repeated call
is harmless.

Actions that lock both a log and a cursor lock the log first. `log_client` and `reader` produce and consume.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg2.extensions
from sqlalchemy import URL

from controller import telemetry
from controller.clock import STEADY_CLOCK
from controller.dataplane.base import Counters, CreatedLog, LogReport, LogState, Successor, Trimmed
from controller.dataplane.embedded import set_wise
from controller.dataplane.embedded.names import ARRIVALS, checked, no_cursor, no_log
from controller.dataplane.optional_abilities import LONGEST_KEY_BYTES, KeySample
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import CleaveError, InvalidInput, SegmentTerminated
from controller.domain.evaluation_input import Capabilities
from controller.domain.key_hash import key_hash
from controller.domain.log_origin import LogOrigin
from controller.postgres.address import DatabaseAddress

log = telemetry.get_logger(__name__)

DELETE_CHUNK = 20_000
"""Number of messages deleted in one transaction: some tens of milliseconds of work."""
_SWEEP_SHARE = 0.5
"""Part of a call's time that a delete may spend on removing messages. A later delete removes the rest."""
TRIM_CHUNK = 2_000
"""Number of messages trimmed in one transaction. Appends to the log wait meanwhile, for some milliseconds."""
_LOGS_PER_CHECK = 2_000
"""Number of logs that one statement checks for messages to trim."""
_TOPIC = "topic://"

# The statements of one message form one transaction, and each has its own view of committed data: an action
# of several steps in one round trip. The log is locked first, so that it cannot be deleted meanwhile.
_CREATE_LOG = "INSERT INTO embedded.log (name, origin) VALUES (%(log)s, %(origin)s::jsonb) ON CONFLICT (name) DO NOTHING;"
_ADD_CURSORS = f"""
    SELECT FROM embedded.log WHERE name = %(log)s FOR KEY SHARE;
    INSERT INTO embedded.cursor (log_id, subscription, position)
    SELECT log_id, unnest(%(names)s::text[]), first_offset FROM embedded.log WHERE name = %(log)s ON CONFLICT DO NOTHING;
    SELECT pg_notify('{ARRIVALS}', log_id::text) FROM embedded.log WHERE name = %(log)s
"""  # noqa: S608 - a constant


class EmbeddedDataPlane:
    """Logs in the PostgreSQL at `url`, whose schema `cleave migrate` created. Safe to share between threads.

    `shares_journal_server` declares that the journal is in the same server. Calls raise DataPlaneUnavailable
    if PostgreSQL cannot serve them at present, DataPlaneTimeout without an answer within
    `call_timeout_seconds`, and Terminal for any other refusal.
    """

    name = "embedded"
    capabilities = Capabilities(midpoint_only=False, max_children=64, recut=True, shared_buckets=True)

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        *,
        call_timeout_seconds: float = 5.0,
        pool_size: int = 5,
        shares_journal_server: bool = False,
    ) -> None:
        """Create the data plane without connecting. `pool_size` is the largest number of connections, and so
        of calls at once. Raises InvalidInput for an invalid `url`.
        """
        self._calls = PostgresCalls(url, call_timeout_seconds=call_timeout_seconds, pool_size=pool_size)
        self._shares_journal_server = shares_journal_server
        self._trimmed_to = 0  # the last log that a trim completed before it ran out of time

    @property
    def shares_journal_server(self) -> bool:
        """True if the constructor's caller declared the journal to be in the same server. Calls on many logs
        then do not wait for the disk (`set_wise`).
        """
        return self._shares_journal_server

    @property
    def shares_calls(self) -> bool:
        """True: a set-wise call is one statement, and waits only briefly for locks."""
        return True

    @property
    def call_timeout_seconds(self) -> float:
        """Longest duration of one call, in seconds. Calls of `terminate_segments`, `delete_segment` and `trim` may
        consist of several transactions, each with this limit.
        """
        return self._calls.call_timeout_seconds

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Return the log's name in Pulsar 5's form, `segment://tenant/namespace/name/0000-7fff-12`, without a
        call.

        Raises InvalidInput for a topic's name without `topic://`, or a name that is too long or that
        PostgreSQL cannot store. `descriptor` is not checked.
        """
        if not topic.startswith(_TOPIC):
            raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
        return checked("segment", f"segment://{topic.removeprefix(_TOPIC)}/{descriptor}")

    def create_segment(
        self, backing_topic: str, subscriptions: Sequence[str], origin: LogOrigin | None = None
    ) -> None:
        """Create the log with each subscription at the earliest position, and notify its readers. Add missing
        subscriptions to an existing log, which keeps its origin.

        One transaction. Raises SegmentNotFound if another call deletes the log meanwhile, and InvalidInput
        for an invalid name of a log or subscription.
        """
        names = [checked("subscription", name) for name in subscriptions]
        with self._calls.statement(f"create {backing_topic}") as cursor:
            cursor.execute(
                _CREATE_LOG + _ADD_CURSORS,
                {
                    "log": checked("segment", backing_topic),
                    "names": sorted({*names}),
                    "origin": json.dumps(origin.to_properties()) if origin else None,
                },
            )
            if cursor.fetchone() is None:
                raise no_log(backing_topic)

    def terminate_segment(self, backing_topic: str) -> str:
        """Terminate the log, notify its readers, and return the offset of its last message as text; `-1` if
        it never had a message.

        Waits for an append in progress; later appends are refused. A terminated log is success. Raises
        SegmentNotFound.
        """
        row = self._row(
            f"terminate {backing_topic}",
            "WITH closed AS (UPDATE embedded.log SET terminated_at = coalesce(terminated_at, clock_timestamp())"
            "  WHERE name = %s RETURNING log_id, next_offset - 1 AS position)"
            " SELECT position, pg_notify(%s, log_id::text) FROM closed",
            backing_topic,
            ARRIVALS,
        )
        if row is None:
            raise no_log(backing_topic)
        return str(row[0])

    def delete_segment(self, backing_topic: str) -> None:
        """Delete the log and its cursors, and notify its readers. Then delete the messages of deleted logs in
        chunks, beginning with the log that was created first, for at most half of a call's time.

        A later delete, of any log, removes messages that are left. A missing log is success. After an error
        the log may be deleted, because its messages are deleted afterwards.
        """
        purpose = f"delete {backing_topic}"
        deadline = time.monotonic() + self.call_timeout_seconds * _SWEEP_SHARE
        with self._calls.transaction(purpose) as cursor:
            cursor.execute("DELETE FROM embedded.log WHERE name = %s RETURNING log_id", (backing_topic,))
            for (log_id,) in cursor.fetchall():
                cursor.execute("INSERT INTO embedded.dropped_log (log_id) VALUES (%s)", (log_id,))
                _notify(cursor, log_id)
        while time.monotonic() < deadline:
            with self._calls.transaction(purpose) as cursor:
                if not _sweep_chunk(cursor):
                    return

    def segment_state(self, backing_topic: str) -> LogState:
        """Return the present state of the log; MISSING if there is no such log."""
        row = self._row(
            f"check {backing_topic}",
            "SELECT terminated_at IS NOT NULL FROM embedded.log WHERE name = %s",
            backing_topic,
        )
        if row is None:
            return LogState.MISSING
        return LogState.TERMINATED if row[0] else LogState.OPEN

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the cursor at the first stored message; an existing cursor keeps its position.

        Notifies the log's readers. Raises SegmentNotFound, and InvalidInput for an invalid name.
        """
        with self._calls.statement(f"subscribe {subscription!r} to {backing_topic}") as cursor:
            names = [checked("subscription", subscription)]
            cursor.execute(_ADD_CURSORS, {"log": backing_topic, "names": names})
            if cursor.fetchone() is None:
                raise no_log(backing_topic)

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the cursor, and notify the log's readers.

        The log keeps the cursor's counters, so that the log's counters never fall. A missing log or cursor is
        success.
        """
        with self._calls.transaction(f"unsubscribe {subscription!r} from {backing_topic}") as cursor:
            cursor.execute(
                "SELECT log_id FROM embedded.log WHERE name = %s FOR NO KEY UPDATE", (backing_topic,)
            )
            for (log_id,) in cursor.fetchall():
                cursor.execute("SELECT embedded.lock_parts(%s, %s)", (log_id, subscription))
                cursor.execute(
                    "WITH gone AS (DELETE FROM embedded.cursor WHERE log_id = %(log)s AND subscription = %(name)s"
                    "  RETURNING msg_out, byte_out)"
                    " UPDATE embedded.log l SET msg_out = l.msg_out + gone.msg_out, byte_out = l.byte_out + gone.byte_out"
                    " FROM (SELECT sum(msg_out) AS msg_out, sum(byte_out) AS byte_out FROM gone HAVING count(*) > 0) gone"
                    " WHERE l.log_id = %(log)s RETURNING l.log_id",
                    {"log": log_id, "name": subscription},
                )
                if cursor.fetchone() is not None:
                    _notify(cursor, log_id)

    def list_segments(self, topic: str) -> Sequence[str]:
        """Return the backing topics of every log of `topic`, orphaned logs included, sorted. Raises the
        errors of `backing_topic`.
        """
        return self.list_segments_of([topic])[topic]

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Return the subscriptions on the log, sorted. Empty if the log is missing."""
        with self._calls.statement(f"list subscriptions of {backing_topic}") as cursor:
            cursor.execute(
                "SELECT c.subscription FROM embedded.cursor c JOIN embedded.log l USING (log_id)"
                " WHERE l.name = %s AND c.first_hash = 0 ORDER BY 1",
                (backing_topic,),
            )
            return [name for (name,) in cursor.fetchall()]

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Return the exact number of unacknowledged messages. None if the log or the subscription is missing.

        The cost rises with the distance between the parts of the cursor.
        """
        with self._calls.statement(f"backlog of {backing_topic}") as cursor:
            cursor.execute("SELECT embedded.backlog(%s, %s)", (backing_topic, subscription))
            ((backlog,),) = cursor.fetchall()
            return None if backlog is None else int(backlog)

    def backlog_of_buckets(
        self, backing_topic: str, subscription: str, bucket_starts: Sequence[int]
    ) -> Sequence[int] | None:
        """Return the number of unacknowledged messages of each bucket, in the order of `bucket_starts`, by
        counting messages. `bucket_starts` are the first hashes of the buckets, rising from 0. None if the log
        or the subscription is missing. Not for a subscription that is read as a queue, whose acknowledged
        messages may be counted.
        """
        with self._calls.statement(f"backlog of {backing_topic}") as cursor:
            cursor.execute(
                "SELECT embedded.backlog_of_buckets(%s, %s, %s)",
                (backing_topic, subscription, list(bucket_starts)),
            )
            row = cursor.fetchone()
            return None if row is None else row[0]

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the cursor to the first message published at or after the instant (milliseconds since the Unix
        epoch), and disconnect its readers.

        If that message is trimmed, move the cursor to the first stored message; if no message is that late,
        to the end. Raises SubscriptionNotFound, also for a missing log.
        """
        self._move(backing_topic, subscription, "to_timestamp(%s / 1000.0)", instant_ms)

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge all messages that are stored at the time of the call, and disconnect all readers.

        Raises SubscriptionNotFound, also for a missing log.
        """
        self._move(backing_topic, subscription, "NULL")

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of the logs that exist, by name, all read at one instant. Their `source` is
        `embedded-` with the id of the database's logs, which a copy of the database keeps. `producers` is
        None. A message that is read in order counts as *out* when its reader next acknowledges.
        """
        with self._calls.statement(f"sample {len(backing_topics)} logs") as cursor:
            instant = STEADY_CLOCK.now_ms()
            cursor.execute(
                "SELECT l.name, l.next_offset, l.byte_in, least(l.msg_out + coalesce(c.msg_out, 0), 9223372036854775807)::bigint,"
                "       least(l.byte_out + coalesce(c.byte_out, 0), 9223372036854775807)::bigint, i.instance_id::text"
                "  FROM embedded.log l CROSS JOIN embedded.instance i LEFT JOIN LATERAL ("
                "       SELECT sum(msg_out) AS msg_out, sum(byte_out) AS byte_out"
                "         FROM embedded.cursor WHERE log_id = l.log_id) c ON true"
                " WHERE l.name = ANY (%s)",
                (list(backing_topics),),
            )
            return {
                name: Counters(name, f"embedded-{instance}", instant, msg_in, byte_in, msg_out, byte_out)
                for name, msg_in, byte_in, msg_out, byte_out, instance in cursor.fetchall()
            }

    def sample_keys(self, backing_topic: str, *, most: int) -> KeySample:
        """Return the segment hashes of the keys of the latest `most` (at least 1) messages that are stored,
        in no order. A message without a key, or with a key longer than `LONGEST_KEY_BYTES`, only counts in
        `keyless`. The sample of a log without messages is empty. Raises SegmentNotFound; SegmentTerminated
        for a terminated log, whose keys belong to its successors.
        """
        with self._calls.statement(f"sample keys of {backing_topic}") as cursor:
            cursor.execute(
                "SELECT l.terminated_at IS NOT NULL, m.log_offset IS NOT NULL,"
                "       CASE WHEN octet_length(m.key) <= %s THEN m.key END"
                "  FROM embedded.log l LEFT JOIN embedded.message m"
                "    ON m.log_id = l.log_id AND m.log_offset >= l.next_offset - %s WHERE l.name = %s",
                (LONGEST_KEY_BYTES, most, backing_topic),
            )
            rows = cursor.fetchall()
        if not rows:
            raise no_log(backing_topic)
        if rows[0][0]:
            raise SegmentTerminated(f"{backing_topic} is terminated; sample its successors")
        keys = [key for _, is_message, key in rows if is_message]
        hashes = tuple(key_hash(bytes(key)).segment_hash for key in keys if key is not None)
        return KeySample(hashes, len(keys) - len(hashes))

    def create_successors(self, successors: Sequence[Successor]) -> Mapping[str, CreatedLog]:
        """Create each log with its own subscriptions and those of its predecessors, at the earliest position.
        Add missing subscriptions to existing logs.

        All or nothing. Return the state, all subscriptions (sorted) and the origin of each log after the
        call, by name. Raises InvalidInput for an invalid name of a log or subscription.
        """
        with self._calls.statement(f"create {len(successors)} logs") as cursor:
            return set_wise.create(cursor, successors, waits_for_disk=not self._shares_journal_server)

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Terminate the logs, notify their readers, and return the last offset of each as text, by name; `-1`
        for a log that never had a message. Later appends are refused, and a terminated log is success. A
        missing log is absent from the result. If another session keeps a log locked for 100 ms, all logs that
        are then locked are absent too, and not terminated.

        If a log is absent from the result, also ends the long transactions of applications, which may have
        locked the log (`end_long_transactions`, whose errors are ignored).
        """
        with self._calls.statement(f"terminate {len(backing_topics)} logs") as cursor:
            closed = set_wise.terminate(
                cursor, backing_topics, waits_for_disk=not self._shares_journal_server
            )
        if len(closed) < len(backing_topics):
            with suppress(CleaveError):  # the worker makes the same call, and logs its errors
                self.end_long_transactions()
        return closed

    def end_long_transactions(self) -> int:
        """End sessions of applications that hold locks of logs or cursors in a transaction that is older than
        `call_timeout_seconds` (three times as old if the session waits for a lock), and log each. If more
        than a quarter of the server's queue of notifications is in use, also end sessions of applications and
        inspectors, in any database of the server, whose transaction is older than a minute. Applications and
        inspectors are logins with the role `cleave_client` or `cleave_inspector`, except superusers and
        members of `cleave_owner` or `cleave_controller`.

        Return the number of sessions that were ended. Raises Terminal if the role may not end sessions.
        """
        with self._calls.statement("end long transactions") as cursor:
            cursor.execute(
                "SELECT process_id, login, seconds FROM embedded.end_long_transactions(%s)",
                (self.call_timeout_seconds,),
            )
            sessions = cursor.fetchall()
        for process_id, login, seconds in sessions:
            log.warning(
                "transaction of an application ended", process=process_id, login=login, seconds=seconds
            )
        return len(sessions)

    def subscriptions_of(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the subscriptions on each log, sorted, by the log's name. A log that is missing or has none
        is absent.
        """
        with self._calls.statement(f"list subscriptions of {len(backing_topics)} logs") as cursor:
            return set_wise.subscriptions(cursor, backing_topics)

    def list_segments_of(self, topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return for each topic its backing topics, sorted, orphaned logs included; an empty list for a topic
        without logs. A log whose name does not end in a segment's descriptor is left out. Raises the errors
        of `backing_topic`.
        """
        paths = {topic: self.backing_topic(topic, "").rstrip("/") for topic in topics}
        with self._calls.statement(f"list logs of {len(topics)} topics") as cursor:
            return set_wise.segments(cursor, paths)

    def describe_logs(self, backing_topics: Sequence[str]) -> Mapping[str, LogReport]:
        """Return a report on each log, by name, MISSING logs included. The call takes longer for a
        subscription with unread messages, like `backlog`.
        """
        with self._calls.statement(f"describe {len(backing_topics)} logs") as cursor:
            return set_wise.describe(cursor, backing_topics)

    def trim(self, retention_seconds: float) -> Trimmed:
        """Delete messages that are older than `retention_seconds` and that every subscription of the log, if
        there are any, has acknowledged: in chunks, each a transaction, for half of a call's time. A log that
        another session has locked is skipped. Also deletes the records of long silent producers of the logs
        that are trimmed.

        Return the number of deleted messages, and `is_complete`. If the time ran out (`is_complete` is
        False), the next call continues where this call stopped, and does not check the earlier logs again.
        """
        purpose, deadline = "trim logs", time.monotonic() + self.call_timeout_seconds * _SWEEP_SHARE
        messages = 0
        while time.monotonic() < deadline:
            last, log_ids = self._trimmable(purpose, retention_seconds)
            for log_id in log_ids:
                while (trimmed := self._trim_chunk(purpose, log_id, retention_seconds)) > 0:
                    messages += trimmed
                    if time.monotonic() > deadline:
                        self._trimmed_to = log_id - 1
                        return Trimmed(messages, is_complete=False)
            self._trimmed_to = last or 0
            if last is None:
                return Trimmed(messages, is_complete=True)
        return Trimmed(messages, is_complete=False)

    def close(self) -> None:
        """Close the connections."""
        self._calls.close()

    def _row(self, purpose: str, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Return the first row of the statement's result; None if there is none."""
        with self._calls.statement(purpose) as cursor:
            cursor.execute(statement, values)
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row

    def _trimmable(self, purpose: str, retention_seconds: float) -> tuple[int | None, Sequence[int]]:
        """Check the next `_LOGS_PER_CHECK` logs after `_trimmed_to`, in the order of their ids. Return the id
        of the last of these logs, None if no log is left, and the ids, ascending, of the logs among them
        whose first message is old enough and acknowledged.
        """
        with self._calls.statement(purpose) as cursor:
            cursor.execute(
                "SELECT last, found FROM embedded.trimmable(%s, clock_timestamp() - %s * interval '1 s', %s)",
                (self._trimmed_to, retention_seconds, _LOGS_PER_CHECK),
            )
            ((last, log_ids),) = cursor.fetchall()
            return last, log_ids or ()

    def _trim_chunk(self, purpose: str, log_id: int, retention_seconds: float) -> int:
        """Delete up to `TRIM_CHUNK` old and acknowledged messages from the front of the log, and return their
        number. 0 also for a log that another session has locked.

        If fewer are deleted, but at least one, also delete the records of the log's producers that have sent
        nothing for the longer of `retention_seconds` and a day; a batch that such a producer repeats is
        stored again.
        """
        with self._calls.statement(purpose) as cursor:
            cursor.execute(
                "SELECT embedded.trim_log(%s, clock_timestamp() - %s * interval '1 s', %s)",
                (log_id, retention_seconds, TRIM_CHUNK),
            )
            ((trimmed,),) = cursor.fetchall()
            return int(trimmed)

    def _move(self, backing_topic: str, subscription: str, instant: str, *values: object) -> None:
        """Move the cursor to the first stored message at or after the time that the SQL expression `instant`
        yields, or to the end if there is none, or for `NULL`, and disconnect its readers. `values` are the
        parameters of the expression. Raises SubscriptionNotFound if there is no log or cursor.
        """
        row = self._row(
            f"move {subscription!r} on {backing_topic}",
            f"SELECT embedded.move(%s, %s, {instant})",
            backing_topic,
            subscription,
            *values,
        )
        if row == (False,):
            raise no_cursor(backing_topic, subscription)


def _sweep_chunk(cursor: psycopg2.extensions.cursor) -> bool:
    """Delete up to `DELETE_CHUNK` messages of the deleted log with the lowest id that no other session works
    on; if the log has none, its row in `embedded.dropped_log`.

    Return True if there is such a log; False if no deleted log is left, or other sessions are deleting the
    rest.
    """
    cursor.execute("SELECT log_id FROM embedded.dropped_log ORDER BY log_id LIMIT 1 FOR UPDATE SKIP LOCKED")
    row = cursor.fetchone()
    if row is None:
        return False
    cursor.execute(
        "DELETE FROM embedded.message WHERE log_id = %(id)s AND log_offset <"
        " (SELECT min(log_offset) FROM embedded.message WHERE log_id = %(id)s) + %(chunk)s",
        {"id": row[0], "chunk": DELETE_CHUNK},
    )
    if cursor.rowcount == 0:
        cursor.execute("DELETE FROM embedded.dropped_log WHERE log_id = %s", (row[0],))
    return True


def _notify(cursor: psycopg2.extensions.cursor, log_id: object) -> None:
    """Notify the readers of the log when the cursor's transaction is committed."""
    cursor.execute("SELECT pg_notify(%s, %s)", (ARRIVALS, str(log_id)))
