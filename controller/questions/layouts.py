"""The layout of a topic, now or in the past, as PIP-468 records it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import as_value_error
from controller.actions.responses import Document
from controller.domain.layout import SegmentLayout
from controller.questions.question import TopicQuestion
from controller.questions.spans import moment
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import inspector_reads


def _moment(text: str) -> str:
    """Return the text of an epoch or a time unchanged. Raises InvalidInput for other texts."""
    moment(text)
    return text


class ShowLayout(TopicQuestion):
    """Show the whole layout of a topic, now or in the past: ACTIVE segments, and sealed segments until they are pruned."""

    at: Annotated[str, AfterValidator(as_value_error(_moment))] | None = Field(
        None,
        max_length=100,
        description="A past epoch or time. None: now.",
        examples=["7", "2026-11-21T03:00:00Z"],
    )

    @property
    def moment(self) -> int | datetime | None:
        """The requested epoch or time; None for the present layout."""
        return None if self.at is None else moment(self.at)


class _Recorded(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class RecordedRange(BaseModel):
    """A range of hashes, including both ends."""

    start: int = Field(examples=[0])
    end: int = Field(examples=[32767])


class SegmentRecord(_Recorded):
    """A segment. An epoch or time that does not exist is -1."""

    segment_id: int
    hash_range: RecordedRange
    state: str = Field(examples=["ACTIVE"])
    parent_ids: list[int] = Field(examples=[[0]])
    child_ids: list[int]
    created_at_epoch: int
    sealed_at_epoch: int = Field(examples=[-1])
    created_at_ms: int = Field(examples=[1795230000000])
    sealed_at_ms: int
    legacy_topic_name: str | None
    entry_bucket_splits: list[int] = Field(examples=[[8192, 16384, 24576]])
    merge_depth: int


class LayoutRecord(_Recorded, Document):
    """A layout, including sealed segments, without the properties of the topic."""

    properties: dict[str, str]
    epoch: int = Field(examples=[7])
    next_segment_id: int = Field(examples=[3])
    segments: dict[str, SegmentRecord]

    @property
    def layout(self) -> SegmentLayout:
        """The layout as an object of the domain."""
        return SegmentLayout.from_metadata(self.model_dump(mode="json", by_alias=True))


def show_layout(context: Context, request: ShowLayout) -> LayoutRecord:
    """Return the layout at the requested epoch, the last layout committed by the requested time, or the present one,
    which is empty while the topic is being created. Each has the sealed segments that were not pruned then. Raises
    TopicNotFound, also for a deleted topic, and NotFound if the topic had no layout at that time, or if the epoch was
    skipped or does not exist yet.
    """
    with snapshot(context.store) as tx:
        topic = inspector_reads.find_topic(tx, request.topic)
        at = request.moment
        layout = (
            inspector_reads.load_layout(tx, topic) if at is None else inspector_reads.layout_at(tx, topic, at)
        )
    return LayoutRecord.model_validate(layout.to_metadata())


SHOW_LAYOUT = report(
    "topics layout",
    "/topics/{topic}/layout/metadata",
    ShowLayout,
    LayoutRecord,
    show_layout,
    is_command=False,
)
ACTIONS = (SHOW_LAYOUT,)
