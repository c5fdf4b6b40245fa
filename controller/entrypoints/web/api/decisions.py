"""Decisions: the ledger with its acts and refusals, why nothing happens to a topic now, and what another policy would decide."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel, ConfigDict, Field

from controller.clock import to_ms
from controller.domain.decision import Lane
from controller.domain.errors import NotFound
from controller.entrypoints.retracing import stored_answer
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import From, OfTopic, To, Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.questions import evaluations
from controller.questions.spans import span
from controller.services import what_if
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["decisions"])
_LIST = Listing(
    """
    SELECT d.decision_id, d.topic, d.decided_at, d.epoch, d.lanes, d.decided_by, d.acts, d.operations, d.decisions, d.refusals,
           d.valid_until, d.code_version
      FROM inspect.decisions d
     WHERE (CAST(:topic AS text) IS NULL OR d.topic = :topic)
       AND (CAST(:after_decision_id AS bigint) IS NULL OR d.decision_id < :after_decision_id)
     ORDER BY d.decision_id DESC LIMIT :limit
    """,
    {"decision_id": int},
)
_LEDGER = Listing(
    """
    SELECT decision_id, topic, topic_id, decided_at, epoch, lanes, decided_by, acts, operations, decisions, refusals, valid_until,
           input_version, code_version, situation
      FROM inspect.decisions
     WHERE (CAST(:topic AS text) IS NULL OR topic = :topic)
       AND (CAST(:after_decided_at AS timestamptz) IS NULL
            OR (decided_at, decision_id) < (:after_decided_at, :after_decision_id))
     ORDER BY decided_at DESC, decision_id DESC LIMIT :limit
    """,
    {"decided_at": datetime, "decision_id": int},
)
_INPUTS = "decision_id, topic, topic_id, decided_at, lanes, code_version, decisions, refusals, valid_until, situation"
_ALL_INPUTS = Listing(
    f"""
    SELECT {_INPUTS} FROM inspect.decision_inputs
     WHERE topic = :topic AND decided_at >= :since AND decided_at < :until
       AND (CAST(:after_decision_id AS bigint) IS NULL OR decision_id > :after_decision_id)
     ORDER BY decision_id LIMIT :limit
    """,
    {"decision_id": int},
)
_INPUTS_OF_ONE = f"SELECT {_INPUTS} FROM inspect.decision_inputs WHERE decision_id = :decision_id"
_ONE = """
    SELECT decision_id, topic, decided_at, epoch, lanes, decided_by, acts, operations, decisions, refusals, valid_until,
           code_version, situation
      FROM inspect.decisions WHERE decision_id = :decision_id
"""
_ALL_REFUSALS = Listing(
    """
    SELECT * FROM (SELECT w.*, coalesce(segment_id, -1) AS one, coalesce(other_id, -1) AS other,
                          (extract(epoch FROM decided_at) * -1000000)::bigint AS newest
                     FROM inspect.why_not w WHERE CAST(:topic AS text) IS NULL OR topic = :topic) AS refused
     WHERE CAST(:after_newest AS bigint) IS NULL
        OR (newest, topic, lane, one, other, reason)
         > (:after_newest, :after_topic, :after_lane, :after_one, :after_other, :after_reason)
     ORDER BY newest, topic, lane, one, other, reason LIMIT :limit
    """,
    {"newest": int, "topic": str, "lane": str, "one": int, "other": int, "reason": str},
)
_WHY_NOT = Listing(
    """
    SELECT lane, segment_id, other_id, reason, metric, value, needed, not_before, decided_at, is_current, decision_id, one, other
      FROM inspect.why_not, LATERAL (SELECT coalesce(segment_id, -1) AS one, coalesce(other_id, -1) AS other) AS numbers
     WHERE topic_id = :topic_id
       AND (CAST(:after_lane AS text) IS NULL
            OR (lane, one, other, reason) > (:after_lane, :after_one, :after_other, :after_reason))
     ORDER BY lane, one, other, reason LIMIT :limit
    """,
    {"lane": str, "one": int, "other": int, "reason": str},
)


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


class Decision(Verdict):
    """An evaluation of the ledger; as `inspect.decisions`."""

    decision_id: int = Field(examples=[42])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    decided_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    epoch: int
    lanes: list[str] = Field(examples=[["load", "merge"]])
    decided_by: str = Field(examples=["airflow cleave_split_pass scheduled__1"])
    acts: list[str] = Field(examples=[["split 0 (msgRateIn)"]])
    operations: list[int] = Field(examples=[[42]])
    code_version: str = Field(examples=["adaptive-3"])


class WholeDecision(Decision):
    """With all that it looked at."""

    situation: dict[str, Any] = Field(examples=[{"now": 1795230000000}])


class LeftAlone(BaseModel):
    """Something that was refused at the newest evaluation of its lane; as `inspect.why_not`."""

    lane: str = Field(examples=["merge"])
    segment_id: int | None
    other_id: int | None
    reason: str = Field(examples=["not-cold"])
    metric: str | None = Field(examples=["msg_rate_in"])
    value: float | None = Field(examples=[1200.0])
    needed: float | None = Field(examples=[1000.0])
    not_before: datetime | None
    how_far: str = Field(examples=["msg_rate_in 1,200, needs below 1,000 (200 too high, 1.20 times that)"])
    decided_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    is_current: bool
    decision_id: int


class LeftAloneSomewhere(LeftAlone):
    """The same of any topic."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    value_at: datetime | None = Field(description="The value as an instant, where it is one.")
    needed_at: datetime | None


