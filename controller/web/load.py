"""Load that brokers write. The source of the samples is the holder of the token, so a broker cannot write for another broker."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, FailFast, Field

from controller.bootstrap import load_intake
from controller.dataplane.base import Counters
from controller.web.http_caller import HttpCaller
from controller.web.paths import PREFIX
from controller.web.refusals import REFUSALS
from controller.web.route_rights import WRITE_LOAD, DemandingRoute

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["load"])
Count = Annotated[int, Field(ge=0, lt=2**63)]


class SegmentCounters(BaseModel):
    """Counters of one log. They increase, and restart from 0 with the broker or the log. *In* counts stored messages,
    *out* messages delivered to all subscriptions.
    """

    backing_topic: Annotated[str, Field(min_length=1, max_length=2000)] = Field(
        examples=["persistent://acme/shop/orders-segment-0000-7fff-0"]
    )
    instant_ms: Count = Field(
        description="Time at which the counters were read, in milliseconds since the Unix epoch."
    )
    msg_in: Count
    byte_in: Count
    msg_out: Count
    byte_out: Count


class Samples(BaseModel):
    """Samples that a broker took at about one time."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sent_at_ms": 1795420800050,
                    "samples": [
                        {
                            "backing_topic": "persistent://acme/shop/orders-segment-0000-7fff-0",
                            "instant_ms": 1795420800000,
                            "msg_in": 120,
                            "byte_in": 48000,
                            "msg_out": 120,
                            "byte_out": 48000,
                        }
                    ],
                }
            ]
        }
    )

    samples: Annotated[list[SegmentCounters], Field(max_length=20_000), FailFast()]
    sent_at_ms: Count | None = Field(
        default=None,
        description="Time at which this request was sent, by the clock of instant_ms. Default: the latest instant_ms; then samples that are sent"
        " late give no rate.",
        examples=[1795420800050],
    )


class SamplesTaken(BaseModel):
    """Number of landed samples. `unknown` lists logs that belong to no watched segment; their samples were ignored."""

    landed: int = Field(examples=[40])
    unknown: list[str] = Field(examples=[["persistent://acme/shop/orders-segment-0000-7fff-0"]])


@router.post(f"{PREFIX}/load/samples", dependencies=[WRITE_LOAD])
def write_load(acting: HttpCaller, body: Annotated[Samples, Body()]) -> SamplesTaken:
    """Write samples of counters to the landing area, as a load collector does. The holder of the token is recorded as
    the source. Samples of logs that belong to no watched segment are ignored and named in `unknown`. 412 if a time is
    too far from the database's time; nothing is then written.
    """
    counters = [Counters(source=acting.grant.subject, **sample.model_dump()) for sample in body.samples]
    landed, unknown = load_intake(acting.app)(acting.grant.subject, counters, body.sent_at_ms)
    return SamplesTaken(landed=landed, unknown=unknown)
