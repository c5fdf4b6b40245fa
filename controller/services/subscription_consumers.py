"""Decides who reads a subscription: Cleave's registered consumers, or standard Pulsar consumers behind gates.

Standard consumers need a data plane with gates, and a subscription type that a gate keeps in order: Failover or Exclusive. The field
`consumers` changes only while no consumer reads, because the two kinds of consumers follow different rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from sqlalchemy import Connection

from controller.dataplane.base import DataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.dataplane.optional_abilities import ObservesConsumers
from controller.dataplane.registry import configured
from controller.domain.errors import Conflict, Unsupported
from controller.domain.gate_states import GateState
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.store.journal import seeks
from controller.store.postgres.engine import Store
from controller.store.topics import (
    backing_logs,
    bucket_owners,
    consumers,
    gates,
    readable_segments,
    subscriptions,
    topics,
)
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionRow
from controller.store.topics.topics import TopicRow

TYPES_IN_ORDER = frozenset({"Failover", "Exclusive"})
"""Types of subscription, as brokers name them, that a gate keeps in order."""
WHY_NOT_IN_ORDER = {
    "Key_Shared": "the broker may deliver a message of a child before the parent's, and splits batches of several keys",
    "Shared": "the broker keeps no order there, so the subscription needs no gates",
}
_NAMED = 5
"""Maximum number of names in an error message."""


def demand_gates(planes: Mapping[str, DataPlane], data_plane: str, topic: str) -> None:
    """Do nothing if the logs of the topic can have gates. Raise Unsupported, with the remedy, if the data plane named
    `data_plane` is not configured here, has no gates, or refuses gates. Asks the data plane, and raises its errors,
    such as NotFound for a missing namespace and DataPlaneUnavailable.
    """
    plane = configured(planes, data_plane, topic)
    if not isinstance(plane, GatedDataPlane):
        raise Unsupported(
            f"data plane {data_plane!r} of {topic} has no gates, which keep standard consumers in order; "
            "read the subscription with Cleave's client, and leave its consumers at cleave"
        )
    plane.demand_gates(topic)


def demand_ordered_type(
    planes: Mapping[str, DataPlane], topic: TopicRow, subscription: str, logs: Collection[str]
) -> None:
    """Raise Unsupported if a consumer of a type other than `TYPES_IN_ORDER` is attached at the broker to the
    subscription on one of these logs; gates keep no order for such a consumer. The error names one type and the
    remedy. Raises the errors of the data plane. Does nothing if the data plane does not list consumers or is not
    configured here.
    """
    for kind in sorted(_attached(planes, topic, subscription, logs) - TYPES_IN_ORDER):
        raise Unsupported(
            f"subscription {subscription} of {topic.name} is used as {kind}: {WHY_NOT_IN_ORDER.get(kind, 'no gate keeps that in order')}; "
            "have its consumers subscribe as Failover or Exclusive"
        )


def demand_stock(
    store: Store, planes: Mapping[str, DataPlane], topic: TopicRow, subscription: str, kind: SubscriptionKind
) -> None:
    """Check, without a change, that standard consumers could read the subscription in order. `kind` is the kind that
    the subscription has or is to have; the subscription need not exist. Raises Conflict if `kind` is not STREAM.
    Raises Unsupported if the data plane is not configured here, has no gates or refuses gates, or if a consumer of a
    type other than `TYPES_IN_ORDER` is attached. Also raises the errors of the data plane, such as NotFound for a
    missing namespace, and the errors of `Store.transaction`.
    """
    if kind is not SubscriptionKind.STREAM:
        raise Conflict(
            f"subscription {subscription} of {topic.name} is of kind {kind}, which has no order that gates could keep; "
            "standard consumers need the kind STREAM"
        )
    demand_gates(planes, topic.data_plane, topic.name)
    logs = store.in_transaction(backing_logs.backing_topics, topic.topic_id)
    demand_ordered_type(planes, topic, subscription, logs)


def set_sharing(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: str,
    subscription: str,
    *,
    consumers: SubscriptionConsumers | None = None,
    parents_block: bool | None = None,
    drain_consumers: int | None = None,
) -> None:
    """Set the parameters by which the subscription's consumers share segments (`subscriptions.set_sharing`); None
    keeps a parameter. If `consumers` is not None and differs from the stored value, the kind of consumers changes.
    The checks at the data plane then come first; one transaction afterwards locks topic and subscription, checks the
    rows and writes. The change also increases the topic's subscription version, so that reshapes in progress apply
    it.

    Raises TopicNotFound, SubscriptionNotFound, the other errors of `subscriptions.set_sharing`, and the errors of
    `Store.transaction`. A change of the kind of consumers also raises TopicNotLive, the errors of the data plane, and
    Conflict while consumers are attached or registered, a bucket has an owner, or a seek is in progress.

    A change to STOCK also raises the errors of `demand_stock`, and Conflict while the subscription has not drained a
    sealed segment. The drains are not checked if the gates of all segments with a sealed ancestor are closed at the
    data plane already, as after a restore of the database to a time before this change; these gates are then recorded
    as closed.
    """
    with store.transaction() as tx:
        topic_row = topics.find_topic(tx, topic)
        row = subscriptions.get_subscription(tx, topic_row.topic_id, subscription)
        set_fields = partial(
            subscriptions.set_sharing,
            topic_id=topic_row.topic_id,
            name=subscription,
            parents_block=parents_block,
            drain_consumers=drain_consumers,
        )
        if consumers in (None, row.consumers):
            set_fields(tx)
            return
        logs = backing_logs.backing_topics(tx, topic_row.topic_id)
    if consumers is SubscriptionConsumers.STOCK:
        demand_stock(store, planes, topic_row, subscription, row.kind)
    if _attached(planes, topic_row, subscription, logs):
        raise Conflict(
            f"consumers are attached to subscription {subscription} of {topic} at the broker; stop them, then set its consumers"
        )
    closed_logs = _closed_gates(store, planes, topic_row, row)
    with store.transaction() as tx:
        live_topic = topics.lock_live_topic(tx, topic_row.topic_id)
        locked_row = subscriptions.get_subscription(tx, topic_row.topic_id, subscription, lock=True)
        _demand_unused(tx, live_topic, locked_row)
        if consumers is SubscriptionConsumers.STOCK and not _has_closed_gates(tx, locked_row, closed_logs):
            _demand_drained(tx, live_topic, locked_row)
        set_fields(tx, consumers=consumers)
        topics.update_topic(tx, live_topic, subscription_version=live_topic.subscription_version + 1)


def _closed_gates(
    store: Store, planes: Mapping[str, DataPlane], topic: TopicRow, row: SubscriptionRow
) -> frozenset[str]:
    """Return the logs of the segments that have a sealed ancestor which the subscription reads, drained or not, and
    whose gate for the subscription is CLOSED or SPENT at the data plane. Changes nothing. Empty if there is no such
    log, if the data plane has no gates, or if the data plane is not configured here. Raises SubscriptionNotFound, the
    errors of the data plane, and the errors of `Store.transaction`.
    """
    plane = planes.get(topic.data_plane)
    if not isinstance(plane, GatedDataPlane):
        return frozenset()
    logs_behind = store.in_transaction(gates.behind_read_by, SubscriptionKey(topic.topic_id, row.name))
    logs = [log.backing_topic for log in logs_behind]
    return frozenset(
        log for log in logs if plane.gate_state(log, row.name) in (GateState.CLOSED, GateState.SPENT)
    )


def _has_closed_gates(tx: Connection, row: SubscriptionRow, closed_logs: Collection[str]) -> bool:
    """Return True if all segments that have a sealed ancestor which the subscription reads, drained or not, have
    their logs in `closed_logs`, and there is at least one such segment. `closed_logs` are logs whose gates are closed
    at the data plane. If True, the gates of these segments are also recorded as closed, in the caller's transaction.
    If False, nothing changes. Raises SubscriptionNotFound.
    """
    key = SubscriptionKey(row.topic_id, row.name)
    logs_behind = gates.behind_read_by(tx, key)
    if not logs_behind or any(log.backing_topic not in closed_logs for log in logs_behind):
        return False
    gates.close(tx, key, [log.segment_id for log in logs_behind])
    return True


def _demand_unused(tx: Connection, topic: TopicRow, row: SubscriptionRow) -> None:
    """Raise Conflict if the subscription has registered consumers or bucket owners, or if a seek of it is in
    progress.
    """
    key = SubscriptionKey(topic.topic_id, row.name)
    names = [consumer.name for consumer in consumers.list_consumers(tx, topic.topic_id, row.name)]
    names += [owner.consumer for owner in bucket_owners.owners(tx, key)]
    if names:
        listed_names = ", ".join(sorted({*names})[:_NAMED])
        raise Conflict(
            f"consumer(s) {listed_names} read subscription {row.name} of {topic.name}; stop them, then set its consumers"
        )
    seek = seeks.under_way(tx, key)
    if seek is not None:
        raise Conflict(
            f"seek {seek.operation_id} of subscription {row.name} of {topic.name} is in progress; wait for it"
        )


def _demand_drained(tx: Connection, topic: TopicRow, row: SubscriptionRow) -> None:
    """Raise Conflict if there is a sealed segment that the subscription has not read to its end. The descendants of
    such a segment were created without gates, so standard consumers could read them too early.
    """
    to_read = readable_segments.to_read(tx, topic.topic_id, row.name)
    unread = sorted(
        segment_id
        for segment_id, segment in to_read.layout.segments.items()
        if not segment.is_active and segment_id not in to_read.drained
    )
    if unread:
        listed_ids = ", ".join(map(str, unread[:_NAMED]))
        raise Conflict(
            f"sealed segment(s) {listed_ids} of {topic.name} are not read to their end by subscription {row.name}, and have no gates; "
            "read them to their end or seek to latest, then set its consumers to stock"
        )


def _attached(
    planes: Mapping[str, DataPlane], topic: TopicRow, subscription: str, logs: Collection[str]
) -> set[str]:
    """Return the subscription types, as the broker names them, of the consumers attached to the subscription on these logs; none if the
    data plane does not list consumers or is not configured here. Raises the errors of the data plane.
    """
    plane = planes.get(topic.data_plane)
    if not isinstance(plane, ObservesConsumers):
        return set()
    consumers_by_log = plane.consumers(sorted(logs))
    return {
        consumer.subscription_type
        for log_consumers in consumers_by_log.values()
        for consumer in log_consumers
        if consumer.subscription == subscription
    }
