"""Topics and namespaces."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from controller.domain.names import LONGEST_TOPIC
from controller.questions.question import TOPIC, Filter, Question

Prefix = Annotated[str, Field(max_length=LONGEST_TOPIC, examples=["topic://acme/"])]


def _with_scheme(prefix: object) -> object:
    """Return the prefix with `topic://` before it, unless the prefix is empty or has a scheme. A value that is not a text is returned
    unchanged, for the field's type to check.
    """
    return f"topic://{prefix}" if isinstance(prefix, str) and prefix and "://" not in prefix else prefix


LIST_TOPICS = Question(
    "topics list",
    "/topics",
    "inspect.topics",
    "List topics that are not deleted, by name.",
    {"topic": str},
    {
        "namespace": Filter(
            "namespace = :namespace",
            Annotated[str, Field(max_length=1000)],
            "tenant/namespace.",
            ["acme/shop"],
        ),
        "prefix": Filter(
            "starts_with(topic, :prefix)",
            Annotated[Prefix, BeforeValidator(_with_scheme)],
            "Only topics whose names begin with this.",
            ["topic://acme/"],
        ),
    },
    always="state <> 'deleted'",
    table=("topic", "state", "epoch", "data_plane"),
    default_limit=1000,
)
SHOW_TOPIC = Question(
    "topics get",
    "/topics/{topic}",
    "inspect.topics",
    "Show a topic.",
    {"topic": str},
    {"topic": TOPIC},
    missing="topic {topic} does not exist; create it or check the name",
    one_row=True,
)
LIST_NAMESPACES = Question(
    "topics namespaces",
    "/namespaces",
    "(SELECT namespace, array_agg(DISTINCT data_plane) AS data_planes FROM inspect.topics WHERE state <> 'deleted' GROUP BY namespace)",
    "List namespaces that have a topic which is not deleted, by name.",
    {"namespace": str},
    {
        "data_plane": Filter(
            ":data_plane = ANY (data_planes)",
            Annotated[str, Field(max_length=500)],
            "Only namespaces with a topic on this data plane.",
            ["pulsar"],
        ),
        "prefix": Filter(
            "starts_with(namespace, :prefix)",
            Prefix,
            "Only namespaces whose names begin with this.",
            ["acme/"],
        ),
    },
    default_limit=1000,
)
QUESTIONS = (LIST_TOPICS, SHOW_TOPIC, LIST_NAMESPACES)
