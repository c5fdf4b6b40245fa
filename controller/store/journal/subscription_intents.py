"""Writes intents to create and delete a subscription. Each raises the subscription version of the topic.

The guarantees are those of `topic_intents`. Seeks are in `seeks`.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict
from controller.domain.names import demand_name
from controller.domain.operation import CONSUMERS, FROM_LATEST, SUBSCRIPTION, UNDOES, Operation, OperationKind
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.store.journal.operations import NewOperation, Request, write_operation
from controller.store.journal.request_keys import Intent, once
from controller.store.topics import gates, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionState
from controller.store.topics.topics import TopicRow, TopicState

_DELETING_SUBSCRIPTION = """
    UPDATE cleave.subscription SET state = 'deleting' WHERE topic_id = :topic_id AND name = :name AND state = 'live'
"""
FORGET_SUBSCRIPTION = (
    "DELETE FROM cleave.subscription WHERE topic_id = :topic_id AND name = :name AND state = 'deleting'"
)
_CURSORS_FOUND = """
    SELECT detail -> 'found on' FROM cleave.operation_step WHERE operation_id = :operation_id AND step = 'find-cursors'
"""


def intend_subscription_create(
    tx: Connection,
    topic_id: int,
    name: str,
    kind: SubscriptionKind,
    request: Request,
    *,
    from_latest: bool = False,
    consumers: SubscriptionConsumers = SubscriptionConsumers.CLEAVE,
) -> Intent:
    """Insert the subscription, raise the subscription version of the topic, and write the intent to create the
    subscription's cursors on the present logs. From then on, every created log gets a cursor of the subscription.

    The subscription reads all segments that still exist, including sealed segments; with `from_latest`, only messages
    that are published after the creation. A repeated request key returns the first operation, even if its `consumers`
    differ, because they may be the default of a policy that has changed since.

    Raises InvalidInput for an invalid name; TopicNotFound; and TopicNotLive. Raises Conflict if the topic has a
    subscription of that name, even while that subscription is being deleted; if `consumers` are standard consumers
    and a segment that descends from an unread sealed segment has no barrier; or if the request key was used for
    another subscription, kind of operation, kind of subscription or beginning. Also raises the errors of
    `request_keys.once`.
    """
    compared: dict[str, object] = {"kind": kind.value, FROM_LATEST: from_latest}

    def write_intent() -> Operation:
        topic = topics.lock_live_topic(tx, topic_id)
        existing = {row.name: row for row in subscriptions.list_subscriptions(tx, topic_id)}.get(name)
        if existing is not None:
            raise Conflict(
                f"topic {topic.name} has a {existing.kind} subscription {name} ({existing.state}) already; use that subscription or another name"
            )
        epoch = topic.epoch if from_latest else subscriptions.first_epoch(tx, topic_id)
        if consumers is SubscriptionConsumers.STOCK:
            gates.demand_barriers(topic.name, name, gates.behind_unread(tx, topic_id, after_epoch=epoch))
        subscriptions.insert_subscription(
            tx, topic_id, demand_name("subscription", name), kind, epoch, consumers
        )
        topics.update_topic(tx, topic, subscription_version=topic.subscription_version + 1)
        parameters = {SUBSCRIPTION: name, **compared}
        if consumers is not SubscriptionConsumers.CLEAVE:
            parameters[CONSUMERS] = consumers.value
        return write_operation(
            tx, topic, NewOperation(OperationKind.SUBSCRIPTION_CREATE, parameters=parameters), request
        )

    return once(tx, request, write_intent, topic_id, OperationKind.SUBSCRIPTION_CREATE, name, **compared)


def intend_subscription_delete(tx: Connection, topic_id: int, name: str, request: Request) -> Intent:
    """Set the subscription to deleting, raise the subscription version of the topic, and write the intent to delete
    the subscription's cursors. Logs that are created afterwards have no cursor of the subscription. Connected
    consumers do not prevent the deletion.

    A repeated request key returns the first operation. Raises TopicNotFound; TopicNotLive; SubscriptionNotFound;
    Conflict if the subscription is being deleted already, or if the request key was used for another subscription or
    kind of operation; and the errors of `request_keys.once`.
    """

    def write_intent() -> Operation:
        topic = topics.lock_live_topic(tx, topic_id)
        if subscriptions.get_subscription(tx, topic_id, name).state is SubscriptionState.DELETING:
            raise Conflict(
                f"subscription {name} of topic {topic.name} is being deleted already; wait until it is deleted"
            )
        tx.execute(text(_DELETING_SUBSCRIPTION), {"topic_id": topic_id, "name": name})
        topics.update_topic(tx, topic, subscription_version=topic.subscription_version + 1)
        parameters = {SUBSCRIPTION: name}
        return write_operation(
            tx, topic, NewOperation(OperationKind.SUBSCRIPTION_DELETE, parameters=parameters), request
        )

    return once(tx, request, write_intent, topic_id, OperationKind.SUBSCRIPTION_DELETE, name)


def cursors_found(tx: Connection, operation: Operation) -> list[str] | None:
    """Return the logs that had a cursor of the name before the first change of the operation, the creation of a
    subscription. None if the operation did not look for cursors.
    """
    found: list[str] | None = tx.execute(
        text(_CURSORS_FOUND), {"operation_id": operation.operation_id}
    ).scalar_one_or_none()
    return found


def undo_subscription(tx: Connection, topic: TopicRow, operation: Operation) -> None:
    """Undo the aborted creation of a subscription, and raise the subscription version of the topic. If the operation
    recorded that no log had a cursor of the name before it, set the subscription to deleting, and write the intent to
    delete the cursors that logs and reserved children may have already.

    In any other case delete the row only: an application made some cursors, and has not read all their messages; or
    the operation made no cursor, because it did not look for cursors. Logs keep the cursors, and the application may
    read on as a subscription without a row does. The logs also keep the cursors that a concurrent reshape
    gave its children, because the subscription was live.

    `operation` is the aborted creation, whose origin and actor the deletion gets. Does nothing if the topic is not
    live, or if the subscription is being deleted or does not exist. The caller has locked the topic row.
    """
    names = {"topic_id": topic.topic_id, "name": operation.parameters[SUBSCRIPTION]}
    is_live = topic.state is TopicState.LIVE
    if not is_live or tx.execute(text(_DELETING_SUBSCRIPTION), names).rowcount == 0:
        return
    topics.update_topic(tx, topic, subscription_version=topic.subscription_version + 1)
    if cursors_found(tx, operation) != []:
        tx.execute(text(FORGET_SUBSCRIPTION), names)
        return
    parameters = {SUBSCRIPTION: operation.parameters[SUBSCRIPTION], UNDOES: operation.operation_id}
    request = Request(
        f"undo-{operation.operation_id}",
        operation.origin,
        operation.actor,
        f"operation {operation.operation_id}, which created the subscription, was aborted",
    )
    write_operation(
        tx, topic, NewOperation(OperationKind.SUBSCRIPTION_DELETE, parameters=parameters), request
    )
