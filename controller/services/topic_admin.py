"""Create and delete topics and subscriptions: each request becomes an intent in the journal, or a refusal.

Names and properties are checked here and by the database's constraints. The operation runner makes logs and cursors;
`operation_wait` waits for the result.
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


@dataclass(frozen=True, slots=True)
class CursorToMove:
    """Where a subscription is on one segment. `backlog` None: there is no such log or cursor. `readers` own buckets of it now."""

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
    """Intend a topic (`topic://tenant/namespace/name`) of `segments` equal segments, 1..65536.

    The policy's cap on segments does not hold here: it binds automatic splits. Raises InvalidInput (an override
    that does not fit the levels above included), TopicExists, NotFound where the data plane lacks the namespace, or Unsupported for a
    data plane that is not configured here.
    """
    if data_plane not in planes:
        raise Unsupported(
            f"data plane {data_plane!r} is not configured here; choose one of {', '.join(sorted(planes)) or 'none'}"
        )
    _check_properties(properties or {})
    _demand_namespace(planes[data_plane], name)
    with store.transaction() as tx:
        if operations.find_by_request_key(tx, request.request_key) is None:  # a repeat has its first answer
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
        buckets = policies.get_cluster(tx).policy  # the bucket knobs hold for a cluster, as in PIP-486
        return topic_intents.intend_create(
            tx,
            name,
            segments=segments,
            data_plane=data_plane,
            backing_topic=planes[data_plane].backing_topic,
            policy=policy,
            properties=dict(properties or {}),
            bucket_budget=buckets.entry_bucket_budget,
            max_buckets=buckets.entry_bucket_max_per_segment,
            request=request,
        )


def attach_topic(
    store: Store, planes: Mapping[str, DataPlane], name: str, request: Request, *, data_plane: str
) -> Intent:
    """Intend to take over a topic whose layout its broker keeps: mirror it, and decide in the broker's place.

    The broker's own auto-scaler is turned off for it, and put back by `detach_topic`. Raises InvalidInput,
    TopicExists, or Unsupported for a data plane that keeps no layouts or is not configured here.
    """
    if not isinstance(planes.get(data_plane), LayoutKeeper):
        raise Unsupported(
            f"data plane {data_plane!r} keeps no layouts here to attach to; set CLEAVE_PULSAR_ADMIN_URL and choose "
            "pulsar_scalable, or create the topic"
        )
    with store.transaction() as tx:
        return mirror_intents.intend_attach(tx, name, data_plane=data_plane, request=request)


def detach_topic(store: Store, name: str, request: Request) -> Intent:
    """Intend to give a topic back to its broker's own controller; its data stays as it is.

    Raises TopicNotFound, TopicNotLive, or Conflict for a topic that was not attached.
    """
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, name).topic_id
        if mirrors.get_mirror(tx, topic_id) is None:
            raise Conflict(f"{name} is not attached: Cleave keeps its layout; delete it if it is to go")
        return mirror_intents.intend_detach(tx, topic_id, request)


def delete_topic(store: Store, name: str, request: Request) -> Intent:
    """Intend to delete the topic and every log behind it, unread data included.

    No other intent is accepted from now on; reshapes under way end first. Raises TopicNotFound, TopicNotLive.
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
    """Intend a subscription at the earliest message of every segment that still exists, sealed ones included; with
    `from_latest` behind everything published so far. `subscription_consumers.demand_stock` comes first for standard consumers.

    Raises TopicNotFound, TopicNotLive, InvalidInput, or Conflict when the name is taken or gates cannot keep its order.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        demand_subscription(row.data_plane, demand_name("subscription", subscription))
        return topic_intents.intend_subscription_create(
            tx, row.topic_id, subscription, kind, request, from_latest=from_latest, consumers=consumers
        )


def delete_subscription(store: Store, topic: str, subscription: str, request: Request) -> Intent:
    """Intend to delete the subscription with its consumers and positions on every segment, sealed ones included.

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
    """Intend to have the subscription go on from somewhere else, on every segment that has messages.

    Its consumers let go of what they read first, for which they have `release_seconds` (0 or more); nothing they had read before
    counts afterwards. Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, InvalidInput, Conflict unless a checkpoint
    subscription is sought to what is kept and any other is not, Unsupported where a broker keeps the layout.
    """
    if not 0 <= release_seconds <= MOST_RELEASE_SECONDS:
        raise InvalidInput(
            f"{release_seconds:g} s is no time for consumers to let go in; give 0 to {MOST_RELEASE_SECONDS:g}"
        )
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return seeks.intend_seek(tx, topic_id, subscription, target, request, release_seconds=release_seconds)


def give_up_seek(store: Store, topic: str, subscription: str, *, actor: str, reason: str) -> list[Operation]:
    """Have the subscription's seeks given up that have stopped nobody yet: it goes on from where it was.

    Raises TopicNotFound, TopicNotLive, SubscriptionNotFound; Conflict where there is none, or only one that moves cursors already.
    """
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return seeks.give_up(tx, topic_id, subscription, actor, reason)


def what_a_seek_moves(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: str,
    subscription: str,
    *,
    after: tuple[int, int] | None = None,
    limit: int | None = None,
) -> list[CursorToMove]:
    """The cursors that a seek of the subscription would move, by range and segment. `limit` of them at most, those behind `after`: the
    start of a range, and a segment's id. Raises as the data plane does, TopicNotFound, SubscriptionNotFound.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        key = SubscriptionKey(row.topic_id, subscription)
        subscriptions.get_subscription(tx, row.topic_id, subscription)
        logs, done = seeks.logs_of(tx, key), drains.drained(tx, row.topic_id, subscription)
        readers: dict[int, set[str]] = {}
        for owner in bucket_owners.owners(tx, key):
            readers.setdefault(owner.bucket.segment_id, set()).add(owner.consumer)
    plane = planes.get(row.data_plane)
    if plane is None:
        raise Unsupported(f"data plane {row.data_plane!r} of {topic} is not configured here")
    wanted = [one for one in logs if after is None or (one.range_start, one.segment_id) > after]
    return [
        CursorToMove(
            one.segment_id,
            one.range_start,
            one.is_sealed,
            one.segment_id in done,
            plane.backlog(one.backing_topic, subscription),
            tuple(sorted(readers.get(one.segment_id, ()))),
        )
        for one in wanted[:limit]
    ]


def _demand_namespace(plane: DataPlane, topic: str) -> None:
    """Raise NotFound if the data plane lacks the topic's namespace. What it cannot say just now, the operation finds out."""
    if not isinstance(plane, NamespacedDataPlane):
        return
    try:
        plane.demand_namespace(topic)
    except NotFound:
        raise
    except CleaveError:
        return


def _check_properties(properties: Mapping[str, str]) -> None:
    """Refuse text that cannot be stored, and a retention that is no number: it would silently keep everything for
    ever.
    """
    for key, held in properties.items():
        utf8(key, "topic property")
        utf8(held, f"topic property {key!r} =")
    value = properties.get(RETENTION_PROPERTY)
    try:
        is_wrong = value is not None and not math.isfinite(float(value))
    except ValueError:
        is_wrong = True
    if is_wrong:
        raise InvalidInput(
            f"topic property {RETENTION_PROPERTY}={value!r} is not a number of minutes; negative keeps for ever"
        )
