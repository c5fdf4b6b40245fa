"""Ends a topic: seals and prunes its segments, frees its name, and deletes the rows that belong to it.

Commits call these functions in their transactions, with the topic row locked. History and the topic row are kept. Foreign keys delete
consumers and drain marks with their subscriptions.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.errors import HeldUp
from controller.domain.operation import Operation
from controller.store.load.load_deletion import forget_counts, forget_rates
from controller.store.topics import layout_changes, topics
from controller.store.topics.topics import TopicRow, TopicState

_OTHERS_LIVE = """
    SELECT count(*) FROM cleave.operation
     WHERE topic_id = :topic_id AND operation_id <> :operation_id AND finished_at IS NULL
"""
_END_SEGMENTS = """
    UPDATE cleave.segment
       SET state = 'SEALED', sealed_epoch = coalesce(sealed_epoch, :epoch), sealed_at = coalesce(sealed_at, :at),
           pruned_epoch = :epoch, pruned_at = :at
     WHERE topic_id = :topic_id AND pruned_epoch IS NULL
 RETURNING segment_id, backing_topic
"""
_FORGET = tuple(
    f"DELETE FROM cleave.{table} WHERE topic_id = :topic_id"  # noqa: S608 - our own names
    for table in (
        "observed_subscription",
        "subscription",
        "evaluation",
        "mirror",
    )
)


def demand_alone(tx: Connection, topic: TopicRow, operation: Operation) -> None:
    """Raise HeldUp, to be retried after 0.1 s, while the topic has another operation that has not finished. The caller holds the lock of
    the topic row.
    """
    parameters = {"topic_id": topic.topic_id, "operation_id": operation.operation_id}
    live_count = tx.execute(text(_OTHERS_LIVE), parameters).scalar_one()
    if live_count:
        raise HeldUp(
            f"{live_count} older operation(s) of topic {topic.name} are live; wait until they have finished",
            0.1,
        )


def end_in_epoch(tx: Connection, topic: TopicRow, operation: Operation, epoch: int) -> dict[int, str]:
    """End the topic in its last epoch: seal and prune its segments, and set it to deleted (`end_topic`). Return the logs of the segments
    by segment id. The caller holds the lock of the topic row. Raises HeldUp while another operation of the topic is live, and LostRace if
    the topic row has changed since `topic` was read.
    """
    demand_alone(tx, topic, operation)
    forget_rates(tx, topic.topic_id)
    at = layout_changes.write(tx, topic, operation, epoch)
    parameters = {"topic_id": topic.topic_id, "epoch": epoch, "at": at}
    logs = {row.segment_id: row.backing_topic for row in tx.execute(text(_END_SEGMENTS), parameters)}
    end_topic(tx, topic, epoch, at)
    return logs


def end_topic(tx: Connection, topic: TopicRow, epoch: int, at: datetime) -> None:
    """Set the topic to deleted, with this epoch and `at` as the time of the deletion, which frees the name. Delete
    the topic's key counts, subscriptions, observed consumers, evaluation and mirror. The segments, their rates and the
    history are not changed. The caller holds the lock of the topic row. Raises LostRace if the topic row has changed
    since `topic` was read.
    """
    topics.update_topic(tx, topic, state=TopicState.DELETED.value, epoch=epoch, deleted_at=at)
    forget_counts(tx, topic.topic_id)
    for statement in _FORGET:
        tx.execute(text(statement), {"topic_id": topic.topic_id})
