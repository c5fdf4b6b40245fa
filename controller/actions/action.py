"""The declaration of an action, and the catalogue of all actions."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from controller.actions.context import Context
from controller.actions.responses import Document, OperationResponse
from controller.actions.rights import Right
from controller.domain.errors import NotFound
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
