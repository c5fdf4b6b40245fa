"""Subscriptions of a topic."""

from __future__ import annotations

from controller.questions.question import Question, TopicQuestion


class ListSubscriptions(TopicQuestion):
    """List a topic's subscriptions and their consumers, by name."""


LIST_SUBSCRIPTIONS = Question(
    "subscriptions list",
    "/topics/{topic}/subscriptions",
    "inspect.subscriptions",
    ListSubscriptions,
    {"subscription": str},
    {"topic": "topic_id = :topic_id"},
    table=("subscription", "kind", "state", "consumers", "consumer_names", "created_at"),
    default_limit=1000,
)
QUESTIONS = (LIST_SUBSCRIPTIONS,)
