"""Decisions: the ledger with its acts and refusals, why nothing happens to a topic now, and what another policy would decide."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, Field

from controller.clock import to_ms
from controller.domain.decision import Lane
from controller.domain.errors import NotFound
from controller.domain.how_far import how_far
from controller.entrypoints import verdict_documents
from controller.entrypoints.retracing import stored_answer
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Page
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import what_if
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
from controller.store.topics import inspected

router = APIRouter(responses=REFUSALS, tags=["decisions"])
_LIST = """
    SELECT d.decision_id, d.topic, d.decided_at, d.epoch, d.lanes, d.decided_by, d.acts, d.operations, d.decisions, d.refusals,
           d.valid_until, d.code_version
      FROM inspect.decisions d
     WHERE (CAST(:topic AS text) IS NULL OR d.topic = :topic)
       AND (CAST(:before AS bigint) IS NULL OR d.decision_id < :before)
     ORDER BY d.decision_id DESC LIMIT :limit
"""
_ONE = """
    SELECT decision_id, topic, decided_at, epoch, lanes, decided_by, acts, operations, decisions, refusals, valid_until,
           code_version, situation
      FROM inspect.decisions WHERE decision_id = :decision_id
"""
_WHY_NOT = """
    SELECT lane, segment_id, other_id, reason, metric, value, needed, not_before, decided_at, is_current, decision_id
      FROM inspect.why_not
     WHERE topic_id = :topic_id
       AND (CAST(:lane AS text) IS NULL
            OR (lane, coalesce(segment_id, -1), coalesce(other_id, -1), reason) > (:lane, :segment_id, :other_id, :reason))
     ORDER BY lane, coalesce(segment_id, -1), coalesce(other_id, -1), reason LIMIT :limit
"""


class Verdict(BaseModel):
    """Acts, what was refused with its reason and how far it was from acting, and until when that holds."""

    decisions: list[dict[str, Any]] = Field(
        examples=[[{"kind": "split", "segment_id": 0, "reason": "msgRateIn"}]]
    )
    refusals: list[dict[str, Any]]
    valid_until: datetime | int | None = Field(
        description="Null until something changes; a number of milliseconds where it lies beyond the calendar."
    )


class Decision(Verdict):
    """An evaluation of the ledger; as `inspect.decisions`."""

    decision_id: int
    topic: str = Field(examples=["topic://acme/shop/orders"])
    decided_at: datetime
    epoch: int
    lanes: list[str]
    decided_by: str
    acts: list[str] = Field(examples=[["split 0 (msgRateIn)"]])
    operations: list[int]
    code_version: str


class WholeDecision(Decision):
    """With all that it looked at."""

    situation: dict[str, Any]


class LeftAlone(BaseModel):
    """Something that was refused at the newest evaluation of its lane; as `inspect.why_not`."""

    lane: str = Field(examples=["load"])
    segment_id: int | None
    other_id: int | None
    reason: str = Field(examples=["below-threshold"])
    metric: str | None
    value: float | None
    needed: float | None
    not_before: datetime | None
    how_far: str
    decided_at: datetime
    is_current: bool
    decision_id: int


class Question(BaseModel):
    """A policy to ask with in place of the one in force, and which questions to ask."""

    changes: dict[str, Any] = Field(
        {}, max_length=100, description="Knobs that differ.", examples=[{"max_segments": 16}]
    )
    lanes: Annotated[list[Lane], Field(min_length=1, max_length=3)] = list(Lane)


class KnobDiffers(BaseModel):
    """A knob in force, and as it was asked about."""

    knob: str
    was: Any
    value: Any


class Compared(BaseModel):
    """What would be decided now, under the policy in force and under the other one."""

    topic: str
    epoch: int
    at: datetime | int | None
    lanes: list[str]
    changes: list[KnobDiffers]
    is_same: bool
    in_force: Verdict
    what_if: Verdict
    difference: dict[str, Any] = Field(description="What only one of the two has, by its name.")


def _decision(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **verdict_documents.document(stored_answer(row), to_ms(row["decided_at"]))}


@router.get(f"{PREFIX}/decisions", dependencies=[READ], response_model=Page[Decision])
def list_decisions(
    acting: AtDesk,
    paging: Asked,
    topic: Annotated[
        str | None,
        Query(max_length=2000, description="Its full name.", examples=["topic://acme/shop/orders"]),
    ] = None,
) -> dict[str, Any]:
    """Decisions of the ledger with their refusals, newest first."""
    [before] = paging.after(int)
    with acting.app.store.transaction() as tx:
        name = None if topic is None else inspected.demand_known(tx, topic)
        rows = inspection.rows(tx, _LIST, topic=name, before=before, limit=paging.rows)
    return paging.of([_decision(row) for row in rows], lambda row: [row["decision_id"]])


@router.get(f"{PREFIX}/decisions/{{decision_id}}", dependencies=[READ], response_model=WholeDecision)
def show_decision(acting: AtDesk, decision_id: Annotated[int, Path(ge=0, lt=2**63)]) -> dict[str, Any]:
    """One decision with the situation it was made on."""
    with acting.app.store.transaction() as tx:
        found = inspection.rows(tx, _ONE, decision_id=decision_id)
    if not found:
        raise NotFound(f"decision {decision_id} is not in the ledger, or its day has been dropped; list them")
    return _decision(found[0])


@router.get(TOPIC_PATH + "/refusals", dependencies=[READ], response_model=Page[LeftAlone])
def list_refusals(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """What was left alone at the newest evaluation of each lane, why, and how far it was from acting."""
    lane, segment_id, other_id, reason = paging.after(str, int, int, str)
    with acting.app.store.transaction() as tx:
        rows = inspection.rows(
            tx,
            _WHY_NOT,
            topic_id=inspected.find_topic(tx, topic).topic_id,
            lane=lane,
            segment_id=segment_id,
            other_id=other_id,
            reason=reason,
            limit=paging.rows,
        )
        now = to_ms(database_now(tx))
    return paging.of(
        [{**row, "how_far": how_far(_as_refused(row), now)} for row in rows],
        lambda row: [row["lane"], _or_none(row["segment_id"]), _or_none(row["other_id"]), row["reason"]],
    )


def _as_refused(row: dict[str, Any]) -> dict[str, Any]:
    ends = row["not_before"]
    return {**row, "not_before": None if ends is None else to_ms(ends)}


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


@router.post(TOPIC_PATH + "/decide", dependencies=[READ], response_model=Compared)
def decide(acting: AtDesk, topic: Topic, said: Annotated[Question | None, Body()] = None) -> dict[str, Any]:
    """What would be decided for the topic now, and what under another policy; changes nothing."""
    question = said or Question()
    found = what_if.ask(
        acting.app.store, acting.app.planes, topic, question.changes, frozenset(question.lanes)
    )
    return verdict_documents.comparison(found)
