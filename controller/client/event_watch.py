"""A stream of events that is held open: opened again, with jitter, whenever it breaks, until it is closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from controller.client.patience import Backoff
from controller.client.servers import EventFeed, Servers, is_for_the_token
from controller.domain.errors import Retryable, Terminal
from controller.forks import OneProcess

LEAVES_WITHIN_SECONDS = 2.0
"""The thread of what is closed is waited for no longer: a worker that is stopped may keep it for the length of a call."""
SILENT_SECONDS = 30.0
"""A stream that has said nothing for so long is opened anew; heartbeats come more often."""
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


class EventWatch(OneProcess):
    """From construction to `close`, in a thread of its own."""

    def __init__(
        self,
        servers: Servers,
        path: str,
        on_event: Callable[[str, str], None],
        *,
        query: Callable[[], Mapping[str, Any]] = dict,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_event` is called with each event's name and data, heartbeats left out; when it raises, the stream is opened anew.
        `query` at each opening. `on_refusal` says that a worker refused for good; the watch goes on trying.
        """
        self._servers, self._path = servers, path
        self._on_event, self._query, self._on_refusal = on_event, query, on_refusal
        self._closed = threading.Event()
        self._feed: EventFeed | None = None
        self._thread = threading.Thread(target=self._run, name="cleave-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell no more; safe to repeat."""
        self._closed.set()
        if self._feed is not None:
            self._feed.hang_up()
        self._thread.join(LEAVES_WITHIN_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        while not self._closed.is_set():
            try:
                if self._follow(backoff):
                    continue
            except Retryable:
                pass
            except Terminal:
                self._on_refusal()
            except Exception:  # noqa: BLE001 - the thread would end, and no change would be told any more
                _log.exception("the watch of %s failed; opening it anew", self._path)
            self._closed.wait(backoff.next_seconds())

    def _follow(self, backoff: Backoff) -> bool:
        """Hold one stream open until it ends. Return True if only its token has run out: the next stream has a fresh one."""
        with self._servers.events(self._path, query=self._query(), silent_seconds=SILENT_SECONDS) as feed:
            self._feed = feed
            for event in feed:
                if self._closed.is_set():
                    return False
                if event.event == "end":
                    return is_for_the_token(event)
                if event.event != "heartbeat":
                    self._on_event(event.event, event.data)
                backoff.reset()
        return False
