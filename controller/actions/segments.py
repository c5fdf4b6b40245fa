"""Reshapes of segments that a person requests: split, merge, rebucket, recut."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, FailFast, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import Hash, Keep, SegmentId, TopicRequest, split_words
from controller.actions.responses import OperationResponse
from controller.actions.rights import Right
from controller.domain.durations import parse_duration
from controller.domain.operation import OperationKind
from controller.services import segment_admin
from controller.services.segment_admin import Planner

CutPoints = Annotated[
    tuple[Hash, ...] | None,
    Field(
        max_length=65_535,
        description="First hash of each new segment except the first (0x4000 or 16384). None: the midpoint.",
    ),
    FailFast(),
    BeforeValidator(split_words),
]
ActiveSegment = Annotated[SegmentId, Field(description="Id of an ACTIVE segment.")]


class SplitSegment(TopicRequest):
    """Split a segment: at the midpoint, at cut points, or into parts of equal width.

    Cooldowns and caps of the policy do not apply to manual splits. A segment that is already in an operation
    is refused.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"segment_id": 0, "parts": 3, "reason": "before the sale"},
                {"segment_id": 0, "cut_points": [16384, 32768], "keep": "2h"},
            ]
        }
    )

    segment_id: ActiveSegment
    cut_points: CutPoints = None
    parts: Annotated[int, Field(ge=2, le=65_536)] | None = Field(
        None, description="Number of segments of equal width, instead of cut points."
    )
    keep: Keep = Field(
        None,
        description="Time after the request in which no policy merges the new segments with others: 90min, 2h, 7d. "
        "None: a policy may merge them at once.",
        examples=["2h"],
    )


class MergeSegments(TopicRequest):
    """Merge two neighbouring segments."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"first_id": 1, "second_id": 2, "reason": "the sale is over"}]}
    )

    first_id: ActiveSegment
    second_id: ActiveSegment


class RebucketSegment(TopicRequest):
    """Give a segment another number of entry buckets. Its hash range does not change."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"segment_id": 0, "bucket_count": 8, "reason": "for eight consumers"}]
        }
    )

    segment_id: ActiveSegment
    bucket_count: Annotated[int, Field(ge=1, le=65_536, description="Entry buckets of the successor.")]


class RecutSegments(TopicRequest):
    """Divide neighbouring segments at other cut points. Without a cut point they become one segment."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"segment_ids": [1, 2], "cut_points": [20000], "reason": "off the hot key"}]
        }
    )

    segment_ids: Annotated[
        tuple[SegmentId, ...],
        Field(min_length=1, max_length=65_536, description="Ids of neighbouring ACTIVE segments."),
        FailFast(),
        BeforeValidator(split_words),
    ]
    cut_points: CutPoints = None


def _reshape(
    context: Context, request: TopicRequest, planner: Planner, keep: str | None = None
) -> OperationResponse:
    """Write the intent of the reshape that the planner plans, and return its operation after the wait that the context
    allows. `keep`: duration such as `2h` for which no policy merges the created segments; None: no such time. If the
    request key was used for the same reshape, its operation is returned and nothing is written; `keep` may differ.

    Raises TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound, InvalidLayoutChange, SegmentBusy, LostRace, Conflict
    if the request key was used for another reshape, topic or kind of operation, and Unsupported if the data plane
    cannot perform the reshape.
    """
    journal_request = context.journal_request(request.reason)
    if keep is not None:
        journal_request = replace(journal_request, keep_seconds=parse_duration(keep).total_seconds())
    intent = segment_admin.submit(context.store, context.app.planes, request.topic, planner, journal_request)
    return context.respond(OperationResponse, intent)


def split(context: Context, request: SplitSegment) -> OperationResponse:
    """Write the intent to split the segment, and return its operation after the wait that the context allows. Raises
    InvalidInput for both cut points and parts, TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound,
    InvalidLayoutChange, SegmentBusy, LostRace, Conflict if the request key was used for another request, and
    Unsupported if the data plane cannot split there.
    """
    planner = segment_admin.splitting(request.segment_id, at=request.cut_points or (), parts=request.parts)
    return _reshape(context, request, planner, request.keep)


def merge(context: Context, request: MergeSegments) -> OperationResponse:
    """Write the intent to merge the segments, and return its operation after the wait that the context allows. Raises
    TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound, InvalidLayoutChange unless the segments are neighbours,
    SegmentBusy, LostRace, Conflict if the request key was used for another request, and Unsupported.
    """
    return _reshape(context, request, segment_admin.merging(request.first_id, request.second_id))


def rebucket(context: Context, request: RebucketSegment) -> OperationResponse:
    """Write the intent to change the segment's number of entry buckets, and return its operation after the wait that the
    context allows. Raises TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound, InvalidLayoutChange, SegmentBusy,
    LostRace, Conflict if the request key was used for another request, and Unsupported.
    """
    planner = segment_admin.rebucketing(request.segment_id, request.bucket_count)
    return _reshape(context, request, planner)


def recut(context: Context, request: RecutSegments) -> OperationResponse:
    """Write the intent to divide the segments at other cut points (without a cut point: into one segment), and return its
    operation after the wait that the context allows. Raises TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound,
    InvalidLayoutChange unless the segments are neighbours and the cut points fit, SegmentBusy, LostRace, Conflict if the
    request key was used for another request, and Unsupported.
    """
    planner = segment_admin.recutting(request.segment_ids, request.cut_points or ())
    return _reshape(context, request, planner)


ACTIONS = (
    Action(
        "segments split",
        "/topics/{topic}/split",
        Right.OPERATE,
        SplitSegment,
        OperationResponse,
        split,
        operation_kinds=(OperationKind.SPLIT,),
    ),
    Action(
        "segments merge",
        "/topics/{topic}/merge",
        Right.OPERATE,
        MergeSegments,
        OperationResponse,
        merge,
        operation_kinds=(OperationKind.MERGE,),
    ),
    Action(
        "segments rebucket",
        "/topics/{topic}/rebucket",
        Right.OPERATE,
        RebucketSegment,
        OperationResponse,
        rebucket,
        operation_kinds=(OperationKind.REBUCKET,),
    ),
    Action(
        "segments recut",
        "/topics/{topic}/recut",
        Right.OPERATE,
        RecutSegments,
        OperationResponse,
        recut,
        operation_kinds=(OperationKind.RECUT,),
    ),
)
