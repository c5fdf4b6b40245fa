"""The guards of intents, each sentence once: segments that are free, inputs as they were decided on.

Whoever asks holds the topic's lock, or compares its row version in the statement that writes, so that what is told
here is still true then. That the topic is live is `topics.demand_live`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, text

from controller.domain.errors import LostRace, SegmentBusy

_BUSY = "SELECT segment_id, operation_id FROM cleave.operation_parent WHERE live AND topic_id = :topic_id"


def busy_segments(tx: Connection, topic_id: int) -> dict[int, int]:
    """The live operation that each busy segment of the topic is in, by the segment's id."""
    return {row.segment_id: row.operation_id for row in tx.execute(text(_BUSY), {"topic_id": topic_id})}


def demand_free(topic: str, busy: Mapping[int, int], segment_ids: Collection[int]) -> None:
    """Raises SegmentBusy naming the live operation that one of the segments is in."""
    for segment_id in sorted(busy.keys() & set(segment_ids)):
        raise SegmentBusy(
            f"segment {segment_id} of topic {topic} is in live operation {busy[segment_id]}; wait for it"
        )


def demand_unchanged(topic: str, what: str, present: int | None, seen: int | None) -> None:
    """Raises LostRace when `what` (epoch, input version) is not the one decided on; `seen` None: whatever it is."""
    if seen not in (None, present):
        raise LostRace(
            f"{what} of topic {topic} is {present} by now, not {seen}; decide again", 0.0, what="intent"
        )
