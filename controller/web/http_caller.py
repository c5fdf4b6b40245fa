"""The caller of an action over HTTP: the application's services, the journal request in the caller's name, and the wait for the operation.

The number of actions in progress is limited, so that calls that wait for an operation leave threads for consumers. Reads have a limit of
their own, so that a read never waits for an operation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

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


class Turns:
    """The limits of one app: one for actions, one for reads."""

    def __init__(self) -> None:
        self._acts, self._looks = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)

    def of(self, right: Right) -> asyncio.Semaphore:
        """Return the semaphore that limits calls which use the right: one for READ and LOOK_UP, one for all other rights."""
        return self._looks if right in (Right.READ, Right.LOOK_UP) else self._acts


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
    """Yield the caller of the request while the request counts in the limit for its right: one limit for READ and LOOK_UP, one for all
    other rights, `AT_ONCE` each. Waits, without a timeout, until the limit allows the request. A request that computes is not limited here.
    """
    turns: Turns = request.app.state.turns
    acting = Acting(served_by(request).api, grant)
    if getattr(request.state, "computes", False):  # a computation lasts long and has a limit of its own
        yield acting
        return
    async with turns.of(request.state.right):
        yield acting


HttpCaller = Annotated[Acting, Depends(_acting)]
