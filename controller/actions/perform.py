"""Performs an action: all its parts, in a dry run or not, with the earlier result for a repeated request whose topic was deleted.

A dry run is the code of the action on a store that rolls back every transaction at its end. A dry run refuses what the action would refuse (a
busy segment, a name that is taken, a policy that does not fit the levels above), and other sessions never see its rows. It does not show what
happens after an intent is written, such as an error of the data plane. Sequences advance, as in any transaction that is rolled back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection, text

from controller.actions.action import AnyAction
from controller.actions.context import Caller, Context, Options
from controller.bootstrap import Application
from controller.domain.errors import Conflict, InvalidLayoutChange, InvalidRange, NotFound
from controller.store.postgres.engine import Store

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


class DryRunStore(Store):
    """A store whose transactions are checked up to the last deferred constraint and then rolled back."""

    rolls_back = True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction that is rolled back when the block ends. Deferred constraints are checked first, so
        the errors that a commit would have raised are raised. The errors are those of `Store.transaction`.
        """
        with super().transaction() as tx:
            attempt = tx.begin_nested()
            yield tx
            tx.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
            attempt.rollback()

    @contextmanager
    def single_statement(self) -> Iterator[Connection]:
        """Open a transaction for a single statement, which is rolled back as well."""
        with self.transaction() as tx:
            yield tx


@contextmanager
def store_for(app: Application, dry_run: bool) -> Iterator[Store]:
    """Yield the application's own store, or for a dry run a `DryRunStore`, which is disposed at the end.

    Each transaction of a `DryRunStore` is rolled back when it ends, so a later transaction does not see its
    changes. The store has one connection, so a transaction must not be opened inside another.
    """
    if not dry_run:
        yield app.store
        return
    store = DryRunStore(app.store.address, application_name="cleave-dry-run", pool_size=1)
    try:
        yield store
    finally:
        store.dispose()


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
