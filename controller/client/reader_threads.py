"""Where a consumer's readers are opened, asked and closed: in threads aside, which end before the process does.

What talks to workers only is in `aside`, whose threads the end of the process does not wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from controller.client.opening import Opening, Reader

MOST_AT_ONCE = 64
"""So many are opened at once by one consumer, and so many asked or closed: as many logs may hang before one that would answer waits
for a thread.
"""


class _Threads:
    """Acts aside: each in a thread, which goes on with those that wait for one, if there are, and ends."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running: set[threading.Thread] = set()
        self._is_closed = False

    def run(self, act: Callable[[], None]) -> bool:
        """Have it done soon. It raises nothing. False once these are closed."""
        with self._lock:
            if self._is_closed:
                return False
            self._waiting.append(act)
            if len(self._running) < MOST_AT_ONCE:
                thread = threading.Thread(target=self._run, name=self._name)
                self._running.add(thread)
                thread.start()
            return True

    def close(self) -> None:
        """Take no more. Returns when all that was taken has ended, since threads end before the process does."""
        with self._lock:
            self._is_closed = True
            running = [*self._running]
        for thread in running:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running.discard(threading.current_thread())
                    return
                act = self._waiting.popleft()
            act()


class ReaderThreads:
    """Where the readers of one consumer are opened, asked and closed. For any thread."""

    def __init__(self, on_closed: Callable[[], None]) -> None:
        """`on_closed` is called when what was stopped is closed, in a thread aside; where there is nothing to close, by `stop`."""
        self._on_closed, self._lock = on_closed, threading.Lock()
        self._opening, self._asking, self._closing = map(
            _Threads, ("cleave-open", "cleave-ask", "cleave-close")
        )
        self._leaving: dict[Hashable, threading.Event] = {}

    def leaving(self, place: Hashable) -> threading.Event | None:
        """Set when the last reader of this place is closed, and no call of it is under way; None where that is so."""
        with self._lock:
            return self._leaving.get(place)

    def open(self, one: Opening[Reader], act: Callable[[], Reader]) -> None:
        """Open it if its time has come."""
        if one.take_turn() and not self._opening.run(partial(one.open, act)):
            one.rest()

    def ask(self, one: Opening[Reader], question: Callable[[], Any]) -> None:
        """Have it asked; others are read meanwhile. The answer is for `take_answer`."""
        if not self._asking.run(partial(one.ask, question, one.will_ask())):
            one.rest()

    def stop(self, place: Hashable, one: Opening[Reader]) -> None:
        """Read it no further from now on, and close it aside; see `leaving`."""
        closed = threading.Event()
        with self._lock:
            reader = one.stop()
            is_nothing = reader is None and one.is_at_rest
            if not is_nothing:
                self._leaving[place] = closed
        if is_nothing:
            self._on_closed()
            return

        def close() -> None:
            try:
                if reader is not None:
                    reader.close()
                one.come_to_rest()  # what is opened late is closed, and no question moves the cursor of the next owner
            finally:
                self._left(place, closed)

        if not self._closing.run(close):
            close()

    def close(self) -> None:
        """Returns when everything that was stopped is closed, and what is being opened or asked has ended."""
        for threads in (self._closing, self._opening, self._asking):
            threads.close()

    def _left(self, place: Hashable, closed: threading.Event) -> None:
        closed.set()
        with self._lock:
            if self._leaving.get(place) is closed:
                del self._leaving[place]
        self._on_closed()
