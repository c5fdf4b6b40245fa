"""Overviews: the fleet, and a topic with all that concerns it, each from one snapshot of schema `inspect`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import Connection

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.instant_columns import InstantRow
from controller.actions.responses import Document
from controller.questions.decisions import LIST_REFUSALS_OF_TOPIC
from controller.questions.operations import LIST_OPERATIONS
from controller.questions.question import (
    QuestionRequest,
    Row,
    TopicQuestion,
    read_answers,
    read_statement,
    read_view,
)
from controller.questions.subscriptions import LIST_SUBSCRIPTIONS
from controller.store.postgres.clock import database_now
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import inspector_reads

Shown = Literal["in need", "hot", "stuck", "suppressed", "waiting for budget"]
"""Filter of the list of topics: `in need` has an urgency of 3 or more, `stuck` of 6 (held, stuck, or a gap in the ring),
and `suppressed` is hot and held back by a refusal.
"""
_NEWEST_OPERATIONS, _REFUSALS, _SUBSCRIPTIONS = 6, 8, 10
# The view is read once, without its most expensive columns, because on a large fleet reading it is the whole cost. Sums are over the
# fleet; without sums, only the topics that match `find` are read.
_FLEET = """
    WITH fleet AS MATERIALIZED (
        SELECT topic, state, needs, urgency, active_segments, hot_segments, stale_segments, hottest_ratio, hottest_metric,
               msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, held_back_by, budget_until
          FROM inspect.fleet WHERE :sums OR strpos(topic, :find) > 0),
    sums AS (
        SELECT count(*) AS topics, count(*) FILTER (WHERE urgency >= 3) AS need_somebody,
               coalesce(sum(hot_segments), 0) AS hot_segments, coalesce(sum(active_segments), 0) AS segments,
               coalesce(sum(stale_segments), 0) AS stale_segments, count(*) FILTER (WHERE budget_until IS NOT NULL) AS wait_for_budget
          FROM fleet),
    chosen AS (
        SELECT * FROM fleet
         WHERE strpos(topic, :find) > 0
           AND CASE CAST(:show AS text) WHEN 'hot' THEN hot_segments > 0 WHEN 'stuck' THEN urgency = 6
                    WHEN 'suppressed' THEN hot_segments > 0 AND held_back_by <> '{}' WHEN 'waiting for budget' THEN budget_until IS NOT NULL
                    WHEN 'in need' THEN urgency >= 3 ELSE true END
         ORDER BY urgency DESC, hottest_ratio DESC NULLS LAST, topic LIMIT :limit OFFSET :after)
    SELECT to_jsonb(sums) AS sums, chosen.* FROM sums LEFT JOIN chosen ON true
     ORDER BY urgency DESC, hottest_ratio DESC NULLS LAST, topic
"""
# Each view is read once instead of once per segment, because both views compute thresholds from the policies of all levels.
_SEGMENTS = """
    WITH load AS MATERIALIZED (SELECT * FROM inspect.load_now WHERE topic_id = :topic_id),
    sketch AS MATERIALIZED (SELECT segment_id, hottest, load_on_hottest FROM inspect.key_sketches WHERE topic_id = :topic_id)
    SELECT s.segment_id, s.hash_range, s.range_start, s.range_end, s.ring_percent, s.buckets, s.parents, s.created_at, s.busy_in_operation,
           l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.hottest_metric, l.is_hot, l.is_cold, l.cold_since, l.is_stale,
           l.silent_seconds, CASE WHEN NOT l.is_stale THEN l.hottest_ratio END AS hottest_ratio, k.hottest, k.load_on_hottest
      FROM inspect.layout_now s
      LEFT JOIN load l USING (segment_id)
      LEFT JOIN sketch k USING (segment_id)
     WHERE s.topic_id = :topic_id ORDER BY s.range_start
