"""Parameters that several routes share, and the services that answer a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar

from anyio import to_thread
from fastapi import Depends, Query
from fastapi import Request as HttpRequest

from controller.bootstrap import Application, ConsumerServices
from controller.services.watches.layout_feed import LayoutFeed
from controller.services.watches.topic_feed import TopicFeed
from controller.web.paths import BundleName, NamespaceName, Tenant, TopicName

Answered = TypeVar("Answered")


class PeopleServices(Protocol):
    """The services that calls of people need. A worker has further services, for consumers."""

    @property
    def api(self) -> Application:
        """The application that performs actions and answers questions."""

    @property
    def layouts(self) -> LayoutFeed:
        """The layouts of topics."""

    @property
    def topics(self) -> TopicFeed:
        """The live topics of a namespace."""


def served_by(request: HttpRequest) -> ConsumerServices:
    """Return the services that answer requests of this app. An app for people has only those of `PeopleServices`."""
    services: ConsumerServices = request.app.state.served
    return services


async def on_data_plane(request: HttpRequest, call: Callable[..., Answered], *arguments: Any) -> Answered:
    """Call a function that calls a data plane, in one of the threads of this app that are reserved for such calls, and return its result.
    Waits for a thread if all are in use. Raises the errors of the function.
    """
    return await to_thread.run_sync(call, *arguments, limiter=request.app.state.data_plane_threads)


async def _topic(tenant: Tenant, namespace: NamespaceName, topic: TopicName) -> str:
    return f"topic://{tenant}/{namespace}/{topic}"


async def _namespace(tenant: Tenant, namespace: NamespaceName) -> str:
    return f"{tenant}/{namespace}"


async def _bundle(tenant: Tenant, namespace: NamespaceName, bundle: BundleName) -> str:
    return f"{tenant}/{namespace}/{bundle}"


Topic = Annotated[str, Depends(_topic)]
"""The full name of the topic that the path names."""
Namespace = Annotated[str, Depends(_namespace)]
"""The full name of the namespace that the path names."""
Bundle = Annotated[str, Depends(_bundle)]
"""The bundle that the path names, with its namespace."""
WithProperties = Annotated[
    tuple[str, ...],
    Query(
        alias="property",
        max_length=20,
        description="key=value; a topic must have all of them.",
        examples=[["team=billing"]],
    ),
]
"""Filter of a list of topics by properties."""
Timestamp = Annotated[
    int,
    Query(ge=0, lt=2**63, description="Milliseconds since the Unix epoch.", examples=[1795230000000]),
]
"""The position to seek to, in Pulsar's form."""
