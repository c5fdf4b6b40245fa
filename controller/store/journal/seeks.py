"""Seeks: operations that move all cursors of a subscription and invalidate everything that was read before.

While a seek is in progress, no consumer owns a bucket of the subscription: the leader of the topic assigns no bucket, and requests
the release of owned buckets. The runner moves the cursors when no consumer reads. The commit records which sealed segments are
drained, and raises the generation of the subscription and the origin of its positions. From then on, positions that applications
have stored are not valid, and a late acknowledgement, or a late report that a segment is drained, finds no owner and is refused.

Seeks of one subscription run in the order of their requests. A seek that has not stopped its readers yet can be aborted: no cursor
has moved, and the leader assigns the buckets again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.clock import to_datetime
from controller.domain.errors import Conflict, HeldUp, SubscriptionNotFound, Unsupported
from controller.domain.operation import RELEASE_SECONDS, SEEK_TARGET, SUBSCRIPTION, Operation, OperationKind
from controller.domain.seek_target import SeekTarget
from controller.store.journal.operations import NewOperation, Request, read_operations, write_operation
from controller.store.journal.request_keys import Intent, once, used_otherwise
from controller.store.mirrors import mirrors
from controller.store.topics import bucket_owners, drains, gates, subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

CLOCKS_APART_MS = 600_000
"""Milliseconds by which the time of a message may be later than the clock of the database, which dates the sealing of segments."""

# A committed seek does not stop consumers.
_UNDER_WAY = """
    SELECT o.operation_id, CAST(extract(epoch FROM clock_timestamp() - o.intended_at) AS float8) AS asked_seconds,
           clock_timestamp() > o.intended_at + make_interval(secs => CAST(o.parameters ->> 'release_seconds' AS float8))
               AS is_release_over
      FROM cleave.operation o
     WHERE o.topic_id = :topic_id AND o.kind = 'seek' AND o.parameters ->> 'subscription' = :subscription
       AND o.finished_at IS NULL AND o.state <> 'committed'
     ORDER BY o.operation_id LIMIT 1
"""
_GIVE_UP = """
    WITH requested AS (
        UPDATE cleave.operation o
           SET abort_reason = coalesce(abort_reason, :reason), not_before = clock_timestamp(), row_version = row_version + 1
         WHERE o.topic_id = :topic_id AND o.kind = 'seek' AND o.parameters ->> 'subscription' = :subscription
           AND o.finished_at IS NULL AND o.state IN ('intended', 'aborting')
           AND NOT EXISTS (SELECT FROM cleave.operation_step j WHERE j.operation_id = o.operation_id AND j.step = 'stop-readers')
     RETURNING operation_id, topic_id)
    SELECT operation_id FROM requested, pg_notify('cleave_operations', topic_id || ':' || operation_id)
"""
_END_OWNERS = """
    DELETE FROM cleave.bucket_owner b USING cleave.operation o
     WHERE b.topic_id = :topic_id AND b.subscription = :subscription
       AND o.operation_id = :operation_id AND o.finished_at IS NULL AND o.state <> 'committed'
"""
_MOVES_CURSORS = "SELECT state = 'prepared' FROM cleave.operation WHERE operation_id = :operation_id"
_HAS_OWNERS = """
    SELECT EXISTS (SELECT FROM cleave.bucket_owner WHERE topic_id = :topic_id AND subscription = :subscription)
"""
_LOGS = """
    SELECT s.segment_id, s.backing_topic, s.state = 'SEALED' AS is_sealed, s.range_start
      FROM cleave.segment s
      JOIN cleave.subscription u ON u.topic_id = s.topic_id AND u.name = :subscription
     WHERE s.topic_id = :topic_id AND s.pruned_epoch IS NULL
       AND (s.sealed_epoch IS NULL OR s.sealed_epoch > u.created_epoch)
     ORDER BY s.range_start, s.segment_id
"""
_RAISE = """
    UPDATE cleave.subscription
       SET generation = generation + 1,
           origin = greatest(origin + 1, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint))
     WHERE topic_id = :topic_id AND name = :subscription
"""
_FORGET_DELIVERIES = """
    WITH opened AS (
        DELETE FROM cleave.bucket_opening WHERE topic_id = :topic_id AND subscription = :subscription)
    DELETE FROM cleave.message_delivery WHERE topic_id = :topic_id AND subscription = :subscription
