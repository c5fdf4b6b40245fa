"""Reads a topic in the order of each key: the segments that `assign` gives this consumer, parents before children.

Every consumer of a subscription computes the same assignment from the same rows, so nobody has to tell it. They learn
of a change at different moments. The cursor keeps them apart meanwhile, since it has one owner: a consumer that loses a
segment lets go when the application has acknowledged what it was given, and only then the next one reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from controller.client.holdings import HeldSegment, Holdings
from controller.client.layout_source import LayoutSource
from controller.client.layout_watch import LayoutWatch
from controller.client.patience import patiently
from controller.dataplane.base import LogClient, LogMessage
from controller.domain.assignment import assign
from controller.domain.errors import DataPlaneUnavailable, LostRace, NotFound, StoreUnavailable

LOOK_SECONDS = 1.0
"""Layout and logs are looked at this often even if nothing rang."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one segment, in order. Acknowledge it when all of it is done with."""

    segment_id: int
    messages: Sequence[LogMessage]
    origin: object
    """The reading it came from. An acknowledgement after that reading has ended is refused."""


class StreamConsumer:
    """One consumer of one subscription; for one thread, which must go on calling `receive` to take part."""

    def __init__(
        self,
        source: LayoutSource,
        logs: LogClient,
        topic: str,
        subscription: str,
        name: str,
        *,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
    ) -> None:
        """Registers under `name`, which is this consumer's alone: a second one of that name cuts the first off.

        `patience_seconds` bounds how long a call goes on while the data plane or the source is away.
        """
        self._source, self._subscription, self.name = source, subscription, name
        self._batch_messages, self._patience_seconds = batch_messages, patience_seconds
        self._wakeup = threading.Event()
        self._holdings = Holdings(logs, subscription, name, self._wakeup)
        self._look_at = 0.0
        self._away_since: float | None = None
        self._watch = LayoutWatch(source, topic, on_change=self._wakeup.set)
        self._topic_id = self._watch.snapshot.topic_id
        try:
            source.register(self._topic_id, subscription, name)
        except BaseException:
            self._watch.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """Segments whose cursors this consumer holds now."""
        return self._holdings.segment_ids

    def receive(self, timeout_seconds: float) -> Batch | None:
        """The next messages of one segment, waiting for them at most so long; None when there are none.

        Raises FencedOut when another consumer took this one's name; TopicNotFound, SubscriptionNotFound when that is
        gone; TopicNotLive, Conflict while it is being deleted; DataPlaneUnavailable, StoreUnavailable when that is away
        for longer than the patience.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._wakeup.clear()  # before looking: what happens from here on rings again
            try:
                batch = self._look()
                self._away_since = None
                if batch is not None:
                    return batch
                pause = min(self._look_at, self._holdings.next_try_at) - time.monotonic()
            except (DataPlaneUnavailable, StoreUnavailable) as error:
                self._away_since = self._away_since or time.monotonic()
                if time.monotonic() - self._away_since > self._patience_seconds:
                    self._away_since = None  # the next call has its full patience again
                    raise
                self._watch.look_again()
                pause = error.delay_seconds
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._wakeup.wait(max(0.0, min(left, pause)))

    def acknowledge(self, batch: Batch) -> bool:
        """Done with the batch and everything before it in its segment.

        False when the segment is not this consumer's any more, or was moved by a seek: what was not acknowledged
        is delivered again, here or elsewhere.
        """
        held = batch.origin
        if not isinstance(held, HeldSegment) or not self._holdings.holds(held):
            return False
        reader, position = held.reader, batch.messages[-1].position
        try:
            patiently(lambda: reader.acknowledge(position), seconds=self._patience_seconds)
        except (LostRace, NotFound):
            self._lose(held)
            return False
        held.acknowledged = position
        held.rung.set()  # it may be drained now
        self._holdings.let_go_if_done(held)
        return True

    def close(self) -> None:
        """Let go of every segment and unregister. What is unacknowledged goes to the other consumers."""
        self._holdings.let_go_of_all()
        self._watch.close()
        self._source.unregister(self._topic_id, self._subscription, self.name)

    def _look(self) -> Batch | None:
        """One round: follow the layout, take what is ours, and read from the next segment that has something.

        A segment that is out of reach does not hold up the others. Its error is raised when they have nothing.
        """
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            self._watch.look_again()
            self._holdings.ring_all()
        if self._watch.changed:
            self._follow()
        self._holdings.take_awaited()
        for held in self._holdings.with_something_new():
            batch = self._read(held)
            if batch is not None:
                return batch
        self._holdings.demand_reached()
        return None

    def _follow(self) -> None:
        """Read the rows again, and take and let go of segments accordingly."""
        self._watch.refresh_if_changed()
        found = self._source.subscription(self._topic_id, self._subscription)
        if self.name not in found.consumers:  # somebody removed us as dead: register again
            self._source.register(self._topic_id, self._subscription, self.name)
            self._watch.look_again()
        shares = assign(found.layout, found.drained, found.consumers)
        mine = {bucket.segment_id for bucket in shares.get(self.name, ())}
        self._holdings.adopt(mine, found)

    def _read(self, held: HeldSegment) -> Batch | None:
        """The segment's next batch. When there is none, mark the segment as drained if there can never be one again."""
        held.rung.clear()
        try:
            messages = held.reader.read(self._batch_messages)
            if messages:
                held.rung.set()
                held.delivered = messages[-1].position
                return Batch(held.segment_id, messages, held)
            # What counts is the log's own answer; the first two only save asking for it.
            if held.sealed and held.idle and held.reader.is_drained():
                self._source.mark_drained(self._topic_id, self._subscription, held.segment_id)
                self._lose(held)
        except (LostRace, NotFound):
            self._lose(held)
        except (DataPlaneUnavailable, StoreUnavailable):
            held.rung.set()
            raise
        return None

    def _lose(self, held: HeldSegment) -> None:
        """Read this segment no further, and look which ones are ours now."""
        self._holdings.let_go(held)
        self._watch.look_again()
        self._wakeup.set()
