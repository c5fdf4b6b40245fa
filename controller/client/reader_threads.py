"""Opens, queries and closes a consumer's readers in background threads that end before the process does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from controller.client.background_calls import BackgroundCalls
from controller.client.reader_slot import Reader, ReaderSlot

MOST_AT_ONCE = 64
"""Number of logs that one consumer opens at once, and equally for queries and closes: so many logs may hang
before another log waits for a thread.
"""


class ReaderThreads:
    """The background threads for the readers of one consumer. For any thread."""

    def __init__(self, on_closed: Callable[[], None]) -> None:
        """Create the object without threads. `on_closed` is called in a background thread when a stopped reader is closed, or
        by `stop` if there is nothing to close.
        """
        self._on_closed, self._lock = on_closed, threading.Lock()
        self._opening, self._asking, self._closing = (
            BackgroundCalls(MOST_AT_ONCE, name, is_awaited=True)
            for name in ("cleave-open", "cleave-ask", "cleave-close")
        )
        self._leaving: dict[Hashable, threading.Event] = {}

    def leaving(self, place: Hashable) -> threading.Event | None:
        """Return an event that is set when the last reader of this place is closed and no call of it is in
        progress. None if that is already so.
        """
        with self._lock:
            return self._leaving.get(place)

    def open(self, slot: ReaderSlot[Reader], open_reader: Callable[[], Reader]) -> None:
        """Open the slot in a background thread if it is due. Does nothing after `close`."""
        if slot.begin_opening() and not _run(self._opening, partial(slot.open, open_reader)):
            slot.mark_unused()

    def ask(self, slot: ReaderSlot[Reader], question: Callable[[], Any]) -> None:
        """Run a query of the slot's reader in a background thread; other logs are read meanwhile.
        `take_result` returns the result. After `close` the query does not run, and never has a result.
        """
        if not _run(self._asking, partial(slot.ask, question, slot.reserve_query())):
            slot.mark_unused()

    def stop(self, slot: ReaderSlot[Reader]) -> None:
        """Close the slot at once, so that nothing more is read from it, and close its reader in a background thread.
        Until the reader is closed and no opening or query of the slot is in progress, `leaving` returns an event for
        the place of the slot. Then the event is set, and `on_closed` is called.

        If no reader is open and no opening or query is in progress, `on_closed` is called in this thread, and nothing
        else happens. After `close` of this object, the reader is closed in this thread.
        """
        closed = threading.Event()
        with self._lock:
            reader = slot.stop()
            is_idle = reader is None and slot.is_unused
            if not is_idle:
                self._leaving[slot.place] = closed
        if is_idle:
            self._on_closed()
            return

        def close() -> None:
            try:
                if reader is not None:
                    reader.close()
                # a reader that opens late is closed, and no query moves the cursor of the next owner
                slot.wait_until_unused()
            finally:
                self._left(slot.place, closed)

        if not _run(self._closing, close):
            close()

    def close(self) -> None:
        """Wait, without a limit, until all stopped readers are closed, and all openings and queries have
        ended.

        Begin none afterwards.
        """
        for threads in (self._closing, self._opening, self._asking):
            threads.close(math.inf)

    def _left(self, place: Hashable, closed: threading.Event) -> None:
        """Note that the reader of `place` is closed: set `closed`, and call `on_closed`. The place stays in
        `leaving` if a later reader of it is still being closed.
        """
        closed.set()
        with self._lock:
            if self._leaving.get(place) is closed:
                del self._leaving[place]
        self._on_closed()


def _run(threads: BackgroundCalls, function: Callable[[], None]) -> bool:
    """Run `function` in a background thread, or in this thread if no thread of `threads` can be started, and return True.
    Return False, and run nothing, if `threads` is closed.
    """
    if threads.submit(function):
        return True
    if threads.is_closed:
        return False
    function()
    return True
