"""Key count landing: adds up the key counts that producers report, per segment, and periodically lands them
as one Parquet file.

Any worker accepts counts. This module adds up the counts of the producers that report to its worker. The
aggregation adds up the counts of several workers, and passes them to decisions. When a worker dies, the
counts that it has not landed are lost; later counts show the same distribution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from controller import telemetry
from controller.clock import to_ms
from controller.domain.errors import CleaveError
from controller.domain.hash_range import HashRange
from controller.domain.key_count_limits import KeyCount, by_segment, demand_possible
from controller.domain.key_sketch import add_counts, bin_count
from controller.repeating import Stoppable, repeat_every
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.topics.published_layout import published_layout

if TYPE_CHECKING:
    from controller.landing.area import LandingArea

log = telemetry.get_logger(__name__)

LANDS_EVERY_SECONDS = 10.0
"""Seconds between two landings."""
MOST_SEGMENTS = 2_000
"""Maximum number of segments whose counts are held until the next landing, at 8 KiB each. Counts of further
segments are dropped.
"""


@dataclass(slots=True)
class _SegmentCounts:
    """Counts of one segment since the last landing, by bin of its hash range, and the producers that reported
    them.
    """

    hash_range: HashRange
    bins: list[float]
    producers: set[str] = field(default_factory=set)


class KeyCountLanding(Stoppable):
    """Adds up the key counts that producers report to one worker, and lands them as a file every
    `LANDS_EVERY_SECONDS`. `add` is thread-safe.
    """

    def __init__(self, store: Store, area: Callable[[], LandingArea], *, worker: str) -> None:
        """`worker` becomes a part of file names, and distinguishes the counts of several workers. `area` is
        called only when there are counts to land, so that a worker without counts does not load Arrow.
        """
        super().__init__()
        self._store, self._area, self._worker = store, area, worker
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, int], _SegmentCounts] = {}
        self._messages: dict[int, dict[str, int]] = {}
        """Messages by topic and producer since the last landing."""

    def add(self, topic: str, producer: str, counts: Sequence[KeyCount]) -> None:
        """Add the key counts that the producer has made since its last request to the ACTIVE segments of the topic.
        Each count is a first hash, a number of hashes, and a number of messages. The counts stay in memory until the
        next landing. If they would exceed `MOST_SEGMENTS` segments, a warning is logged, and the counts of the first
        segment too many and of the segments after it are dropped.

        Raises TopicNotFound; TopicNotLive while the topic is being created; StoreUnavailable; and InvalidInput for
        counts that no producer can have, or for too many producers of the topic. The limits of hashes in a request,
        of messages of a producer since the last landing, and of producers are those of `domain.key_count_limits`.
        After an error no count was added.
        """
        published = self._store.in_transaction(published_layout, topic)
        segments = published.layout.active
        counts_by_index = by_segment(segments, counts)
        with self._lock:
            messages_by_producer = self._messages.get(published.topic_id, {})
            messages = demand_possible(topic, producer, counts, messages_by_producer)
            self._messages[published.topic_id] = messages_by_producer
            messages_by_producer[producer] = messages_by_producer.get(producer, 0) + messages
            for index, segment_counts in counts_by_index.items():
                key = published.topic_id, segments[index].segment_id
                if key not in self._counts and len(self._counts) >= MOST_SEGMENTS:
                    log.warning("counts of keys not taken", topic=topic, segments=MOST_SEGMENTS)
                    return
                self._add(key, segments[index].hash_range, producer, segment_counts)

    def _add(
        self, key: tuple[int, int], hash_range: HashRange, producer: str, counts: Sequence[KeyCount]
    ) -> None:
        """Add the counts (first hash, number of hashes, messages) to the segment `key` (topic id, segment id), whose
        range is `hash_range`, and remember the producer. The messages of a count are spread evenly over its hashes,
        and those outside the range are ignored. Does nothing if no count has messages. The caller holds the lock.
        """
        if not any(messages for _, _, messages in counts):
            return
        segment_counts = self._counts.get(key)
        if segment_counts is None:
            segment_counts = self._counts[key] = _SegmentCounts(hash_range, [0.0] * bin_count(hash_range))
        add_counts(segment_counts.bins, segment_counts.hash_range, counts)
        segment_counts.producers.add(producer)

    def run(self) -> None:
        """Land the counts every `LANDS_EVERY_SECONDS` until `stop`, for the first time after this interval. A failed
        landing is logged, and its counts are lost if the storage failed. Counts that were added after the last landing
        are not landed at the end.
        """
        repeat_every(
            LANDS_EVERY_SECONDS,
            self.land,
            self._stopping,
            log,
            "counts of keys not landed",
            expected=(CleaveError, OSError),
        )

    def land(self) -> str | None:
        """Write the counts that were added since the last landing as one file, with one row of `KEY_COUNT_SCHEMA` for
        each segment and the time of the database. Return the path of the file; None, without a file, if there are no
        counts. The counts are forgotten, even if writing fails, and the limits of the producers begin again.

        Raises StoreUnavailable, after which the counts wait for the next landing; OSError if the storage is
        unavailable; and InvalidInput if the worker's name cannot be part of a file name.
        """
        with self._lock:
            if not self._counts:
                self._messages = {}
                return None
        # The aggregation selects files by the database's clock. An error before the exchange below loses no counts.
        instant_ms = to_ms(self._store.in_transaction(database_now))
        with self._lock:
            counts_by_segment, self._counts = self._counts, {}
            self._messages = {}
        import pyarrow as pa

        from controller.landing.schemas import KEY_COUNT_SCHEMA

        rows = [
            {
                "topic_id": topic_id,
                "segment_id": segment_id,
                "source": self._worker,
                "instant": instant_ms * 1000,
                "producers": len(segment_counts.producers),
                "bins": _rounded(segment_counts.bins),
            }
            for (topic_id, segment_id), segment_counts in counts_by_segment.items()
        ]
        columns = {name: [row[name] for row in rows] for name in KEY_COUNT_SCHEMA.names}
        return self._area().append(instant_ms, self._worker, pa.table(columns).cast(KEY_COUNT_SCHEMA))


def _rounded(bins: Sequence[float]) -> list[int]:
    """Round the bins to whole messages and keep their sum: the remainder of each bin is carried to the next."""
    rounded_sums = [round(total) for total in accumulate(bins, initial=0.0)]
    return [high - low for low, high in pairwise(rounded_sums)]
