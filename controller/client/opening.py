"""One reading of a log: opened in a thread aside, asked there what may take long, tried again when it fails, closed once.

A log out of reach delays no other: the consumer's thread never waits for one. What is closed while it is being opened is closed again
when that has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from controller.client.closing import Closable
from controller.client.patience import Backoff
from controller.domain.errors import CleaveError, SegmentNotFound, Terminal

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
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        """`delay_seconds`: not to be opened before; for what was lost a moment ago. Nor before `after` is set: the last reader is
        closed then. `on_missing` is called, in any thread, each time the log is found missing.
        """
        self._on_missing = on_missing
        self.backing_topic, self._wakeup, self._after = backing_topic, wakeup, after
        self._lock = threading.Lock()
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.reader: Reader | None = None
        self.error: CleaveError | None = None
        """Why it could not be opened or read when that was last tried."""
        self.setback: str | None = None
        """Why messages come again, or others in their place: the log became shorter. Until the next messages are read."""
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
        if isinstance(error, SegmentNotFound):
            self._on_missing()
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


def next_try_at(some: Sequence[Opening[Reader]]) -> float:
    """When the next one is worth another try, `time.monotonic` seconds; infinity where none is waited for."""
    return min((one.next_try_at for one in some if one.is_waiting), default=float("inf"))
