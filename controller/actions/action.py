"""The declaration of an action, and the catalogue of all actions."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from controller.actions.context import Caller, Context, Options
from controller.actions.dry_run import store_for
from controller.actions.responses import Document, OperationResponse
from controller.actions.rights import Right
from controller.bootstrap import Application
from controller.domain.errors import Conflict, InvalidLayoutChange, InvalidRange, NotFound
from controller.domain.operation import OperationKind

RequestT = TypeVar("RequestT", bound=BaseModel)
ResponseT = TypeVar("ResponseT", bound=Document)

MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "topics": (
            "controller.questions.overviews",
            "controller.questions.layouts",
            "controller.actions.topics",
            "controller.actions.adoptions",
        ),
        "segments": ("controller.actions.segments",),
        "subscriptions": ("controller.questions.subscriptions", "controller.actions.subscriptions"),
        "dead-letters": ("controller.questions.dead_letters", "controller.actions.dead_letters"),
        "bundles": tuple(
            f"controller.bundles.actions.{name}" for name in ("reports", "bundles", "namespaces")
        ),
        "policy": (
            "controller.questions.policies",
            "controller.actions.policies",
            "controller.actions.candidates",
        ),
        "approvals": ("controller.actions.approvals",),
        "consumers": ("controller.questions.consumers",),
        "decisions": ("controller.questions.what_if",),
        "backtests": ("controller.questions.backtests",),
    }
)
"""Modules with the actions of each subject; a subject is the first word of the actions' names. A module is
loaded by the first lookup in its subject.
"""


@dataclass(frozen=True, slots=True)
class Action(Generic[RequestT, ResponseT]):
    """The declaration of an action. The REST call, the command, the form and the dry run are made from the
    declaration. Only `perform` carries out the action. In a dry run, the store of the context rolls back each
    transaction.
    """

    name: str
    """Words of the command, such as `segments split`."""
    path: str
    """Path below `/api/v1`. Fields of the request are in braces; those of `PATH_FORMS` have several parts.
    `{level}` stands for three paths: `cluster`, `namespaces/{namespace}` and `topics/{topic}`.
    """
    right: Right
    request: type[RequestT]
    """Class of the request. The descriptions of its fields are the help of options, OpenAPI and forms; its
    docstring describes the action.
    """
    response: type[ResponseT]
    perform: Callable[[Context, RequestT], ResponseT]
    method: str = "POST"
    """HTTP method. With GET, the fields that are not in the path form the query; otherwise they form the
    body.
    """
    confirms: str | None = None
    """Question that the command asks before the action runs, with fields in braces; None for an action
    without confirmation.
    """
    default_wait_seconds: float = 60.0
    """Seconds for which the command waits for an operation if its user gives no time. Forms have a default of their own."""
    waits: bool = False
    """True if the action waits although its response is not an operation."""
    answer_seconds: float = 30.0
    """Seconds that a server may take to answer, in addition to the wait for an operation."""
    cluster_right: Right | None = None
    """Right that the action requires if its level is the cluster; None stands for `right`."""
    lookup: str | None = None
    """Path of a document that has the fields of `path` that a request may leave out; a client reads the
    document before the call.
    """
    computes: bool = False
    """True if a server performs only a few actions of this kind at a time, because each takes long to compute."""
    reads: bool = False
    """True if the action changes nothing. It then has no dry run, and a server answers a repeated request
    again from the present state.
    """
    is_command: bool = True
    """True if the action is also a command."""
    operation_kinds: tuple[OperationKind, ...] = ()
    """Kinds of the operation that the response describes, one of which a request becomes; empty without an operation."""

    @property
    def is_waited_for(self) -> bool:
        """True if the action waits for operations, so that its caller chooses how long."""
        return self.waits or issubclass(self.response, OperationResponse)

    @property
    def path_fields(self) -> tuple[str, ...]:
        """Fields of the request that are in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))


AnyAction = Action[Any, Any]


def report(
    name: str,
    path: str,
    request: type[RequestT],
    response: type[ResponseT],
    read: Callable[[Context, RequestT], ResponseT],
    *,
    right: Right = Right.READ,
    method: str = "GET",
    is_command: bool = True,
) -> Action[RequestT, ResponseT]:
    """Return the declaration of an action that changes nothing; `read` performs it. `is_command` is False if the
    action is a REST call only.
    """
    return Action(name, path, right, request, response, read, method, reads=True, is_command=is_command)


_TOPIC_ERRORS = (InvalidRange, InvalidLayoutChange, NotFound, Conflict)
"""Errors that concern a topic, unlike an unavailable database, a setting or a broker."""


@contextmanager
def about(topic: str | None) -> Iterator[None]:
    """Put the topic's name before the message of errors of `_TOPIC_ERRORS` that are raised in the block, unless the message has the name.
    The error object is changed and raised again. None changes nothing.
    """
    try:
        yield
    except _TOPIC_ERRORS as error:
        if topic is not None and topic not in error.message:
            error.message = f"topic {topic}: {error.message}"
            error.args = (error.message,)
        raise


def perform_in(context: Context, action: AnyAction, request: BaseModel) -> Any:
    """Perform the action for this request and return its response; of an action that has parts, perform the first part
    only. Errors of `_TOPIC_ERRORS` get the name of the request's topic, if the request has one.

    If a request whose response is an operation fails with NotFound, and the same request with the same key has an
    operation, the response about this operation is returned: the topic was deleted after the earlier attempt. Raises
    Conflict if the key was used for another topic, subscription or kind of operation.
    """
    topic = getattr(request, "topic", None)
    with about(topic):
        try:
            return action.perform(context, request)
        except NotFound:
            if topic is None or not action.operation_kinds:
                raise
            subscription = getattr(request, "subscription", None)
            earlier = context.earlier_intent(topic, action.operation_kinds, subscription)
            if earlier is None:
                raise
            return context.respond(action.response, earlier)


def perform_at(
    app: Application, caller: Caller, options: Options, action: AnyAction, request: BaseModel
) -> Any:
    """Perform all parts of the action for the caller, and return the answer about all parts. In a dry run, the action
    gets a store that rolls back. Raises the errors of the action.
    """
    with store_for(app, options.dry_run) as store:
        context = Context(app, store, caller, options)
        return perform_parts(functools.partial(perform_in, context, action), request)


def perform_parts(perform: Callable[[Any], Any], request: BaseModel) -> Any:
    """Perform an action part by part, and return the answer about all parts, joined by `joined`. Call `perform` with the
    request, then with the request that `rest_of` of each answer returns for the remaining part, until `rest_of` returns
    None; most actions have one part. An error in a later part is raised; the earlier parts stay performed.
    """
    part = response = perform(request)
    while (remaining_request := part.rest_of(request)) is not None:
        request = remaining_request
        part = perform(request)
        response = part.joined(response)
    return response


@functools.cache
def actions_of(subject: str) -> tuple[AnyAction, ...]:
    """Return the actions of the subject, in the order of their modules; empty if it is not a subject. The first call
    loads the subject's modules, and the result is cached.
    """
    return tuple(
        action for module in MODULES.get(subject, ()) for action in importlib.import_module(module).ACTIONS
    )


def all_actions() -> tuple[AnyAction, ...]:
    """Return all actions. Loads all subjects."""
    return tuple(action for subject in MODULES for action in actions_of(subject))


def find_action(name: str) -> AnyAction:
    """Return the action with this full name, such as `segments split`. Raises NotFound."""
    for action in actions_of(name.partition(" ")[0]):
        if action.name == name:
            return action
    raise NotFound(f"there is no action {name!r}; list the subjects with `cleave --help`")
