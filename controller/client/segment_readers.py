"""Manages the readers of a consumer of whole segments: opens them in background threads, retries failures,
and reads in rotation.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

from controller.client.broken_log_reports import SuspectReports
from controller.client.poll_loop import LOOK_SECONDS, WAITS_FOR_RECEIVE
from controller.client.reader_slot import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    Reader,
    ReaderSlot,
    next_try_at,
)
from controller.client.reader_threads import ReaderThreads
from controller.client.retry import Backoff
from controller.domain.errors import CleaveError, DataPlaneUnavailable, Terminal

NO_DATA = "no data"
"""The reason reported for a segment whose messages were all read."""


class SegmentReader(ReaderSlot[Reader]):
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
    """The readers of one consumer. For the consumer's thread."""

    def __init__(
        self,
        open_one: Callable[[SegmentReader[Reader]], Reader],
        wakeup: threading.Event,
        suspects: SuspectReports,
    ) -> None:
        """Create the set without readers. `open_one` is called in a background thread with a SegmentReader, opens the
        log of its segment, and returns the reader. `wakeup` is set when there may be work for the consumer's thread.
        `suspects` receives reports of missing logs, and is closed together with this object.
        """
        self._open_one, self._wakeup, self._suspects = open_one, wakeup, suspects
        self._by_segment: dict[int, SegmentReader[Reader]] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._threads = ReaderThreads(wakeup.set)
        self._poll_at = 0.0
        self._last = -1
        """The segment that was read last in the rotation."""

    @property
    def all(self) -> tuple[SegmentReader[Reader], ...]:
        """All readings, ordered by segment."""
        return tuple(self._by_segment[segment_id] for segment_id in sorted(self._by_segment))

    @property
    def due_at(self) -> float:
        """The time of the next work without a signal, in `time.monotonic` seconds: a retry, or the next poll
        of all logs.
        """
        return min(self._poll_at, next_try_at([*self._by_segment.values()]))

    def follow(self, backing_topics: dict[int, str]) -> None:
        """Read exactly these segments, given as backing topics by segment id: drop the others, and create
        readers of added segments, which `open_due` opens. Readers of segments that are read already stay.
        """
        for segment_id in [segment_id for segment_id in self._by_segment if segment_id not in backing_topics]:
            self.drop(segment_id)
        for segment_id, backing_topic in backing_topics.items():
            if segment_id not in self._by_segment:
                self._hold(segment_id, backing_topic, 0.0)

    def open_due(self) -> None:
        """Open the readers that are due, in background threads."""
        for segment_reader in self._by_segment.values():
            self._threads.open(segment_reader, partial(self._open_one, segment_reader))

    def ask(self, segment_reader: SegmentReader[Reader], question: Callable[[], Any]) -> None:
        """Run `question` in a background thread; `ReaderSlot.take_result` returns the result."""
        self._threads.ask(segment_reader, question)

    def with_new_messages(self) -> Iterator[tuple[SegmentReader[Reader], Reader]]:
        """Yield each segment's SegmentReader, with the open reader, that may have new messages or has the result of a
        query, at most once for each segment. The order is ascending by segment id, and begins behind the segment that
        was reached last, so that all segments get their turn. Segments without an open reader, and segments that wait
        for a retry, are left out. The caller stops iterating when it has a message.
        """
        segment_ids = sorted(self._by_segment)
        following = bisect_right(segment_ids, self._last)
        for segment_id in segment_ids[following:] + segment_ids[:following]:
            self._last = segment_id
            segment_reader = self._by_segment.get(segment_id)
            reader = None if segment_reader is None else segment_reader.reader
            if (
                segment_reader is not None
                and reader is not None
                and segment_reader.has_news
                and segment_reader.next_try_at <= time.monotonic()
            ):
                yield segment_reader, reader

    def signal_all_if_due(self) -> bool:
        """Make every reader read once, even without a notification of its log, unless a call did so in the last
        LOOK_SECONDS. Return True if this call did so, otherwise False.
        """
        if time.monotonic() < self._poll_at:
            return False
        self._poll_at = time.monotonic() + LOOK_SECONDS
        for segment_reader in self._by_segment.values():
            segment_reader.signal.set()
        return True

    def holds(self, segment_reader: object) -> bool:
        """Return True if this very reading still exists."""
        return (
            isinstance(segment_reader, SegmentReader)
            and self._by_segment.get(segment_reader.segment_id) is segment_reader
        )

    def reopen(self, segment_reader: SegmentReader[Reader], error: CleaveError | None = None) -> None:
        """Close the reader in a background thread, and have `open_due` open the segment again, after a delay and once
        the old reader is closed. The delay doubles with each call until `settled` or `drop` is called for the
        segment. If `segment_reader` is no longer in the set, because the segment was reopened or dropped before, its
        reader is only closed.

        `error` is the reason why the segment cannot be read until it is open again, for `reason` and
        `demand_reached`; None: `reason` says that the segment is being opened. The setback is kept.
        """
        is_present = self.holds(segment_reader)
        self._threads.stop(segment_reader.segment_id, segment_reader)
        if is_present:
            self._hold(
                segment_reader.segment_id,
                segment_reader.backing_topic,
                self._backoff(segment_reader.segment_id).next_seconds(),
            )
            successor = self._by_segment[segment_reader.segment_id]
            successor.error, successor.setback = error, segment_reader.setback

    def settled(self, segment_id: int) -> None:
        """Reset the delay of the segment, because reading it works."""
        self._backoff(segment_id).reset()

    def drop(self, segment_id: int) -> None:
        """Stop reading this segment, and close its reader in a background thread. The delay of `reopen` for the
        segment is reset. A segment that is not read is ignored.
        """
        self._backoffs.pop(segment_id, None)
        segment_reader = self._by_segment.pop(segment_id, None)
        if segment_reader is not None:
            self._threads.stop(segment_id, segment_reader)

    def reason(self, segment_id: int, *, is_paused: bool) -> str:
        """Return the reason why no message of a segment is delivered at present, the first that applies: an
        error, a setback unless paused, the opening (also if the segment has no reader), a pause, the wait for
        the next `receive` if there may be messages, or no data.
        """
        segment_reader = self._by_segment.get(segment_id)
        if segment_reader is not None and segment_reader.error is not None:
            return f"out of reach: {segment_reader.error}"
        if segment_reader is not None and segment_reader.setback is not None and not is_paused:
            return segment_reader.setback
        if segment_reader is None or segment_reader.reader is None:
            return "being opened"
        if is_paused:
            return "paused"
        return WAITS_FOR_RECEIVE if segment_reader.signal.is_set() else NO_DATA

    def demand_reached(self) -> None:
        """Raise the error of a log that was out of reach at the last attempt (DataPlaneUnavailable), or that
        is missing or can never be read (Terminal).
        """
        for segment_reader in self._by_segment.values():
            if isinstance(segment_reader.error, DataPlaneUnavailable | Terminal):
                # otherwise the traceback would grow with each raise
                raise segment_reader.error.with_traceback(None)

    def close(self) -> None:
        """Stop reading all segments, close their readers, and close the object that reports missing logs. Waits,
        without a limit, for openings, queries and closes in progress, because threads must end before the process
        does. Nothing is opened afterwards.
        """
        for segment_id in [*self._by_segment]:
            self.drop(segment_id)
        self._threads.close()
        self._suspects.close()

    def _hold(self, segment_id: int, backing_topic: str, delay_seconds: float) -> None:
        """Create a reading of the segment. `open_due` opens its reader after `delay_seconds`, and not before
        the segment's preceding reader is closed.
        """
        self._by_segment[segment_id] = SegmentReader(
            segment_id,
            backing_topic,
            self._wakeup,
            delay_seconds,
            self._threads.leaving(segment_id),
            partial(self._suspects.report, segment_id),
        )

    def _backoff(self, segment_id: int) -> Backoff:
        return self._backoffs.setdefault(segment_id, Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))
