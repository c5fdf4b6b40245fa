"""The watchers of topics' layouts, and the layout that each topic's watchers received last (`feeds` waits and
calls).

Every worker can serve the watchers of any topic. A burst of changes is read once. A slow watcher receives
only the newest layout.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller import client_metrics, telemetry
from controller.domain.errors import NotFound, Retryable, TopicNotLive
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Watcher
from controller.store import leases
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store
from controller.store.topics import topics
from controller.store.topics.published_layout import PublishedLayout, published_layout

log = telemetry.get_logger(__name__)

LAYOUTS, LEADERS = "cleave_layout", "cleave_leaders"
CHANNELS = (LAYOUTS, LEADERS)
_BUCKETS = """
    SELECT segment_id, hash_range, state, bucket, owner, successor, generation, reason, since, waits_for, held_by
      FROM inspect.buckets WHERE topic_id = :topic_id AND subscription = :subscription
     ORDER BY hash_range, segment_id, bucket
"""


@dataclass(frozen=True, slots=True)
class FedLayout:
    """A layout, and the web address of the topic's leader; None if the topic has no leader, or if its leader serves no
    HTTP.
    """

    published: PublishedLayout
    leader: str | None


class LayoutFeed:
    """Sends the layouts of topics to their watchers, and reads single layouts on request. `watch` and
    `forget` are thread-safe.
    """

    def __init__(self, store: Store, wake: Callable[[], None], *, shard_count: int) -> None:
        """`wake` makes the feeds' thread start its next round at once; `watch` calls it, in its caller's thread.
        `shard_count` is the number of topic shards.
        """
        self._store, self._wake, self._shard_count = store, wake, shard_count
        self._lock = threading.Lock()
        self._watchers: dict[int, set[Watcher[FedLayout]]] = {}
        self._new: dict[int, set[Watcher[FedLayout]]] = {}
        self._dirty: set[int] = set()
        self._pushed: dict[int, FedLayout] = {}

    def look(self, topic: str) -> FedLayout:
        """Read and return the present layout of the topic, with its leader. Raises TopicNotFound, and TopicNotLive
        while the topic is being created.
        """
        return self._read(topic)

    def find(self, topic: str) -> tuple[int, str | None]:
        """Return the topic's id and the web address of its leader. The address is None if no worker holds the topic's
        shard, if the leader's own lease has expired, or if the leader serves no HTTP. The topic may be in any state
        except deleted. Takes one query. Raises TopicNotFound, and the errors of `Store.single_statement`.
        """
        with self._store.single_statement() as tx:
            return leases.find_leader(tx, topic, self._shard_count)

    def why(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Return the rows of the view `inspect.buckets` for the subscription, ordered by hash range: one row for each
        bucket that the subscription has to read, with the bucket's owner, or the reason why no consumer reads the
        bucket. Empty if the subscription does not exist, has no bucket to read or is a queue, or if it is a
        checkpoint subscription without consumers. Raises TopicNotFound, and the errors of `Store.transaction`.
        """
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic).topic_id
            return inspection.rows(tx, _BUCKETS, topic_id=topic_id, subscription=subscription)

    def watch(self, topic_id: int, watcher: Watcher[FedLayout]) -> None:
        """Add a watcher of the topic, and wake the feeds' thread, which sends the present layout to the watcher. If
        there is no such topic, the feeds' thread ends the watch as `gone`. While the topic is being created, the
        watcher receives nothing until the first layout is committed. `forget` removes the watcher, also after the
        watch has ended.
        """
        with self._lock:
            self._watchers.setdefault(topic_id, set()).add(watcher)
            self._new.setdefault(topic_id, set()).add(watcher)
            self._dirty.add(topic_id)
        self._wake()

    def forget(self, topic_id: int, watcher: Watcher[FedLayout]) -> None:
        """Remove the watcher without a notification to the watcher; no effect if it is not watching the topic. If the
        topic has no other watcher, the topic is no longer read, and the layout that was sent last is forgotten.
        """
        with self._lock:
            watching = self._watchers.get(topic_id, set())
            watching.discard(watcher)
            self._new.get(topic_id, set()).discard(watcher)
            if not watching:
                for by_topic in (self._watchers, self._new, self._pushed):
                    by_topic.pop(topic_id, None)

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the feed has something to read: 0 at once, infinity for nothing."""
        return 0.0 if self._dirty else math.inf

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """Note which watched topics the next `notify` reads: topics whose layout changed according to the
        notifications, and topics of shards whose leader changed; in a sweep, all watched topics. Sends nothing.
        """
        changed, shards_with_new_leader = _named(notifications, LAYOUTS), _named(notifications, LEADERS)
        with self._lock:
            self._dirty |= {
                topic_id
                for topic_id in self._watchers
                if is_sweep or topic_id in changed or topic_id % self._shard_count in shards_with_new_leader
            }

    def notify(self) -> None:
        """Read each watched topic that is due once. Send the layout to all watchers of the topic if its epoch or
        leader differs from what was sent last, and otherwise only to new watchers. If the topic is gone, its watches
        end as `gone`, but the watchers are not removed. Watchers of a topic that is being created receive nothing
        until the first layout is committed.

        A Retryable error of a reading, such as StoreUnavailable, is raised, and the next call reads all topics that
        were due again. Any other error of a topic is logged and counted, and the next sweep reads that topic again;
        the other topics are not affected.
        """
        with self._lock:
            dirty_ids, self._dirty = self._dirty & self._watchers.keys(), set()
        for topic_id in dirty_ids:
            try:
                layout = self._read(topic_id)
            except NotFound:
                self._each(lambda watcher: watcher.end("gone"), topic_id)
            except TopicNotLive:
                continue  # The commit of the creation is notified, and the topic is then read again.
            except Retryable:
                with self._lock:
                    self._dirty |= dirty_ids
                raise
            except Exception:
                # The next sweep reads this topic again; the watchers of other topics are notified.
                client_metrics.LOOP_ERRORS.labels("watchers not notified").inc()
                log.exception("watchers not notified", topic_id=topic_id)
            else:
                self._push(topic_id, layout)

    def end_all(self, reason: str) -> None:
        """End all watches with the reason. The watchers are not removed."""
        self._each(lambda watcher: watcher.end(reason))

    def _push(self, topic_id: int, layout: FedLayout) -> None:
        """Send the layout to all watchers of the topic, and remember it as the layout that was sent last. If its
        epoch and leader are those of the layout that was sent last, only send it to watchers that have received no
        layout yet.
        """
        with self._lock:
            previous = self._pushed.get(topic_id)
            is_unchanged = previous is not None and (previous.published.layout.epoch, previous.leader) == (
                layout.published.layout.epoch,
                layout.leader,
            )
            self._pushed[topic_id] = layout
            new_watchers = self._new.pop(topic_id, set())
        if is_unchanged:
            for watcher in new_watchers:
                watcher.push(layout)
        else:
            self._each(lambda watcher: watcher.push(layout), topic_id)

    def _each(self, notify: Callable[[Watcher[FedLayout]], None], topic_id: int | None = None) -> None:
        """Call `notify` for each watcher of the topic, or of all topics (None), without holding the lock."""
        with self._lock:
            watchers = [
                watcher
                for watched_id, topic_watchers in self._watchers.items()
                if topic_id is None or watched_id == topic_id
                for watcher in topic_watchers
            ]
        for watcher in watchers:
            notify(watcher)

    def _read(self, topic: str | int) -> FedLayout:
        """Return the present layout of the topic, given by name or id, with its leader. Raises TopicNotFound,
        TopicNotLive.
        """
        with self._store.transaction() as tx:
            published = published_layout(tx, topic)
            return FedLayout(published, leases.address_of_holder(tx, self._shard_of(published.topic_id)))

    def _shard_of(self, topic_id: int) -> str:
        """Return the name of the lease of the topic's shard."""
        return f"shard/{topic_id % self._shard_count}"


def _named(notifications: Sequence[Notification], channel: str) -> set[int]:
    """Return the topic ids, or shards, at the beginning of a channel's payloads."""
    first_ids = (notification.first_id for notification in notifications if notification.channel == channel)
    return {first_id for first_id in first_ids if first_id is not None}
