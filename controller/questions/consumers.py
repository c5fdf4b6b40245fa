"""Consumers of a topic: what each may read, why nobody reads a bucket, and how far behind a subscription is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import SubscriptionName
from controller.actions.responses import Answer, Row
from controller.actions.rights import Right
from controller.domain.errors import Conflict
from controller.questions.question import Question, TopicQuestion, read_statement
from controller.services import subscription_lag
from controller.store.topics import subscriptions, topics
from controller.store.topics.inspected import InspectedTopic
from controller.store.topics.subscriptions import SubscriptionKind

_READERS = """
    WITH bucket AS MATERIALIZED (SELECT * FROM inspect.buckets WHERE topic_id = :topic_id AND owner IS NOT NULL),
    holder AS (
        SELECT subscription, unnest(consumer_names) AS consumer, true AS is_registered
          FROM inspect.subscriptions WHERE topic_id = :topic_id AND read_by = 'cleave'
         UNION ALL SELECT DISTINCT subscription, owner, false FROM bucket)
    SELECT h.subscription, h.consumer, bool_or(h.is_registered) AS is_registered, count(DISTINCT b.segment_id) AS segments,
           count(DISTINCT (b.segment_id, b.bucket)) AS buckets, min(b.since) AS since,
           coalesce(array_agg(DISTINCT b.segment_id || ':' || b.bucket) FILTER (WHERE b.bucket IS NOT NULL), '{}') AS held
      FROM holder h LEFT JOIN bucket b ON b.subscription = h.subscription AND b.owner = h.consumer
     GROUP BY 1, 2 ORDER BY 1, 2 LIMIT :limit
"""
_UNREAD = "reason NOT IN ('owned', 'no data', 'no data beyond what is in hand', 'read by standard consumers')"


class ListConsumers(TopicQuestion):
    """List the consumers that read each segment, and the segments that wait until their ancestors are drained.

    Consumers that share a segment are named together; `consumers why` names the owner of each entry bucket.
    """


class ListBuckets(TopicQuestion):
    """Say for each entry bucket who reads it, or why nobody does, since when, and who holds what it waits for."""

    subscription: SubscriptionName | None = Field(
        None, description="Name of the subscription. None: all.", examples=["billing"]
    )
    unread: bool = Field(False, description="Only entry buckets from which nothing comes.")


class ShowLag(TopicQuestion):
    """Count what is not acknowledged, for each entry bucket where the data plane can, whether anybody reads it or not."""

    subscription: SubscriptionName


class BucketLagDocument(BaseModel):
    """Messages of an entry bucket that are not acknowledged; of a whole segment where `bucket` is null."""

    model_config = ConfigDict(from_attributes=True)

    segment_id: int
    hash_range: str = Field(examples=["0000-ffff"])
    state: str = Field(examples=["ACTIVE"])
    bucket: str | None = Field(examples=["0000-3fff"])
    owners: list[str] = Field(description="Consumers; none where nobody reads the bucket.", examples=[["a"]])
    messages: int | None = Field(description="Null where the data plane could not count.", examples=[120])
    error: str | None = Field(description="Why the data plane could not count.")


class LagAnswer(Answer):
    """The lag of a subscription, by range and bucket."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    subscription: str = Field(examples=["billing"])
    kind: SubscriptionKind = Field(
        description="Consumers of a `checkpoint` subscription acknowledge nothing: its messages stay."
    )
    buckets: list[BucketLagDocument]

    def sentence(self) -> str:
        """See `Answer`."""
        messages = sum(bucket.messages or 0 for bucket in self.buckets)
        uncounted = sum(bucket.messages is None for bucket in self.buckets)
        but = f", and {uncounted} that could not be counted" if uncounted else ""
        places = f"in {len(self.buckets)} places{but}"
        if self.kind is SubscriptionKind.CHECKPOINT:
            return (
                f"{self.topic}: {self.subscription} keeps {messages} messages {places}; its consumers keep their own places and "
                "acknowledge nothing, so this number does not say how far they have read"
            )
        return f"{self.topic}: {self.subscription} has {messages} messages to read {places}"

    def rows(self) -> Sequence[Row]:
        """See `Answer`."""
        return [bucket.model_dump() for bucket in self.buckets]


def show_lag(context: Context, request: ShowLag) -> LagAnswer:
    """Raises TopicNotFound, SubscriptionNotFound, Unsupported."""
    lag = subscription_lag.lag(context.store, context.app.planes, request.topic, request.subscription)
    with context.store.transaction() as tx:
        topic = topics.find_topic(tx, request.topic)
        kind = subscriptions.get_subscription(tx, topic.topic_id, request.subscription).kind
    buckets = [BucketLagDocument.model_validate(bucket) for bucket in lag]
    return LagAnswer(topic=request.topic, subscription=request.subscription, kind=kind, buckets=buckets)


def readers_of(tx: Connection, topic: InspectedTopic, limit: int) -> Sequence[Row]:
    """Return the consumers of a topic, with the entry buckets that each holds; a consumer may hold buckets and be registered no longer."""
    return read_statement(tx, _READERS, topic_id=topic.topic_id, limit=limit)


def _explain_no_buckets(tx: Connection, filters: Mapping[str, Any]) -> None:
    """Raise SubscriptionNotFound; Conflict for a subscription whose buckets no leader hands out."""
    name = filters.get("subscription")
    if name is None:
        return
    kind = subscriptions.get_subscription(tx, filters["topic_id"], name).kind
    if kind is SubscriptionKind.QUEUE:
        raise Conflict(
            f"subscription {name} is a queue: each of its consumers takes messages of every segment, and none owns a bucket; "
            "`consumers lag` counts what is left, and `QueueConsumer.why` of a consumer says why nothing comes to it"
        )
    if kind is SubscriptionKind.CHECKPOINT:
        raise Conflict(
            f"subscription {name} keeps messages for consumers that keep their own place: no consumer of a group is registered, "
            "so none owns a bucket; `CheckpointConsumer.why` of a consumer says why nothing comes to it"
        )


LIST_CONSUMERS = Question(
    "consumers list",
    "/topics/{topic}/assignments",
    "inspect.assignments",
    ListConsumers,
    {"subscription": str, "hash_range": str, "segment_id": int},
    {"topic": "topic_id = :topic_id"},
    table=("subscription", "segment_id", "hash_range", "state", "barrier", "waits_for", "consumer_names"),
    default_limit=100_000,
)
LIST_BUCKETS = Question(
    "consumers why",
    "/topics/{topic}/buckets",
    "inspect.buckets",
    ListBuckets,
    {"subscription": str, "hash_range": str, "segment_id": int, "bucket": str},
    {"topic": "topic_id = :topic_id", "subscription": "subscription = :subscription", "unread": _UNREAD},
    table=(
        "subscription",
        "segment_id",
        "hash_range",
        "bucket",
        "owner",
        "reason",
        "since",
        "waits_for",
        "held_by",
    ),
    on_nothing=_explain_no_buckets,
    default_limit=100_000,
)
QUESTIONS = (LIST_CONSUMERS, LIST_BUCKETS)
SHOW_LAG = report(
    "consumers lag",
    "/topics/{topic}/subscriptions/{subscription}/lag",
    ShowLag,
    LagAnswer,
    show_lag,
    right=Right.LOOK_UP,
)
ACTIONS = (SHOW_LAG,)
