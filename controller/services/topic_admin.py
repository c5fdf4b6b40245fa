"""Creates, attaches, detaches and deletes topics: each request becomes an intent in the journal, or is refused.

This module and the database's constraints check names and properties. The operation runner creates logs.
`subscription_admin` does the same for subscriptions. `operation_wait` waits for the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.dataplane.base import DataPlane, NamespacedDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, Conflict, InvalidInput, NotFound, Unsupported
from controller.domain.formatting import shown
from controller.domain.operation import OperationKind
from controller.domain.policy import PolicyOverride
from controller.domain.utf8 import utf8
from controller.store.journal import mirror_intents, operations, topic_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent, repeated_intent
from controller.store.mirrors import mirrors
from controller.store.postgres.engine import Store
from controller.store.topics import policies, topics
from controller.store.topics.retention import RETENTION_FORM, RETENTION_PROPERTY


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
    """Insert a topic (`topic://tenant/namespace/name`) in state creating, and write and return the intent to create
    `segments` equal segments (1 to 65536); the operation runner creates the logs later. `policy` is the topic's
    policy override; None sets none. On a data plane that keeps layouts, the operation creates the topic there and
    mirrors its layout. The policy's maximum number of segments does not apply, because that maximum restricts
    automatic splits only.

    A repeated request key returns its first intent. Data plane, namespace and properties are checked before that.
    Raises InvalidInput for an invalid name, property or number of segments; InvalidPolicy if `policy` is not valid
    together with the levels above; TopicExists; NotFound if the data plane lacks the namespace; Unsupported if the
    data plane is not configured here; LostRace if another topic used the name in the meantime; Conflict if the
    request key was used for another topic or kind of operation, or with another number of segments, data plane,
    policy or properties; and the errors of `Store.transaction`. If the data plane cannot answer whether the namespace
    exists, the operation detects a missing namespace.
    """
    if data_plane not in planes:
        raise Unsupported(
            f"data plane {shown(data_plane)} is not configured here; choose one of {', '.join(sorted(planes)) or 'none'}"
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
        cluster_policy = policies.get_cluster(tx)
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
    """Insert a topic in state creating, and write and return the intent to attach a topic whose layout its broker
    keeps. The operation then mirrors the layout, turns the broker's own auto-scaler off for the topic, and lets
    Cleave decide instead; `detach_topic` restores the auto-scaler. The broker is not called here, so the operation
    detects a topic that the broker lacks. A repeated request key returns its first intent.

    Raises InvalidInput for the name; TopicExists; Unsupported if the data plane keeps no layouts or is not configured
    here; LostRace if another topic used the name in the meantime; Conflict if the request key was used for another
    topic, data plane or kind of request; and the errors of `Store.transaction`.
    """
    layout_keeper(planes, data_plane)
    return store.in_transaction(mirror_intents.intend_attach, name, data_plane=data_plane, request=request)


def layout_keeper(planes: Mapping[str, DataPlane], data_plane: str) -> LayoutKeeper:
    """Return the data plane of this name, whose topics can be attached. Raises Unsupported for a data plane that keeps no
    layouts or is not configured here.
    """
    keeper = planes.get(data_plane)
    if not isinstance(keeper, LayoutKeeper):
        raise Unsupported(
            f"data plane {data_plane!r} has no topics to attach; set CLEAVE_PULSAR_ADMIN_URL and choose "
            "pulsar_scalable, or create the topic"
        )
    return keeper


def detach_topic(store: Store, name: str, request: Request) -> Intent:
    """Set an attached topic to deleting, and write and return the intent to return the topic to its broker's own
    controller. The operation restores the broker's auto-scaler setting and then removes the topic from Cleave. The
    topic's logs and data on the broker do not change. A repeated request key returns its first intent, also after the
    topic was detached.

    Raises TopicNotFound; TopicNotLive; Conflict if Cleave keeps the layout of the topic or its attachment has not
    stored a mirror yet, or if the request key was used for another topic or kind of request; and the errors of
    `Store.transaction`.
    """
    with store.transaction() as tx:
        repeated = repeated_intent(tx, request.request_key, name, [OperationKind.DETACH])
        if repeated is not None:
            return repeated
        topic_id = topics.find_topic(tx, name).topic_id
        if mirrors.get_mirror(tx, topic_id) is None:
            raise Conflict(f"{name} is not attached, since Cleave keeps its layout; delete the topic instead")
        return mirror_intents.intend_detach(tx, topic_id, request)


def delete_topic(store: Store, name: str, request: Request) -> Intent:
    """Set the topic to deleting, and write and return the intent to delete the topic and all its logs, unread data
    included. The operation runner deletes the logs later. The topic accepts no further request; its reshapes in
    progress end first. A topic that is being created can be deleted too. A repeated request key returns its first
    intent, also after the topic was deleted.

    Raises TopicNotFound; TopicNotLive if the topic is being deleted already; TopicHeld if the topic is held or
    unverified; Conflict if the request key was used for another topic or kind of request; and the errors of
    `Store.transaction`.
    """
    with store.transaction() as tx:
        repeated = repeated_intent(tx, request.request_key, name, [OperationKind.DELETE])
        if repeated is not None:
            return repeated
        return topic_intents.intend_delete(tx, topics.find_topic(tx, name).topic_id, request)


def _demand_namespace(plane: DataPlane, topic: str) -> None:
    """Raise NotFound if the data plane reports that the namespace of `topic` does not exist. Does nothing for a data
    plane without namespaces. Any other CleaveError of the call, such as DataPlaneUnavailable, is ignored: the
    operation then detects a missing namespace.
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
    """Raise InvalidInput if a key or value cannot be stored as UTF-8, or if the retention (`RETENTION_PROPERTY`) is
    not a number of minutes in the form `RETENTION_FORM`. With a retention of another form, no message would ever be
    deleted. Other properties may have any key and value; no properties are valid.
    """
    for key, property_value in properties.items():
        utf8(key, "topic property")
        utf8(property_value, f"topic property {key!r} =")
    value = properties.get(RETENTION_PROPERTY)
    if value is not None and re.fullmatch(RETENTION_FORM, value) is None:
        raise InvalidInput(
            f"topic property {RETENTION_PROPERTY}={shown(value)} is not a number of minutes; write up to 9 digits, also with up to "
            "6 decimals, for example 60 or 0.5; a negative number keeps for ever"
        )
