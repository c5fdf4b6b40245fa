"""One reading of a log: opened in a thread aside, tried again when that fails, closed once.

A log out of reach delays no other. What is closed while it is being opened is closed again when that has ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from controller.client.closing import Closable, close_side_by_side
from controller.client.patience import Backoff
from controller.domain.errors import CleaveError, Terminal

MOST_OPENS = 64
"""So many are opened at once by one consumer: as many logs may hang before one that would answer waits for a thread."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.02, 1.0
"""What cannot be opened or read is tried again after this time, which doubles. A hand-over takes milliseconds."""
Reader = TypeVar("Reader", bound=Closable)


class Opening(Generic[Reader]):
    """For the consumer's thread; `ring` and the opening are for others."""

    def __init__(self, backing_topic: str, wakeup: threading.Event, delay_seconds: float) -> None:
        """`delay_seconds`: not to be opened before; for what was lost a moment ago."""
        self.backing_topic, self._wakeup = backing_topic, wakeup
        self._lock = threading.Lock()
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.reader: Reader | None = None
        self.error: CleaveError | None = None
        """Why it could not be opened or read when that was last tried."""
        self.next_try_at = time.monotonic() + delay_seconds
        self.rung = threading.Event()
        self.is_being_opened = self.is_closed = False

    @property
    def is_waiting(self) -> bool:
        """Whether it is still to be opened."""
        return self.reader is None and not self.is_being_opened and not self.is_closed

    def ring(self) -> None:
        """There may be something new."""
        self.rung.set()
        self._wakeup.set()

    def take_turn(self) -> bool:
        """Whether it is time to open it; then it is being opened."""
        with self._lock:
            is_due = self.is_waiting and self.next_try_at <= time.monotonic()
            self.is_being_opened = self.is_being_opened or is_due
            return is_due

    def open(self, act: Callable[[], Reader]) -> None:
        """Runs in a thread aside, after `take_turn`."""
        if self.is_closed:  # while it waited for a thread
            return
        try:
            reader = act()
        except CleaveError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - of a library; the thread's pool would swallow it
            self.fail(Terminal(f"{self.backing_topic} could not be opened: {type(error).__name__}: {error}"))
        else:
            with self._lock:
                is_late = self.is_closed
                if not is_late:
                    self.reader = reader
                    self.succeed()
            if is_late:
                reader.close()
        self.is_being_opened = False
        self.ring()

    def fail(self, error: CleaveError) -> None:
        """Not to be opened or read just now: again after a while that doubles."""
        self.error = error
        self.next_try_at = time.monotonic() + self._backoff.next_seconds()

    def succeed(self) -> None:
        """It was reached."""
        self.error = None
        self._backoff.reset()

    def close(self) -> None:
        """Read no further, for good. What is unacknowledged is read again by the next reader."""
        with self._lock:
            reader, self.reader, self.is_closed = self.reader, None, True
        if reader is not None:
            reader.close()


class OpeningThreads:
    """Where readers are opened: each in a thread, which goes on with those that wait for one, if there are, and ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running: set[threading.Thread] = set()
        self._is_closed = False

    def begin(self, one: Opening[Reader], act: Callable[[], Reader]) -> None:
        """Open it if its time has come."""
        if not one.take_turn():
            return
        with self._lock:
            if self._is_closed:
                return
            self._waiting.append(partial(one.open, act))
            if len(self._running) < MOST_OPENS:
                thread = threading.Thread(target=self._run, name="cleave-open")
                self._running.add(thread)
                thread.start()

    def close(self, held: Sequence[Closable]) -> None:
        """Close all of these at once. Waits for what is being opened, since threads end before the process does."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            running = [*self._running]
        close_side_by_side(held)
        for thread in running:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running.discard(threading.current_thread())
                    return
                opening = self._waiting.popleft()
            opening()


def next_try_at(some: Sequence[Opening[Reader]]) -> float:
    """When the next one is worth another try, `time.monotonic` seconds; infinity where none is waited for."""
    return min((one.next_try_at for one in some if one.is_waiting), default=float("inf"))
