"""Suspects: active segments whose logs are missing or terminated according to a client. A worker checks each
segment, and repairs it.

A report of a client proves nothing. It makes this process describe the log of the segment, at a bounded rate:
one topic at a time, and each topic rarely. Only if the data plane confirms a difference is the topic compared
with the journal, as maintenance does.
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
from controller.repeating import Stoppable, repeat_every
from controller.services.reconciler.reconcile import reconcile
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, topics
from controller.store.topics.published_layout import published_layout

log = telemetry.get_logger(__name__)

CHECK_SECONDS = 0.1
"""Seconds between two checks of this process. A check covers the suspects of one topic."""
TOPIC_SECONDS = 2.0
"""Seconds between two checks of one topic. A repair takes about that long to become visible to clients."""
MOST_TOPICS = 1_000
MOST_SEGMENTS = 16
"""Maximum number of topics with waiting suspects, and of suspects of one topic. Others are dropped: their
clients report them again.
"""


class Suspects(Stoppable):
    """The suspects of one process: active segments whose logs are missing or terminated according to clients.
    They are kept in memory only, and checked between `run` and `stop`. `report` is thread-safe.
    """

    def __init__(self, store: Store, planes: Mapping[str, DataPlane], clock: Clock) -> None:
        """`planes` are the data planes of this process, by name."""
        super().__init__()
        self._store, self._planes, self._clock = store, planes, clock
        self._lock = threading.Lock()
        self._waiting: dict[str, set[int]] = {}
        self._checked_at: dict[str, float] = {}

    def report(self, topic: str, segment_id: int) -> None:
        """Queue a check of the segment, whose log is missing or terminated according to a client. `run` makes the
        check later. No effect if the segment is queued already or is not an active segment of the topic. If
        `MOST_TOPICS` other topics or `MOST_SEGMENTS` segments of this topic are queued, the report is dropped without
        an error. Raises TopicNotFound, TopicNotLive while the topic is being created, and StoreUnavailable.
        """
        with self._lock:
            if segment_id in self._waiting.get(topic, ()):
                return
        published = self._store.in_transaction(published_layout, topic)
        if all(segment.segment_id != segment_id for segment in published.layout.active):
            return
        with self._lock:
            if topic not in self._waiting and len(self._waiting) >= MOST_TOPICS:
                return
            suspects = self._waiting.setdefault(topic, set())
            if len(suspects) < MOST_SEGMENTS:
                suspects.add(segment_id)

    def run(self) -> None:
        """Check reported segments until `stop`."""
        repeat_every(CHECK_SECONDS, self.check_next, self._stopping, log, "suspects not checked")

    def check_next(self) -> bool:
        """Take the topic that has waited longest of the topics not checked in the last `TOPIC_SECONDS`, and check its
        suspects, which are then no longer queued. Return False if there is no such topic, otherwise True. A
        CleaveError of the check, such as StoreUnavailable, is logged and not raised; the client reports the segment
        again.
        """
        now = self._clock.monotonic_seconds()
        with self._lock:
            self._checked_at = {
                name: checked_at
                for name, checked_at in self._checked_at.items()
                if now < checked_at + TOPIC_SECONDS
            }
            topic = next((name for name in self._waiting if name not in self._checked_at), None)
            if topic is None:
                return False
            self._checked_at[topic] = now
            suspects = self._waiting.pop(topic)
        try:
            self._check(topic, suspects)
        except CleaveError as error:  # The client reports the segment again.
            log.warning("suspects not checked", topic=topic, error=str(error))
        return True

    def _check(self, name: str, segment_ids: Collection[int]) -> None:
        """Describe the logs of those given segments that are active and not part of a live operation. If a log is not
        open, or lacks a cursor of a recorded subscription, reconcile the whole topic, which repairs the differences,
        and log the kinds of the findings. A log that does not answer is ignored.

        Does nothing if none of the segments qualifies, if a broker keeps the layout of the topic, or if the topic's
        data plane is not configured here. Raises TopicNotFound, the errors of the data plane, the errors of
        `reconcile`, and the errors of `Store.transaction`.
        """
        with self._store.transaction() as tx:
            topic = topics.find_topic(tx, name)
            metadata = backing_logs.read_expected_logs(tx, [topic.topic_id])[topic.topic_id]
        plane = self._planes.get(topic.data_plane)
        if not isinstance(plane, SetWiseDataPlane) or isinstance(plane, LayoutKeeper):
            return  # If a broker keeps the layout, `services.mirror` follows its logs.
        expected = {
            log_row.backing_topic: metadata.expected_on(log_row)
            for log_row in metadata.logs
            if log_row.segment_id in segment_ids
            and log_row.state is SegmentState.ACTIVE
            and not log_row.is_busy
        }
        reports = plane.describe_logs([*expected]) if expected else {}
        if any(
            report.state is not LogState.OPEN or not report.cursors.keys() >= {*expected[name]}
            for name, report in reports.items()
        ):
            findings = reconcile(self._store, self._planes, topic.topic_id)
            kinds = sorted({finding.kind.value for finding in findings})
            log.warning(
                "segments reported by clients repaired",
                topic=topic.name,
                segment_ids=sorted(segment_ids),
                findings=kinds,
            )
