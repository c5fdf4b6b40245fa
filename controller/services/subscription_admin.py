"""Creates, deletes and seeks subscriptions: each request becomes an intent in the journal, or is refused.

The operation runner creates and moves the cursors. `operation_wait` waits for the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.dataplane.base import DataPlane
from controller.dataplane.registry import configured, demand_dead_letters, demand_subscription
from controller.domain.errors import InvalidInput
from controller.domain.names import demand_name
from controller.domain.operation import Operation
from controller.domain.seek_target import SeekTarget
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.store.journal import seeks, subscription_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.topics import bucket_owners, drains, subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

MOST_RELEASE_SECONDS = 86_400.0
"""Maximum of the seconds in which consumers release their buckets before a seek."""


@dataclass(frozen=True, slots=True)
class CursorToMove:
    """Position of a subscription on one segment. `backlog` is None if the log or the cursor does not exist.
    `readers` are the consumers that own buckets of the segment.
    """

    segment_id: int
    range_start: int
    is_sealed: bool
    is_drained: bool
    backlog: int | None
    readers: tuple[str, ...]


def create_subscription(
    store: Store,
    topic: str,
    subscription: str,
    request: Request,
    *,
    kind: SubscriptionKind = SubscriptionKind.STREAM,
    from_latest: bool = False,
    consumers: SubscriptionConsumers = SubscriptionConsumers.CLEAVE,
) -> Intent:
    """Insert the subscription, and write and return the intent to create its cursors; the operation runner creates
    the cursors later. The subscription begins at the earliest message of every segment that still exists, sealed
    segments included. With `from_latest`, the subscription begins after the messages published so far. `consumers`
    says whether Cleave's client or standard consumers read the subscription; for standard consumers call
    `subscription_consumers.demand_stock` first.

    A repeated request key returns its first intent, even if `consumers` differ. Raises TopicNotFound and TopicNotLive.
    Raises InvalidInput if the name is invalid, or if the name of the dead-letter log of a stream subscription would be
    too long. Raises Conflict if the topic has a subscription of the name, even while that subscription is being
    deleted; if a segment that standard consumers must not read yet has no barrier; or if the request key was used for
    another subscription, kind of request, `kind` or `from_latest`. Also raises the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        demand_subscription(row.data_plane, demand_name("subscription", subscription))
        if kind is SubscriptionKind.STREAM:  # consumers of other kinds store no dead letters
            demand_dead_letters(row.data_plane, topic, subscription)
        return subscription_intents.intend_subscription_create(
            tx, row.topic_id, subscription, kind, request, from_latest=from_latest, consumers=consumers
        )


def delete_subscription(store: Store, topic: str, subscription: str, request: Request) -> Intent:
    """Set the subscription to deleting, and write and return the intent to delete the subscription with its consumers
    and its cursors on all segments, sealed segments included. The operation runner deletes the cursors later.
    Connected consumers do not prevent the deletion.

    A repeated request key returns its first intent while the topic exists. Raises TopicNotFound; TopicNotLive;
    SubscriptionNotFound; Conflict if the subscription is being deleted already, or if the request key was used for
    another subscription or kind of request; and the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return subscription_intents.intend_subscription_delete(tx, topic_id, subscription, request)


def seek_subscription(
    store: Store,
    topic: str,
    subscription: str,
    target: SeekTarget,
    request: Request,
    *,
    release_seconds: float,
) -> Intent:
    """Write and return the intent to move the subscription on every segment that the subscription reads, sealed
    segments included. The operation runner moves the cursors later. If the target is an instant, the subscription
    afterwards also reads segments from before its own beginning that may have messages of that instant or later. With
    the target `kept` no cursor moves. A repeated request key with the same target returns the first seek of the
    subscription.

    The leader asks the consumers to release their buckets. After `release_seconds` (0 to `MOST_RELEASE_SECONDS`), the
    consumers lose the buckets that they have not released. Positions and acknowledgements from before the seek are
    refused afterwards.

    Raises TopicNotFound; TopicNotLive; SubscriptionNotFound, also while the subscription is being deleted;
    InvalidInput for `release_seconds`; and Unsupported if a broker keeps the layout. Raises Conflict if a checkpoint
    subscription seeks to any target but `kept`, if a subscription of another kind seeks to `kept`, if standard
    consumers would read a segment before its ancestors, or if the request key was used for another target,
    subscription or kind of request. Also raises the errors of `Store.transaction`.
    """
    if not 0 <= release_seconds <= MOST_RELEASE_SECONDS:
        raise InvalidInput(
            f"release_seconds must be between 0 and {MOST_RELEASE_SECONDS:g}, not {release_seconds:g}"
        )
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return seeks.intend_seek(tx, topic_id, subscription, target, request, release_seconds=release_seconds)


def give_up_seek(store: Store, topic: str, subscription: str, *, actor: str, reason: str) -> list[Operation]:
    """Request the abort of the subscription's seeks that have not stopped the readers yet, so that the subscription
    continues at its present position. The operation runner aborts the seeks later. Return the operations of these
    seeks, including seeks whose abort was requested before. `actor` and `reason` are stored as the reason of the
    abort; an earlier reason is kept.

    Raises TopicNotFound; TopicNotLive; SubscriptionNotFound, also while the subscription is being deleted; Conflict
    if there is no seek, or only a seek that has stopped the readers, because cursors may have moved; and the errors
    of `Store.transaction`.
    """
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return seeks.give_up(tx, topic_id, subscription, actor, reason)


def cursors_to_move(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: str,
    subscription: str,
    *,
    after: tuple[int, int] | None = None,
    limit: int | None = None,
) -> list[CursorToMove]:
    """Return the cursors that a seek of the subscription would move, with their backlogs, ordered by the start of the
    range and segment id. Cursors on drained segments are included. At most `limit` cursors (None: all) that follow
    `after` (start of a range and segment id; None: from the first) are returned. A seek to an instant may also move
    cursors on segments that were sealed before the subscription began; these cursors are left out.

    Changes nothing, but makes one data-plane call per returned cursor. A missing log or cursor has a `backlog` of
    None. Raises TopicNotFound, SubscriptionNotFound, Unsupported if the data plane is not configured here, the errors
    of the data plane, such as DataPlaneUnavailable, and the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        key = SubscriptionKey(row.topic_id, subscription)
        subscriptions.get_subscription(tx, row.topic_id, subscription)
        logs, drained_ids = seeks.logs_of(tx, key), drains.drained(tx, row.topic_id, subscription)
        readers: dict[int, set[str]] = {}
        for owner in bucket_owners.owners(tx, key):
            readers.setdefault(owner.bucket.segment_id, set()).add(owner.consumer)
    plane = configured(planes, row.data_plane, topic)
    remaining = [log for log in logs if after is None or (log.range_start, log.segment_id) > after]
    return [
        CursorToMove(
            log.segment_id,
            log.range_start,
            log.is_sealed,
            log.segment_id in drained_ids,
            plane.backlog(log.backing_topic, subscription),
            tuple(sorted(readers.get(log.segment_id, ()))),
        )
        for log in remaining[:limit]
    ]
