"""Checks of intents: the segments are free, and the inputs are those of the decision.

The caller holds the topic's lock, or compares the row version of the topic in the statement that writes, so that the checks
still hold when the intent is written. `topics.demand_live` checks that the topic is live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, text

from controller.domain.errors import LostRace, SegmentBusy

_BUSY = "SELECT segment_id, operation_id FROM cleave.operation_parent WHERE live AND topic_id = :topic_id"
# A registration makes the evaluation of its topic pending in the same transaction, so that a consumer's first settlement
# already waits for the decision. A paused topic (not_before) is not evaluated, so nothing waits for it.
_BEFORE_RESHAPE = """
    SELECT s.segment_id FROM cleave.segment s
     WHERE s.topic_id = :topic_id AND s.state = 'ACTIVE'
       AND (EXISTS (SELECT FROM cleave.evaluation e
                     WHERE e.topic_id = s.topic_id AND e.consumer_version < e.input_version
                       AND e.not_before <= clock_timestamp())
         OR EXISTS (SELECT FROM cleave.operation_parent p
                     WHERE p.topic_id = s.topic_id AND p.segment_id = s.segment_id AND p.live))
"""


def busy_segments(tx: Connection, topic_id: int) -> dict[int, int]:
    """Return the live operation of each busy segment of the topic, by segment id. To act on the result, hold the topic's lock or
    compare the row version of the topic.
    """
    return {row.segment_id: row.operation_id for row in tx.execute(text(_BUSY), {"topic_id": topic_id})}


def segments_before_reshape(tx: Connection, topic_id: int) -> frozenset[int]:
    """Return the ids of the ACTIVE segments that a live operation will replace; all ACTIVE segments while the topic
    waits to be evaluated for its consumers (and its evaluation is not deferred), because the decision may replace any
    of them. Their buckets should not be moved between consumers just before. Empty for an unknown topic.
    """
    return frozenset(tx.execute(text(_BEFORE_RESHAPE), {"topic_id": topic_id}).scalars())


def demand_free(topic: str, busy: Mapping[int, int], segment_ids: Collection[int]) -> None:
    """Raise SegmentBusy if one of the segments is in a live operation. `busy` has the live operations by segment id, as `busy_segments`
    returns them; `topic` is a name for the message.
    """
    for segment_id in sorted(busy.keys() & set(segment_ids)):
        raise SegmentBusy(
            f"segment {segment_id} of topic {topic} is in live operation {busy[segment_id]}; wait for that operation"
        )


def demand_unchanged(topic: str, what: str, present: int | None, seen: int | None) -> None:
    """Raise LostRace if the value named `what` (epoch, input version) is `present` and not `seen`, which the decision has read. `seen`
    None accepts any value.
    """
    if seen not in (None, present):
        raise LostRace(
            f"{what} of topic {topic} is {present} by now, not {seen}; decide again", 0.0, what="intent"
        )
