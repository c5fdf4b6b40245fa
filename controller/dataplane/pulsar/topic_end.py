"""The end of one topic, looked at once for all senders of a client.

When a topic is terminated, each of its senders needs to know that, and what the topic has of a batch whose answer is missing. Senders
that ask at one time share the answers. What is known of a terminated topic whose end is final is kept, since it never changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import Any

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.errors import late
from controller.dataplane.pulsar.stored import SentBatch, StoredPart, is_final, place_told, places_backwards

_WAVES = (1, 4, 16)
"""Entries that are read side by side, from the last one back. An answer brings the whole entry, and the first may suffice."""


class TopicEnd:
    """The end of one topic. Safe to share between threads."""

    def __init__(self, cursors: Cursors, backing_topic: str) -> None:
        self._cursors, self._backing_topic = cursors, backing_topic
        self._lock = threading.Lock()
        self._internal: Mapping[str, Any] = {}
        self._looked_at = 0.0
        """When `_internal` was there, `time.monotonic` seconds."""
        self._final: Mapping[str, Any] | None = None
        """Statistics of the terminated topic, once its end is final."""
        self._parts: dict[tuple[int, int], StoredPart | None] = {}
        """Of entries, which never change; None for an entry that was deleted."""

    def place(self, deadline: Deadline) -> tuple[int, int]:
        """Return (ledger, entry) of the last entry, entry -1 in an empty topic. Raises SegmentNotFound if there is no such topic:
        opening a producer might create the topic.
        """
        return place_told(self._look(deadline)["lastConfirmedEntry"])

    def is_terminated(self, deadline: Deadline) -> bool:
        """Return True if nothing can be appended any more."""
        return self._final is not None or self._look(deadline).get("state") == "Terminated"

    def stored_of(self, batch: SentBatch, behind: tuple[int, int], deadline: Deadline) -> tuple[int, bool]:
        """Return how many messages of the batch, from its front, lie behind the place in the terminated topic, and False if more of
        the batch may be stored still. What retention has removed counts as not stored.
        """
        with self._turn(deadline):
            internal = self._final
            if internal is None:
                internal = self._cursors.internal_with_ledgers(self._backing_topic, deadline)
                if is_final(internal):
                    self._final = internal
            for part in self._parts_backwards(internal, behind, deadline):
                if part is None or part.producer == batch.producer:
                    return (0 if part is None else part.count_of(batch)), self._final is not None
        return 0, self._final is not None

    def _look(self, deadline: Deadline) -> Mapping[str, Any]:
        """Return statistics that were answered after the call began, to this call or to another one."""
        asked_at = time.monotonic()
        with self._turn(deadline):
            if self._looked_at < asked_at:
                self._internal = self._cursors.internal(self._backing_topic, deadline)
                self._looked_at = time.monotonic()
            return self._internal

    def _parts_backwards(
        self, internal: Mapping[str, Any], behind: tuple[int, int], deadline: Deadline
    ) -> Iterator[StoredPart | None]:
        """Yield what each entry holds, from the last one back to the first behind the place."""
        places = places_backwards(internal, behind)
        for size in chain(_WAVES, repeat(_WAVES[-1])):
            wave = list(islice(places, size))
            if not wave:
                return
            unknown = [place for place in wave if place not in self._parts]
            self._parts |= self._cursors.parts_of(self._backing_topic, unknown, deadline)
            yield from (self._parts[place] for place in wave)

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        if not self._lock.acquire(timeout=deadline.left_seconds):
            raise late(f"look at {self._backing_topic}", deadline.seconds)
        try:
            yield
        finally:
            self._lock.release()
