"""A topic's past and present: its layouts epoch by epoch, where a segment came from and what came of it, its load."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controller.domain.errors import SegmentNotFound
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import From, To, Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.questions.spans import moment, span
from controller.store.topics import inspected

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["history"])
_CHANGES = Listing(
    """
    SELECT epoch, committed_at, kind, sealed, created, pruned, origin, actor, reason, operation_id, mirrored_from
      FROM inspect.layout_changes
     WHERE topic_id = :topic_id AND (CAST(:after_epoch AS bigint) IS NULL OR epoch < :after_epoch) ORDER BY epoch DESC LIMIT :limit
    """,
    {"epoch": int},
)
_LINEAGE = Listing(
    """
    SELECT * FROM inspect.lineage(:topic, :segment_id)
     WHERE (CAST(:after_depth AS bigint) IS NULL OR (depth, segment_id) > (:after_depth, :after_segment_id))
     ORDER BY depth, segment_id LIMIT :limit
    """,
    {"depth": int, "segment_id": int},
)
_LOAD = Listing(
    """
    SELECT segment_id, hash_range, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, hottest_ratio, hottest_metric, is_hot,
           is_cold, cold_since, modified_at, observed_at, silent_seconds, is_stale, source
      FROM inspect.load_now
     WHERE topic_id = :topic_id AND (CAST(:after_segment_id AS bigint) IS NULL OR segment_id > :after_segment_id)
     ORDER BY segment_id LIMIT :limit
    """,
    {"segment_id": int},
)
_LOAD_HISTORY = Listing(
    """
    SELECT segment_id, hash_range, recorded_at, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at,
           cold_since, silent_since
      FROM inspect.load_history
     WHERE topic_id = :topic_id AND recorded_at >= :since AND recorded_at < :until
       AND (CAST(:segment_id AS bigint) IS NULL OR segment_id = :segment_id)
       AND (CAST(:after_recorded_at AS timestamptz) IS NULL
            OR (recorded_at, segment_id) < (:after_recorded_at, :after_segment_id))
     ORDER BY recorded_at DESC, segment_id DESC LIMIT :limit
    """,
    {"recorded_at": datetime, "segment_id": int},
)


class LayoutChange(BaseModel):
    """One epoch: what happened, who wanted it and why; as `inspect.layout_changes`."""

    epoch: int = Field(examples=[7])
    committed_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    kind: str = Field(examples=["split"])
    sealed: list[int] = Field(examples=[[0]])
    created: list[int] = Field(examples=[[1, 2]])
    pruned: list[int]
    origin: str = Field(examples=["auto"])
    actor: str
    reason: str = Field(examples=["msgRateIn"])
    operation_id: int | None
    mirrored_from: int | None


class _Recorded(BaseModel):
    """Field by field as PIP-468 writes it."""

    model_config = ConfigDict(alias_generator=to_camel)


class Ring(BaseModel):
    """Hashes, both ends included."""

    start: int = Field(examples=[0])
    end: int = Field(examples=[32767])


class SegmentRecord(_Recorded):
    """A segment; epochs and instants that there are not, are -1."""

    segment_id: int
    hash_range: Ring
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


class LayoutRecord(_Recorded):
    """A topic's layout, sealed segments included; without the topic's properties."""

    properties: dict[str, str]
    epoch: int = Field(examples=[7])
    next_segment_id: int = Field(examples=[3])
    segments: dict[str, SegmentRecord]


class Relative(BaseModel):
    """A segment of the lineage: depth below 0 for what it came from, above 0 for what came from it; as `inspect.lineage`."""

    segment_id: int
    depth: int = Field(examples=[-1])
    relation: str = Field(examples=["ancestor"])
    hash_range: str = Field(examples=["0000-7fff"])
    state: str = Field(examples=["SEALED"])
    parents: list[int]
    created_epoch: int
    created_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    sealed_epoch: int | None
    sealed_at: datetime | None
    pruned_at: datetime | None
    made_by: str | None = Field(examples=["create"])
    operation_id: int | None
    origin: str | None
    actor: str | None
    reason: str | None


class LoadNow(BaseModel):
    """The load of an ACTIVE segment per second, beside the thresholds in force; as `inspect.load_now`."""

    segment_id: int
    hash_range: str = Field(examples=["0000-7fff"])
    msg_rate_in: float | None = Field(examples=[9000.0])
    byte_rate_in: float | None = Field(examples=[3600000.0])
    msg_rate_out: float | None
    byte_rate_out: float | None
    hottest_ratio: float | None = Field(examples=[0.9])
    hottest_metric: str | None = Field(examples=["msg_rate_in"])
    is_hot: bool | None
    is_cold: bool | None
    cold_since: datetime | None
    modified_at: datetime | None = Field(examples=["2026-11-21T03:00:00Z"])
    observed_at: datetime | None
    silent_seconds: float | None
    is_stale: bool
    source: str | None = Field(examples=["pulsar-0:8080"])


class LoadThen(BaseModel):
    """A load record as it was written; as `inspect.load_history`."""

    segment_id: int
    hash_range: str = Field(examples=["0000-7fff"])
    recorded_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    msg_rate_in: float = Field(examples=[9000.0])
    byte_rate_in: float = Field(examples=[3600000.0])
    msg_rate_out: float
    byte_rate_out: float
    source: str | None = Field(examples=["pulsar-0:8080"])
    modified_at: datetime
    cold_since: datetime | None
    silent_since: datetime | None


@router.get(TOPIC_PATH + "/layout/metadata", dependencies=[READ], response_model=LayoutRecord)
def show_layout_metadata(
    acting: AtDesk,
    topic: Topic,
    at: Annotated[
        str | None,
        Query(max_length=100, description="A past epoch or instant.", examples=["7", "2026-11-21T03:00:00Z"]),
    ] = None,
) -> dict[str, Any]:
    """The whole layout, now or then: ACTIVE segments, and sealed ones until they are pruned."""
    with acting.app.store.transaction() as tx:
        row = inspected.find_topic(tx, topic)
        found = inspected.load_layout(tx, row) if at is None else inspected.layout_at(tx, row, moment(at))
    return found.to_metadata()


@router.get(TOPIC_PATH + "/layout/changes", dependencies=[READ], response_model=Page[LayoutChange])
def list_layout_changes(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """The topic's history, newest epoch first."""
    with acting.app.store.transaction() as tx:
        return _CHANGES.page(tx, paging, topic_id=inspected.find_topic(tx, topic).topic_id)