class DecisionInputs(BaseModel):
    """What a decision was made on and what came out, word for word; as `inspect.decision_inputs`. Instants within are milliseconds."""

    decision_id: int = Field(examples=[42])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    decided_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    lanes: list[str] = Field(examples=[["load", "merge"]])
    code_version: str = Field(examples=["adaptive-3"])
    decisions: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    valid_until: datetime | None
    situation: str = Field(description="Its canonical text, to decide on again.")


class LedgerRow(BaseModel):
    """A decision word for word; as `inspect.decisions`. Instants within the answer are milliseconds."""

    decision_id: int = Field(examples=[42])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    topic_id: int
    decided_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    epoch: int
    lanes: list[str] = Field(examples=[["load", "merge"]])
    decided_by: str = Field(examples=["airflow cleave_split_pass scheduled__1"])
    acts: list[str] = Field(examples=[["split 0 (msgRateIn)"]])
    operations: list[int]
    decisions: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    valid_until: datetime | None
    input_version: int
    code_version: str = Field(examples=["adaptive-3"])
    situation: dict[str, Any]


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


DecisionId = Annotated[int, Path(ge=0, lt=2**63, examples=[42])]


def _decision(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **evaluations.document(stored_answer(row), to_ms(row["decided_at"]))}


@router.get(f"{PREFIX}/decisions", dependencies=[READ], response_model=Page[Decision])
def list_decisions(
    acting: AtDesk,
    paging: Asked,
    topic: OfTopic = None,
) -> dict[str, Any]:
    """Decisions of the ledger with their refusals, newest first."""
    with acting.app.store.transaction() as tx:
        name = None if topic is None else inspected.demand_known(tx, topic)
        return _LIST.page(tx, paging, each=_decision, topic=name)


@router.get(f"{PREFIX}/ledger", dependencies=[READ], response_model=Page[LedgerRow])
def list_ledger(acting: AtDesk, paging: Asked, topic: OfTopic = None) -> dict[str, Any]:
    """Decisions as they were written, with what they were made on, newest first. Each has some 10 KB."""
    with acting.app.store.transaction() as tx:
        name = None if topic is None else inspected.demand_known(tx, topic)
        return _LEDGER.page(tx, paging, topic=name)


@router.get(f"{PREFIX}/refusals", dependencies=[READ], response_model=Page[LeftAloneSomewhere])
def list_all_refusals(acting: AtDesk, paging: Asked, topic: OfTopic = None) -> dict[str, Any]:
    """What was left alone at the newest evaluation of each lane, of all topics, newest first."""
    with acting.app.store.transaction() as tx:
        name = None if topic is None else inspected.demand_known(tx, topic)
        now = to_ms(database_now(tx))
        return _ALL_REFUSALS.page(tx, paging, each=lambda row: evaluations.refusal_row(row, now), topic=name)


@router.get(f"{PREFIX}/decisions/{{decision_id}}/inputs", dependencies=[READ], response_model=DecisionInputs)
def show_inputs(acting: AtDesk, decision_id: DecisionId) -> dict[str, Any]:
    """What one decision was made on, and its answer, word for word: to be made again elsewhere."""
    with acting.app.store.transaction() as tx:
        found = inspection.rows(tx, _INPUTS_OF_ONE, decision_id=decision_id)
    if not found:
        raise _no_decision(decision_id)
    return found[0]


@router.get(TOPIC_PATH + "/decisions/inputs", dependencies=[READ], response_model=Page[DecisionInputs])
def list_inputs(
    acting: AtDesk, paging: Asked, topic: Topic, since: From = None, until: To = None
) -> dict[str, Any]:
    """The same of the topic's decisions, in the order they were made."""
    begins, ends = span(since, until)
    with acting.app.store.transaction() as tx:
        name = inspected.demand_known(tx, topic)
        return _ALL_INPUTS.page(tx, paging, topic=name, since=begins, until=ends)


@router.get(f"{PREFIX}/decisions/{{decision_id}}", dependencies=[READ], response_model=WholeDecision)
def show_decision(acting: AtDesk, decision_id: DecisionId) -> dict[str, Any]:
    """One decision with the situation it was made on."""
    with acting.app.store.transaction() as tx:
        found = inspection.rows(tx, _ONE, decision_id=decision_id)
    if not found:
        raise _no_decision(decision_id)
    return _decision(found[0])


def _no_decision(decision_id: int) -> NotFound:
    return NotFound(
        f"decision {decision_id} is not in the ledger, or its day has been dropped; `cleave decisions` lists them"
    )


@router.get(TOPIC_PATH + "/refusals", dependencies=[READ], response_model=Page[LeftAlone])
def list_refusals(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """What was left alone at the newest evaluation of each lane, why, and how far it was from acting."""
    with acting.app.store.transaction() as tx:
        now = to_ms(database_now(tx))
        return _WHY_NOT.page(
            tx,
            paging,
            each=lambda row: evaluations.refusal_row(row, now),
            topic_id=inspected.find_topic(tx, topic).topic_id,
        )


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
