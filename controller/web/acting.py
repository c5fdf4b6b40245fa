"""What a person who acts over HTTP acts with: the application's services, a request for the journal in their name, and the wait.

Acts take their turns: a few at once, so that those who wait for an operation take no thread from consumers. Looks take turns of their
own, so that nobody waits for an operation who only wants to see something.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from fastapi import Request as HttpRequest

from controller.actions.context import REST_REASON, Caller
from controller.actions.rights import Right
from controller.actions.waiting import see_through
from controller.bootstrap import Application
from controller.domain.operation import Operation, Origin
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.web.access import Grant
from controller.web.asked import served_by
from controller.web.demands import Holder

AT_ONCE = 8
"""Acts, and as many looks; one more waits for its turn."""


class Turns:
    """Of one app."""

    def __init__(self) -> None:
        self._acts, self._looks = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)

    def of(self, right: Right) -> asyncio.Semaphore:
        """Those of whoever uses the right."""
        return self._looks if right in (Right.READ, Right.LOOK_UP) else self._acts


@dataclass(frozen=True, slots=True)
class Acting:
    """Who acts, and with what."""

    app: Application
    grant: Grant

    def request(self, reason: str, key: str | None = None) -> Request:
        """For the journal; without a key it is a fresh one."""
        return Request(
            request_key=key or f"api-{os.urandom(8).hex()}",
            origin=Origin.API,
            actor=self.grant.subject,
            reason=reason,
            deadline_seconds=self.app.settings.operation_deadline_seconds,
        )

    def caller(self, key: str | None = None) -> Caller:
        """Return the holder of the token as the caller, with a new request key if none is given."""
        return Caller(self.grant.subject, Origin.API, REST_REASON, key or f"api-{os.urandom(8).hex()}")

    def finish(self, intent: Intent) -> Operation:
        """The operation once it is done. Raises Retryable when it takes longer than people wait, Terminal if it was aborted."""
        return see_through(self.app, intent, self.app.settings.serve_wait_seconds)


async def _acting(request: HttpRequest, grant: Holder) -> AsyncIterator[Acting]:
    turns: Turns = request.app.state.turns
    acting = Acting(served_by(request).api, grant)
    if getattr(request.state, "computes", False):  # it has a turn to compute, which lasts long
        yield acting
        return
    async with turns.of(request.state.right):
        yield acting


AtDesk = Annotated[Acting, Depends(_acting)]
