"""The readers of a consumer that reads whole segments: one object for each, opened aside, tried again, read in turns.

Readers are opened in threads of their own: a log out of reach delays no other. What is closed while it is being opened is closed
when that has ended.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

from controller.client.closing import Closable, close_side_by_side
from controller.client.patience import Backoff
from controller.domain.errors import CleaveError, DataPlaneUnavailable, Terminal

PARALLEL_OPENS = 4
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.02, 1.0


Reader = TypeVar("Reader", bound=Closable)


class SegmentReader(Generic[Reader]):
    """One reading of one segment. For the consumer's thread; `ring` and the opening are for others."""

    def __init__(
        self,
        segment_id: int,
        backing_topic: str,
        wakeup: threading.Event,
        backoff: Backoff,
        delay_seconds: float,
    ) -> None:
        self.segment_id, self.backing_topic, self._wakeup = segment_id, backing_topic, wakeup
        self._backoff, self._lock = backoff, threading.Lock()
        self.reader: Reader | None = None
        self.error: CleaveError | None = None
        """Why it could not be opened or read when that was last tried."""
        self.next_try_at = time.monotonic() + delay_seconds
        self.rung = threading.Event()
        self._is_being_opened = self.is_closed = False

    def ring(self) -> None:
        """There may be something new."""
        self.rung.set()
        self._wakeup.set()

    def open(self, act: Callable[[SegmentReader[Reader]], Reader]) -> None:
        """Runs in a thread aside."""
        if self.is_closed:  # while it waited for a thread
            return
        try:
            reader = act(self)
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
        self._is_being_opened = False
        self.ring()

    def take_turn(self) -> bool:
        """Whether it is time to open it; then it is being opened."""
        is_due = self.reader is None and not self._is_being_opened and self.next_try_at <= time.monotonic()
        self._is_being_opened = self._is_being_opened or is_due
        return is_due

    def fail(self, error: CleaveError) -> None:
        """Not to be opened or read just now: again after a while that doubles."""
        self.error = error
        self.next_try_at = time.monotonic() + self._backoff.next_seconds()

    def succeed(self) -> None:
        """It was reached."""
        self.error = None
        self._backoff.reset()

    def close(self) -> None:
        """Read no further."""
        with self._lock:
            reader, self.reader, self.is_closed = self.reader, None, True
        if reader is not None:
            reader.close()


class SegmentReaders(Generic[Reader]):
    """For the consumer's thread."""

    def __init__(self, open_one: Callable[[SegmentReader[Reader]], Reader], wakeup: threading.Event) -> None:
        """`open_one` is called in a thread aside."""
        self._open_one, self._wakeup = open_one, wakeup
        self._held: dict[int, SegmentReader[Reader]] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._opens = ThreadPoolExecutor(PARALLEL_OPENS, thread_name_prefix="cleave-open")
        self._last = -1
        """The segment that had its turn last."""

    @property
    def all(self) -> tuple[SegmentReader[Reader], ...]:
        """By segment."""
        return tuple(self._held[segment_id] for segment_id in sorted(self._held))

    @property
    def next_try_at(self) -> float:
        """When the next one is worth another try, `time.monotonic` seconds; infinity where none is waited for."""
        return min(
            (one.next_try_at for one in self._held.values() if one.reader is None), default=float("inf")
        )

    def follow(self, wanted: dict[int, str]) -> None:
        """Read these segments, by backing topic, and no others."""
        for segment_id in [segment_id for segment_id in self._held if segment_id not in wanted]:
            self.drop(segment_id)
        for segment_id, backing_topic in wanted.items():
            if segment_id not in self._held:
                self._hold(segment_id, backing_topic, 0.0)

    def open_due(self) -> None:
        """Have those opened whose time has come."""
        for one in self._held.values():
            if one.take_turn():
                with suppress(RuntimeError):  # closed
                    self._opens.submit(one.open, self._open_one)

    def with_something_new(self) -> Iterator[tuple[SegmentReader[Reader], Reader]]:
        """Those that may have something new, each in its turn. The caller stops when it found something."""
        segment_ids = sorted(self._held)
        following = bisect_right(segment_ids, self._last)
        for segment_id in segment_ids[following:] + segment_ids[:following]:
            self._last = segment_id
            one = self._held.get(segment_id)
            reader = None if one is None else one.reader
            if (
                one is not None
                and reader is not None
                and one.rung.is_set()
                and one.next_try_at <= time.monotonic()
            ):
                yield one, reader

    def ring_all(self) -> None:
        """Have each read once, whether its log notified or not."""
        for one in self._held.values():
            one.rung.set()

    def holds(self, one: object) -> bool:
        """Whether this very reading still goes on."""
        return isinstance(one, SegmentReader) and self._held.get(one.segment_id) is one

    def reopen(self, one: SegmentReader[Reader], error: CleaveError | None = None) -> None:
        """End this reading and begin another one, later each time until `settled` is said of the segment. `error`: why it cannot
        be read until then.
        """
        if self.holds(one):
            self._hold(one.segment_id, one.backing_topic, self._backoff(one.segment_id).next_seconds())
            self._held[one.segment_id].error = error
        one.close()

    def settled(self, segment_id: int) -> None:
        """Reading the segment works."""
        self._backoff(segment_id).reset()

    def drop(self, segment_id: int) -> None:
        """Read this segment no further."""
        self._backoffs.pop(segment_id, None)
        one = self._held.pop(segment_id, None)
        if one is not None:
            one.close()

    def reason(self, segment_id: int, *, is_paused: bool) -> str:
        """Why nothing of a segment that is to be read is handed out just now."""
        one = self._held.get(segment_id)
        if one is not None and one.error is not None:
            return f"out of reach: {one.error}"
        if one is None or one.reader is None:
            return "being opened"
        if is_paused:
            return "paused"
        return "has something to read" if one.rung.is_set() else "no data"

    def demand_reached(self) -> None:
        """Raises why a log was out of reach when it was last tried, or can never be read."""
        for one in self._held.values():
            if isinstance(one.error, DataPlaneUnavailable | Terminal):
                raise one.error.with_traceback(None)  # which would grow with each time

    def close(self) -> None:
        """End all at once. Waits for what is being opened, since threads end before the process does."""
        self._opens.shutdown(wait=False, cancel_futures=True)
        close_side_by_side([*self._held.values()])
        self._held.clear()
        self._opens.shutdown(wait=True)

    def _hold(self, segment_id: int, backing_topic: str, delay_seconds: float) -> None:
        self._held[segment_id] = SegmentReader(
            segment_id,
            backing_topic,
            self._wakeup,
            Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS),
            delay_seconds,
        )

    def _backoff(self, segment_id: int) -> Backoff:
        return self._backoffs.setdefault(segment_id, Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS))
