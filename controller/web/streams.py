"""Server-sent events: values that a thread pushes are sent to one client, with heartbeats in between.

If several values were pushed since the last event, only the newest is sent. A heartbeat is an event, not a comment, so that a client notices
when heartbeats stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import StreamingResponse

from controller.web.access import Grant

Pushed = TypeVar("Pushed")
TOKEN_EXPIRED = "token expired"  # noqa: S105 - a reason
"""Reason of the end of a stream that the client may open again with a new token."""


class EventStream(Generic[Pushed]):
    """A stream to one client. Construct it in the event loop, and call `events` once; `push` and `end` may be called from any thread."""

    def __init__(self, event: str, document: Callable[[Pushed], object]) -> None:
        """Create a stream in the running event loop. `event` is the name of the events. `document` turns a pushed
        value into the document that is sent as JSON; a value for which `document` returns None is not sent. Raises
        RuntimeError outside an event loop.
        """
        self._loop = asyncio.get_running_loop()
        self._event, self._document = event, document
        self._wake = asyncio.Event()
        self._next: Pushed | None = None
        self._ended: str | None = None

    def push(self, pushed: Pushed) -> None:
        """Replace the value of the next event. A value that was not sent yet is dropped."""
        self._next = pushed
        self._signal()

    def end(self, reason: str) -> None:
        """Send a pushed value that was not sent yet, then the reason, and close the stream."""
        self._ended = reason
        self._signal()

    def _signal(self) -> None:
        """Wake `events`, from any thread. Does nothing after the loop was closed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the stream
            self._loop.call_soon_threadsafe(self._wake.set)

    async def events(self, heartbeat_seconds: float, until: float) -> AsyncIterator[bytes]:
        """Yield the events as bytes. If values were pushed since the last event, only the newest value is sent,
        unless its document is None. A heartbeat is sent after `heartbeat_seconds` without a pushed value.

        The stream ends after `end`, or at the time `until` (`time.time()`), when the client's token expires; the last
        event, `end`, has the reason. The caller stops reading when the client disconnects.
        """
        while True:
            seconds_left = until - time.time()
            if seconds_left <= 0:
                yield event_of("end", {"reason": TOKEN_EXPIRED})
                return
            try:
                await asyncio.wait_for(self._wake.wait(), min(heartbeat_seconds, seconds_left))
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


def response(
    stream: EventStream[Any],
    heartbeat_seconds: float,
    holder: Grant,
    *,
    begin: Callable[[], None] = lambda: None,
    end: Callable[[], None],
) -> StreamingResponse:
    """Return the events of the stream as an answer that proxies must not buffer or cache. The stream ends at the latest when the token of
    `holder` expires. `begin` is called before the first event, and `end` when the stream ends or the client disconnects.
    """
    until = holder.stream_until(time.time())

    async def events() -> AsyncIterator[bytes]:
        begin()
        try:
            async for event in stream.events(heartbeat_seconds, until):
                yield event
        finally:
            end()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def event_of(name: str, document: object) -> bytes:
    """Return the event in its wire format, with the document as JSON."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(document))


def stream_of(event: str, document: object) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of an answer that is a stream of events, with one event as the example."""
    example = event_of(event, document).decode()
    return {200: {"content": {"text/event-stream": {"example": example}}, "description": "Events."}}
