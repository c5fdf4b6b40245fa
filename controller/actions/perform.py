"""Performs an action: all its parts, in a dry run or not, with the earlier result for a repeated request whose topic was deleted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from controller.actions.action import AnyAction
from controller.actions.context import Caller, Context, Options
from controller.actions.dry_run import store_for
from controller.bootstrap import Application
from controller.domain.errors import Conflict, InvalidLayoutChange, InvalidRange, NotFound

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
