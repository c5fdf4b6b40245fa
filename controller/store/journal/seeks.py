"""Seeks: the cursor of a whole subscription moves, and nothing that was read before counts afterwards.

While a seek is under way nobody owns a bucket of the subscription: the leader of the topic hands out none, and asks those that
own one to let go. Cursors are moved when nobody reads any more. The commit says which sealed segments have something to read
again, and raises the generation and the origin of positions; what the leader hands out then is new to everybody, and positions that
applications keep count no more. So an acknowledgement or the word that a
segment is drained, said of what was read before, finds no owner and is refused.

Seeks of one subscription follow one another in the order in which they were asked for. One that has not stopped its readers yet
can be given up: nothing has moved, and the subscription is handed out again as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.clock import to_datetime
from controller.domain.errors import Conflict, HeldUp, SubscriptionNotFound, Unsupported
from controller.domain.operation import RELEASE_SECONDS, SOUGHT_MS, SUBSCRIPTION, Operation, OperationKind
from controller.domain.seek_target import SeekTarget
from controller.store.journal.operations import NewOperation, Request, read_operations, write_operation
from controller.store.journal.request_keys import Intent, is_same, once
from controller.store.mirrors import mirrors
from controller.store.topics import bucket_owners, drains, gates, subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

CLOCKS_APART_MS = 600_000
"""A message may carry a time that is so much later than the database's, by which a segment is sealed."""

# A seek that is committed stops nobody any more.
_UNDER_WAY = """
    SELECT o.operation_id, CAST(extract(epoch FROM clock_timestamp() - o.intended_at) AS float8) AS asked_seconds,
           clock_timestamp() > o.intended_at + make_interval(secs => CAST(o.parameters ->> 'release_seconds' AS float8))
               AS is_release_over
      FROM cleave.operation o
     WHERE o.topic_id = :topic_id AND o.kind = 'seek' AND o.parameters ->> 'subscription' = :subscription
       AND o.state NOT IN ('done', 'aborted') AND o.state <> 'committed'
     ORDER BY o.operation_id LIMIT 1
"""
_GIVE_UP = """
    WITH asked AS (
        UPDATE cleave.operation o
           SET abort_reason = coalesce(abort_reason, :reason), not_before = clock_timestamp(), row_version = row_version + 1
         WHERE o.topic_id = :topic_id AND o.kind = 'seek' AND o.parameters ->> 'subscription' = :subscription
           AND o.state IN ('intended', 'aborting') RETURNING operation_id, topic_id)
    SELECT operation_id FROM asked, pg_notify('cleave_operations', topic_id || ':' || operation_id)
"""
_END_OWNERS = """
    DELETE FROM cleave.bucket_owner b USING cleave.operation o
     WHERE b.topic_id = :topic_id AND b.subscription = :subscription
       AND o.operation_id = :operation_id AND o.finished_at IS NULL AND o.state <> 'committed'
"""
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
    """The oldest of the subscription's seeks that have not moved everything yet. `is_release_over`: who has not let go by now is
    not waited for.
    """

    operation_id: int
    is_release_over: bool
    asked_seconds: float


@dataclass(frozen=True, slots=True)
class SoughtLog:
    """A log with a cursor of the subscription."""

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
    """The subscription is to go on from there; its consumers have `release_seconds` to let go of what they read.

    From the commit on nothing is handed out before the seek is done: the subscription's row is locked here, as by whoever hands
    out. Raises TopicNotLive, SubscriptionNotFound, Conflict unless a checkpoint subscription is sought to what is kept and any other
    is not, or where standard consumers would read a segment before its ancestors; Unsupported where a broker keeps the layout.
    """

    def act() -> Operation:
        topic = topics.lock_live_topic(tx, topic_id)
        if mirrors.get_mirror(tx, topic_id) is not None:
            raise Unsupported(
                f"the broker keeps the layout and the consumers of {topic.name}; seek there, with its own admin client"
            )
        bucket_owners.lock(tx, SubscriptionKey(topic_id, subscription))
        row = subscriptions.get_subscription(tx, topic_id, subscription)
        kind = row.kind
        if row.is_stock and target.instant_ms is not None:
            since = to_datetime(max(target.instant_ms - CLOCKS_APART_MS, 0))
            reach = min(row.created_epoch, subscriptions.first_epoch(tx, topic_id, since))
            behind = gates.behind_unread(tx, topic_id, after_epoch=reach, since=since)
            gates.demand_barriers(topic.name, subscription, behind)
        if (kind is SubscriptionKind.CHECKPOINT) is not target.is_kept:
            raise Conflict(
                f"subscription {subscription} of {topic.name} acknowledges, and keeps no checkpoints; say where to go on from"
                if target.is_kept
                else f"subscription {subscription} of {topic.name} is read by checkpoints, which its applications keep; put back "
                "older ones, then seek to kept"
            )
        parameters = {
            SUBSCRIPTION: subscription,
            SOUGHT_MS: target.sought,
            RELEASE_SECONDS: release_seconds,
        }
        drains.tell(tx, topic_id)
        return write_operation(tx, topic, NewOperation(OperationKind.SEEK, parameters=parameters), request)

    return once(tx, request, act, lambda first: is_same(first, topic_id, OperationKind.SEEK, subscription))


