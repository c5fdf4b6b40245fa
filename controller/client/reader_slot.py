"""Opens one log in a background thread, runs slow queries there, retries failures, and closes the reader
once.

The consumer's thread never waits for a log, so a log out of reach delays no other log. If a slot is closed
while its reader is being opened, the opening thread closes the reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from controller.client.retry import Backoff
from controller.dataplane.log_client import Closable
from controller.domain.errors import CleaveError, SegmentNotFound, Terminal

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.02, 1.0
"""The first delay before a failed opening or reading is retried, and the longest; the delay doubles. Moving a
bucket to another consumer takes milliseconds.
"""
Reader = TypeVar("Reader", bound=Closable)


class ReaderSlot(Generic[Reader]):
    """The reader of one log. For the consumer's thread, except `notify`, `open`, `ask`, `mark_unused`,
    `wait_until_unused` and `stop`, which other threads call too.
    """

    key: Any
    """The key of the slot in its `ReaderSet`. Keys of one set have an order."""
    place: Hashable
    """The key of the segment or bucket. Slots of one place are open one after the other."""

    def __init__(
        self,
        segment_id: int,
        backing_topic: str,
        wakeup: threading.Event,
        delay_seconds: float,
        after: threading.Event | None = None,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the slot of a whole segment without opening the log. `wakeup` is set when there is work for the consumer's thread.
        `delay_seconds` is the delay before the first opening, for a log that was lost before.

        The log is not opened before the event `after` is set, which shows that the preceding reader is closed; None:
        there is no preceding reader. `on_missing` is called, in any thread, each time the log is found missing.
        """
        self._on_missing = on_missing
        self.segment_id = self.key = self.place = segment_id
        self.backing_topic, self._wakeup, self._after = backing_topic, wakeup, after
        self._lock = threading.Lock()
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.reader: Reader | None = None
        self.error: CleaveError | None = None
        """The error of the last attempt to open or read the log. None after a success."""
        self.setback: str | None = None
        """The reason why messages are repeated, or replaced by others: the log became shorter. None once the
        next messages are read.
        """
        self.next_try_at = time.monotonic() + delay_seconds
        """Time before which the log is neither opened nor read, in `time.monotonic` seconds."""
        self.signal = threading.Event()
        """Set while the log may have messages that were not read."""
        self.is_being_opened = self.is_closed = False
        self._query: Future[Any] | None = None
        self._unused = threading.Event()
        """Set while no other thread opens the log or runs a query."""
        self._unused.set()

    @property
    def is_queried(self) -> bool:
        """True while a background thread uses the reader for a query."""
        return self._query is not None and not self._query.done()

    @property
    def has_news(self) -> bool:
        """True if the log may have messages to read, or a query has a result to take."""
        return not self.is_queried and (self.signal.is_set() or self._query is not None)

    @property
    def is_readable(self) -> bool:
        """True if the open log may have messages to read, or a query has a result to take, and no retry is awaited."""
        return self.reader is not None and self.has_news and self.next_try_at <= time.monotonic()

    @property
    def is_waiting(self) -> bool:
        """True if the log is to be opened, even if its next try is not due yet: it is neither open nor being
        opened, the slot is not closed, and the preceding reader is closed.
        """
        is_to_be = self.reader is None and not self.is_being_opened and not self.is_closed
        return is_to_be and (self._after is None or self._after.is_set())

    def notify(self) -> None:
        """Signal that the log may have new messages, and wake the consumer."""
        self.signal.set()
        self._wakeup.set()

    def begin_opening(self) -> bool:
        """Mark the log as being opened, and return True, if it is to be opened at this time: it is neither
        open nor being opened, the slot is not closed, the preceding reader is closed, and `next_try_at` is
        reached. Return False otherwise. After True the caller calls `open` or `mark_unused`.
        """
        with self._lock:
            is_due = self.is_waiting and self.next_try_at <= time.monotonic()
            if is_due:
                self.is_being_opened = True
                self._unused.clear()
            return is_due

    def open(self, open_reader: Callable[[], Reader]) -> None:
        """Open the log with `open_reader`, store the reader, set `signal`, and wake the consumer. Runs in a
        background thread, after `begin_opening` returned True. Raises nothing.

        An error of `open_reader` is recorded (`fail`), and the consumer is woken too. If the slot was closed before,
        the log is not opened. If the slot was closed during the opening, the opened reader is closed.
        """
        if not self.is_closed:  # the slot may be closed while it waits for a thread
            self._open(open_reader)
        self.mark_unused()
        self.notify()

    def _open(self, open_reader: Callable[[], Reader]) -> None:
        """Open the log. Keep the reader, or close it if the slot was closed meanwhile. Record an error with
        `fail`; an Exception that is no CleaveError is recorded as Terminal.
        """
        try:
            reader = open_reader()
        except CleaveError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - an exception of a library, which the thread pool would swallow
            self.fail(Terminal(f"cannot open {self.backing_topic}: {type(error).__name__}: {error}"))
        else:
            with self._lock:
                is_late = self.is_closed
                if not is_late:
                    self.reader = reader
                    self.succeed()
            if is_late:
                reader.close()

    def fail(self, error: CleaveError) -> None:
        """Record `error`, the error of an opening or a read, and set `next_try_at` to the time of the next attempt.
        The delay until then doubles with each error until `succeed` is called. Call `on_missing` if the error is a
        SegmentNotFound.
        """
        if isinstance(error, SegmentNotFound):
            self._on_missing()
        self.error = error
        self.next_try_at = time.monotonic() + self._backoff.next_seconds()

    def succeed(self) -> None:
        """Record that the log was reached: clear the error, and reset the delay."""
        self.error = None
        self._backoff.reset()

    def ask(self, question: Callable[[], Any], result: Future[Any]) -> None:
        """Run `question`, and set its result or its Exception in the future `result`. Runs in a background
        thread, after `reserve_query`, which returned `result`, and wakes the consumer at the end.

        `question` may wait for the data plane for as long as a call may take.
        """
        try:
            answer = question()
        except Exception as error:  # noqa: BLE001 - `take_result` raises the error
            self._unused.set()  # set before the result, because the result may start the next query
            result.set_exception(error)
        else:
            self._unused.set()
            result.set_result(answer)
        self._wakeup.set()

    def reserve_query(self) -> Future[Any]:
        """Reserve the reader for one query in a background thread, and return the future that `ask` gives the result.
        Until the query has ended, `is_unused` is False and `is_queried` is True. An earlier result that was not taken
        is lost.
        """
        self._unused.clear()
        self._query = Future()
        return self._query

    def take_result(self) -> Any:
        """Return the result of the last query, and remove it, so that the next call returns None until another query
        is reserved. Return None if there was no query since the last call. If the query failed, raise its error,
        once. If the query is in progress (`is_queried`), wait, without a limit, for its end.

        Wakes the consumer if `signal` is set, so that messages that arrived during the query are read.
        """
        query, self._query = self._query, None
        if self.signal.is_set():
            self._wakeup.set()
        return None if query is None else query.result()

    @property
    def is_unused(self) -> bool:
        """True if no thread opens the log or runs a query."""
        return self._unused.is_set()

    def wait_until_unused(self) -> None:
        """Wait, without a limit, until no thread opens the log or runs a query."""
        self._unused.wait()

    def mark_unused(self) -> None:
        """Mark the opening or query as ended, or as one that never runs because the threads have ended."""
        self._unused.set()
        self.is_being_opened = False

    def stop(self) -> Reader | None:
        """Close the slot for good, and return the reader for the caller to close. Return None if no reader is
        open.

        The next reader receives the unacknowledged messages again.
        """
        with self._lock:
            reader, self.reader, self.is_closed = self.reader, None, True
        return reader
