"""What a person who acts over HTTP acts with: the application's services, a request for the journal in their name, and the wait.

Acts take their turns: a few at once, so that those who wait for an operation take no thread from consumers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from fastapi import Request as HttpRequest

from controller.bootstrap import Application
from controller.domain.operation import Operation, Origin
from controller.entrypoints.running import see_through
from controller.entrypoints.web.access import Grant
from controller.entrypoints.web.asked import served_by
from controller.entrypoints.web.demands import Holder
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent

ACTS_AT_ONCE = 8
"""One more waits for its turn. Fewer than the transactions that the API may have at once."""


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

    def finish(self, intent: Intent) -> Operation:
        """The operation once it is done. Raises Retryable when it takes longer than people wait, Terminal if it was aborted."""
        return see_through(self.app, intent, self.app.settings.serve_wait_seconds)


async def _acting(request: HttpRequest, grant: Holder) -> AsyncIterator[Acting]:
    async with request.app.state.turns:
        yield Acting(served_by(request).api, grant)


AtDesk = Annotated[Acting, Depends(_acting)]
