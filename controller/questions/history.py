"""A topic's past: its layouts epoch by epoch, the lineage of segments, and load."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from controller.domain.whole_numbers import MOST
from controller.questions.question import Question, Since, TopicQuestion, Until

SegmentId = Annotated[int, Field(ge=0, le=MOST, description="Id of the segment.", examples=[0])]


class ListLayoutChanges(TopicQuestion):
    """List a topic's layouts: what happened in each epoch, who wanted it and why, newest first."""

    epoch: list[Annotated[int, Field(ge=0, le=MOST)]] | None = Field(
        None, max_length=1000, description="Only these epochs."
    )


class ListSegments(TopicQuestion):
    """List every segment that a topic ever had, pruned segments included, with its parents and children."""

    segment_id: list[SegmentId] | None = Field(None, max_length=10_000, description="Only these segments.")


class ShowLineage(TopicQuestion):
    """List everything that a segment came from and everything that came from it, ancestors first, pruned segments included."""

    segment_id: SegmentId


class ListLoad(TopicQuestion):
    """List the latest load of each ACTIVE segment beside the thresholds in force."""

    segment_id: SegmentId | None = Field(None, description="Only this segment.", examples=[0])


class ListLoadHistory(TopicQuestion):
    """List load records as they were written, newest first."""

    segment_id: SegmentId | None = Field(None, description="Only this segment.", examples=[0])
    since: Since = None
    until: Until = None


class ListHotKeys(TopicQuestion):
    """Show which part of each segment has the most load, and the load that no split can take away."""


LIST_LAYOUT_CHANGES = Question(
    "history layouts",
    "/topics/{topic}/layout/changes",
    "inspect.layout_changes",
    ListLayoutChanges,
    {"epoch": int},
    {"topic": "topic_id = :topic_id", "epoch": "epoch = ANY (CAST(:epoch AS bigint[]))"},
    descending=True,
    table=("epoch", "committed_at", "kind", "sealed", "created", "pruned", "origin", "actor", "reason"),
)
LIST_SEGMENTS = Question(
    "history segments",
    "/topics/{topic}/segments",
    "inspect.segments",
    ListSegments,
    {"segment_id": int},
    {"topic": "topic_id = :topic_id", "segment_id": "segment_id = ANY (CAST(:segment_id AS bigint[]))"},
    table=("segment_id", "hash_range", "state", "parents", "children", "created_at", "sealed_at"),
)
SHOW_LINEAGE = Question(
    "history lineage",
    "/topics/{topic}/segments/{segment_id}/lineage",
    "inspect.lineage(:topic, :segment_id)",
    ShowLineage,
    {"depth": int, "segment_id": int},
    of_past=True,
    missing="topic {topic} never had a segment {segment_id}; its layout names those it has",
    table=("segment_id", "depth", "relation", "hash_range", "state", "created_epoch", "sealed_epoch"),
)
LIST_LOAD = Question(
    "history load-now",
    "/topics/{topic}/load",
    "inspect.load_now",
    ListLoad,
    {"segment_id": int},
    {"topic": "topic_id = :topic_id", "segment_id": "segment_id = :segment_id"},
    table=(
        "segment_id",
        "hash_range",
        "msg_rate_in",
        "byte_rate_in",
        "hottest_ratio",
        "hottest_metric",
        "is_stale",
    ),
)
LIST_LOAD_HISTORY = Question(
    "history load",
    "/topics/{topic}/load/history",
    "inspect.load_history",
    ListLoadHistory,
    {"recorded_at": datetime, "segment_id": int},
    {
        "topic": "topic_id = :topic_id",
        "segment_id": "segment_id = :segment_id",
        "since": "recorded_at >= :since",
        "until": "recorded_at < :until",
    },
    descending=True,
    table=("segment_id", "hash_range", "recorded_at", "msg_rate_in", "byte_rate_in", "source"),
)
LIST_HOT_KEYS = Question(
    "history hot-keys",
    "/topics/{topic}/hot-keys",
    "inspect.hot_keys",
    ListHotKeys,
    {"segment_id": int},
    {"topic": "topic_id = :topic_id"},
    default_limit=10_000,
    is_command=False,
)
QUESTIONS = (
    LIST_LAYOUT_CHANGES,
    LIST_SEGMENTS,
    SHOW_LINEAGE,
    LIST_LOAD,
    LIST_LOAD_HISTORY,
    LIST_HOT_KEYS,
)