def give_up(tx: Connection, topic_id: int, subscription: str, actor: str, reason: str) -> list[Operation]:
    """Have every seek of the subscription given up that has stopped nobody yet; their runner does the rest.

    Raises TopicNotLive, SubscriptionNotFound; Conflict where there is none, or only one that moves cursors already.
    """
    topic = topics.lock_live_topic(tx, topic_id)
    key = SubscriptionKey(topic_id, subscription)
    bucket_owners.lock(tx, key)
    asked = {**key.parameters, "reason": f"{actor}: {reason}"}
    given_up = tx.execute(text(_GIVE_UP), asked).scalars().all()
    if not given_up:
        moving = under_way(tx, key)
        raise Conflict(
            f"no seek of {subscription} of {topic.name} is under way; there is nothing to give up"
            if moving is None
            else f"seek {moving.operation_id} of {subscription} of {topic.name} is moving cursors and cannot be given up any more; "
            "wait until it is done, then seek to where the subscription is to go on"
        )
    return read_operations(tx, given_up)


def under_way(tx: Connection, key: SubscriptionKey) -> SeekUnderWay | None:
    """The seek for which nothing is handed out. Hold the subscription's lock to act on it."""
    row = tx.execute(text(_UNDER_WAY), key.parameters).one_or_none()
    return None if row is None else SeekUnderWay(row.operation_id, row.is_release_over, row.asked_seconds)


def end_owners(tx: Connection, operation: Operation) -> int:
    """Nobody owns a bucket any more, though some have not let go: their leader is gone, or they do not answer. How many buckets.

    A subscription that is sought to an instant reads from here on every segment that took messages then or later. Nothing happens where the seek was done meanwhile by another runner.
    """
    key = _key(operation)
    topics.get_topic(tx, key.topic_id, lock=True)
    try:
        bucket_owners.lock(tx, key)
    except SubscriptionNotFound:  # it is being deleted, and its owners with it
        return 0
    sought = operation.parameters[SOUGHT_MS]
    if isinstance(sought, int):
        since = to_datetime(max(sought - CLOCKS_APART_MS, 0))
        subscriptions.reach_back(
            tx, key.topic_id, key.name, subscriptions.first_epoch(tx, key.topic_id, since)
        )
    return tx.execute(text(_END_OWNERS), {**key.parameters, "operation_id": operation.operation_id}).rowcount


def logs_of(tx: Connection, key: SubscriptionKey) -> list[SoughtLog]:
    """Every log with a cursor of the subscription, active and sealed, by range."""
    return [SoughtLog(*row) for row in tx.execute(text(_LOGS), key.parameters)]


def commit(tx: Connection, operation: Operation, *, read: Collection[int], missing: Collection[int]) -> None:
    """Every cursor is moved. Of the sealed segments `read` have nothing left to read, and the others are to be read again; of those
    whose log is `missing` nothing is known anew. Deliveries are counted from anew: what comes again has neither failed nor killed
    anybody yet. The caller holds the topic's lock.

    Raises HeldUp while somebody owns a bucket.
    """
    key = _key(operation)
    try:
        bucket_owners.lock(tx, key)
    except SubscriptionNotFound:
        return
    if tx.execute(text(_HAS_OWNERS), key.parameters).scalar_one():
        raise HeldUp(f"subscription {key.name} of {operation.topic_name} is read again; stop it first", 0.0)
    drains.replace_marks(tx, key.topic_id, key.name, drained=read, kept=missing)
    tx.execute(text(_RAISE), key.parameters)
    tx.execute(text(_FORGET_DELIVERIES), key.parameters)


def _key(operation: Operation) -> SubscriptionKey:
    return SubscriptionKey(operation.topic_id, str(operation.parameters[SUBSCRIPTION]))
