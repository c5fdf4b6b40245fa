"""Creates and deletes topics and subscriptions: each request becomes an intent in the journal, or is refused.

This module and the database's constraints check names and properties. The operation runner creates logs and
cursors. `operation_wait` waits for the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.dataplane.base import DataPlane, NamespacedDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.dataplane.registry import demand_subscription
from controller.domain.errors import CleaveError, Conflict, InvalidInput, NotFound, Unsupported
from controller.domain.names import demand_name
from controller.domain.operation import Operation
from controller.domain.policy import PolicyOverride
from controller.domain.seek_target import SeekTarget
from controller.domain.utf8 import utf8
from controller.store.journal import mirror_intents, operations, seeks, topic_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.mirrors import mirrors
from controller.store.postgres.engine import Store
from controller.store.topics import bucket_owners, drains, policies, subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.retention import RETENTION_PROPERTY
from controller.store.topics.subscriptions import SubscriptionConsumers, SubscriptionKind

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


def create_topic(
    store: Store,
    planes: Mapping[str, DataPlane],
    name: str,
    request: Request,
    *,
    data_plane: str = "embedded",
    segments: int = 1,
    policy: PolicyOverride | None = None,
    properties: Mapping[str, str] | None = None,
) -> Intent:
    """Intend to create a topic (`topic://tenant/namespace/name`) with `segments` equal segments, 1..65536. On
    a data plane that keeps layouts, intend to create the topic there and to mirror its layout. A repeated
    request key returns its first intent.

    The policy's maximum number of segments does not apply: it restricts automatic splits only. Raises
    InvalidInput (also for an override that does not fit the levels above), TopicExists, NotFound if the data
    plane lacks the namespace, or Unsupported for a data plane that is not configured here.
    """
    if data_plane not in planes:
        raise Unsupported(
            f"data plane {data_plane!r} is not configured here; choose one of {', '.join(sorted(planes)) or 'none'}"
        )
    _check_properties(properties or {})
    _demand_namespace(planes[data_plane], name)
    with store.transaction() as tx:
        if operations.find_by_request_key(tx, request.request_key) is None:
            # A repeated request returns its first result without a check.
            policies.demand_valid(tx, name, policy)
        if isinstance(planes[data_plane], LayoutKeeper):
            return mirror_intents.intend_attach(
                tx,
                name,
                data_plane=data_plane,
                segments=segments,
                policy=policy,
                properties=properties,
                request=request,
            )
        # The bucket parameters apply to a whole cluster, as in PIP-486.
        cluster_policy = policies.get_cluster(tx).policy
        return topic_intents.intend_create(
            tx,
            name,
            segments=segments,
            data_plane=data_plane,
            backing_topic=planes[data_plane].backing_topic,
            policy=policy,
            properties=dict(properties or {}),
            bucket_budget=cluster_policy.entry_bucket_budget,
            max_buckets=cluster_policy.entry_bucket_max_per_segment,
            request=request,
        )


def attach_topic(
    store: Store, planes: Mapping[str, DataPlane], name: str, request: Request, *, data_plane: str
) -> Intent:
    """Intend to attach a topic whose layout its broker keeps: mirror the layout, and decide in the broker's
    place.

    The broker's own auto-scaler is turned off for the topic, and restored by `detach_topic`. Raises
    InvalidInput, TopicExists, or Unsupported for a data plane that keeps no layouts or is not configured
    here.
    """
    if not isinstance(planes.get(data_plane), LayoutKeeper):
        raise Unsupported(
            f"data plane {data_plane!r} has no topics to attach; set CLEAVE_PULSAR_ADMIN_URL and choose "
            "pulsar_scalable, or create the topic"
        )
    with store.transaction() as tx:
        return mirror_intents.intend_attach(tx, name, data_plane=data_plane, request=request)


def detach_topic(store: Store, name: str, request: Request) -> Intent:
    """Intend to return a topic to its broker's own controller. The data of the topic does not change.

    Raises TopicNotFound, TopicNotLive, or Conflict for a topic that was not attached.
    """
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, name).topic_id
        if mirrors.get_mirror(tx, topic_id) is None:
            raise Conflict(f"{name} is not attached, since Cleave keeps its layout; delete the topic instead")
        return mirror_intents.intend_detach(tx, topic_id, request)


def delete_topic(store: Store, name: str, request: Request) -> Intent:
    """Write and return the intent to delete the topic and all its logs, unread data included. A repeated request key
    returns its first intent.

    No further intent is accepted; reshapes in progress end first. Raises TopicNotFound, TopicNotLive.
    """
    with store.transaction() as tx:
        return topic_intents.intend_delete(tx, topics.find_topic(tx, name).topic_id, request)


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
    """Write and return the intent to create a subscription at the earliest message of every segment that still
    exists, sealed ones included. With `from_latest`, the subscription begins after the messages published so far. For
    standard consumers call `subscription_consumers.demand_stock` first.

    Raises TopicNotFound, TopicNotLive, InvalidInput, or Conflict if the name is taken or gates cannot keep
    its order.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        demand_subscription(row.data_plane, demand_name("subscription", subscription))
        return topic_intents.intend_subscription_create(
            tx, row.topic_id, subscription, kind, request, from_latest=from_latest, consumers=consumers
        )


