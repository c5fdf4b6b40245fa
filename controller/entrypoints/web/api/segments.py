"""Segments by hand: split, merge, other buckets, re-cut."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import ConfigDict, FailFast, Field

from controller.entrypoints.web.api.changes import Change, Changing, Intended, Wait, WithReason
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import OPERATE, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import segment_admin
from controller.services.segment_admin import Planner

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["segments"])
SegmentId = Annotated[int, Field(ge=0, lt=2**63, examples=[0])]
Hash = Annotated[int, Field(ge=0, le=65_535, examples=[32768])]


class Reshape(WithReason):
    """What is to become of segments."""

    @abstractmethod
    def planner(self) -> Planner:
        """What plans it."""


class Split(Reshape):
    """At the midpoint, at cut points (each the first hash of a child), or into `parts` of equal width."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"segment_id": 0, "parts": 3, "reason": "before the sale"},
                {"segment_id": 0, "at": [16384, 32768]},
            ]
        }
    )

    segment_id: SegmentId
    at: Annotated[list[Hash], Field(max_length=65_535), FailFast()] = []
    parts: Annotated[int, Field(ge=2, le=65_536)] | None = None

    def planner(self) -> Planner:
        """See `Reshape`."""
        return segment_admin.splitting(self.segment_id, at=self.at, parts=self.parts)


class Merge(Reshape):
    """Two neighbours into one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"first_id": 1, "second_id": 2, "reason": "the sale is over"}]}
    )

    first_id: SegmentId
    second_id: SegmentId

    def planner(self) -> Planner:
        """See `Reshape`."""
        return segment_admin.merging(self.first_id, self.second_id)


class Rebucket(Reshape):
    """The same range with another number of entry buckets."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"segment_id": 0, "bucket_count": 8, "reason": "for eight consumers"}]
        }
    )

    segment_id: SegmentId
    bucket_count: Annotated[int, Field(ge=1, le=65_536)]

    def planner(self) -> Planner:
        """See `Reshape`."""
        return segment_admin.rebucketing(self.segment_id, self.bucket_count)


class Recut(Reshape):
    """Neighbours cut anew at other points; none joins them all."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"segment_ids": [1, 2], "cut_points": [20000], "reason": "off the hot key"}]
        }
    )

    segment_ids: Annotated[list[SegmentId], Field(min_length=1, max_length=65_536), FailFast()]
    cut_points: Annotated[list[Hash], Field(max_length=65_535), FailFast()] = []

    def planner(self) -> Planner:
        """See `Reshape`."""
        return segment_admin.recutting(self.segment_ids, self.cut_points)


@router.post(TOPIC_PATH + "/split", dependencies=[OPERATE])
def split(
    change: Changing, topic: Topic, said: Annotated[Split, Body()], wait_seconds: Wait = 0.0
) -> Intended:
    """Split an ACTIVE segment."""
    return _reshape(change, topic, said, wait_seconds)


@router.post(TOPIC_PATH + "/merge", dependencies=[OPERATE])
def merge(
    change: Changing, topic: Topic, said: Annotated[Merge, Body()], wait_seconds: Wait = 0.0
) -> Intended:
    """Merge two neighbouring ACTIVE segments."""
    return _reshape(change, topic, said, wait_seconds)


@router.post(TOPIC_PATH + "/rebucket", dependencies=[OPERATE])
def rebucket(
    change: Changing, topic: Topic, said: Annotated[Rebucket, Body()], wait_seconds: Wait = 0.0
) -> Intended:
    """Give an ACTIVE segment another number of entry buckets."""
    return _reshape(change, topic, said, wait_seconds)


@router.post(TOPIC_PATH + "/recut", dependencies=[OPERATE])
def recut(
    change: Changing, topic: Topic, said: Annotated[Recut, Body()], wait_seconds: Wait = 0.0
) -> Intended:
    """Cut neighbouring ACTIVE segments anew."""
    return _reshape(change, topic, said, wait_seconds)


def _reshape(change: Change, topic: str, said: Reshape, wait_seconds: float) -> Intended:
    planner = said.planner()
    return change.intend(
        lambda store, request: segment_admin.submit(store, change.app.planes, topic, planner, request),
        reason=said.reason,
        wait_seconds=wait_seconds,
        planned_on=lambda: segment_admin.preview(change.app.store, change.app.planes, topic, planner).epoch,
    )
