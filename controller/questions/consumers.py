"""Consumers of a topic: what each may read, and why nobody reads a bucket."""

from __future__ import annotations

from pydantic import Field

from controller.actions.fields import SubscriptionName
from controller.questions.question import Question, TopicQuestion


class ListConsumers(TopicQuestion):
    """List which consumer owns which segment, and which segments wait until their ancestors are drained."""


class ListBuckets(TopicQuestion):
    """Say for each entry bucket who reads it, or why nobody does, since when, and who holds what it waits for."""

    subscription: SubscriptionName | None = Field(
        None, description="Name of the subscription. None: all.", examples=["billing"]
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
    {"topic": "topic_id = :topic_id", "subscription": "subscription = :subscription"},
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
    default_limit=100_000,
)
QUESTIONS = (LIST_CONSUMERS, LIST_BUCKETS)
