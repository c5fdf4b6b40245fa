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
from controller.dataplane.embedded import set_wise, successor_creation
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
    shares_calls = True
    """A set-wise call is one statement, and waits only briefly for locks."""

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
        self.shares_journal_server = shares_journal_server
        """True if the constructor's caller declared the journal to be in the same server. Calls on many logs then do not
        wait for the disk (`disk_wait`).
        """
        self._trimmed_to = 0  # the last log that a trim completed before it ran out of time

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
        """Create the log with each subscription at the earliest position, store `origin` with the log (None: no
        origin), and notify the log's readers. If the log exists, the log keeps its origin, its subscriptions keep
        their positions, and missing subscriptions are added at the first stored message.

        The call is one transaction. Raises SegmentNotFound if another call deletes the log meanwhile; InvalidInput
        for an invalid name of a log or subscription; and the errors of the class.
        """
        names = [checked("subscription", name) for name in subscriptions]
        parameters = {
            "log": checked("segment", backing_topic),
            "names": sorted({*names}),
            "origin": json.dumps(origin.to_properties()) if origin else None,
        }
        if not self._calls.rows(f"create {backing_topic}", _CREATE_LOG + _ADD_CURSORS, parameters):
            raise no_log(backing_topic)

    def terminate_segment(self, backing_topic: str) -> str:
        """Make the log refuse appends permanently, notify the log's readers, and return the offset of the last
        message as text. The text is `-1` if the log never had a message.

        The call waits for an append in progress. If the log is already terminated, the call succeeds with the same
        result. Raises SegmentNotFound; DataPlaneTimeout if another session keeps the log locked; and the other errors
        of the class.
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
        """Delete the log and its cursors, and notify the log's readers. Then delete messages of deleted logs, of this
        log and of logs that earlier calls left, beginning with the log that was created first. This takes at most
        half of a call's time, in chunks, each a transaction.

        Messages that are left are removed by a later `delete_segment` of any log. A missing log is success. Raises
        the errors of the class. After an error the log may be deleted, because its messages are deleted afterwards.
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
        """Return the present state of the log; MISSING if there is no such log. Raises the errors of the class."""
        row = self._row(
            f"check {backing_topic}",
            "SELECT terminated_at IS NOT NULL FROM embedded.log WHERE name = %s",
            backing_topic,
        )
        if row is None:
            return LogState.MISSING
        return LogState.TERMINATED if row[0] else LogState.OPEN

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the subscription's cursor at the first stored message, and notify the log's readers. An existing
        cursor keeps its position. A terminated log also gets the cursor. Raises SegmentNotFound; InvalidInput for an
        invalid name of the subscription; and the errors of the class.
        """
        parameters = {"log": backing_topic, "names": [checked("subscription", subscription)]}
        if not self._calls.rows(f"subscribe {subscription!r} to {backing_topic}", _ADD_CURSORS, parameters):
            raise no_log(backing_topic)

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the subscription's cursor, even if the subscription has readers, and notify the log's readers. The
        calls of the subscription's readers then raise errors.

        The counts of delivered messages and bytes stay in the log's counters, so that the log's counters never fall.
        A missing log or cursor is success. Raises the errors of the class.
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
        """Return the names of the subscriptions on the log, sorted. Empty if the log is missing. Raises the errors of
        the class.
        """
        rows = self._calls.rows(
            f"list subscriptions of {backing_topic}",
            "SELECT c.subscription FROM embedded.cursor c JOIN embedded.log l USING (log_id)"
            " WHERE l.name = %s AND c.first_hash = 0 ORDER BY 1",
            (backing_topic,),
        )
        return [name for (name,) in rows]

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Return the exact number of messages that the subscription has not acknowledged. None if the log or the
        subscription is missing. The call takes longer, the further apart the positions of the cursor's parts are.
        Raises the errors of the class.
        """
        ((backlog,),) = self._calls.rows(
            f"backlog of {backing_topic}", "SELECT embedded.backlog(%s, %s)", (backing_topic, subscription)
        )
        return None if backlog is None else int(backlog)

    def backlog_of_buckets(
        self, backing_topic: str, subscription: str, bucket_starts: Sequence[int]
    ) -> Sequence[int] | None:
        """Return the number of unacknowledged messages of each bucket, in the order of `bucket_starts`.
        `bucket_starts` are the first hashes of the buckets, rising from 0. None if the log or the subscription is
        missing.

        Messages are counted one by one, from the lowest position of the cursor on. The method is not for a
        subscription that is read as a queue: acknowledged messages of a queue may be counted. Raises the errors of
        the class.
        """
        rows = self._calls.rows(
            f"backlog of {backing_topic}",
            "SELECT embedded.backlog_of_buckets(%s, %s, %s)",
            (backing_topic, subscription, list(bucket_starts)),
        )
        return rows[0][0] if rows else None

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the subscription's cursor to the first message published at or after the instant (milliseconds since
        the Unix epoch), backwards or forwards, and disconnect the subscription's readers.

        If that message was trimmed, the cursor moves to the first stored message. If no message is that late, the
        cursor moves to the end of the log. Messages behind the new position are delivered again, even if they were
        acknowledged. Raises SubscriptionNotFound, also for a missing log, and the errors of the class.
        """
        self._move(backing_topic, subscription, "to_timestamp(%s / 1000.0)", instant_ms)

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge for the subscription all messages that are stored at the time of the call, and disconnect the
        subscription's readers. Raises SubscriptionNotFound, also for a missing log, and the errors of the class.
        """
        self._move(backing_topic, subscription, "NULL")

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of the given logs, by name, all read at one instant. A missing log is absent from the
        result.

        `source` of the counters is `embedded-` with the id of the database's logs. A copy of the database keeps this
        id. `producers` is None. A message of a subscription that is read in order counts as *out* only when its
        reader next acknowledges. Raises the errors of the class.
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
        """Return the segment hashes of the keys of the latest `most` (at least 1) messages, as far as the messages
        are still stored, in no order. A message without a key, or with a key longer than `LONGEST_KEY_BYTES`, only
        counts in `keyless`. The sample of a log without stored messages is empty.

        Raises SegmentNotFound; SegmentTerminated for a terminated log, whose keys belong to its successors; and the
        errors of the class.
        """
        rows = self._calls.rows(
            f"sample keys of {backing_topic}",
            "SELECT l.terminated_at IS NOT NULL, m.log_offset IS NOT NULL,"
            "       CASE WHEN octet_length(m.key) <= %s THEN m.key END"
            "  FROM embedded.log l LEFT JOIN embedded.message m"
            "    ON m.log_id = l.log_id AND m.log_offset >= l.next_offset - %s WHERE l.name = %s",
            (LONGEST_KEY_BYTES, most, backing_topic),
        )
        if not rows:
            raise no_log(backing_topic)
        if rows[0][0]:
            raise SegmentTerminated(f"{backing_topic} is terminated; sample its successors")
        keys = [key for _, is_message, key in rows if is_message]
        hashes = tuple(key_hash(bytes(key)).segment_hash for key in keys if key is not None)
        return KeySample(hashes, len(keys) - len(hashes))

    def create_successors(self, successors: Sequence[Successor]) -> Mapping[str, CreatedLog]:
        """Create each log with its own subscriptions and those of its predecessors, except the subscriptions in
        `excepted`, at the earliest position. An existing log keeps its origin and its positions, and gets the
        subscriptions that it lacks. A missing predecessor contributes no subscription. Readers of logs that existed
        are notified.

        All logs are changed, or none. Return the state, all subscriptions (sorted) and the origin of each log after
        the call, by name. Raises InvalidInput for an invalid name of a log or subscription, and the errors of the
        class.
        """
        with self._calls.statement(f"create {len(successors)} logs") as cursor:
            return successor_creation.create_successors(
                cursor, successors, waits_for_disk=not self.shares_journal_server
            )

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Make the logs refuse appends permanently, notify their readers, and return the offset of the last message
        of each log as text, by name. The text is `-1` for a log that never had a message. For a log that is already
        terminated, the result is the same.

        A missing log is absent from the result. If another session keeps a log locked for 100 ms, all logs that are
        then locked are absent too, and are not terminated. If any log is absent, the call also ends long transactions
        of applications, which may have locked the log (`end_long_transactions`, whose errors are ignored). Raises the
        errors of the class.
        """
        with self._calls.statement(f"terminate {len(backing_topics)} logs") as cursor:
            closed = set_wise.terminate(cursor, backing_topics, waits_for_disk=not self.shares_journal_server)
        if len(closed) < len(backing_topics):
            with suppress(CleaveError):  # the worker makes the same call, and logs its errors
                self.end_long_transactions()
        return closed

    def end_long_transactions(self) -> int:
        """End sessions of applications that hold locks of logs or cursors in a transaction older than
        `call_timeout_seconds`, and log a warning for each session. For a session that itself waits for a lock, the
        limit is three times as long. Return the number of sessions that were ended.

        If more than a quarter of the server's queue of notifications is in use, sessions of applications and
        inspectors whose transaction is older than a minute are ended too, in any database of the server. Applications
        and inspectors are logins with the role `cleave_client` or `cleave_inspector`, except superusers and members
        of `cleave_owner` or `cleave_controller`.

        Raises Terminal if the role of this process may not end sessions, and the errors of the class.
        """
        sessions = self._calls.rows(
            "end long transactions",
            "SELECT process_id, login, seconds FROM embedded.end_long_transactions(%s)",
            (self.call_timeout_seconds,),
        )
        for process_id, login, seconds in sessions:
            log.warning(
                "transaction of an application ended", process=process_id, login=login, seconds=seconds
            )
        return len(sessions)

    def subscriptions_of(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the names of the subscriptions on each log, sorted, by the log's name. A log that is missing or has
        no subscription is absent from the result. Raises the errors of the class.
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
        """Return a report on each log, by name. A missing log has the report `MISSING_LOG`. The call takes longer for
        a subscription with unread messages, like `backlog`. Raises the errors of the class.
        """
        with self._calls.statement(f"describe {len(backing_topics)} logs") as cursor:
            return set_wise.describe(cursor, backing_topics)

    def trim(self, retention_seconds: float) -> Trimmed:
        """Delete from the front of each log messages that are older than `retention_seconds` and that every
        subscription of the log has acknowledged. In a log without subscriptions, all older messages are deleted. A
        log that another session has locked is skipped. In the trimmed logs, records of producers that have sent
        nothing for long are deleted too (`_trim_chunk`).

        Messages are deleted in chunks, each a transaction, for about half of a call's time. `messages` of the result
        is the number of deleted messages. If the time ran out, `is_complete` is False, and the next call of this
        object continues where this call stopped, without another check of the earlier logs. Raises the errors of the
        class; chunks that were deleted before the error stay deleted.
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
        """Execute the statement, and return the first row of its result; None if the result has no row. `purpose`
        begins the messages of errors, and `values` are the parameters. Raises the errors of the class.
        """
        rows = self._calls.rows(purpose, statement, values)
        return rows[0] if rows else None

    def _trimmable(self, purpose: str, retention_seconds: float) -> tuple[int | None, Sequence[int]]:
        """Check the next `_LOGS_PER_CHECK` logs after the log with the id `_trimmed_to`, in the order of their ids.
        Deletes nothing.

        Return two values: the id of the last log that was checked, None if no log is left; and the ids, ascending, of
        the checked logs whose first message is older than `retention_seconds` and is acknowledged by every
        subscription. `purpose` begins the messages of errors. Raises the errors of the class.
        """
        ((last, log_ids),) = self._calls.rows(
            purpose,
            "SELECT last, found FROM embedded.trimmable(%s, clock_timestamp() - %s * interval '1 s', %s)",
            (self._trimmed_to, retention_seconds, _LOGS_PER_CHECK),
        )
        return last, log_ids or ()

    def _trim_chunk(self, purpose: str, log_id: int, retention_seconds: float) -> int:
        """Delete up to `TRIM_CHUNK` messages from the front of the log that are older than `retention_seconds` and
        acknowledged by every subscription, and return their number. 0 also for a log that another session has locked.
        `purpose` begins the messages of errors.

        If the number is between 1 and `TRIM_CHUNK` - 1, the log has no more such messages, and records of producers
        of the log are deleted too: of those that have sent nothing for the longer of `retention_seconds` and a day. A
        batch that such a producer repeats is stored again. Raises the errors of the class.
        """
        ((trimmed,),) = self._calls.rows(
            purpose,
            "SELECT embedded.trim_log(%s, clock_timestamp() - %s * interval '1 s', %s)",
            (log_id, retention_seconds, TRIM_CHUNK),
        )
        return int(trimmed)

    def _move(self, backing_topic: str, subscription: str, instant: str, *values: object) -> None:
        """Move the cursor to the first stored message at or after a time, and disconnect the subscription's readers.
        `instant` is an SQL expression that yields the time, and `values` are the parameters of the expression. If the
        time is `NULL`, or no message is that late, the cursor moves to the end of the log. Raises
        SubscriptionNotFound if there is no log or no cursor, and the errors of the class.
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
    """Delete up to `DELETE_CHUNK` messages of one deleted log: the one with the lowest id that no other session works
    on. If this log has no messages left, delete the log's row in `embedded.dropped_log` instead.

    Return True if such a log was found, so that another call may find more to delete. Return False, and delete
    nothing, if no deleted log is left, or if other sessions are working on the rest. Must be called in a transaction.
    Raises psycopg2.Error.
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
