"""Ends a topic: seals and prunes its segments, frees its name, withdraws its candidate, and deletes the rows that belong to it.

Commits call these functions in their transactions, with the topic row locked. History and the topic row are kept. Foreign keys delete
consumers and drain marks with their subscriptions.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from controller.domain.approval_states import ApprovalState, Subject
from controller.domain.errors import HeldUp
from controller.domain.operation import Operation
from controller.store import approvals
from controller.store.load.load_deletion import forget_counts
from controller.store.topics import topics
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
_WITHDRAW = """
    UPDATE cleave.policy_candidate
       SET state = 'withdrawn', ended_at = clock_timestamp(), ended_by = :actor, outcome = :outcome
     WHERE topic_id = :topic_id AND state = 'shadow'
 RETURNING candidate_id
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


def end_segments(tx: Connection, topic_id: int, epoch: int, at: datetime) -> dict[int, str]:
    """Seal and prune, at the epoch and time, the segments of the topic that are not pruned. Return their logs by segment id. The caller
    holds the lock of the topic row.
    """
    rows = tx.execute(text(_END_SEGMENTS), {"topic_id": topic_id, "epoch": epoch, "at": at})
    return {row.segment_id: row.backing_topic for row in rows}


def end_topic(tx: Connection, topic: TopicRow, operation: Operation, epoch: int, at: datetime) -> None:
    """Set the topic to deleted, with this epoch and `at` as the time of the deletion, which frees the name. Delete
    the topic's key counts, subscriptions, observed consumers, evaluation and mirror. Withdraw the topic's candidate from shadow in the name
    of the actor of `operation`, because no command finds the candidate of a deleted topic; the candidate's approvals
    expire. The segments and the history are not changed. The caller holds the lock of the topic row, and has deleted
    the rates of the topic (`load_deletion.forget_rates`) if the topic has segments. Raises LostRace if the topic row
    has changed since `topic` was read.
    """
    topics.update_topic(tx, topic, state=TopicState.DELETED.value, epoch=epoch, deleted_at=at)
    forget_counts(tx, topic.topic_id)
    for statement in _FORGET:
        tx.execute(text(statement), {"topic_id": topic.topic_id})
    reason = "the topic was deleted"
    parameters = {"topic_id": topic.topic_id, "actor": operation.actor, "outcome": reason}
    candidate_ids = tx.execute(text(_WITHDRAW), parameters).scalars().all()
    approvals.end(tx, Subject.PROMOTION, candidate_ids, ApprovalState.EXPIRED, reason)
