"""Repairs the layout of a broker by splitting segments whose log the broker never created.

If two layout changes overlap in time, Pulsar 5.0.0-M1 adds segments to the layout whose logs it never creates, and clients
keep a failed producer until the segment leaves the layout. So each such segment is split; the runner creates the log first.
A layout is checked until all its segments have logs. The caller looks for the logs.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

from sqlalchemy import Connection, text

from controller.domain.errors import InvalidLayoutChange
from controller.domain.operation import Origin
from controller.domain.reshape import plan_split
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft, TopicView
from controller.store.mirrors.mirrors import get_mirror
from controller.store.topics import topics
from controller.store.topics.topics import TopicState

_CHECKED = (
    "UPDATE cleave.mirror SET checked_epoch = greatest(checked_epoch, :epoch) WHERE topic_id = :topic_id"
)


def note_check(tx: Connection, topic_id: int, epoch: int, missing: Collection[int]) -> int:
    """Write the intent to split each segment in `missing`, the ids of segments that lack a log. If `missing` is empty,
    record that the layout of `epoch` is complete. Return the number of intents.

    Locks the topic row. Does nothing and returns 0 for a topic that is not mirrored, is paused or is not live. Skips
    segments that a live operation already reshapes, that are not ACTIVE, or that are too narrow to split, and all segments
    of a topic that is held or not verified. Raises TopicNotFound.
    """
    topic, mirror = topics.get_topic(tx, topic_id, lock=True), get_mirror(tx, topic_id)
    if mirror is None or mirror.paused_reason is not None or topic.state is not TopicState.LIVE:
        return 0
    if not missing:
        tx.execute(text(_CHECKED), {"topic_id": topic_id, "epoch": epoch})
    return sum(_intend(tx, reshape_intents.look(tx, topic_id), segment_id) for segment_id in sorted(missing))


def _intend(tx: Connection, view: TopicView, segment_id: int) -> bool:
    """Write the intent to split the segment, and return True. Return False without an intent if nothing may act on
    the topic, or if the segment is busy, not ACTIVE or too narrow to split.
    """
    if view.why_not is not None or segment_id not in view.layout.segments or segment_id in view.busy:
        return False
    try:
        planned = plan_split(view.layout, segment_id)
    except InvalidLayoutChange:  # a segment of width 1 cannot be split
        return False
    request = Request(
        f"missing-log-{segment_id}-{secrets.token_hex(8)}",
        Origin.RECONCILER,
        "cleave",
        f"segment {segment_id} has no log on the broker; its log is created, and clients follow the split",
    )
    reshape_intents.intend(tx, ReshapeDraft(view, planned, request, None))
    return True