"""


class ShowFleet(QuestionRequest):
    """Show the fleet: its health, and its topics, those that need attention first, then the hottest."""

    find: str = Field(
        "", max_length=2000, description="Only topics with this text in their names.", examples=["orders"]
    )
    show: Shown | None = Field(
        None,
        description="Only topics in this condition. suppressed: hot, and held back by a refusal.",
        examples=["hot"],
    )
    after: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        0, description="Number of topics to skip.", examples=[50]
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(
        50, description="Maximum number of topics.", examples=[20]
    )


class FleetAnswer(Document):
    """The fleet. `health` has the columns of `inspect.health`, and each topic the columns of `inspect.fleet` that the
    list of topics needs.
    """

    at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    health: InstantRow = Field(examples=[{"topics": 12, "active_segments": 40, "workers": 2}])
    topics: list[InstantRow] = Field(examples=[[{"topic": "topic://acme/shop/orders", "urgency": 0}]])


class ShowOverview(TopicQuestion):
    """Show a topic: its segments with their load, its newest operations, its refusals, and its subscriptions."""


class OverviewAnswer(Document):
    """The overview of a topic. `topic` has the columns of `inspect.fleet`; segments are in the order of their ranges."""

    at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    topic: InstantRow = Field(examples=[{"topic": "topic://acme/shop/orders", "epoch": 7}])
    segments: list[InstantRow] = Field(examples=[[{"segment_id": 0, "hash_range": "0000-ffff"}]])
    operations: list[InstantRow]
    refusals: list[InstantRow]
    subscriptions: list[InstantRow]


def show_fleet(context: Context, request: ShowFleet) -> FleetAnswer:
    """Return the health of the fleet and at most `limit` topics that match the request, the most urgent first, from a
    snapshot of its own.
    """
    with snapshot(context.store) as tx:
        return read_fleet(tx, request)


def read_fleet(tx: Connection, request: ShowFleet) -> FleetAnswer:
    """Return the health of the fleet, and the topics of `fleet_topics`: at most `limit` topics that match the request, the
    most urgent first, as of the snapshot of `tx`.
    """
    [health] = read_view(tx, "inspect.health")
    _, topics = fleet_topics(tx, request)
    return FleetAnswer(at=database_now(tx), health=health, topics=topics)


def fleet_topics(
    tx: Connection, request: ShowFleet, *, sums: bool = False
) -> tuple[dict[str, Any], list[InstantRow]]:
    """Return sums, and at most `limit` topics whose names contain `find` and that meet `show`, without the first `after`;
    the most urgent first, then the hottest, then by name. The sums have the columns of `sums` in `_FLEET`, and each topic
    has the columns of `fleet` in `_FLEET`.

    With `sums` True, the sums are over the fleet; otherwise they are over the topics whose names contain `find`, and only
    these topics are read. The sums ignore the other fields of the request.
    """
    rows = read_statement(tx, _FLEET, **request.model_dump(), sums=sums)
    sums_of_rows = [row.pop("sums") for row in rows]
    return sums_of_rows[0], [row for row in rows if row["topic"] is not None]


def show_overview(context: Context, request: ShowOverview) -> OverviewAnswer:
    """Return the overview of the topic, which may be in any state except deleted, from a snapshot of its own. Raises
    TopicNotFound.
    """
    with snapshot(context.store) as tx:
        return read_overview(tx, request)


def read_overview(tx: Connection, request: ShowOverview) -> OverviewAnswer:
    """Return the overview of the topic, which may be in any state except deleted, as of the snapshot of `tx`: with at most
    `_NEWEST_OPERATIONS` operations (those in progress, then the others, each the newest first), `_REFUSALS` refusals and
    `_SUBSCRIPTIONS` subscriptions, in the order of their lists. Raises TopicNotFound.
    """
    topic = inspector_reads.find_topic(tx, request.topic)
    operations = read_answers(
        tx,
        LIST_OPERATIONS,
        _NEWEST_OPERATIONS,
        order="live DESC, operation_id DESC",
        columns="operation_id, kind, state, parents, creates, age_seconds, actor, reason, last_error",
        **topic.key,
    )
    return OverviewAnswer(
        at=database_now(tx),
        topic=fleet_topic(tx, topic),
        segments=active_segments(tx, topic),
        operations=operations,
        refusals=read_answers(tx, LIST_REFUSALS_OF_TOPIC, _REFUSALS, **topic.key),
        subscriptions=read_answers(tx, LIST_SUBSCRIPTIONS, _SUBSCRIPTIONS, **topic.key),
    )


def live_workers(tx: Connection) -> list[Row]:
    """Return the leases of the running workers, by the worker's name."""
    return read_view(tx, "inspect.leases", "starts_with(name, 'worker/')", "live", order="name")


def last_load_run(tx: Connection) -> Row | None:
    """Return the run of load aggregation with the newest window. None before the first run."""
    return next(iter(read_view(tx, "inspect.load_runs", order="window_end DESC", limit=1)), None)


def fleet_topic(tx: Connection, topic: inspector_reads.InspectedTopic) -> InstantRow:
    """Return the topic's row of `inspect.fleet`."""
    [row] = read_view(tx, "inspect.fleet", "topic_id = :topic_id", topic_id=topic.topic_id)
    return row


def active_segments(tx: Connection, topic: inspector_reads.InspectedTopic) -> list[InstantRow]:
    """Return the ACTIVE segments, with the columns of `_SEGMENTS`, in the order of their ranges. Without a load record,
    `is_stale` is True and the other columns about the load are None; for a stale record, `hottest_ratio` is None. Without
    a key histogram, `hottest` and `load_on_hottest` are None.
    """
    return read_statement(tx, _SEGMENTS, topic_id=topic.topic_id)


SHOW_FLEET = report("topics fleet", "/fleet", ShowFleet, FleetAnswer, show_fleet, is_command=False)
SHOW_OVERVIEW = report(
    "topics overview",
    "/topics/{topic}/overview",
    ShowOverview,
    OverviewAnswer,
    show_overview,
    is_command=False,
)
ACTIONS = (SHOW_FLEET, SHOW_OVERVIEW)