@router.get(TOPIC_PATH + "/segments/{segment_id}/lineage", dependencies=[READ], response_model=Page[Relative])
def show_lineage(
    acting: AtDesk,
    paging: Asked,
    topic: Topic,
    segment_id: Annotated[int, Path(ge=0, lt=2**63, examples=[0])],
) -> dict[str, Any]:
    """Everything the segment came from and everything that came from it, ancestors first, pruned ones included."""
    with acting.app.store.transaction() as tx:
        name = inspected.demand_known(tx, topic)
        found = _LINEAGE.page(tx, paging, topic=name, segment_id=segment_id)
    if not found["items"] and paging.page is None:
        raise SegmentNotFound(
            f"topic {topic} never had a segment {segment_id}; its layout names those it has"
        )
    return found


@router.get(TOPIC_PATH + "/load", dependencies=[READ], response_model=Page[LoadNow])
def list_load(acting: AtDesk, paging: Asked, topic: Topic) -> dict[str, Any]:
    """The latest load of each ACTIVE segment, by id."""
    with acting.app.store.transaction() as tx:
        return _LOAD.page(tx, paging, topic_id=inspected.find_topic(tx, topic).topic_id)


@router.get(TOPIC_PATH + "/load/history", dependencies=[READ], response_model=Page[LoadThen])
def list_load_history(
    acting: AtDesk,
    paging: Asked,
    topic: Topic,
    since: From = None,
    until: To = None,
    segment_id: Annotated[int | None, Query(ge=0, lt=2**63, examples=[0])] = None,
) -> dict[str, Any]:
    """Load records as they were written, newest first."""
    begins, ends = span(since, until)
    with acting.app.store.transaction() as tx:
        return _LOAD_HISTORY.page(
            tx,
            paging,
            topic_id=inspected.find_topic(tx, topic).topic_id,
            since=begins,
            until=ends,
            segment_id=segment_id,
        )
