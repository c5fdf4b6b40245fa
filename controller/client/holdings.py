"""The segments one consumer reads: taken when their turn comes, let go when the application has finished.

`StreamConsumer` says which segments are its own; this opens and closes the readers accordingly. A segment that is no
longer ours is read no further. It is let go once everything delivered from it is acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from controller.client.layout_source import SubscriptionSnapshot
from controller.dataplane.base import LogClient, LogReader, Position
from controller.domain.errors import DataPlaneUnavailable, LostRace, NotFound

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.02, 1.0
"""A cursor that somebody still holds is tried again after this time, which doubles. A hand-over takes milliseconds."""


@dataclass(slots=True, eq=False)
class HeldSegment:
    """A segment being read. `rung`: there may be something new in it."""

    segment_id: int
    reader: LogReader
    sealed: bool
    rung: threading.Event
    delivered: Position | None = None
    acknowledged: Position | None = None
    wanted: bool = True

    @property
    def idle(self) -> bool:
        """Whether everything delivered is acknowledged."""
        return self.delivered == self.acknowledged


@dataclass(slots=True)
class _Awaited:
    """A segment of ours that is not open yet: somebody else still has its cursor, or its log is out of reach (see
    `error`).
    """

    next_try_at: float = 0.0
    delay_seconds: float = _FIRST_RETRY_SECONDS
    error: DataPlaneUnavailable | None = None

    def try_later(self, took_seconds: float, error: DataPlaneUnavailable | None = None) -> None:
        """Not before as much time has passed as the try took: meanwhile other segments are read."""
        self.error = error
        self.next_try_at = time.monotonic() + max(self.delay_seconds, took_seconds)
        self.delay_seconds = min(self.delay_seconds * 2, _LONGEST_RETRY_SECONDS)


class Holdings:
    """For the consumer's thread; only the events are set from others."""

    def __init__(self, logs: LogClient, subscription: str, owner: str, wakeup: threading.Event) -> None:
        self._logs, self._subscription, self._owner, self._wakeup = logs, subscription, owner, wakeup
        self._held: dict[int, HeldSegment] = {}
        self._awaited: dict[int, _Awaited] = {}
        self._snapshot: SubscriptionSnapshot | None = None
        self._turn = 0

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """What is held now."""
        return tuple(sorted(self._held))

    @property
    def next_try_at(self) -> float:
        """When the next cursor is worth another try, `time.monotonic` seconds; infinity when none is awaited."""
        return min((awaited.next_try_at for awaited in self._awaited.values()), default=float("inf"))

    def demand_reached(self) -> None:
        """Raises why a segment of ours could not be opened when it was last tried."""
        for awaited in self._awaited.values():
            if awaited.error is not None:
                raise awaited.error

    def adopt(self, mine: Collection[int], snapshot: SubscriptionSnapshot) -> None:
        """Follow a new assignment. A cursor that another consumer holds is waited for; one that anybody else holds is
        taken over.
        """
        self._snapshot = snapshot
        segments = snapshot.layout.segments
        for held in list(self._held.values()):
            held.wanted = held.segment_id in mine
            if held.segment_id in segments and not segments[held.segment_id].is_active and not held.sealed:
                held.sealed = True
                held.rung.set()
            self.let_go_if_done(held)
        self._awaited = {i: self._awaited.get(i, _Awaited()) for i in mine if i not in self._held}

    def take_awaited(self) -> None:
        """Open the readers whose time for a try has come."""
        if self._snapshot is None:
            return
        now = time.monotonic()
        for segment_id in [i for i, awaited in self._awaited.items() if awaited.next_try_at <= now]:
            awaited, began = self._awaited[segment_id], time.monotonic()
            try:
                self._held[segment_id] = self._open(segment_id, self._snapshot)
                del self._awaited[segment_id]
            except (LostRace, NotFound):  # a peer still has it, or the cursor is still being made
                awaited.try_later(time.monotonic() - began)
            except DataPlaneUnavailable as error:
                awaited.try_later(time.monotonic() - began, error)

    def with_something_new(self) -> Iterator[HeldSegment]:
        """The segments that may have something new, each in its turn. The caller stops when it found something."""
        segment_ids = sorted(self._held)
        for _ in segment_ids:
            self._turn += 1
            held = self._held.get(segment_ids[self._turn % len(segment_ids)])
            if held is not None and held.wanted and held.rung.is_set():
                yield held

    def ring_all(self) -> None:
        """Have every segment read once, whether its log notified or not."""
        for held in self._held.values():
            held.rung.set()

    def holds(self, held: object) -> bool:
        """Whether this very reading still goes on."""
        return isinstance(held, HeldSegment) and self._held.get(held.segment_id) is held

    def let_go(self, held: HeldSegment) -> None:
        """Stop reading. What is unacknowledged is delivered again to the next reader."""
        self._held.pop(held.segment_id, None)
        held.reader.close()

    def let_go_if_done(self, held: HeldSegment) -> None:
        """Stop reading what is no longer ours, once the application has finished with it."""
        if held.idle and not held.wanted:
            self.let_go(held)

    def let_go_of_all(self) -> None:
        """Stop reading at once."""
        for held in list(self._held.values()):
            self.let_go(held)
        self._awaited.clear()

    def _open(self, segment_id: int, snapshot: SubscriptionSnapshot) -> HeldSegment:
        rung = threading.Event()
        rung.set()

        def ring() -> None:
            rung.set()
            self._wakeup.set()

        reader = self._logs.open_reader(
            snapshot.backing_topics[segment_id],
            self._subscription,
            owner=self._owner,
            live_owners=snapshot.consumers,
            on_arrival=ring,
        )
        return HeldSegment(segment_id, reader, not snapshot.layout.segment(segment_id).is_active, rung)
