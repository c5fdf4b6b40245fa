"""Consumers of a topic: the segments that each may read, the reasons for unread buckets, and the lag of a subscription."""

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
from controller.domain.errors import Conflict, SubscriptionNotFound
from controller.domain.formatting import counted
from controller.questions.question import TOPIC, Filter, Question, TopicQuestion, read_statement, read_view
from controller.services import subscription_lag
from controller.store.topics import subscriptions, topics
from controller.store.topics.inspector_reads import InspectedTopic
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


class ShowLag(TopicQuestion):
    """Count the unacknowledged messages, per entry bucket if the data plane can count them, including buckets without a reader."""

    subscription: SubscriptionName


class BucketLagDocument(BaseModel):
    """Number of unacknowledged messages of an entry bucket, or of a whole segment if `bucket` is null."""

    model_config = ConfigDict(from_attributes=True)

    segment_id: int
    hash_range: str = Field(examples=["0000-ffff"])
    state: str = Field(examples=["ACTIVE"])
    bucket: str | None = Field(examples=["0000-3fff"])
    owners: list[str] = Field(description="Consumers; empty if the bucket has no owner.", examples=[["a"]])
    messages: int | None = Field(description="Null if the data plane could not count.", examples=[120])
    error: str | None = Field(description="Reason for which the data plane could not count.")


class LagAnswer(Answer):
    """The lag of a subscription, by range and bucket."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    subscription: str = Field(examples=["billing"])
    kind: SubscriptionKind = Field(
        description="Consumers of a `checkpoint` subscription acknowledge nothing, so all its messages count."
    )
    buckets: list[BucketLagDocument]

    def sentence(self) -> str:
        """Return a sentence with the sum of the counted messages, the number of entries (counted or not), and, if not 0, the number of
        entries that could not be counted. Entries are called segments if one of them is a whole segment, otherwise buckets. For a
        checkpoint subscription, the sentence also says that the sum does not show how far consumers have read.
        """
        messages = sum(bucket.messages or 0 for bucket in self.buckets)
        uncounted = sum(bucket.messages is None for bucket in self.buckets)
        uncounted_text = f", and {uncounted} that could not be counted" if uncounted else ""
        part = "bucket" if all(bucket.bucket for bucket in self.buckets) else "segment"
        bucket_text = f"in {counted(len(self.buckets), part)}{uncounted_text}"
        if self.kind is SubscriptionKind.CHECKPOINT:
            return (
                f"{self.topic}: {self.subscription} keeps {messages} messages {bucket_text}; its consumers store their own positions and "
                "acknowledge nothing, so this number does not say how far they have read"
            )
        return f"{self.topic}: {self.subscription} has {messages} messages to read {bucket_text}"

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [bucket.model_dump() for bucket in self.buckets]


def show_lag(context: Context, request: ShowLag) -> LagAnswer:
    """Return the unacknowledged messages of each bucket that the subscription has to read, ordered by hash range and
    bucket; drained segments are left out. The data plane counts the messages. If the data plane cannot count buckets, or
    for a queue, there is one entry for each segment, with `bucket` None.

    `messages` is None if a segment cannot be counted: after an error of the data plane in one entry for the segment, with the reason as
    `error`; for a missing log or cursor in each entry of the segment, without an `error`. Raises TopicNotFound, SubscriptionNotFound, and
    Unsupported if the topic's data plane is not configured here.
    """
    lag = subscription_lag.lag(context.store, context.app.planes, request.topic, request.subscription)
    with context.store.transaction() as tx:
        topic = topics.find_topic(tx, request.topic)
        kind = subscriptions.get_subscription(tx, topic.topic_id, request.subscription).kind
    buckets = [BucketLagDocument.model_validate(bucket) for bucket in lag]
    return LagAnswer(topic=request.topic, subscription=request.subscription, kind=kind, buckets=buckets)


def readers_of(tx: Connection, topic: InspectedTopic, limit: int) -> Sequence[Row]:
    """Return at most `limit` consumers of a topic with their entry buckets, ordered by subscription and name, in the
    columns of `_READERS`; `held` lists the buckets as `segment id:bucket`. The rows are the registered consumers, also
    without a bucket, and the owners of buckets that are no longer registered (`is_registered` False). Standard consumers
    are left out.
    """
    return read_statement(tx, _READERS, topic_id=topic.topic_id, limit=limit)


def _explain_no_buckets(tx: Connection, filters: Mapping[str, Any]) -> None:
    """Raise SubscriptionNotFound for an unknown subscription, and Conflict for a queue or checkpoint subscription,
    whose buckets have no owners. Does nothing if no subscription is named, or if its buckets may have owners.
    """
    name = filters.get("subscription")
    if name is None:
        return
    kind = _kind_of(tx, filters, name)
    if kind is SubscriptionKind.QUEUE:
        raise Conflict(
            f"subscription {name} is a queue: its consumers take messages of all segments and own no buckets; "
            "`consumers lag` counts the remaining messages, and `QueueConsumer.why` returns why a consumer gets no messages"
        )
    if kind is SubscriptionKind.CHECKPOINT:
        raise Conflict(
            f"subscription {name} is read by consumers that store their own positions: no consumer of a group is registered, "
            "so no bucket has an owner; `CheckpointConsumer.why` returns why a consumer gets no messages"
        )


def _kind_of(tx: Connection, filters: Mapping[str, Any], subscription: str) -> SubscriptionKind:
    """Return the kind of a subscription of the topic in `filters`. Raises SubscriptionNotFound."""
    # The view answers, because a login in cleave_inspector may not read the tables.
    rows = read_view(
        tx,
        "inspect.subscriptions",
        "topic_id = :topic_id",
        "subscription = :subscription",
        columns="kind",
        topic_id=filters["topic_id"],
        subscription=subscription,
    )
    if not rows:
        raise SubscriptionNotFound(
            f"topic {filters['topic']} has no subscription {subscription}; create it, or check the name"
        )
    return SubscriptionKind(rows[0]["kind"])


LIST_CONSUMERS = Question(
    "consumers list",
    "/topics/{topic}/assignments",
    "inspect.assignments",
    """List the consumers that read each segment, and the segments that wait until their ancestors are drained.

    Consumers that share a segment are named together; `consumers why` names the owner of each entry bucket.
    """,
    {"subscription": str, "hash_range": str, "segment_id": int},
    {"topic": TOPIC},
    table=("subscription", "segment_id", "hash_range", "state", "barrier", "waits_for", "consumer_names"),
    default_limit=100_000,
)
LIST_BUCKETS = Question(
    "consumers why",
    "/topics/{topic}/buckets",
    "inspect.buckets",
    """List the entry buckets with their owners, or the reasons why they are not read, since when, and the owners of the segments that they
    wait for.
    """,
    {"subscription": str, "hash_range": str, "segment_id": int, "bucket": str},
    {
        "topic": TOPIC,
        "subscription": Filter(
            "subscription = :subscription",
            SubscriptionName,
            "Name of the subscription. None: all.",
            ["billing"],
        ),
        "unread": Filter(_UNREAD, bool, "Only entry buckets that are not being read."),
    },
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
    explain_no_rows=_explain_no_buckets,
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
