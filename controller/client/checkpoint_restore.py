"""Chooses the positions from which a consumer that restores a checkpoint reads: those of the checkpoint, and the beginning
of segments that were created after the checkpoint.
"""

from __future__ import annotations

from controller.client.checkpoint import Checkpoint
from controller.client.segment_lists import SegmentList
from controller.dataplane.log_client import Position
from controller.domain.errors import Conflict, DataGone, InvalidInput


def restored(checkpoint: Checkpoint, layout: SegmentList) -> tuple[dict[int, Position | None], set[int]]:
    """Return where a consumer that starts with `checkpoint` reads: by segment id, the position in each segment of the
    present `layout` that is not done, and the ids of the segments of the layout that are done. The position of a
    segment that was created after the checkpoint is None, the beginning.

    Raises Conflict for a checkpoint of another topic, or of an epoch later than that of the layout; DataGone if the
    checkpoint has a position in a segment that is no longer in the layout; and InvalidInput if the checkpoint lacks a
    segment of the layout that existed at the checkpoint's epoch.
    """
    if checkpoint.topic_id != layout.topic_id:
        raise Conflict(
            f"the checkpoint is of {checkpoint.topic} (topic {checkpoint.topic_id}), and {layout.topic} is topic {layout.topic_id}; start again without the checkpoint"
        )
    if checkpoint.epoch > layout.epoch:
        raise Conflict(
            f"the checkpoint is of epoch {checkpoint.epoch}, and {layout.topic} is at epoch {layout.epoch}, so its layout was restored from a backup; "
            "start again without the checkpoint"
        )
    missing = sorted(checkpoint.positions.keys() - layout.segments.keys())
    if missing:
        raise DataGone(
            f"segment(s) {', '.join(map(str, missing))} of {layout.topic} were deleted before they were read to their end; "
            "start again at the earliest stored message, and create a checkpoint subscription that keeps the messages you need"
        )
    unnamed_ids = [
        i
        for i, segment in layout.segments.items()
        if segment.created_epoch <= checkpoint.epoch
        and i not in checkpoint.positions
        and i not in checkpoint.done
    ]
    if unnamed_ids:
        raise InvalidInput(
            f"the checkpoint does not name segment {min(unnamed_ids)}, which existed at its epoch; give an earlier checkpoint"
        )
    positions = {i: checkpoint.positions.get(i) for i in layout.segments if i not in checkpoint.done}
    return positions, set(checkpoint.done & layout.segments.keys())
