"""Reads the end of one topic, once for all senders of a client.

When a topic is terminated, each of its senders needs to know that, and which messages of an unanswered batch
the topic has. Senders that ask at the same time share the responses. The state of a terminated topic whose
end is final is kept, because it never changes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import Any

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.http_errors import late
from controller.dataplane.pulsar.stored_entries import (
    SentBatch,
    StoredPart,
    is_final,
    place_told,
    places_backwards,
)

_WAVES = (2, 8, 16)
"""Numbers of entries that are read in parallel, from the last one back. A response contains the whole entry. The first
wave often suffices: a segment has two entry buckets by default, and the producers of both send in turn.
"""
KEPT_PARTS = 64
"""Number of entries, the last ones that the broker has reported as stored, that are not read again."""


class TopicEnd:
    """The end of one topic. Safe to share between threads. Calls raise DataPlaneTimeout at their deadline,
    and SegmentNotFound if there is no such topic.
    """

    def __init__(self, cursors: Cursors, backing_topic: str) -> None:
        self._cursors, self._backing_topic = cursors, backing_topic
        self._lock = threading.Lock()
        self._internal: Mapping[str, Any] = {}
        self._read_at = 0.0
        """Time at which `_internal` was received, in `time.monotonic` seconds."""
        self._final: Mapping[str, Any] | None = None
        """Statistics of the terminated topic, once its end is final."""
        self._parts: dict[tuple[int, int], StoredPart | None] = {}
        """Contents of entries, which never change; None for a deleted entry."""
        self._stored: deque[tuple[tuple[int, int], StoredPart]] = deque(maxlen=KEPT_PARTS)
        """Places and contents of the last entries that the broker has reported as stored."""

    def note_stored(self, place: tuple[int, int], part: StoredPart) -> None:
        """Keep the content of the entry at the place (ledger, entry), which the broker has reported as stored, so that
        `stored_of` need not read the entry. Never waits.
        """
        self._stored.append((place, part))

    def place(self, deadline: Deadline) -> tuple[int, int]:
        """Return (ledger, entry) of the last entry; the entry is -1 in an empty topic. Raises SegmentNotFound
        if there is no such topic, because opening a producer might create it.
        """
        with self._recent(deadline, self._cursors.internal) as internal:
            return place_told(internal["lastConfirmedEntry"])

    def is_terminated(self, deadline: Deadline, *, with_end: bool) -> bool:
        """Return True if the topic is terminated, so that nothing can be appended. Needs no request once the
        end is final.

        With `with_end`, the request also asks for the topic's end, so that `stored_of` needs no further request if the
        topic is terminated and its end is final. The broker then reads the metadata of each ledger.
        """
        if self._final is not None:
            return True
        read = self._cursors.internal_with_ledgers if with_end else self._cursors.internal
        with self._recent(deadline, read) as internal:
            self._note_end(internal)
            return internal.get("state") == "Terminated"

    def stored_of(self, batch: SentBatch, behind: tuple[int, int], deadline: Deadline) -> tuple[int, bool]:
        """Return the number of messages of the batch, from its front, that the terminated topic has stored
        behind the place (ledger, entry), and True if the number is final. With False, more of the batch may
        still be stored.

        The producer's last entry behind the place decides: all messages of the batch up to its end count. The number is
        0 if there is no such entry, or if an entry between it and the end of the topic was deleted, for instance by
        retention, and is not one of `note_stored`. Concurrent calls wait for each other. Raises DataPlaneTimeout at the
        deadline, and SegmentNotFound if there is no such topic.
        """
        with self._locked(deadline):
            internal = self._final
            if internal is None:
                internal = self._cursors.internal_with_ledgers(self._backing_topic, deadline)
                self._note_end(internal)
            self._parts |= dict(self._stored.copy())
            for part in self._parts_backwards(internal, behind, deadline):
                if part is None or part.producer == batch.producer:
                    return (0 if part is None else part.count_of(batch)), self._final is not None
        return 0, self._final is not None

    def _note_end(self, internal: Mapping[str, Any]) -> None:
        """Keep the statistics if the end of the topic is final."""
        if is_final(internal):
            self._final = internal

    @contextmanager
    def _recent(
        self, deadline: Deadline, read: Callable[[str, Deadline], Mapping[str, Any]]
    ) -> Iterator[Mapping[str, Any]]:
        """Hold the lock of this object for the duration of the block, and yield the topic's internal statistics, which
        a concurrent call received after this call began, or which `read` requests. Raises DataPlaneTimeout at the
        deadline, and SegmentNotFound.
        """
        called_at = time.monotonic()
        with self._locked(deadline):
            if self._read_at < called_at:
                self._internal = read(self._backing_topic, deadline)
                self._read_at = time.monotonic()
            yield self._internal

    def _parts_backwards(
        self, internal: Mapping[str, Any], behind: tuple[int, int], deadline: Deadline
    ) -> Iterator[StoredPart | None]:
        """Yield the content of each entry, from the last one in `internal` (internal statistics) back to the first
        behind the place (ledger, entry); None for a deleted entry. Reads entries in waves, each in parallel,
        and keeps their contents. The caller holds the lock.
        """
        places = places_backwards(internal, behind)
        for size in chain(_WAVES, repeat(_WAVES[-1])):
            wave = list(islice(places, size))
            if not wave:
                return
            unread_places = [place for place in wave if place not in self._parts]
            self._parts |= self._cursors.parts_of(self._backing_topic, unread_places, deadline)
            yield from (self._parts[place] for place in wave)

    @contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        """Hold the lock of this object for the duration of the block. Raises DataPlaneTimeout if another call
        holds the lock until the deadline.
        """
        if not self._lock.acquire(timeout=deadline.left_seconds):
            raise late(f"check {self._backing_topic}", deadline.seconds)
        try:
            yield
        finally:
            self._lock.release()
