"""Key count landing: what producers counted of their keys, added up for each segment and landed as one Parquet file now and then.

Any worker takes counts. Those of the producers that tell one worker are added up here, those of several workers by the
aggregation, which hands them to decisions. What is not landed when a worker dies is lost: the next counts say the same.
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
"""Counts of more are not taken until the next landing: 8 KiB are held for each."""


@dataclass(slots=True)
class _Counted:
    hash_range: HashRange
    bins: list[float]
    producers: set[str] = field(default_factory=set)


class KeyCountLanding:
    """Counts of one worker. `add` is for any thread."""

    def __init__(self, store: Store, area: Callable[[], LandingArea], *, worker: str, clock: Clock) -> None:
        """`worker` stands in file names, and tells the counts of several apart. The `area` is asked for when something is to land:
        where nobody tells anything, a worker loads no Arrow.
        """
        self._store, self._area, self._worker, self._clock = store, area, worker, clock
        self._lock = threading.Lock()
        self._counted: dict[tuple[int, int], _Counted] = {}
        self._messages: dict[int, dict[str, int]] = {}
        """Messages by topic and producer since the last landing."""
        self._stopping = threading.Event()

    def add(self, topic: str, producer: str, counts: Sequence[KeyCount]) -> None:
        """Add what this producer counted since its last request. Raises TopicNotFound, TopicNotLive, StoreUnavailable, and
        InvalidInput for counts that no producer can have.
        """
        with self._store.transaction() as tx:
            published = published_layout(tx, topic)
        segments = published.layout.active
        found = by_segment(segments, counts)
        with self._lock:
            of_topic = self._messages.get(published.topic_id, {})
            messages = demand_possible(topic, producer, counts, of_topic)
            self._messages[published.topic_id] = of_topic
            of_topic[producer] = of_topic.get(producer, 0) + messages
            for index, some in found.items():
                key = published.topic_id, segments[index].segment_id
                if key not in self._counted and len(self._counted) >= MOST_SEGMENTS:
                    log.warning("counts of keys not taken", topic=topic, segments=MOST_SEGMENTS)
                    return
                self._add(key, segments[index].hash_range, producer, some)

    def _add(
        self, key: tuple[int, int], hash_range: HashRange, producer: str, counts: Sequence[KeyCount]
    ) -> None:
        """Add counts of one segment. Those of no message leave no trace. The lock is held."""
        if not any(messages for _, _, messages in counts):
            return
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = _Counted(hash_range, [0.0] * bin_count(hash_range))
        add_counts(counted.bins, counted.hash_range, counts)
        counted.producers.add(producer)

    def run(self) -> None:
        """Land what has come, until `stop`."""
        repeat_every(
            LANDS_EVERY_SECONDS,
            self.land,
            self._stopping,
            log,
            "counts of keys not landed",
            expected=(CleaveError, OSError),
        )

    def stop(self) -> None:
        """Leave after the landing in hand."""
        self._stopping.set()

    def land(self) -> str | None:
        """Writes what has come since the last time; where, None where nothing has. Raises OSError when storage is away."""
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
                "producers": len(one.producers),
                "bins": _whole(one.bins),
            }
            for (topic_id, segment_id), one in counted.items()
        ]
        columns = {name: [row[name] for row in rows] for name in KEY_COUNT_SCHEMA.names}
        return self._area().append(instant_ms, self._worker, pa.table(columns).cast(KEY_COUNT_SCHEMA))


def _whole(bins: Sequence[float]) -> list[int]:
    """In whole messages, with the same sum: what is left over in one bin goes on to the next."""
    below = [round(total) for total in accumulate(bins, initial=0.0)]
    return [high - low for low, high in pairwise(below)]
