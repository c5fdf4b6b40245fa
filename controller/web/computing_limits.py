"""Limits for long computations, separate from the limits of actions: a few at once, one for each token subject, and a short queue.

A computation runs in a child process. The process is killed if the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

from fastapi import Depends
from fastapi import Request as HttpRequest

from controller.domain.errors import LimitReached
from controller.services.computing.computers import Computation, Computers
from controller.web.route_rights import Holder

AT_ONCE = 2
"""Maximum number of computations; each uses a processor."""
MOST_WAITING = 4
"""Maximum number of requests in the queue."""
LONGEST_WAIT_SECONDS = 30.0
"""Time that a request may spend in the queue."""
AGAIN_SECONDS = 5.0
ENDING_SECONDS = 0.5
"""The turn of a subject ends shortly after the answer was sent, so a request that follows at once waits up to this time."""


class ComputingTurns:
    """Limits the computations of one app. A turn is the right to run one computation. Only for the app's event loop."""

    def __init__(self, computers: Computers) -> None:
        self.computers = computers
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._subjects: dict[str, asyncio.Event] = {}
        """Each subject with a turn or a place in the queue, and the end of the turn."""

    @asynccontextmanager
    async def take(self, subject: str) -> AsyncIterator[Computation]:
        """Wait until fewer than `AT_ONCE` computations are in progress, and yield a computation. The end of the block
        ends the computation's turn.

        If the subject already has a computation in progress or in the queue, the call waits up to `ENDING_SECONDS`
        for its end. Raises LimitReached if that computation has not ended by then, if the queue is full, or after
        LONGEST_WAIT_SECONDS in the queue.
        """
        if not await self._is_free(subject):
            raise LimitReached(
                f"a computation of {subject or 'this subject'} is in progress; ask again once it has ended",
                AGAIN_SECONDS,
            )
        if len(self._subjects) >= AT_ONCE + MOST_WAITING:
            raise LimitReached(
                f"{AT_ONCE} computations are in progress and {MOST_WAITING} wait; ask again, or trigger the DAG policy_backtest",
                AGAIN_SECONDS,
            )
        ended = self._subjects[subject] = asyncio.Event()
        try:
            await self._wait()
            try:
                yield Computation(self.computers)
            finally:
                self._turns.release()
        finally:
            del self._subjects[subject]
            ended.set()

    async def _is_free(self, subject: str) -> bool:
        """Return True if the subject has no turn and no place in the queue, False otherwise. Waits up to `ENDING_SECONDS` for the end of
        the subject's turn.
        """
        ended = self._subjects.get(subject)
        if ended is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), ENDING_SECONDS)
        return subject not in self._subjects

    async def _wait(self) -> None:
        """Wait until fewer than `AT_ONCE` computations are in progress, and take a turn, which the caller must
        release. Raises LimitReached after LONGEST_WAIT_SECONDS; no turn is then taken.
        """
        try:
            await asyncio.wait_for(self._turns.acquire(), LONGEST_WAIT_SECONDS)
        except TimeoutError:
            raise LimitReached(
                f"no computation ended within {LONGEST_WAIT_SECONDS:g} s; ask again, or trigger the DAG policy_backtest",
                AGAIN_SECONDS,
            ) from None


async def _computing(request: HttpRequest, grant: Holder) -> AsyncIterator[Computation]:
    """Yield a computation in a turn of the token's subject. Cancels the computation if the client disconnects. Sets `computes` in the state
    of the request, so that the request does not count in the limits of `http_caller`. Raises the errors of `ComputingTurns.take`.
    """
    turns: ComputingTurns = request.app.state.computing
    async with turns.take(grant.subject) as computation:
        request.state.computes = True
        watching_client = asyncio.create_task(_cancel_when_gone(request, computation))
        try:
            yield computation
        finally:
            watching_client.cancel()
            with suppress(asyncio.CancelledError):
                await watching_client


async def _cancel_when_gone(request: HttpRequest, computation: Computation) -> None:
    """Cancel the computation when the client disconnects. The body has been read, so the next event is the disconnection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    computation.cancel()


COMPUTE = Depends(_computing)
"""Dependency of a route that takes a turn for a computation. Declare it before the dependency that acts."""
Computing = Annotated[Computation, COMPUTE]
"""The computation of the route."""
