"""The route by which a client reports that the log of a segment is missing or closed. Every worker accepts reports.

The protocol as a client sees it: docs/reference/client-protocol.md.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from controller.domain.whole_numbers import MOST
from controller.web.paths import TOPIC_PATH
from controller.web.refusals import REFUSALS
from controller.web.route_rights import CONSUME, DemandingRoute
from controller.web.shared_parameters import Topic, served_by

router = APIRouter(
    route_class=DemandingRoute, dependencies=[CONSUME], responses=REFUSALS, tags=["clients: suspects"]
)

PATH = TOPIC_PATH + "/suspects"


class Suspect(BaseModel):
    """A segment whose log a client found missing or closed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"segment_id": 0}]})

    segment_id: Annotated[int, Field(ge=0, le=MOST)]


@router.post(PATH, status_code=204)
async def suspect(request: HttpRequest, topic: Topic, body: Suspect) -> None:
    """Queue a check of the log of an ACTIVE segment; the segment is repaired later if the log is missing or closed. The answer does not wait
    for the check. The report is ignored if the segment is not ACTIVE, or if too many reports wait.
    """
    await run_in_threadpool(served_by(request).suspects.report, topic, body.segment_id)
