"""Who watches which topic's layout, and what each was told (`feeds` waits and calls).

Every worker can feed any topic's watchers. A burst of changes is read once. Whoever is slow is told the newest layout and none
before it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller import client_metrics, telemetry
from controller.domain.errors import CleaveError, NotFound
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Watcher
from controller.store import leases
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store
from controller.store.topics import topics
from controller.store.topics.published import PublishedLayout, published_layout

log = telemetry.get_logger(__name__)

LAYOUTS, LEADERS = "cleave_layout", "cleave_leaders"
CHANNELS = (LAYOUTS, LEADERS)
_WHY = """
    SELECT segment_id, hash_range, state, bucket, owner, successor, generation, reason, since, waits_for, held_by
      FROM inspect.buckets WHERE topic_id = :topic_id AND subscription = :subscription
     ORDER BY hash_range, segment_id, bucket
"""


@dataclass(frozen=True, slots=True)
class FedLayout:
    """A layout and where the topic's leader answers, if anybody leads it."""

    published: PublishedLayout
    leader: str | None


class LayoutFeed:
    """`watch` and `forget` are for any thread."""

    def __init__(self, store: Store, wake: Callable[[], None], *, shard_count: int) -> None:
        """`wake` has the feeds' thread look at once."""
        self._store, self._wake, self._shard_count = store, wake, shard_count
        self._lock = threading.Lock()
        self._watchers: dict[int, set[Watcher[FedLayout]]] = {}
        self._new: dict[int, set[Watcher[FedLayout]]] = {}
        self._dirty: set[int] = set()
        self._told: dict[int, FedLayout] = {}

    def look(self, topic: str) -> FedLayout:
        """The layout as it is now. Raises TopicNotFound, TopicNotLive."""
        return self._read(topic)

    def find(self, topic: str) -> tuple[int, str | None]:
        """The topic's id, and where its leader answers if anybody leads it: what every request of a consumer begins with. Raises
        TopicNotFound.
        """
        with self._store.single_statement() as tx:
            return leases.find_leader(tx, topic, self._shard_count)

    def why(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Of each bucket that the subscription has to read who has it, or why nobody reads it. Raises TopicNotFound."""
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic).topic_id
            return inspection.rows(tx, _WHY, topic_id=topic_id, subscription=subscription)

    def watch(self, topic_id: int, watcher: Watcher[FedLayout]) -> None:
        """From now on; it is told the present layout first."""
        with self._lock:
            self._watchers.setdefault(topic_id, set()).add(watcher)
            self._new.setdefault(topic_id, set()).add(watcher)
            self._dirty.add(topic_id)
        self._wake()

    def forget(self, topic_id: int, watcher: Watcher[FedLayout]) -> None:
        """Tell it no more."""
        with self._lock:
            watching = self._watchers.get(topic_id, set())
            watching.discard(watcher)
            self._new.get(topic_id, set()).discard(watcher)
            if not watching:
                for known in (self._watchers, self._new, self._told):
                    known.pop(topic_id, None)

    @property
    def due_in_seconds(self) -> float:
        """See `Feed`."""
        return 0.0 if self._dirty else math.inf

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """See `Feed`."""
        changed, led_anew = _named(notifications, LAYOUTS), _named(notifications, LEADERS)
        with self._lock:
            self._dirty |= {
                topic_id
                for topic_id in self._watchers
                if is_sweep or topic_id in changed or topic_id % self._shard_count in led_anew
            }

    def tell(self) -> None:
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
            except (
                Exception
            ):  # The next sweep reads this topic again; the watchers of other topics are notified.
                client_metrics.LOOP_ERRORS.labels("watchers not notified").inc()
                log.exception("watchers not notified", topic_id=topic_id)
            else:
                self._push(topic_id, found)

    def end_all(self, reason: str) -> None:
        """See `Feed`."""
        self._each(lambda watcher: watcher.end(reason))

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

    def _each(self, act: Callable[[Watcher[FedLayout]], None], topic_id: int | None = None) -> None:
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


def _named(notifications: Sequence[Notification], channel: str) -> set[int]:
    """The topics, or shards, that a channel's payloads begin with."""
    firsts = (one.first_id for one in notifications if one.channel == channel)
    return {first for first in firsts if first is not None}
