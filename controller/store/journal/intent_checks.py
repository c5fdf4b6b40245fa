"""Checks of intents: the segments are free, and the inputs are those of the decision.

The caller holds the topic's lock, or compares the row version of the topic in the statement that writes, so that the checks
still hold when the intent is written. `topics.demand_live` checks that the topic is live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, text

from controller.domain.errors import LostRace, SegmentBusy

_BUSY = "SELECT segment_id, operation_id FROM cleave.operation_parent WHERE live AND topic_id = :topic_id"


def busy_segments(tx: Connection, topic_id: int) -> dict[int, int]:
    """Return the live operation of each busy segment of the topic, by segment id. To act on the result, hold the topic's lock or
    compare the row version of the topic.
    """
    return {row.segment_id: row.operation_id for row in tx.execute(text(_BUSY), {"topic_id": topic_id})}


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
