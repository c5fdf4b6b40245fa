"""Manages the readers of a consumer of whole segments: opens them in background threads, retries failures,
and reads in rotation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic

from controller.client.broken_log_reports import SuspectReports
from controller.client.reader_set import WAITS_FOR_RECEIVE, ReaderSet
from controller.client.reader_slot import Reader, ReaderSlot
from controller.domain.errors import CleaveError

NO_DATA = "no data"
"""The reason reported for a segment whose messages were all read."""


class SegmentReaders(ReaderSet[ReaderSlot[Reader]], Generic[Reader]):
    """The readers of one consumer, by segment. For the consumer's thread."""

    def __init__(
        self,
        open_one: Callable[[ReaderSlot[Reader]], Reader],
        wakeup: threading.Event,
        suspects: SuspectReports,
    ) -> None:
        """Create the set without readers. `open_one` is called in a background thread with a ReaderSlot, opens the
        log of its segment, and returns the reader. `wakeup` is set when there may be work for the consumer's thread.
        `suspects` receives reports of missing logs, and is closed together with this object.
        """
        super().__init__(open_one, suspects, wakeup.set)
        self._wakeup = wakeup

    def follow(self, backing_topics: dict[int, str]) -> None:
        """Read exactly these segments, given as backing topics by segment id: drop the others, and create
        readers of added segments, which `open_due` opens. Readers of segments that are read already stay.
        """
        for segment_id in [segment_id for segment_id in self._slots if segment_id not in backing_topics]:
            self.drop(segment_id)
        for segment_id, backing_topic in backing_topics.items():
            if segment_id not in self._slots:
                self._hold(segment_id, backing_topic, 0.0)

    def reopen(self, segment_reader: ReaderSlot[Reader], error: CleaveError | None = None) -> None:
        """Close the reader in a background thread, and have `open_due` open the segment again, after a delay and once
        the old reader is closed. The delay doubles with each call until `settled` or `drop` is called for the
        segment. If `segment_reader` is no longer in the set, because the segment was reopened or dropped before, its
        reader is only closed.

        `error` is the reason why the segment cannot be read until it is open again, for `reason` and
        `demand_reached`; None: `reason` says that the segment is being opened. The setback is kept.
        """
        is_present = self.holds(segment_reader)
        self._threads.stop(segment_reader)
        if is_present:
            self._hold(
                segment_reader.segment_id,
                segment_reader.backing_topic,
                self._backoff(segment_reader.segment_id).next_seconds(),
            )
            successor = self._slots[segment_reader.segment_id]
            successor.error, successor.setback = error, segment_reader.setback

    def drop(self, segment_id: int) -> None:
        """Stop reading this segment, and close its reader in a background thread. The delay of `reopen` for the
        segment is reset. A segment that is not read is ignored.
        """
        self._backoffs.pop(segment_id, None)
        segment_reader = self._slots.pop(segment_id, None)
        if segment_reader is not None:
            self._threads.stop(segment_reader)

    def reason(self, segment_id: int, *, is_paused: bool) -> str:
        """Return the reason why no message of a segment is delivered at present, the first that applies: an
        error, a setback unless paused, the opening (also if the segment has no reader), a pause, the wait for
        the next `receive` if there may be messages, or no data.
        """
        segment_reader = self._slots.get(segment_id)
        if segment_reader is not None and segment_reader.error is not None:
            return f"out of reach: {segment_reader.error}"
        if segment_reader is not None and segment_reader.setback is not None and not is_paused:
            return segment_reader.setback
        if segment_reader is None or segment_reader.reader is None:
            return "being opened"
        if is_paused:
            return "paused"
        return WAITS_FOR_RECEIVE if segment_reader.signal.is_set() else NO_DATA

    def _hold(self, segment_id: int, backing_topic: str, delay_seconds: float) -> None:
        """Create a reading of the segment. `open_due` opens its reader after `delay_seconds`, and not before
        the segment's preceding reader is closed.
        """
        self._slots[segment_id] = ReaderSlot(
            segment_id,
            backing_topic,
            self._wakeup,
            delay_seconds,
            self._threads.leaving(segment_id),
            partial(self._suspects.report, segment_id),
        )
