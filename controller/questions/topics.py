"""Topics and namespaces."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from controller.domain.names import LONGEST_TOPIC
from controller.questions.question import Question, QuestionRequest, TopicQuestion

Prefix = Annotated[str, Field(max_length=LONGEST_TOPIC, examples=["topic://acme/"])]


def _with_scheme(prefix: object) -> object:
    """Return the prefix with `topic://` before it, unless the prefix is empty or has a scheme. A value that is not a text is returned
    unchanged, for the field's type to check.
    """
    return f"topic://{prefix}" if isinstance(prefix, str) and prefix and "://" not in prefix else prefix


class ListTopics(QuestionRequest):
    """List topics that are not deleted, by name."""

    namespace: str | None = Field(
        None, max_length=1000, description="tenant/namespace.", examples=["acme/shop"]
    )
    prefix: Annotated[Prefix, BeforeValidator(_with_scheme)] | None = Field(
        None, description="Only topics whose names begin with this.", examples=["topic://acme/"]
    )


class ShowTopic(TopicQuestion):
    """Show a topic."""


class ListNamespaces(QuestionRequest):
    """List namespaces that have a topic which is not deleted, by name."""

    data_plane: str | None = Field(
        None,
        max_length=500,
        description="Only namespaces with a topic on this data plane.",
        examples=["pulsar"],
    )
    prefix: Prefix | None = Field(
        None, description="Only namespaces whose names begin with this.", examples=["acme/"]
    )


LIST_TOPICS = Question(
    "topics list",
    "/topics",
    "inspect.topics",
    ListTopics,
    {"topic": str},
    {"namespace": "namespace = :namespace", "prefix": "starts_with(topic, :prefix)"},
    always="state <> 'deleted'",
    table=("topic", "state", "epoch", "data_plane"),
    default_limit=1000,
)
SHOW_TOPIC = Question(
    "topics get",
    "/topics/{topic}",
    "inspect.topics",
    ShowTopic,
    {"topic": str},
    {"topic": "topic_id = :topic_id"},
    missing="topic {topic} does not exist; create it or check the name",
    one_row=True,
)
LIST_NAMESPACES = Question(
    "topics namespaces",
    "/namespaces",
    "(SELECT namespace, array_agg(DISTINCT data_plane) AS data_planes FROM inspect.topics WHERE state <> 'deleted' GROUP BY namespace)",
    ListNamespaces,
    {"namespace": str},
    {"prefix": "starts_with(namespace, :prefix)", "data_plane": ":data_plane = ANY (data_planes)"},
    default_limit=1000,
)
QUESTIONS = (LIST_TOPICS, SHOW_TOPIC, LIST_NAMESPACES)
