"""Key sampler: looks where in a segment's range its load lies, when a split is near.

Of topics that `adaptive` decides on, segments near their capacity are sampled, and those that a reshape has just made,
before anybody knows their load: what is hot there is cut again, and that by a sketch of its own. The newest messages of
the segment's log are counted by their keys; no subscription is moved. One log that does not answer holds up no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from controller import metrics, telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.dataplane.observation import KeySample, SamplesKeys
from controller.domain.errors import CleaveError, SegmentNotFound, SegmentTerminated, Unsupported
from controller.domain.hash_range import HashRange
from controller.domain.key_sketch import bin_count, count_hashes
from controller.repeating import Repeating
from controller.store.load import sketches
from controller.store.load.sketches import LogToSample, Sketch
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 5.0
LOOK_SHARE = 0.05
"""Looking for what is due takes at most this part of the time: in a large fleet it is done less often."""
LOGS_A_ROUND = 64
ROUND_SECONDS = 10.0
"""No sample begins later in a round."""
PARALLEL_SAMPLES = 2
LEAST_MESSAGES = 100
"""Fewer say nothing of where the load lies."""
FEW_AGAIN_SECONDS = 10.0
"""Where there were too few, a segment is looked at again so soon. Many new and quiet ones must not hold up the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySampling:
    """What is sampled, and how often."""

    messages: int
    """At most so many of a segment's newest messages a sample; 0: none."""
    from_load: float
    """Share of its capacity from which on a segment is sampled (0..1)."""
    every_seconds: float
    """A segment is sampled once in so long."""
    fresh_seconds: float
    """A sketch plays a part in decisions for so long."""


@dataclass(frozen=True, slots=True)
class SampleRound:
    """What one round brought, in logs: with a sketch, without enough messages or any key, without an answer."""

    sketched: int = 0
    keyless: int = 0
    failed: int = 0


class KeySampler:
    """Samples what is due in the shards held, beside a worker's loop, until told to stop."""

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        sampling: KeySampling,
        clock: Clock,
    ) -> None:
        self._store, self._shards = store, shards
        self._sampling, self._clock = sampling, clock
        self._planes = {
            name: plane
            for name, plane in planes.items()
            if isinstance(plane, SamplesKeys) and not plane.capabilities.midpoint_only
        }
        self._not_before: dict[tuple[int, int], float] = {}
        """When a segment that was tried a short while ago may be tried again, whatever came of it."""
        self._stopping = threading.Event()

    @property
    def is_needed(self) -> bool:
        """Whether anything here may be sampled, and cut by what is found."""
        return self._sampling.messages > 0 and bool(self._planes)

    def run(self) -> None:
        """Rounds until `stop`."""
        retry_seconds = (INTERVAL_SECONDS, INTERVAL_SECONDS)
        rounds = Repeating(
            self._paced_round, self._stopping, log, "keys not sampled", retry_seconds=retry_seconds
        )
        rounds.run(first_pause_seconds=INTERVAL_SECONDS)

    def _paced_round(self) -> float:
        """A round; then the seconds until the next one, since looking for what is due takes a small share of the time."""
        began = self._clock.monotonic_seconds()
        found = self._due(self._shards())
        took = self._clock.monotonic_seconds() - began
        self._sample(found)
        return max(INTERVAL_SECONDS, took / LOOK_SHARE)

    def stop(self) -> None:
        """Leave after the samples in hand."""
        self._stopping.set()

    def round(self) -> SampleRound:
        """Sample what is due now. Raises StoreUnavailable."""
        return self._sample(self._due(self._shards()))

    def _due(self, shards: Shards) -> list[LogToSample]:
        now = self._clock.monotonic_seconds()
        self._not_before = {one: at for one, at in self._not_before.items() if now < at}
        if not shards.held or not self._planes:
            return []
        with self._store.transaction() as tx:
            found = sketches.due(
                tx,
                self._planes,
                shards,
                from_load=self._sampling.from_load,
                older_than_seconds=self._sampling.every_seconds,
                limit=LOGS_A_ROUND + len(self._not_before),
            )
        fresh = [one for one in found if (one.topic_id, one.segment_id) not in self._not_before]
        return fresh[:LOGS_A_ROUND]

    def _sample(self, logs: Sequence[LogToSample]) -> SampleRound:
        if not logs:
            return SampleRound()
        give_up_at = self._clock.monotonic_seconds() + ROUND_SECONDS
        with ThreadPoolExecutor(PARALLEL_SAMPLES, thread_name_prefix="key-sample") as pool:
            samples = list(pool.map(lambda one: self._look(one, give_up_at), logs))
        found = [(one, sample) for one, sample in zip(logs, samples, strict=True) if sample is not None]
        drawn = [
            Sketch(one.topic_id, one.segment_id, bins)
            for one, sample in found
            if (bins := sketch_of(one.hash_range, sample))
        ]
        with self._store.transaction() as tx:
            sketches.write(tx, drawn, fresh_seconds=self._sampling.fresh_seconds)
        outcome = SampleRound(len(drawn), len(found) - len(drawn), len(logs) - len(found))
        for name in ("sketched", "keyless", "failed"):
            metrics.KEY_SAMPLES.labels(name).inc(getattr(outcome, name))
        return outcome

    def _look(self, one: LogToSample, give_up_at: float) -> KeySample | None:
        now = self._clock.monotonic_seconds()
        plane = self._planes.get(one.data_plane)
        if plane is None or now >= give_up_at or self._stopping.is_set():
            return None
        self._not_before[one.topic_id, one.segment_id] = now + self._sampling.every_seconds
        try:
            sample = plane.sample_keys(one.backing_topic, most=self._sampling.messages)
        except (SegmentTerminated, SegmentNotFound):
            return None  # being reshaped
        except Unsupported as error:
            if self._planes.pop(one.data_plane, None) is not None:
                log.warning("keys are not sampled here", data_plane=one.data_plane, error=str(error))
        except CleaveError as error:
            log.warning("keys of a log not sampled", backing_topic=one.backing_topic, error=str(error))
        except Exception:  # the samples of all others would be lost with it
            log.exception("sampling the keys of a log failed", backing_topic=one.backing_topic)
        else:
            if len(sample.hashes) + sample.keyless < LEAST_MESSAGES:
                self._not_before[one.topic_id, one.segment_id] = now + FEW_AGAIN_SECONDS
            return sample
        return None


def sketch_of(hash_range: HashRange, sample: KeySample) -> list[float]:
    """The sketch of a segment by its sample; empty where that is too small, or no key of it is the segment's.

    Nobody knows where messages without a key would lie after a cut, nor those of producers that go by another rule: they are
    spread evenly.
    """
    own = [one for one in sample.hashes if hash_range.contains(one)]
    if not own or len(sample.hashes) + sample.keyless < LEAST_MESSAGES:
        return []
    spread = (len(sample.hashes) - len(own) + sample.keyless) / bin_count(hash_range)
    return [count + spread for count in count_hashes(hash_range, own)]
