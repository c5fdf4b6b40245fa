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
from controller.clock import Clock
from controller.domain.errors import CleaveError
from controller.domain.hash_range import HashRange
from controller.domain.key_counts import KeyCount, by_segment, demand_possible
from controller.domain.key_sketch import add_counts, bin_count
from controller.repeating import repeat_every
from controller.store.postgres.engine import Store
from controller.store.topics.published import published_layout

if TYPE_CHECKING:
    from controller.landing.area import LandingArea

log = telemetry.get_logger(__name__)

LANDS_EVERY_SECONDS = 10.0
MOST_SEGMENTS = 2_000
"""Maximum number of segments whose counts are held until the next landing, at 8 KiB each. Counts of further
segments are rejected.
"""


@dataclass(slots=True)
class _Counted:
    hash_range: HashRange
    bins: list[float]
    producers: set[str] = field(default_factory=set)


class KeyCountLanding:
    """Key counts of one worker. `add` is thread-safe."""

    def __init__(self, store: Store, area: Callable[[], LandingArea], *, worker: str, clock: Clock) -> None:
        """`worker` becomes a part of file names, and distinguishes the counts of several workers. `area` is
        called only when there are counts to land, so that a worker without counts does not load Arrow.
        """
        self._store, self._area, self._worker, self._clock = store, area, worker, clock
        self._lock = threading.Lock()
        self._counted: dict[tuple[int, int], _Counted] = {}
        self._messages: dict[int, dict[str, int]] = {}
        """Messages by topic and producer since the last landing."""
        self._stopping = threading.Event()

    def add(self, topic: str, producer: str, counts: Sequence[KeyCount]) -> None:
        """Add the counts of this producer since its last request. Raises TopicNotFound, TopicNotLive,
        StoreUnavailable, and InvalidInput for counts that no producer can have.
        """
        with self._store.transaction() as tx:
            published = published_layout(tx, topic)
        segments = published.layout.active
        counts_by_index = by_segment(segments, counts)
        with self._lock:
            of_topic = self._messages.get(published.topic_id, {})
            messages = demand_possible(topic, producer, counts, of_topic)
            self._messages[published.topic_id] = of_topic
            of_topic[producer] = of_topic.get(producer, 0) + messages
            for index, segment_counts in counts_by_index.items():
                key = published.topic_id, segments[index].segment_id
                if key not in self._counted and len(self._counted) >= MOST_SEGMENTS:
                    log.warning("counts of keys not taken", topic=topic, segments=MOST_SEGMENTS)
                    return
                self._add(key, segments[index].hash_range, producer, segment_counts)

    def _add(
        self, key: tuple[int, int], hash_range: HashRange, producer: str, counts: Sequence[KeyCount]
    ) -> None:
        """Add the counts of one segment. Ignore counts without messages. The caller holds the lock."""
        if not any(messages for _, _, messages in counts):
            return
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = _Counted(hash_range, [0.0] * bin_count(hash_range))
        add_counts(counted.bins, counted.hash_range, counts)
        counted.producers.add(producer)

    def run(self) -> None:
        """Land the counts periodically until `stop`."""
        repeat_every(
            LANDS_EVERY_SECONDS,
            self.land,
            self._stopping,
            log,
            "counts of keys not landed",
            expected=(CleaveError, OSError),
        )

    def stop(self) -> None:
        """Stop after the current landing."""
        self._stopping.set()

    def land(self) -> str | None:
        """Write the counts since the last landing. Return the path of the file; None if there were no counts.
        Raises OSError if storage is unavailable.
        """
        with self._lock:
            counted, self._counted = self._counted, {}
            self._messages = {}
        if not counted:
            return None
        import pyarrow as pa

        from controller.landing.schemas import KEY_COUNT_SCHEMA

        instant_ms = self._clock.now_ms()
        rows = [
            {
                "topic_id": topic_id,
                "segment_id": segment_id,
                "source": self._worker,
                "instant": instant_ms * 1000,
                "producers": len(counts.producers),
                "bins": _whole(counts.bins),
            }
            for (topic_id, segment_id), counts in counted.items()
        ]
        columns = {name: [row[name] for row in rows] for name in KEY_COUNT_SCHEMA.names}
        return self._area().append(instant_ms, self._worker, pa.table(columns).cast(KEY_COUNT_SCHEMA))


def _whole(bins: Sequence[float]) -> list[int]:
    """Round the bins to whole messages and keep their sum: the remainder of each bin is carried to the next."""
    below = [round(total) for total in accumulate(bins, initial=0.0)]
    return [high - low for low, high in pairwise(below)]
