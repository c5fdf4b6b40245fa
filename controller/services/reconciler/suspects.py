"""Suspects: active segments of which a client says that their log is missing or closed. A worker looks at each, and repairs it.

A report of a client proves nothing. It makes this process describe the log of that segment, at a bounded rate: one topic at a time,
and each topic seldom. Only a difference that the data plane confirms has the topic compared with the journal, as maintenance does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from controller import telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane, LogState, SetWiseDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError
from controller.domain.segment import SegmentState
from controller.repeating import Repeating
from controller.services.reconciler.reconcile import reconcile
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, topics
from controller.store.topics.published import published_layout

log = telemetry.get_logger(__name__)

LOOK_SECONDS = 0.1
"""Between two looks of this process, each at the suspects of one topic."""
TOPIC_SECONDS = 2.0
"""Between two looks at one topic: a repair needs so long to be seen by clients."""
MOST_TOPICS = 1_000
MOST_SEGMENTS = 16
"""Suspects that wait, and those of one topic. Others are dropped: their clients report them again."""


class Suspects:
    """The suspects of one process, looked at from `run` to `stop`. `report` is for any thread."""

    def __init__(self, store: Store, planes: Mapping[str, DataPlane], clock: Clock) -> None:
        self._store, self._planes, self._clock = store, planes, clock
        self._lock = threading.Lock()
        self._waiting: dict[str, set[int]] = {}
        self._looked_at: dict[str, float] = {}
        self._stopping = threading.Event()

    def report(self, topic: str, segment_id: int) -> None:
        """Have the segment looked at, if it is active. Raises TopicNotFound, TopicNotLive, StoreUnavailable."""
        with self._lock:
            if segment_id in self._waiting.get(topic, ()):
                return
        with self._store.transaction() as tx:
            published = published_layout(tx, topic)
        if all(one.segment_id != segment_id for one in published.layout.active):
            return
        with self._lock:
            if topic not in self._waiting and len(self._waiting) >= MOST_TOPICS:
                return
            suspects = self._waiting.setdefault(topic, set())
            if len(suspects) < MOST_SEGMENTS:
                suspects.add(segment_id)

    def run(self) -> None:
        """Look at what is reported, until `stop`."""
        Repeating(self._paced_look, self._stopping, log, "suspects not looked at").run()

    def stop(self) -> None:
        """Leave after the look in hand."""
        self._stopping.set()

    def _paced_look(self) -> float:
        self.look()
        return LOOK_SECONDS

    def look(self) -> bool:
        """Look at the suspects of the topic that waits longest and may be looked at again. Return False if there is none."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            self._looked_at = {name: at for name, at in self._looked_at.items() if now < at + TOPIC_SECONDS}
            topic = next((name for name in self._waiting if name not in self._looked_at), None)
            if topic is None:
                return False
            self._looked_at[topic] = now
            suspects = self._waiting.pop(topic)
        try:
            self._look_at(topic, suspects)
        except CleaveError as error:  # its client reports it again
            log.warning("suspects not looked at", topic=topic, error=str(error))
        return True

    def _look_at(self, name: str, segment_ids: Collection[int]) -> None:
        with self._store.transaction() as tx:
            topic = topics.find_topic(tx, name)
            books = backing_logs.read_books(tx, [topic.topic_id])[topic.topic_id]
        plane = self._planes.get(topic.data_plane)
        if not isinstance(plane, SetWiseDataPlane) or isinstance(plane, LayoutKeeper):
            return  # of a broker that keeps the layout, `services.mirror` follows the logs
        expected = {
            one.backing_topic: books.expected_on(one)
            for one in books.logs
            if one.segment_id in segment_ids and one.state is SegmentState.ACTIVE and not one.is_busy
        }
        reports = plane.describe_logs([*expected]) if expected else {}
        if any(
            report.state is not LogState.OPEN or not report.cursors.keys() >= {*expected[name]}
            for name, report in reports.items()
        ):
            findings = reconcile(self._store, self._planes, topic.topic_id)
            kinds = sorted({one.kind.value for one in findings})
            log.warning(
                "segments repaired that a client reported",
                topic=topic.name,
                segment_ids=sorted(segment_ids),
                findings=kinds,
            )
