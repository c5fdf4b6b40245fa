"""Layouts, consumers and drains from Cleave's own tables, for clients that may connect to its database.

One statement a snapshot, so that it is of one moment. LISTEN tells when to look again. This is the only file of
the client that speaks SQL; it writes the client's own rows (its consumer, what it drained) and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import URL

from controller.client.layout_source import SubscriptionSnapshot, TopicSnapshot
from controller.clock import to_ms
from controller.dataplane.postgres_calls import PostgresCalls
from controller.dataplane.postgres_listener import PostgresListener
from controller.domain.consumer_registration import ConsumerRegistration
from controller.domain.errors import StoreUnavailable, SubscriptionNotFound, TopicNotFound, TopicNotLive
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState

CHANNELS = ("cleave_layout", "cleave_consumers", "cleave_drains")
"""Payloads begin with the topic's id, up to a colon where more follows."""

# The last columns of each row; what stands before them is of the topic, or of the segment's place in the answer.
_SEGMENT_COLUMNS = """
       s.segment_id, s.range_start, s.range_end, s.state, s.created_epoch, s.sealed_epoch, s.created_at, s.sealed_at,
       s.bucket_splits, s.merge_depth, s.legacy_topic_name, s.backing_topic
"""
_TOPIC = f"""
SELECT t.topic_id, t.state, t.data_plane, t.epoch, t.next_segment_id, {_SEGMENT_COLUMNS}
  FROM cleave.topic t LEFT JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.state = 'ACTIVE'
 WHERE t.name = %s AND t.state <> 'deleted'
"""  # noqa: S608 - constants only, as below
# What was sealed before the subscription existed never had a cursor for it, so there is nothing to read. What descends
# from an unread segment waits for it, read already or not (a seek may have gone back beyond it). Each is looked up by its
# key, so that the cost is that of what is there to read, not of all that the topic ever had.
_SUBSCRIPTION = f"""
WITH RECURSIVE own AS MATERIALIZED (
    SELECT u.topic_id, u.name, u.created_epoch, t.epoch, t.next_segment_id
      FROM cleave.subscription u JOIN cleave.topic t USING (topic_id) WHERE u.topic_id = %(topic_id)s AND u.name = %(name)s
), to_read (segment_id) AS (
    SELECT s.segment_id FROM own u JOIN cleave.segment s USING (topic_id)
     WHERE s.state = 'SEALED' AND s.pruned_epoch IS NULL AND s.drained_at IS NULL AND s.sealed_epoch > u.created_epoch
       AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                        WHERE d.topic_id = %(topic_id)s AND d.subscription = %(name)s AND d.segment_id = s.segment_id)
     UNION
    SELECT heir.segment_id FROM to_read r CROSS JOIN LATERAL unnest(ARRAY(
        SELECT l.child_id FROM cleave.segment_parent l
         WHERE l.topic_id = %(topic_id)s AND l.parent_id = r.segment_id)) AS heir (segment_id)
)
SELECT u.epoch, u.next_segment_id,
       ARRAY(SELECT c.name FROM cleave.consumer c WHERE c.topic_id = u.topic_id AND c.subscription = u.name),
       s.state = 'SEALED' AND (s.sealed_epoch <= u.created_epoch OR EXISTS (
           SELECT FROM cleave.segment_drain d
            WHERE d.topic_id = u.topic_id AND d.subscription = u.name AND d.segment_id = s.segment_id)) AS is_drained,
       ARRAY(SELECT l.parent_id FROM cleave.segment_parent l
              WHERE l.topic_id = u.topic_id AND l.child_id = s.segment_id ORDER BY l.ordinal) AS parent_ids,
       {_SEGMENT_COLUMNS}
  FROM own u LEFT JOIN cleave.segment s
    ON s.topic_id = u.topic_id AND s.pruned_epoch IS NULL AND s.segment_id = ANY (ARRAY(
       SELECT segment_id FROM to_read
        UNION SELECT a.segment_id FROM cleave.segment a WHERE a.topic_id = %(topic_id)s AND a.state = 'ACTIVE'))
"""  # noqa: S608
# Under the topic's lock, which pruning and seeking take too: what is found drained meanwhile stays so.
_MARK_DRAINED = """
WITH locked AS (
    SELECT topic_id FROM cleave.topic WHERE topic_id = %s FOR UPDATE
), marked AS (
    INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id)
    SELECT topic_id, %s, segment_id FROM locked JOIN cleave.segment USING (topic_id)
     WHERE segment_id = %s AND state = 'SEALED' AND pruned_epoch IS NULL
    ON CONFLICT DO NOTHING RETURNING topic_id)
SELECT pg_notify('cleave_drains', topic_id::text) FROM marked
"""
_REGISTER = """
SELECT topic_name, topic_state, subscription_state, is_new FROM cleave.register_consumer(%s, %s, %s)
"""


