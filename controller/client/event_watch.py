"""Holds a stream of server-sent events open, and reopens it, with jitter, whenever it breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx_sse

from controller.client.retry import Backoff
from controller.client.servers import EventFeed, Servers, is_for_the_token
from controller.domain.errors import Retryable, Terminal
from controller.forks import OneProcess

LEAVES_WITHIN_SECONDS = 2.0
"""Longest time that `close` waits for the thread: a worker that is stopped may hold it for the length of a
call.
"""
SILENT_SECONDS = 30.0
"""A stream without any event for this time is reopened; heartbeats are more frequent."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


class EventWatch(OneProcess):
    """One stream and its thread, from construction to `close`."""

    def __init__(
        self,
        servers: Servers,
        path: str,
        on_event: Callable[[str, str], None],
        *,
        query: Callable[[], Mapping[str, Any]] = dict,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        """Start a thread that holds the event stream at `path`, which begins with `/api/v1`, open until
        `close`. The functions are called in this thread.

        `on_event` is called with the name and the data of each event except heartbeats and the end of the
        stream; if it raises, the error is logged, and the stream is reopened. `query` is called at each
        opening, and returns the query parameters. `on_refusal` is called when a worker refuses the request with
        a Terminal error, or `query` raises one; the watch keeps trying. `on_refusal` must raise nothing.
        """
        self._servers, self._path = servers, path
        self._on_event, self._query, self._on_refusal = on_event, query, on_refusal
        self._closed = threading.Event()
        self._feed: EventFeed | None = None
        self._thread = threading.Thread(target=self._run, name="cleave-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream and the watch, and wait for the end of the thread, at most `LEAVES_WITHIN_SECONDS`. A
        function that the thread is calling may still be running afterwards. If the thread itself calls this method,
        from one of its functions, the method does not wait. Idempotent.
        """
        self._closed.set()
        if self._feed is not None:
            self._feed.hang_up()
        if threading.current_thread() is not self._thread:  # a callback may close the watch
            self._thread.join(LEAVES_WITHIN_SECONDS)

    def _run(self) -> None:
        """Follow stream after stream until `close`: the next at once if the token of a stream has expired,
        otherwise after a delay that grows until an event was handled. Calls `on_refusal` after a Terminal
        error; logs an exception that is no CleaveError.
        """
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        while not self._closed.is_set():
            try:
                if self._follow(backoff):
                    continue
            except Retryable:
                pass
            except Terminal:
                self._on_refusal()
            except Exception:  # noqa: BLE001 - the thread would end, and later changes would be missed
                _log.exception("watch of %s failed; reopening it", self._path)
            self._closed.wait(backoff.next_seconds())

    def _follow(self, backoff: Backoff) -> bool:
        """Follow one stream until it ends, and call `on_event` for each event but heartbeats.

        Each event that was handled resets the backoff; a heartbeat does too, the end of the stream does not.
        Return True if the worker ended the stream only because its token expired, so that the next stream has
        a fresh token; False after another end by the worker, after an error of `on_event`, which is logged, and
        for the first event after `close`. Raises the errors of `Servers.events` (StoreUnavailable when the
        stream breaks) and of `query`.
        """
        with self._servers.events(self._path, query=self._query(), silent_seconds=SILENT_SECONDS) as feed:
            self._feed = feed
            for event in feed:
                if self._closed.is_set():
                    return False
                if event.event == "end":
                    return is_for_the_token(event)
                if event.event != "heartbeat" and not self._handle(event):
                    return False
                backoff.reset()
        return False

    def _handle(self, event: httpx_sse.ServerSentEvent) -> bool:
        """Call `on_event`. Return False after an exception, which is logged: an exception of the application is no
        refusal by a worker, even if it is a CleaveError.
        """
        try:
            self._on_event(event.event, event.data)
        except Exception:  # noqa: BLE001 - an exception of the application
            _log.exception("cannot handle an event of %s; reopening the stream", self._path)
            return False
        return True
