"""One reading of a log: opened in a thread aside, asked there what may take long, tried again when it fails, closed once.

A log out of reach delays no other: the consumer's thread never waits for one. What is closed while it is being opened is closed again
when that has ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from controller.client.closing import Closable
from controller.client.patience import Backoff
from controller.domain.errors import CleaveError, Terminal

MOST_AT_ONCE = 64
"""So many are opened at once by one consumer, and so many asked or closed: as many logs may hang before one that would answer waits
for a thread.
"""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.02, 1.0
"""What cannot be opened or read is tried again after this time, which doubles. A hand-over takes milliseconds."""
Reader = TypeVar("Reader", bound=Closable)


class Opening(Generic[Reader]):
    """For the consumer's thread; `ring`, the opening and the asking are for others."""

    def __init__(
        self,
        backing_topic: str,
        wakeup: threading.Event,
        delay_seconds: float,
        after: threading.Event | None = None,
    ) -> None:
        """`delay_seconds`: not to be opened before; for what was lost a moment ago. Nor before `after` is set: the last reader is
        closed then.
        """
        self.backing_topic, self._wakeup, self._after = backing_topic, wakeup, after
        self._lock = threading.Lock()
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.reader: Reader | None = None
        self.error: CleaveError | None = None
        """Why it could not be opened or read when that was last tried."""
        self.next_try_at = time.monotonic() + delay_seconds
        self.rung = threading.Event()
        self.is_being_opened = self.is_closed = False
        self._asked: Future[Any] | None = None
        self._at_rest = threading.Event()
        """No other thread is at it."""
        self._at_rest.set()

    @property
    def is_being_asked(self) -> bool:
        """Whether its reader is another thread's just now."""
        return self._asked is not None and not self._asked.done()

    @property
    def has_news(self) -> bool:
        """Whether there may be something to read, or there is an answer to take."""
        return not self.is_being_asked and (self.rung.is_set() or self._asked is not None)

    @property
    def is_waiting(self) -> bool:
        """Whether it is still to be opened, and may be."""
        is_to_be = self.reader is None and not self.is_being_opened and not self.is_closed
        return is_to_be and (self._after is None or self._after.is_set())

    def ring(self) -> None:
        """There may be something new."""
        self.rung.set()
        self._wakeup.set()

    def take_turn(self) -> bool:
        """Whether it is time to open it; then it is being opened."""
        with self._lock:
            is_due = self.is_waiting and self.next_try_at <= time.monotonic()
            if is_due:
                self.is_being_opened = True
                self._at_rest.clear()
            return is_due

    def open(self, act: Callable[[], Reader]) -> None:
        """Runs in a thread aside, after `take_turn`."""
        if not self.is_closed:  # while it waited for a thread
            self._open(act)
        self.rest()
        self.ring()

    def _open(self, act: Callable[[], Reader]) -> None:
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

    def fail(self, error: CleaveError) -> None:
        """Not to be opened or read just now: again after a while that doubles."""
        self.error = error
        self.next_try_at = time.monotonic() + self._backoff.next_seconds()

    def succeed(self) -> None:
        """It was reached."""
        self.error = None
        self._backoff.reset()

    def ask(self, question: Callable[[], Any], asked: Future[Any]) -> None:
        """Runs in a thread aside, after `will_ask`: `question` may wait for the data plane as long as a call may take."""
        try:
            answer = question()
        except Exception as error:  # noqa: BLE001 - raised where the answer is taken
            self._at_rest.set()  # before the answer, upon which the next question may follow
            asked.set_exception(error)
        else:
            self._at_rest.set()
            asked.set_result(answer)
        self._wakeup.set()

    def will_ask(self) -> Future[Any]:
        """Its reader is for the thread aside until there is an answer."""
        self._at_rest.clear()
        self._asked = Future()
        return self._asked

    def take_answer(self) -> Any:
        """What was asked last came to this; None where nothing was. Raises what the question raised. What has arrived meanwhile is to be
        looked at.
        """
        asked, self._asked = self._asked, None
        if self.rung.is_set():
            self._wakeup.set()
        return None if asked is None else asked.result()

    @property
    def is_at_rest(self) -> bool:
        """Whether it is neither being opened nor asked."""
        return self._at_rest.is_set()

    def come_to_rest(self) -> None:
        """Returns when it is so."""
        self._at_rest.wait()

    def rest(self) -> None:
        """What was begun has ended, or is not done: there are no threads any more."""
        self._at_rest.set()
        self.is_being_opened = False

    def stop(self) -> Reader | None:
        """Read no further, for good; what is to be closed, if anything is. What is unacknowledged is read again by the next reader."""
        with self._lock:
            reader, self.reader, self.is_closed = self.reader, None, True
        return reader


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
        """`on_closed` is called in a thread aside whenever a reader is closed."""
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
            if reader is None and one.is_at_rest:
                return
            before, self._leaving[place] = self._leaving.get(place), closed

        def close() -> None:
            try:
                if reader is not None:
                    reader.close()
                one.come_to_rest()  # what is opened late is closed, and no question moves the cursor of the next owner
                if before is not None:
                    before.wait()
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


def next_try_at(some: Sequence[Opening[Reader]]) -> float:
    """When the next one is worth another try, `time.monotonic` seconds; infinity where none is waited for."""
    return min((one.next_try_at for one in some if one.is_waiting), default=float("inf"))
