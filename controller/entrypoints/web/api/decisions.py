"""Decisions: the ledger with its acts and refusals, why nothing happens to a topic now, and what another policy would decide."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field

from controller.domain.decision import Lane
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.questions import evaluations
from controller.services import what_if

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["decisions"])


class Verdict(BaseModel):
    """Acts, what was refused with its reason and how far it was from acting, and until when that holds."""

    decisions: list[dict[str, Any]] = Field(
        examples=[[{"kind": "split", "segment_id": 0, "reason": "msgRateIn"}]]
    )
    refusals: list[dict[str, Any]] = Field(
        examples=[[{"segment_id": 1, "lane": "merge", "reason": "merge-cooldown"}]]
    )
    valid_until: datetime | int | None = Field(
        description="Null until something changes; a number of milliseconds where it lies beyond the calendar."
    )


class OtherKnobs(BaseModel):
    """A policy to look at the topic with, beside the one in force."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"changes": {"max_segments": 16}}]})

    changes: dict[str, Any] = Field(
        {}, max_length=100, description="Knobs that differ.", examples=[{"max_segments": 16}]
    )


class Situations(BaseModel):
    """What would be decided on now, each as `cleave decide --print-snapshot` prints it: a canonical text."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    in_force: str
    what_if: str


class Question(BaseModel):
    """A policy to ask with in place of the one in force, and which questions to ask."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"changes": {"max_segments": 16}, "lanes": ["load"]}]}
    )

    changes: dict[str, Any] = Field(
        {}, max_length=100, description="Knobs that differ.", examples=[{"max_segments": 16}]
    )
    lanes: Annotated[list[Lane], Field(min_length=1, max_length=3)] = list(Lane)


class KnobDiffers(BaseModel):
    """A knob in force, and as it was asked about."""

    knob: str = Field(examples=["max_segments"])
    was: Any = Field(examples=[8])
    value: Any = Field(examples=[16])


class Compared(BaseModel):
    """What would be decided now, under the policy in force and under the other one."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    epoch: int = Field(examples=[7])
    at: datetime | int | None = Field(examples=["2026-11-21T03:00:00Z"])
    lanes: list[str] = Field(examples=[["load"]])
    changes: list[KnobDiffers]
    is_same: bool
    in_force: Verdict
    what_if: Verdict
    difference: dict[str, Any] = Field(description="What only one of the two has, by its name.")


@router.post(TOPIC_PATH + "/situations", dependencies=[READ], response_model=Situations)
def show_situations(
    acting: AtDesk, topic: Topic, said: Annotated[OtherKnobs | None, Body()] = None
) -> dict[str, Any]:
    """All that a decision on the topic would look at now, under the policy in force and under another; changes nothing."""
    changes = (said or OtherKnobs()).changes
    now, then = what_if.situations_of(acting.app.store, acting.app.planes, topic, changes)
    return {"topic": topic, "in_force": now.to_json(), "what_if": then.to_json()}


@router.post(TOPIC_PATH + "/decide", dependencies=[READ], response_model=Compared)
def decide(acting: AtDesk, topic: Topic, said: Annotated[Question | None, Body()] = None) -> dict[str, Any]:
    """What would be decided for the topic now, and what under another policy; changes nothing."""
    question = said or Question()
    found = what_if.ask(
        acting.app.store, acting.app.planes, topic, question.changes, frozenset(question.lanes)
    )
    return evaluations.comparison(found)