class PostgresSource:
    """A `LayoutSource` on Cleave's database; connects at the first call, listens from the first watch on."""

    def __init__(self, url: str | URL, *, call_timeout_seconds: float = 5.0) -> None:
        """`url` logs in as a member of role cleave_controller."""
        self._url = url
        self._calls = PostgresCalls(
            url,
            call_timeout_seconds=call_timeout_seconds,
            pool_size=2,
            application_name="cleave-client",
            away=StoreUnavailable,
            late=StoreUnavailable,
        )
        self._lock = threading.Lock()
        self._watches: dict[_Watch, tuple[str, Callable[[], None]]] = {}
        self._listener: PostgresListener | None = None

    def topic(self, name: str) -> TopicSnapshot:
        """The topic as it is now."""
        with self._calls.statement(f"look up {name}") as cursor:
            cursor.execute(_TOPIC, (name,))
            rows = cursor.fetchall()
        if not rows:
            raise TopicNotFound(f"no topic {name}; create it, or check the name")
        topic_id, state, data_plane, epoch, next_segment_id = rows[0][:5]
        if state == "creating":
            raise TopicNotLive(f"{name} is still being created; try again in a moment")
        found = [row[5:] for row in rows if row[5] is not None]
        layout = SegmentLayout.from_segments(epoch, next_segment_id, (_segment(row) for row in found))
        return TopicSnapshot(topic_id, name, data_plane, layout, _backing_topics(found))

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> _Watch:
        """Call back after every change, from the listening thread."""
        watch = _Watch(self._forget)
        with self._lock:
            self._watches[watch] = (str(topic_id), on_change)
            if self._listener is None:
                self._listener = PostgresListener(
                    self._url,
                    CHANNELS,
                    on_notification=lambda _, payload: self._tell(payload.partition(":")[0]),
                    on_gap=lambda: self._tell(None),
                )
                self._listener.start()
        return watch

    def subscription(self, topic_id: int, subscription: str) -> SubscriptionSnapshot:
        """Its consumers and what it has to read now."""
        with self._calls.statement(f"look up subscription {subscription!r}") as cursor:
            cursor.execute(_SUBSCRIPTION, {"topic_id": topic_id, "name": subscription})
            rows = cursor.fetchall()
        if not rows:
            raise SubscriptionNotFound(
                f"topic {topic_id} has no subscription {subscription!r}; create it first"
            )
        epoch, next_segment_id, consumers = rows[0][:3]
        found = [row[3:] for row in rows if row[5] is not None]
        return SubscriptionSnapshot(
            consumers=frozenset(consumers),
            drained=frozenset(segment_id for is_drained, _, segment_id, *_ in found if is_drained),
            layout=SegmentLayout.from_selection(
                epoch, next_segment_id, (_segment(row, parent_ids) for _, parent_ids, *row in found)
            ),
            backing_topics=_backing_topics(row for _, _, *row in found),
        )

    def register(self, topic_id: int, subscription: str, consumer: str) -> None:
        """Insert the consumer's row; the database tells everybody else."""
        with self._calls.statement(f"register {consumer!r}") as cursor:
            cursor.execute(_REGISTER, (topic_id, subscription, consumer))
            [answer] = cursor.fetchall()
        ConsumerRegistration(*answer).demand(topic_id, subscription)

    def unregister(self, topic_id: int, subscription: str, consumer: str) -> None:
        """Delete the consumer's row."""
        with self._calls.statement(f"unregister {consumer!r}") as cursor:
            cursor.execute(
                "DELETE FROM cleave.consumer WHERE topic_id = %s AND subscription = %s AND name = %s",
                (topic_id, subscription, consumer),
            )

    def mark_drained(self, topic_id: int, subscription: str, segment_id: int) -> None:
        """Write the drain and tell the watchers."""
        with self._calls.statement(f"mark segment {segment_id} drained") as cursor:
            cursor.execute(_MARK_DRAINED, (topic_id, subscription, segment_id))

    def close(self) -> None:
        """Stop listening and give back connections."""
        if self._listener is not None:
            self._listener.close()
        self._calls.close()

    def _forget(self, watch: _Watch) -> None:
        with self._lock:
            self._watches.pop(watch, None)

    def _tell(self, topic_id: str | None) -> None:
        with self._lock:
            wanted = [
                call for of_topic, call in self._watches.values() if topic_id is None or topic_id == of_topic
            ]
        for call in wanted:
            call()


class _Watch:
    """One entry of a source's watches."""

    def __init__(self, forget: Callable[[_Watch], None]) -> None:
        self._forget = forget

    def close(self) -> None:
        """Tell no more."""
        self._forget(self)


def _backing_topics(rows: Iterable[Sequence[Any]]) -> dict[int, str]:
    """From `_SEGMENT_COLUMNS`."""
    return {row[0]: row[-1] for row in rows}


def _segment(row: Sequence[Any], parent_ids: Iterable[int] = ()) -> Segment:
    """From `_SEGMENT_COLUMNS`."""
    segment_id, start, end, state, created_epoch, sealed_epoch, created_at, sealed_at = row[:8]
    bucket_splits, merge_depth, legacy_topic_name, _ = row[8:]
    return Segment(
        segment_id=segment_id,
        hash_range=HashRange(start, end),
        state=SegmentState(state),
        parent_ids=tuple(parent_ids),
        created_epoch=created_epoch,
        sealed_epoch=sealed_epoch,
        created_at_ms=to_ms(created_at),
        sealed_at_ms=None if sealed_at is None else to_ms(sealed_at),
        bucket_splits=tuple(bucket_splits),
        merge_depth=merge_depth,
        legacy_topic_name=legacy_topic_name,
    )
