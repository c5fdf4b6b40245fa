"""`cleave consumers`: the consumers of a stream subscription."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from controller.actions.perform import about
from controller.bootstrap import application
from controller.command_output import emit
from controller.commands.actions import group
from controller.commands.options import AsJson, Topic
from controller.domain.errors import NotFound
from controller.domain.names import topic_name
from controller.store.topics import consumers, topics

Subscription = Annotated[str, typer.Argument(help="Name of the subscription.")]
Consumer = Annotated[str, typer.Argument(help="Name of the consumer, unique within its subscription.")]


def _tell(what: str, topic: str, subscription: str, as_json: bool, **more: str) -> None:
    """Print the result `what` of a change as one line, or as a JSON document. `more` are further fields of the document."""
    document = {"topic": topic, "subscription": subscription, **more, "result": what}
    emit(as_json, document, Text(f"{topic}: {' '.join((*more.values(), subscription))} {what}"))


def register(topic: Topic, subscription: Subscription, consumer: Consumer, as_json: AsJson = False) -> None:
    """Register a consumer without a client; the worker evaluates the consumer lane at once.

    The registration ends after the grace period if no client connects under this name. The grace period begins when
    another consumer of the subscription connects to a worker, or when a worker takes over the topic.
    """
    name = topic_name(topic)
    with about(name), application() as cleave, cleave.store.transaction() as tx:
        consumers.register(tx, topics.find_topic(tx, name).topic_id, subscription, consumer)
    _tell("registered", name, subscription, as_json, consumer=consumer)


def unregister(topic: Topic, subscription: Subscription, consumer: Consumer, as_json: AsJson = False) -> None:
    """Unregister a consumer; the worker evaluates the consumer lane at once.

    A consumer whose client is connected registers again, so stop the client first.
    """
    name = topic_name(topic)
    with about(name), application() as cleave, cleave.store.transaction() as tx:
        if not consumers.unregister(tx, topics.find_topic(tx, name).topic_id, subscription, consumer):
            raise NotFound(
                f"{subscription!r} has no registered consumer {consumer!r}; `cleave subscriptions list {name}` shows the names"
            )
    _tell("unregistered", name, subscription, as_json, consumer=consumer)


app = group("consumers", register, unregister)
