"""Repairs of a broker's layout: segments whose log the broker never created are split.

Of two layout changes that overlap in time, 5.0.0-M1 gives segments to the layout whose logs it never creates, and
clients keep a producer that failed until the layout drops the segment. So each such segment is split; its runner creates
the log first. A layout is checked until none of its segments lacks a log. Looking for logs is the caller's.
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
    """Note which segments of the layout of `epoch` lack a log, and intend a split of each; returns how many are intended.

    A topic that Cleave does not act on is left as it is, and so are segments that a live operation reshapes already.
    """
    topic, mirror = topics.get_topic(tx, topic_id, lock=True), get_mirror(tx, topic_id)
    if mirror is None or mirror.paused_reason is not None or topic.state is not TopicState.LIVE:
        return 0
    if not missing:
        tx.execute(text(_CHECKED), {"topic_id": topic_id, "epoch": epoch})
    return sum(_intend(tx, reshape_intents.look(tx, topic_id), segment_id) for segment_id in sorted(missing))


def _intend(tx: Connection, view: TopicView, segment_id: int) -> bool:
    if view.why_not is not None or segment_id not in view.layout.segments or segment_id in view.busy:
        return False
    try:
        planned = plan_split(view.layout, segment_id)
    except InvalidLayoutChange:  # of width 1
        return False
    request = Request(
        f"missing-log-{segment_id}-{secrets.token_hex(8)}",
        Origin.RECONCILER,
        "cleave",
        f"segment {segment_id} has no log on the broker; its log is created, and clients follow the split",
    )
    reshape_intents.intend(tx, ReshapeDraft(view, planned, request, None))
    return True
