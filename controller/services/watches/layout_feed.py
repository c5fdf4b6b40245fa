"""The watchers of topics' layouts, and the layout that each topic's watchers received last (`feeds` waits and
calls).

Every worker can serve the watchers of any topic. A burst of changes is read once. A slow watcher receives
only the newest layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.clock import Clock
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Feed
from controller.store import leases
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store
from controller.store.topics import topics
from controller.store.topics.published_layout import PublishedLayout, published_layout

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


class LayoutFeed(Feed[int, FedLayout]):
    """Sends the layouts of topics, which it knows by id, to their watchers, and reads single layouts on request."""

    subject_field = "topic_id"

    def __init__(self, store: Store, wake: Callable[[], None], *, shard_count: int, clock: Clock) -> None:
        """`wake` makes the feeds' thread start its next round at once. `shard_count` is the number of topic shards."""
        super().__init__(wake, clock)
        self._store, self._shard_count = store, shard_count

    def look(self, topic: str | int) -> FedLayout:
        """Read and return the present layout of the topic, given by name or id, with its leader. Raises
        TopicNotFound, and TopicNotLive while the topic is being created.
        """
        with self._store.transaction() as tx:
            published = published_layout(tx, topic)
            lease = f"shard/{published.topic_id % self._shard_count}"
            return FedLayout(published, leases.address_of_holder(tx, lease))

    def find(self, topic: str) -> tuple[int, str | None]:
        """Return the topic's id and the web address of its leader. The address is None if no worker holds the topic's
        shard, if the leader's own lease has expired, or if the leader serves no HTTP. The topic may be in any state
        except deleted. Takes one query. Raises TopicNotFound, and the errors of `Store.single_statement`.
        """
        return self._store.in_single_statement(leases.find_leader, topic, self._shard_count)

    def why(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Return the rows of the view `inspect.buckets` for the subscription, ordered by hash range: one row for each
        bucket that the subscription has to read, with the bucket's owner, or the reason why no consumer reads the
        bucket. Empty if the subscription does not exist, has no bucket to read or is a queue, or if it is a
        checkpoint subscription without consumers. Raises TopicNotFound, and the errors of `Store.transaction`.
        """
        with self._store.transaction() as tx:
            topic_id = topics.find_topic(tx, topic).topic_id
            return inspection.rows(tx, _BUCKETS, topic_id=topic_id, subscription=subscription)

    def _concerned(self, notifications: Sequence[Notification]) -> Callable[[int], bool]:
        """Return a function that returns True for a topic whose layout or leader changed."""
        changed, shards_with_new_leader = _named(notifications, LAYOUTS), _named(notifications, LEADERS)
        return lambda topic_id: topic_id in changed or topic_id % self._shard_count in shards_with_new_leader


def _named(notifications: Sequence[Notification], channel: str) -> set[int]:
    """Return the topic ids, or shards, at the beginning of a channel's payloads."""
    first_ids = (notification.first_id for notification in notifications if notification.channel == channel)
    return {first_id for first_id in first_ids if first_id is not None}