def delete_subscription(store: Store, topic: str, subscription: str, request: Request) -> Intent:
    """Write and return the intent to delete the subscription with its consumers and its positions on all segments,
    sealed ones included.

    Raises TopicNotFound, TopicNotLive, SubscriptionNotFound.
    """
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return topic_intents.intend_subscription_delete(tx, topic_id, subscription, request)


def seek_subscription(
    store: Store,
    topic: str,
    subscription: str,
    target: SeekTarget,
    request: Request,
    *,
    release_seconds: float,
) -> Intent:
    """Intend to move the subscription to another position, on every segment that has messages.

    The consumers first release their buckets, within `release_seconds` (0 or more); messages read before do
    not count afterwards. Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, InvalidInput, Conflict
    unless a checkpoint subscription, and no other, seeks to `kept`, Unsupported
    if a broker keeps the layout.
    """
    if not 0 <= release_seconds <= MOST_RELEASE_SECONDS:
        raise InvalidInput(
            f"release_seconds must be between 0 and {MOST_RELEASE_SECONDS:g}, not {release_seconds:g}"
        )
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return seeks.intend_seek(tx, topic_id, subscription, target, request, release_seconds=release_seconds)


def give_up_seek(store: Store, topic: str, subscription: str, *, actor: str, reason: str) -> list[Operation]:
    """Cancel the subscription's seeks that have not stopped a consumer yet, so that it continues at its
    present position.

    Raises TopicNotFound, TopicNotLive, SubscriptionNotFound; Conflict if there is no seek, or only one that
    already moves cursors.
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
    """Return the cursors that a seek of the subscription would move, with their backlogs, ordered by range
    and segment: at most `limit` (None: all), after `after` (the start of a range, and a segment's id).
    Changes nothing. Raises TopicNotFound, SubscriptionNotFound, Unsupported if the data plane is not
    configured here, and the errors of the data plane.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        key = SubscriptionKey(row.topic_id, subscription)
        subscriptions.get_subscription(tx, row.topic_id, subscription)
        logs, drained_ids = seeks.logs_of(tx, key), drains.drained(tx, row.topic_id, subscription)
        readers: dict[int, set[str]] = {}
        for owner in bucket_owners.owners(tx, key):
            readers.setdefault(owner.bucket.segment_id, set()).add(owner.consumer)
    plane = planes.get(row.data_plane)
    if plane is None:
        raise Unsupported(f"data plane {row.data_plane!r} of {topic} is not configured here")
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


def _demand_namespace(plane: DataPlane, topic: str) -> None:
    """Raise NotFound if the data plane lacks the topic's namespace. If the data plane cannot answer, the
    operation detects the missing namespace.
    """
    if not isinstance(plane, NamespacedDataPlane):
        return
    try:
        plane.demand_namespace(topic)
    except NotFound:
        raise
    except CleaveError:
        return


def _check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidInput for text that cannot be stored, and for a retention that is not a finite number,
    which would silently keep everything for ever.
    """
    for key, property_value in properties.items():
        utf8(key, "topic property")
        utf8(property_value, f"topic property {key!r} =")
    value = properties.get(RETENTION_PROPERTY)
    try:
        is_wrong = value is not None and not math.isfinite(float(value))
    except ValueError:
        is_wrong = True
    if is_wrong:
        raise InvalidInput(
            f"topic property {RETENTION_PROPERTY}={value!r} is not a number of minutes; negative keeps for ever"
        )
