"""Server-sent events: what a thread pushes, sent to one client in its own time, with heartbeats in between.

Only the newest of what was pushed is sent. A heartbeat is an event, not a comment, so that a client sees it and notices when
none comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import msgspec
from starlette.responses import StreamingResponse

Pushed = TypeVar("Pushed")
TOKEN_EXPIRED = "token expired"  # noqa: S105 - a reason
"""Why a stream ends whose client may open it again at once, with a fresh token."""


class EventStream(Generic[Pushed]):
    """Made in the event loop; `push` and `end` are for any thread."""

    def __init__(self, event: str, document: Callable[[Pushed], object]) -> None:
        """`document` turns what is pushed into the JSON that is sent as `event`; None: nothing is sent."""
        self._loop = asyncio.get_running_loop()
        self._event, self._document = event, document
        self._wake = asyncio.Event()
        self._next: Pushed | None = None
        self._ended: str | None = None

    def push(self, pushed: Pushed) -> None:
        """Send this next."""
        self._next = pushed
        self._ring()

    def end(self, reason: str) -> None:
        """Send what was pushed, say why, and close."""
        self._ended = reason
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the stream
            self._loop.call_soon_threadsafe(self._wake.set)

    async def events(self, heartbeat_seconds: float, until: float) -> AsyncIterator[bytes]:
        """Until it is ended here, the client goes, or the client's token has run out: at `until`, as `time.time` counts."""
        while True:
            left = until - time.time()
            if left <= 0:
                yield event_of("end", {"reason": TOKEN_EXPIRED})
                return
            try:
                await asyncio.wait_for(self._wake.wait(), min(heartbeat_seconds, left))
            except TimeoutError:
                if time.time() < until:
                    yield event_of("heartbeat", {})
                continue
            self._wake.clear()
            pushed, self._next = self._next, None
            document = None if pushed is None else self._document(pushed)
            if document is not None:
                yield event_of(self._event, document)
            if self._ended is not None:
                yield event_of("end", {"reason": self._ended})
                return


def response(events: AsyncIterator[bytes]) -> StreamingResponse:
    """As an answer, which nothing on the way may keep back."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def event_of(name: str, document: object) -> bytes:
    """As it is sent."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(document))
