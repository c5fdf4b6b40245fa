"""The readers of a consumer that reads whole segments: one object for each, opened aside, tried again, read in turns."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

from controller.client.opening import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    Opening,
    Reader,
    next_try_at,
)
from controller.client.patience import Backoff
from controller.client.reader_threads import ReaderThreads
from controller.client.rounds import LOOK_SECONDS, WAITS_FOR_RECEIVE
from controller.client.suspects import SuspectReports
from controller.domain.errors import CleaveError, DataPlaneUnavailable, Terminal


class SegmentReader(Opening[Reader]):
    """One reading of one segment."""

    def __init__(
        self,
        segment_id: int,
        backing_topic: str,
        wakeup: threading.Event,
        delay_seconds: float,
        after: threading.Event | None,
        on_missing: Callable[[], None],
    ) -> None:
        super().__init__(backing_topic, wakeup, delay_seconds, after, on_missing)
        self.segment_id = segment_id


class SegmentReaders(Generic[Reader]):
    """For the consumer's thread."""

    def __init__(
        self,
        open_one: Callable[[SegmentReader[Reader]], Reader],
        wakeup: threading.Event,
        suspects: SuspectReports,
    ) -> None:
        """`open_one` is called in a thread aside. `suspects` is closed with this."""
        self._open_one, self._wakeup, self._suspects = open_one, wakeup, suspects
        self._held: dict[int, SegmentReader[Reader]] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._threads = ReaderThreads(wakeup.set)
        self._look_at = 0.0
        self._last = -1
        """The segment that had its turn last."""

    @property
    def all(self) -> tuple[SegmentReader[Reader], ...]:
        """By segment."""
        return tuple(self._held[segment_id] for segment_id in sorted(self._held))

    @property
    def due_at(self) -> float:
        """When there is something to do though nothing rang, `time.monotonic` seconds: another try, or the next look at all."""
        return min(self._look_at, next_try_at([*self._held.values()]))

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
            self._threads.open(one, partial(self._open_one, one))

    def ask(self, one: SegmentReader[Reader], question: Callable[[], Any]) -> None:
        """Have its reader asked what may take long; see `Opening.take_answer`."""
        self._threads.ask(one, question)

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
                and one.has_news
                and one.next_try_at <= time.monotonic()
            ):
                yield one, reader

    def ring_all_if_due(self) -> bool:
        """Have each read once every LOOK_SECONDS, whether its log notified or not. Whether that was now."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_SECONDS
        for one in self._held.values():
            one.rung.set()
        return True

    def holds(self, one: object) -> bool:
        """Whether this very reading still goes on."""
        return isinstance(one, SegmentReader) and self._held.get(one.segment_id) is one

    def reopen(self, one: SegmentReader[Reader], error: CleaveError | None = None) -> None:
        """End this reading and begin another one, later each time until `settled` is said of the segment. `error`: why it cannot
        be read until then.
        """
        is_held = self.holds(one)
        self._threads.stop(one.segment_id, one)
        if is_held:
            self._hold(one.segment_id, one.backing_topic, self._backoff(one.segment_id).next_seconds())
            again = self._held[one.segment_id]
            again.error, again.setback = error, one.setback

    def settled(self, segment_id: int) -> None:
        """Reading the segment works."""
        self._backoff(segment_id).reset()

    def drop(self, segment_id: int) -> None:
        """Read this segment no further."""
        self._backoffs.pop(segment_id, None)
        one = self._held.pop(segment_id, None)
        if one is not None:
            self._threads.stop(segment_id, one)

    def reason(self, segment_id: int, *, is_paused: bool) -> str:
        """Why nothing of a segment that is to be read is handed out just now."""
        one = self._held.get(segment_id)
        if one is not None and one.error is not None:
            return f"out of reach: {one.error}"
        if one is not None and one.setback is not None and not is_paused:
            return one.setback
        if one is None or one.reader is None:
            return "being opened"
        if is_paused:
            return "paused"
        return WAITS_FOR_RECEIVE if one.rung.is_set() else "no data"

    def demand_reached(self) -> None:
        """Raises why a log was out of reach when it was last tried, or can never be read."""
        for one in self._held.values():
            if isinstance(one.error, DataPlaneUnavailable | Terminal):
                raise one.error.with_traceback(None)  # which would grow with each time

    def close(self) -> None:
        """End all at once. Waits for what is being opened, asked and closed, since threads end before the process does."""
        for segment_id in [*self._held]:
            self.drop(segment_id)
        self._threads.close()
        self._suspects.close()

    def _hold(self, segment_id: int, backing_topic: str, delay_seconds: float) -> None:
        self._held[segment_id] = SegmentReader(
            segment_id,
            backing_topic,
            self._wakeup,
            delay_seconds,
            self._threads.leaving(segment_id),
            partial(self._suspects.report, segment_id),
        )

    def _backoff(self, segment_id: int) -> Backoff:
        return self._backoffs.setdefault(segment_id, Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))
