"""Layouts from Cleave's own tables, for producers that may connect to its database.

A snapshot is one statement, so its rows belong to one moment. A notification triggers the next read. The module only reads. It implements
`client.layout_source.LayoutSource` outside the client package, so that the client imports no SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import URL

from controller.client.arguments import checks_arguments
from controller.client.layout_source import TopicSnapshot
from controller.clock import to_ms
from controller.dataplane.postgres_calls import PostgresCalls
from controller.dataplane.postgres_listener import PostgresListener
from controller.domain.errors import StoreUnavailable, TopicNotFound, TopicNotLive
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState
from controller.forks import Renewed

CHANNELS = ("cleave_layout",)
"""A payload begins with the topic's id; a colon separates further parts."""

# The last columns of each row; what stands before them is of the topic, or of the segment's place in the answer.
_SEGMENT_COLUMNS = """
       s.segment_id, s.range_start, s.range_end, s.state, s.created_epoch, s.sealed_epoch, s.created_at, s.sealed_at,
       s.bucket_splits, s.merge_depth, s.legacy_topic_name, s.backing_topic
"""
_TOPIC = f"""
SELECT t.topic_id, t.state, t.epoch, t.next_segment_id, {_SEGMENT_COLUMNS}
  FROM cleave.topic t LEFT JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.state = 'ACTIVE'
 WHERE t.name = %s AND t.state <> 'deleted'
"""  # noqa: S608 - constants only


@checks_arguments
class PostgresSource(Renewed):
    """A `LayoutSource` on Cleave's database. It connects at the first call and listens from the first watch on. A forked process has watches
    and connections of its own.
    """

    def __init__(self, url: str | URL, *, call_timeout_seconds: float = 5.0) -> None:
        """`url` logs in as a member of role cleave_controller; `call_timeout_seconds` limits one call. Raises InvalidInput for an invalid
        URL.
        """
        self._url = url
        self._calls = PostgresCalls(
            url,
            call_timeout_seconds=call_timeout_seconds,
            pool_size=2,
            application_name="cleave-client",
            unavailable_error=StoreUnavailable,
            timeout_error=StoreUnavailable,
        )
        self._begin_in_child()

    def _begin_in_child(self) -> None:
        """Begin without watches and without a listening thread."""
        self._lock = threading.Lock()
        self._watches: dict[_Watch, tuple[int, Callable[[], None]]] = {}
        self._listener: PostgresListener | None = None

    def topic(self, name: str) -> TopicSnapshot:
        """Read the present layout of the topic in one statement: only its active segments, without their parents. A topic that is being
        deleted is returned as well. Raises TopicNotFound if the topic does not exist or is deleted, TopicNotLive while the topic is being
        created, StoreUnavailable if the database does not answer in time.
        """
        rows = self._calls.rows(f"look up {name}", _TOPIC, (name,))
        if not rows:
            raise TopicNotFound(f"no topic {name}; create it, or check the name")
        topic_id, state, epoch, next_segment_id = rows[0][:4]
        if state == "creating":
            raise TopicNotLive(f"{name} is still being created; try again in a moment")
        segment_rows = [row[4:] for row in rows if row[4] is not None]
        layout = SegmentLayout.from_segments(epoch, next_segment_id, (_segment(row) for row in segment_rows))
        return TopicSnapshot(topic_id, name, layout, _backing_topics(segment_rows))

    def watch(self, topic_id: int, on_change: Callable[[], None]) -> _Watch:
        """Call `on_change` from the listening thread after every change of the topic's layout, and after every connection, because changes
        may have been missed before, until the returned watch is closed. The first watch starts the thread. `on_change` must not block.
        """
        watch = _Watch(self._forget)
        with self._lock:
            self._watches[watch] = (topic_id, on_change)
            if self._listener is None:
                self._listener = PostgresListener(
                    self._url,
                    CHANNELS,
                    on_notification=self._tell,
                    on_gap=lambda: self._tell(None),
                )
                self._listener.start()
        return watch

    def close(self) -> None:
        """Stop listening and close the connections."""
        if self._listener is not None:
            self._listener.close()
        self._calls.close()

    def _forget(self, watch: _Watch) -> None:
        with self._lock:
            self._watches.pop(watch, None)

    def _tell(self, topic_id: int | None) -> None:
        """Call `on_change` of each watch of the topic; `topic_id` None: of every watch."""
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
        """End the watch."""
        self._forget(self)


def _backing_topics(rows: Iterable[Sequence[Any]]) -> dict[int, str]:
    """Return the log of each segment by segment id, from rows with `_SEGMENT_COLUMNS`."""
    return {row[0]: row[-1] for row in rows}


def _segment(row: Sequence[Any]) -> Segment:
    """Return the segment in a row with `_SEGMENT_COLUMNS`, without its parents."""
    segment_id, start, end, state, created_epoch, sealed_epoch, created_at, sealed_at = row[:8]
    bucket_splits, merge_depth, legacy_topic_name, _ = row[8:]
    return Segment(
        segment_id=segment_id,
        hash_range=HashRange(start, end),
        state=SegmentState(state),
        parent_ids=(),
        created_epoch=created_epoch,
        sealed_epoch=sealed_epoch,
        created_at_ms=to_ms(created_at),
        sealed_at_ms=None if sealed_at is None else to_ms(sealed_at),
        bucket_splits=tuple(bucket_splits),
        merge_depth=merge_depth,
        legacy_topic_name=legacy_topic_name,
    )