"""


@dataclass(frozen=True, slots=True)
class SeekUnderWay:
    """The oldest seek of the subscription that is neither committed nor aborted. `is_release_over` is True if the time for releases has
    passed, so that the leader removes the remaining owners; the seek waits for them for `steps.LEADER_LATE_SECONDS` more, then removes
    them itself. `asked_seconds`: seconds since the intent of the seek.
    """

    operation_id: int
    is_release_over: bool
    asked_seconds: float


@dataclass(frozen=True, slots=True)
class SeekLog:
    """A log that the subscription reads. Its cursor of the subscription may be missing."""

    segment_id: int
    backing_topic: str
    is_sealed: bool
    range_start: int


def intend_seek(
    tx: Connection,
    topic_id: int,
    subscription: str,
    target: SeekTarget,
    request: Request,
    *,
    release_seconds: float,
) -> Intent:
    """Write the intent to move all cursors of the subscription to the target, and notify the leader. The consumers of
    the subscription have `release_seconds` to release their buckets; then the leader removes the remaining owners.

    After the transaction commits, no bucket is assigned before the seek is committed or aborted, because this
    function and the leader lock the row of the subscription. A repeated request key returns the first seek.

    Raises TopicNotFound; TopicNotLive; SubscriptionNotFound unless the subscription is live; and Unsupported if a
    broker keeps the layout. Raises Conflict if a checkpoint subscription seeks to a target other than `kept`, if
    another kind of subscription seeks to `kept`, if standard consumers would read a segment before the ancestors of
    the segment, or if the request key was used for another target, subscription or kind of operation. Also raises the errors
    of `request_keys.once`.
    """

    def write_intent() -> Operation:
        topic = topics.lock_live_topic(tx, topic_id)
        if mirrors.get_mirror(tx, topic_id) is not None:
            raise Unsupported(
                f"the broker keeps the layout and the consumers of {topic.name}; seek with the admin client of the broker"
            )
        bucket_owners.lock(tx, SubscriptionKey(topic_id, subscription))
        row = subscriptions.get_subscription(tx, topic_id, subscription)
        kind = row.kind
        if row.is_stock and target.instant_ms is not None:
            since = to_datetime(max(target.instant_ms - CLOCKS_APART_MS, 0))
            reach = min(row.created_epoch, subscriptions.first_epoch(tx, topic_id, since))
            successors = gates.behind_unread(tx, topic_id, after_epoch=reach, since=since)
            gates.demand_barriers(topic.name, subscription, successors)
        if (kind is SubscriptionKind.CHECKPOINT) is not target.is_kept:
            raise Conflict(
                f"subscription {subscription} of {topic.name} acknowledges messages and has no checkpoints; name another target"
                if target.is_kept
                else f"subscription {subscription} of {topic.name} is read by checkpoints, which its applications store; restore "
                "older checkpoints, then seek to kept"
            )
        parameters = {
            SUBSCRIPTION: subscription,
            SEEK_TARGET: target.sought,
            RELEASE_SECONDS: release_seconds,
        }
        drains.notify_leader(tx, topic_id)
        return write_operation(tx, topic, NewOperation(OperationKind.SEEK, parameters=parameters), request)

    intent = once(tx, request, write_intent, topic_id, OperationKind.SEEK, subscription)
    if intent.operation.parameters[SEEK_TARGET] != target.sought:
        raise used_otherwise(intent.operation, wanted=f"a seek {target.sentence}")
    return intent


def give_up(tx: Connection, topic_id: int, subscription: str, actor: str, reason: str) -> list[Operation]:
    """Request the abort of all seeks of the subscription that have not stopped its readers yet, and notify the
    runners, which perform the abort. Return these seeks as operations, by id, including seeks whose abort was
    requested before. The stored reason of the abort is `actor: reason`; an earlier reason is kept.

    A seek that has stopped the readers is never aborted by this function, because cursors may have moved. Raises
    TopicNotFound; TopicNotLive; SubscriptionNotFound unless the subscription is live; and Conflict if no seek can be
    aborted.
    """
    topic = topics.lock_live_topic(tx, topic_id)
    key = SubscriptionKey(topic_id, subscription)
    bucket_owners.lock(tx, key)
    parameters = {**key.parameters, "reason": f"{actor}: {reason}"}
    operation_ids = tx.execute(text(_GIVE_UP), parameters).scalars().all()
    if not operation_ids:
        seek = under_way(tx, key)
        raise Conflict(
            f"no seek of {subscription} of {topic.name} is in progress; there is nothing to cancel"
            if seek is None
            else f"seek {seek.operation_id} of {subscription} of {topic.name} has stopped the readers and cannot be "
            "cancelled, because cursors may have moved; wait until the seek has ended, then seek to another position"
        )
    return read_operations(tx, operation_ids)


def under_way(tx: Connection, key: SubscriptionKey) -> SeekUnderWay | None:
    """Return the oldest seek that keeps buckets of the subscription from being assigned; None if there is none. A
    caller that acts on the result holds the lock of the subscription.
    """
    row = tx.execute(text(_UNDER_WAY), key.parameters).one_or_none()
    return None if row is None else SeekUnderWay(row.operation_id, row.is_release_over, row.asked_seconds)


def end_owners(tx: Connection, operation: Operation) -> int:
    """Remove all owners of the subscription's buckets, including owners that have not released their buckets, and
    return the number of removed owners. Waits for the locks of the topic and the subscription.

    Returns 0 and changes nothing if the subscription is being deleted or does not exist. Removes no owner if another
    runner has committed or ended the seek. Raises TopicNotFound.
    """
    key = _key(operation)
    topics.get_topic(tx, key.topic_id, lock=True)
    try:
        bucket_owners.lock(tx, key)
    except SubscriptionNotFound:  # the subscription is being deleted, with its owners
        return 0
    return tx.execute(text(_END_OWNERS), {**key.parameters, "operation_id": operation.operation_id}).rowcount


def reach_back(tx: Connection, operation: Operation) -> None:
    """If the target of the seek is a time, make the subscription read all segments that may have stored messages at that time or later.
    Call this only after the seek has stopped its readers: a seek that is cancelled before must not change what the subscription reads.

    Does nothing if another runner has ended or committed the seek meanwhile, or if the subscription is being deleted. Waits for the locks
    of the topic and the subscription.
    """
    key, sought = _key(operation), operation.parameters[SEEK_TARGET]
    if not isinstance(sought, int):
        return
    topics.get_topic(tx, key.topic_id, lock=True)
    try:
        bucket_owners.lock(tx, key)
    except SubscriptionNotFound:
        return
    if tx.execute(text(_MOVES_CURSORS), {"operation_id": operation.operation_id}).scalar_one():
        since = to_datetime(max(sought - CLOCKS_APART_MS, 0))
        epoch = subscriptions.first_epoch(tx, key.topic_id, since)
        subscriptions.reach_back(tx, key.topic_id, key.name, epoch)


def logs_of(tx: Connection, key: SubscriptionKey) -> list[SeekLog]:
    """Return the logs that the subscription reads, by range: logs of ACTIVE segments, and of segments that were sealed after its creation
    epoch and are not pruned, drained or not. Empty for an unknown subscription.
    """
    return [SeekLog(*row) for row in tx.execute(text(_LOGS), key.parameters)]


def commit(tx: Connection, operation: Operation, *, read: Collection[int], missing: Collection[int]) -> None:
    """Commit the seek after the runner has moved all cursors. The segments in `read` (ids of sealed segments) are
    marked as drained. The segments in `missing`, whose logs are missing, keep their marks. All other segments lose
    their marks, so that they are read again.

    The function raises the generation and the origin of the subscription, deletes the subscription's counts of
    deliveries, because messages are delivered again, and notifies the leader. The function does nothing if the
    subscription does not exist or is being deleted. The caller holds the lock of the topic. Raises HeldUp while a
    consumer owns a bucket; then nothing is written.
    """
    key = _key(operation)
    try:
        bucket_owners.lock(tx, key)
    except SubscriptionNotFound:
        return
    if tx.execute(text(_HAS_OWNERS), key.parameters).scalar_one():
        raise HeldUp(
            f"buckets of subscription {key.name} of {operation.topic_name} have owners again; stop the readers first",
            0.0,
        )
    drains.replace_marks(tx, key.topic_id, key.name, drained=read, kept=missing)
    tx.execute(text(_RAISE), key.parameters)
    tx.execute(text(_FORGET_DELIVERIES), key.parameters)


def _key(operation: Operation) -> SubscriptionKey:
    return SubscriptionKey(operation.topic_id, str(operation.parameters[SUBSCRIPTION]))
