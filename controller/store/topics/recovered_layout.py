"""Writes a recovered layout. Unlike other changes of a layout, a recovery has no operation and may raise the epoch by more than one.

The caller holds the lock of the topic row, and has compared the logs with the journal under that lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.clock import to_datetime
from controller.domain.recovery import RecoveryPlan
from controller.store.load.load_deletion import forget_counts, forget_rates
from controller.store.topics import gates, held_topics, layouts, topics
from controller.store.topics.subscriptions import SubscriptionKind, insert_subscription
from controller.store.topics.topics import TopicRow, TopicState

_CLAIMED = """
    SELECT o.operation_id, o.claimed_by FROM cleave.operation o
     WHERE o.topic_id = :topic_id AND o.finished_at IS NULL
       AND o.claim_expires_at > clock_timestamp() - make_interval(secs => :call_timeout_seconds) LIMIT 1
"""
_SEAL = """
    UPDATE cleave.segment SET state = 'SEALED', sealed_epoch = :epoch, sealed_at = :at
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'ACTIVE'
"""
# An operation whose children are in the recovered layout is done. An operation whose parents were replaced by other segments is aborted.
_END_OPERATIONS = """
    WITH ended AS (
        UPDATE cleave.operation o
           SET state = CASE WHEN is_done THEN 'done' ELSE 'aborted' END, epoch = CASE WHEN is_done THEN :epoch ELSE o.epoch END,
               claimed_by = NULL, claim_expires_at = NULL, claim_term = o.claim_term + 1, row_version = o.row_version + 1,
               committed_at = CASE WHEN is_done THEN coalesce(o.committed_at, clock_timestamp()) ELSE o.committed_at END,
               finished_at = clock_timestamp(), last_error = 'ended when the layout was recovered from the logs'
          FROM (SELECT operation_id, EXISTS (SELECT FROM cleave.operation_child c WHERE c.operation_id = l.operation_id
                                                AND c.segment_id = ANY (:added)) AS is_done,
                       EXISTS (SELECT FROM cleave.operation_parent p WHERE p.operation_id = l.operation_id
                                  AND p.segment_id = ANY (:sealed)) AS is_impossible
                  FROM cleave.operation l
                 WHERE l.topic_id = :topic_id AND l.finished_at IS NULL
                   AND l.kind IN ('create', 'adopt', 'split', 'merge', 'rebucket', 'recut', 'heal')) found
         WHERE o.operation_id = found.operation_id AND (is_done OR is_impossible)
     RETURNING o.operation_id)
    UPDATE cleave.operation_parent p SET live = false FROM ended e WHERE p.operation_id = e.operation_id AND p.live
"""
_PRUNE = """
    UPDATE cleave.segment SET pruned_epoch = :epoch, pruned_at = clock_timestamp()
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'SEALED' AND pruned_epoch IS NULL
"""
_CHANGE = """
    INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason)
    VALUES (:topic_id, :epoch, 'recover', :origin, :actor, :reason)
"""
_KEEP = """
    UPDATE cleave.deletion_entry SET closed_at = clock_timestamp(), kept_because = 'the log is part of the recovered layout'
     WHERE data_plane = :data_plane AND backing_topic = ANY (:backing_topics) AND closed_at IS NULL
"""
_REPLACE_MARKS = """
    WITH given AS (
        SELECT * FROM jsonb_to_recordset(CAST(:marks AS jsonb)) AS g (subscription text, segment_id bigint, is_drained boolean))
    , unmarked AS (
        DELETE FROM cleave.segment_drain d USING given g
         WHERE d.topic_id = :topic_id AND d.subscription = g.subscription AND d.segment_id = g.segment_id AND NOT g.is_drained)
    INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id)
    SELECT :topic_id, g.subscription, g.segment_id FROM given g
      JOIN cleave.subscription u ON u.topic_id = :topic_id AND u.name = g.subscription AND u.consumers = 'cleave'
      JOIN cleave.segment s ON s.topic_id = :topic_id AND s.segment_id = g.segment_id AND s.state = 'SEALED' AND s.pruned_epoch IS NULL
     WHERE g.is_drained ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class RecoveredLayout:
    """A recovery plan, and the subscriptions and drains that the data plane has.

    `subscriptions` holds the kinds of the subscriptions to record. `marks` holds, by subscription and sealed segment, True if the
    segment is drained.
    """

    plan: RecoveryPlan
    subscriptions: Mapping[str, SubscriptionKind]
    marks: Mapping[tuple[str, int], bool]
    reads_after_epoch: int
    """Epoch after which a recorded subscription reads sealed segments: all that `marks` does not count as drained."""


