"""Tells who watches a topic of each new layout: one listening connection and one reading a change, however many watch.

Every worker can feed any topic's watchers. A watcher is noted first and the layout read afterwards, so nothing falls between. A
burst of changes is read once. Whoever is slow is told the newest layout and none before it. All is read again when the
listening connection was away, and every `SWEEP_SECONDS`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller import telemetry
from controller.clock import Clock
from controller.domain.errors import CleaveError, NotFound, Retryable
from controller.store import leases
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store
from controller.store.postgres.notifications import Listener
from controller.store.topics import topics
from controller.store.topics.published import PublishedLayout, published_layout

log = telemetry.get_logger(__name__)

CHANNELS = ("cleave_layout",)
_WHY = """
    SELECT segment_id, hash_range, state, bucket, owner, successor, generation, reason, since, waits_for, held_by
      FROM inspect.buckets WHERE topic_id = :topic_id AND subscription = :subscription
     ORDER BY hash_range, segment_id, bucket
"""
SWEEP_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FedLayout:
    """A layout and where the topic's leader answers, if anybody leads it."""

    published: PublishedLayout
    leader: str | None


class Watcher(Protocol):
    """Safe to call from the feed's thread; never blocks."""

    def push(self, found: FedLayout) -> None:
        """Say this next, in place of what was not said yet."""

    def end(self, reason: str) -> None:
        """Say why, and close."""


class LayoutFeed:
    """Runs beside the worker's loop; `watch` and `forget` are for any thread."""

    def __init__(self, store: Store, listener: Listener, *, shard_count: int, clock: Clock) -> None:
        self._store, self._listener = store, listener
        self._shard_count, self._clock = shard_count, clock
        self._lock = threading.Lock()
        self._watchers: dict[int, set[Watcher]] = {}
        self._new: dict[int, set[Watcher]] = {}
        self._dirty: set[int] = set()
        self._told: dict[int, FedLayout] = {}
        self._sweep_at = -math.inf
        self._stopping = threading.Event()

    def look(self, topic: str) -> FedLayout:
        """The layout as it is now. Raises TopicNotFound, TopicNotLive."""
        return self._read(topic)

    def find(self, topic: str) -> tuple[int, str | None]:
        """The topic's id, and where its leader answers if anybody leads it: what every request of a consumer begins with. Raises
        TopicNotFound.
        """
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic).topic_id
            return topic_id, leases.address_of_holder(tx, self._shard_of(topic_id))

    def why(self, topic: str, subscription: str) -> list[dict[str, object]]:
        """Of each bucket that the subscription has to read who has it, or why nobody reads it. Raises TopicNotFound."""
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic).topic_id
            return inspection.rows(tx, _WHY, topic_id=topic_id, subscription=subscription)

    def watch(self, topic_id: int, watcher: Watcher) -> None:
        """From now on; it is told the present layout first."""
        with self._lock:
            self._watchers.setdefault(topic_id, set()).add(watcher)
            self._new.setdefault(topic_id, set()).add(watcher)
            self._dirty.add(topic_id)
        self._listener.interrupt()

    def forget(self, topic_id: int, watcher: Watcher) -> None:
        """Tell it no more."""
        with self._lock:
            watching = self._watchers.get(topic_id, set())
            watching.discard(watcher)
            self._new.get(topic_id, set()).discard(watcher)
            if not watching:
                for known in (self._watchers, self._new, self._told):
                    known.pop(topic_id, None)

    def stop(self) -> None:
        """End every watch and leave."""
        self._stopping.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopping.is_set():
            try:
                self._wait()
                self._tell()
            except Retryable as error:
                log.warning("layouts are not fed", error=str(error), delay_seconds=error.delay_seconds)
                self._stopping.wait(min(error.delay_seconds, LONGEST_WAIT_SECONDS))
            except Exception:  # the thread would end, and nobody would be told any more
                log.exception("a round of the layout feed failed")
                self._stopping.wait(LONGEST_WAIT_SECONDS)
        self._each(lambda watcher: watcher.end("moved"))
        self._listener.close()

    def _wait(self) -> None:
        notifications = self._listener.wait(0.0 if self._dirty else LONGEST_WAIT_SECONDS)
        now = self._clock.monotonic_seconds()
        is_sweep = now >= self._sweep_at or any(one.is_resync for one in notifications)
        if is_sweep:
            self._sweep_at = now + SWEEP_SECONDS
        named = {head for one in notifications if (head := one.payload.partition(":")[0]).isdigit()}
        with self._lock:
            self._dirty |= {i for i in self._watchers if is_sweep or str(i) in named}

    def _tell(self) -> None:
        """Read each topic once, and tell its watchers what is new."""
        with self._lock:
            dirty, self._dirty = self._dirty & self._watchers.keys(), set()
        for topic_id in dirty:
            try:
                found = self._read(topic_id)
            except NotFound:
                self._each(lambda watcher: watcher.end("gone"), topic_id)
            except CleaveError:
                with self._lock:
                    self._dirty |= dirty
                raise
            else:
                self._push(topic_id, found)

    def _push(self, topic_id: int, found: FedLayout) -> None:
        with self._lock:
            told = self._told.get(topic_id)
            is_known = told is not None and (told.published.layout.epoch, told.leader) == (
                found.published.layout.epoch,
                found.leader,
            )
            self._told[topic_id] = found
            new = self._new.pop(topic_id, set())
        if is_known:
            for watcher in new:
                watcher.push(found)
        else:
            self._each(lambda watcher: watcher.push(found), topic_id)

    def _each(self, act: Callable[[Watcher], None], topic_id: int | None = None) -> None:
        with self._lock:
            watching = [
                one
                for i, those in self._watchers.items()
                if topic_id is None or i == topic_id
                for one in those
            ]
        for watcher in watching:
            act(watcher)

    def _read(self, topic: str | int) -> FedLayout:
        with self._store.transaction() as tx:
            published = published_layout(tx, topic)
            return FedLayout(published, leases.address_of_holder(tx, self._shard_of(published.topic_id)))

    def _shard_of(self, topic_id: int) -> str:
        return f"shard/{topic_id % self._shard_count}"
