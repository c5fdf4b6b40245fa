"""The caller of an action over HTTP: the application's services, the journal request in the caller's name, and the wait for the operation.

The number of actions in progress is limited, so that calls that wait for an operation leave threads for consumers. Reads and the load of
brokers have limits of their own, so that they never wait for an operation, and a subject has a share of the actions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import Depends
from fastapi import Request as HttpRequest

from controller.actions.context import REST_REASON, Caller, Context
from controller.actions.responses import demand_done
from controller.actions.rights import Right
from controller.actions.wait_for_operation import run_to_its_end
from controller.bootstrap import Application
from controller.domain.operation import Operation, Origin
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.web.access import Grant
from controller.web.route_rights import Holder
from controller.web.shared_parameters import served_by

AT_ONCE = 8
"""Maximum number of actions in progress, and of reads in progress; further calls wait."""
OF_SUBJECT = 4
"""Maximum number of actions of one token subject in progress, because an action may wait a minute for its operation."""
LOADS_AT_ONCE = 4
"""Maximum number of brokers' loads that are written at a time."""


class Turns:
    """The limits of one app: one for actions, one for reads, one for the load of brokers. Only for the app's event loop."""

    def __init__(self) -> None:
        self._acts, self._looks = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """The limit of each subject with an action in progress or waiting."""

    @asynccontextmanager
    async def take(self, right: Right, subject: str) -> AsyncIterator[None]:
        """Wait, without a timeout, until the limits allow a call of the subject that uses the right, and count the call while the block
        lasts. READ and LOOK_UP have one limit, WRITE_LOAD has another; all other rights have one in total and one for each subject.
        """
        if right in (Right.READ, Right.LOOK_UP):
            limits = [self._looks]
        elif right is Right.WRITE_LOAD:
            limits = [self._loads]
        else:  # The share comes first, so that a call which waits for its subject's share takes no turn of others.
            limits = [self._shares.setdefault(subject, asyncio.Semaphore(OF_SUBJECT)), self._acts]
        async with AsyncExitStack() as taken:
            for limit in limits:
                await taken.enter_async_context(limit)
            yield


@dataclass(frozen=True, slots=True)
class Acting:
    """One caller, with the application that serves the call."""

    app: Application
    grant: Grant

    def caller(self, key: str | None = None) -> Caller:
        """Return the holder of the token as the caller, with a new request key if none is given."""
        return Caller(self.grant.subject, Origin.API, REST_REASON, key or f"api-{os.urandom(8).hex()}")

    def context(self) -> Context:
        """Return the context of an action without a dry run and without a wait, with a new request key."""
        return Context(self.app, self.app.store, self.caller())

    def request(self, reason: str) -> Request:
        """Return a request for the journal with a new key."""
        return self.context().journal_request(reason)

    def finish(self, intent: Intent) -> Operation:
        """Wait until the operation of the intent is done, and return it. Without a running worker, this process runs the operation. Raises
        Retryable if the operation takes longer than `serve_wait_seconds`, Terminal if it was aborted.
        """
        operation_id, seconds = intent.operation.operation_id, self.app.settings.serve_wait_seconds
        return demand_done(run_to_its_end(self.app, operation_id, seconds))


async def _acting(request: HttpRequest, grant: Holder) -> AsyncIterator[Acting]:
    """Yield the caller of the request while the request counts in the limits for its right (`Turns.take`). Waits, without a timeout, until
    the limits allow the request. A request that computes is not limited here.
    """
    turns: Turns = request.app.state.turns
    acting = Acting(served_by(request).api, grant)
    if getattr(request.state, "computes", False):  # a computation lasts long and has a limit of its own
        yield acting
        return
    async with turns.take(request.state.right, grant.subject):
        yield acting


HttpCaller = Annotated[Acting, Depends(_acting)]
