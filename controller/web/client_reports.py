"""The routes by which a producer reports counts of its keys, and a client that the log of a segment is missing or closed. Every worker
accepts reports.

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.concurrency import run_in_threadpool

from controller.domain.hash_range import RING_SIZE
from controller.domain.whole_numbers import MOST
from controller.web.paths import PRINTABLE, TOPIC_PATH
from controller.web.refusals import REFUSALS
from controller.web.route_rights import CONSUME, DemandingRoute
from controller.web.shared_parameters import Topic, served_by

router = APIRouter(route_class=DemandingRoute, dependencies=[CONSUME], responses=REFUSALS)

MOST_COUNTS = 4_096
Count = tuple[
    Annotated[int, Field(ge=0, lt=RING_SIZE)],
    Annotated[int, Field(ge=1, le=RING_SIZE)],
    Annotated[int, Field(ge=0, lt=2**63)],
]


class KeyCounts(BaseModel):
    """Messages by hash since the last request of the producer: first hash, number of hashes, messages. Counts above the bounds in
    docs/reference/client-protocol.md are refused.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"producer": "checkout-1f0c", "counts": [[35231, 1, 900], [0, 64, 12]]}]
        }
    )

    producer: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]
    counts: Annotated[list[Count], Field(max_length=MOST_COUNTS), FailFast()]


@router.post(TOPIC_PATH + "/key-counts", status_code=204, tags=["clients: key counts"])
async def key_counts(request: HttpRequest, topic: Topic, body: KeyCounts) -> None:
    """Add the counts of a producer to those of this worker, which are landed periodically, and lost if the worker dies before."""
    await run_in_threadpool(served_by(request).key_counts.add, topic, body.producer, body.counts)


class Suspect(BaseModel):
    """A segment whose log a client found missing or closed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"segment_id": 0}]})

    segment_id: Annotated[int, Field(ge=0, le=MOST)]


@router.post(TOPIC_PATH + "/suspects", status_code=204, tags=["clients: suspects"])
async def suspect(request: HttpRequest, topic: Topic, body: Suspect) -> None:
    """Queue a check of the log of an ACTIVE segment; the segment is repaired later if the log is missing or closed. The answer does not wait
    for the check. The report is ignored if the segment is not ACTIVE, or if too many reports wait.
    """
    await run_in_threadpool(served_by(request).suspects.report, topic, body.segment_id)