def why_not_idle(tx: Connection, topic: TopicRow, *, call_timeout_seconds: float) -> str | None:
    """Return None if no runner can be acting on a live operation of the topic. Otherwise return a message about one
    such operation: an operation whose claim has not expired, or expired less than `call_timeout_seconds` ago.
    """
    parameters = {"topic_id": topic.topic_id, "call_timeout_seconds": call_timeout_seconds}
    claimed = tx.execute(text(_CLAIMED), parameters).one_or_none()
    if claimed is None:
        return None
    return (
        f"operation {claimed.operation_id} is still claimed by {claimed.claimed_by}; "
        "the layout is recovered once the claim has expired"
    )


def commit(tx: Connection, topic: TopicRow, recovered: RecoveredLayout, *, actor: str, reason: str) -> int:
    """Write the recovered layout with a row of history, end the operations that the recovery decides, release the
    hold of the topic, and return the recovered epoch. The caller holds the lock of the topic row, and has compared
    the logs with the journal under this lock.

    The commit seals segments, with the latest creation time of a segment as the time of the seal. It inserts segments
    with their gates and the tokens of their logs, and closes the deletion entries of these logs. It deletes the load
    of the sealed segments. It inserts the recorded subscriptions, and sets or removes the drain marks in
    `recovered.marks`; no mark is set for a subscription of standard consumers. It prunes segments, and deletes their
    load and gates. A topic in state creating becomes live.

    A live creation, adoption or reshape is set to done if one of its children is inserted, otherwise to aborted if
    one of its parents is sealed. Other operations stay live. Raises InvariantViolated if a rule of the layout would
    be broken, and LostRace if the topic row has changed.
    """
    plan, layout = recovered.plan, recovered.plan.layout
    topic_parameters = {"topic_id": topic.topic_id, "epoch": layout.epoch}
    state = TopicState.LIVE if topic.state is TopicState.CREATING else topic.state
    topics.update_topic(
        tx, topic, epoch=layout.epoch, next_segment_id=layout.next_segment_id, state=state.value
    )
    without_load = [*plan.sealed, *plan.pruned]
    forget_rates(tx, topic.topic_id, without_load)
    requester = {"origin": "reconciler", "actor": actor, "reason": reason}
    tx.execute(text(_CHANGE), {**topic_parameters, **requester})
    added = sorted(plan.added)
    at = to_datetime(max((s.created_at_ms for s in layout.segments.values()), default=0))
    if plan.sealed:
        tx.execute(text(_SEAL), {**topic_parameters, "segment_ids": list(plan.sealed), "at": at})
    gates.close_for_all(tx, topic.topic_id, added)
    logs = {segment_id: log.backing_topic for segment_id, log in plan.added.items()}
    tokens = {segment_id: log.token for segment_id, log in plan.added.items()}
    layouts.insert_segments(tx, topic.topic_id, [layout.segments[i] for i in added], logs, log_tokens=tokens)
    forget_counts(tx, topic.topic_id, without_load)
    tx.execute(text(_END_OPERATIONS), {**topic_parameters, "added": added, "sealed": list(plan.sealed)})
    kept_logs = {
        "data_plane": topic.data_plane,
        "backing_topics": list(logs.values()),
    }
    tx.execute(text(_KEEP), kept_logs)
    for name, kind in sorted(recovered.subscriptions.items()):
        insert_subscription(tx, topic.topic_id, name, kind, recovered.reads_after_epoch)
    marks = [
        {"subscription": name, "segment_id": i, "is_drained": drained}
        for (name, i), drained in recovered.marks.items()
    ]
    tx.execute(text(_REPLACE_MARKS), {**topic_parameters, "marks": json.dumps(marks)})
    tx.execute(text(_PRUNE), {**topic_parameters, "segment_ids": list(plan.pruned)})
    gates.forget(tx, topic.topic_id, plan.pruned)
    held_topics.release(tx, topic.topic_id)
    return layout.epoch
