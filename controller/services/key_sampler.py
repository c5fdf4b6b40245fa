"""Key sampler: measures how the load of a segment is distributed over its hash range when a split is near.

The sampler serves topics of the profile `adaptive`. It samples segments near their capacity, and segments
that a reshape has just created and whose load is not known yet: a hot child is split again, and needs a key
histogram of its own. The newest messages of the segment's log are counted by their keys; no subscription is
moved. A log that does not answer does not delay other logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from controller import metrics, telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.dataplane.optional_abilities import KeySample, SamplesKeys
from controller.domain.errors import CleaveError, SegmentNotFound, SegmentTerminated, Unsupported
from controller.domain.hash_range import HashRange
from controller.domain.key_sketch import bin_count, count_hashes
from controller.repeating import Repeating, Stoppable
from controller.store.load import sketches
from controller.store.load.sketches import LogToSample, Sketch
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 5.0
LISTING_SHARE = 0.05
"""Largest share of the time that listing the segments to sample may take. In a large fleet the list is read
less often.
"""
LOGS_A_ROUND = 64
"""Maximum number of logs that a round samples."""
ROUND_SECONDS = 10.0
"""Seconds of a round after which no sample begins."""
PARALLEL_SAMPLES = 2
"""Number of logs that are sampled at the same time."""
LEAST_MESSAGES = 100
"""Minimum number of messages in a sample. Fewer messages do not show where the load lies."""
FEW_AGAIN_SECONDS = 10.0
"""Seconds until a segment with too few messages is sampled again. Many new, quiet segments must not delay the
others.
"""


class KeySampler(Stoppable):
    """A background service of a worker that samples due segments of the shards the worker holds, until it is
    stopped.
    """

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        clock: Clock,
        *,
        messages: int,
        from_load: float,
        every_seconds: float,
        fresh_seconds: float,
    ) -> None:
        """`planes` are the data planes by name. Data planes that cannot sample keys, and data planes that split
        segments at the midpoint only, are ignored. `shards` returns the shards that the worker holds; only segments
        of their topics are sampled. `clock` gives the monotonic time.

        `messages` is the maximum number of a segment's newest messages per sample; 0 turns sampling off. A segment is
        sampled from the load `from_load`, a share (0..1) of its capacity, and again after `every_seconds`. Decisions
        use a key histogram for `fresh_seconds`.
        """
        super().__init__()
        self._store, self._shards = store, shards
        self._clock, self._messages, self._from_load = clock, messages, from_load
        self._every_seconds, self._fresh_seconds = every_seconds, fresh_seconds
        self._planes = {
            name: plane
            for name, plane in planes.items()
            if isinstance(plane, SamplesKeys) and not plane.capabilities.midpoint_only
        }
        self._not_before: dict[tuple[int, int], float] = {}
        """Monotonic time from which a segment may be sampled again, whether or not its last sample succeeded.
        """

    @property
    def is_needed(self) -> bool:
        """True if a data plane here can be sampled, and can split at the points that a sample suggests."""
        return self._messages > 0 and bool(self._planes)

    def run(self) -> None:
        """Run rounds until `stop`, the first after `INTERVAL_SECONDS`. The pause after a round is `INTERVAL_SECONDS`,
        or longer if listing the due segments took long. If a round fails, log the error, pause, and run the next
        round. Raises nothing.
        """
        retry_seconds = (INTERVAL_SECONDS, INTERVAL_SECONDS)
        rounds = Repeating(
            self._paced_round, self._stopping, log, "keys not sampled", retry_seconds=retry_seconds
        )
        rounds.run(first_pause_seconds=INTERVAL_SECONDS)

    def _paced_round(self) -> float:
        """Run a round. Return the seconds until the next round: at least `INTERVAL_SECONDS`, and more if listing the
        due segments took long, so that listing takes at most the share `LISTING_SHARE` of the time. Raises
        StoreUnavailable.
        """
        began_at = self._clock.monotonic_seconds()
        logs = self._logs_due(self._shards())
        listing_seconds = self._clock.monotonic_seconds() - began_at
        self._sample(logs)
        return max(INTERVAL_SECONDS, listing_seconds / LISTING_SHARE)

    def round(self) -> Counter[str]:
        """Sample up to `LOGS_A_ROUND` segments of the held shards that are due, and store their key histograms.
        Return the numbers of logs by outcome, which are also counted as metrics; all are 0 if no segment is due. The
        outcomes: with a key histogram (`sketched`); with a sample that lacks messages or keys (`keyless`); without a
        sample, because the log did not answer or is being reshaped, its data plane cannot sample keys, or the round was
        over (`failed`).
        Errors of data planes are logged. Raises StoreUnavailable.
        """
        return self._sample(self._logs_due(self._shards()))

    def _logs_due(self, shards: Shards) -> list[LogToSample]:
        """Return up to `LOGS_A_ROUND` logs of ACTIVE segments that are due for a sample, in the given shards, hot
        segments first. Segments that this process has tried to sample are left out until they may be sampled again
        (`_sample_log`). The list is empty if no shard is held or no data plane can be sampled. Raises
        StoreUnavailable.
        """
        now = self._clock.monotonic_seconds()
        self._not_before = {key: due_at for key, due_at in self._not_before.items() if now < due_at}
        if not shards.held or not self._planes:
            return []
        candidates = self._store.in_transaction(
            sketches.due,
            self._planes,
            shards,
            from_load=self._from_load,
            older_than_seconds=self._every_seconds,
            limit=LOGS_A_ROUND + len(self._not_before),
        )
        due_logs = [log for log in candidates if (log.topic_id, log.segment_id) not in self._not_before]
        return due_logs[:LOGS_A_ROUND]

    def _sample(self, logs: Sequence[LogToSample]) -> Counter[str]:
        """Sample the logs, up to `PARALLEL_SAMPLES` at a time, and add the samples to the key histograms of their
        segments in one transaction, which also deletes outdated key histograms of any segment. No sample begins later
        than `ROUND_SECONDS` after the call. Return the numbers of logs by outcome, which are also counted as metrics.
        Does nothing without logs. Raises StoreUnavailable.
        """
        if not logs:
            return Counter()
        give_up_at = self._clock.monotonic_seconds() + ROUND_SECONDS
        with ThreadPoolExecutor(PARALLEL_SAMPLES, thread_name_prefix="key-sample") as pool:
            samples = list(pool.map(lambda log: self._sample_log(log, give_up_at), logs))
        sampled = [(log, sample) for log, sample in zip(logs, samples, strict=True) if sample is not None]
        new_sketches = [
            Sketch(log.topic_id, log.segment_id, bins)
            for log, sample in sampled
            if (bins := sketch_of(log.hash_range, sample))
        ]
        self._store.in_transaction(sketches.write, new_sketches, fresh_seconds=self._fresh_seconds)
        outcome = Counter(
            sketched=len(new_sketches),
            keyless=len(sampled) - len(new_sketches),
            failed=len(logs) - len(sampled),
        )
        for name, count in outcome.items():
            metrics.KEY_SAMPLES.labels(name).inc(count)
        return outcome

    def _sample_log(self, log_to_sample: LogToSample, give_up_at: float) -> KeySample | None:
        """Return a sample of the keys of the log's latest messages, at most the maximum of the settings. Return None
        without a call if `give_up_at` (monotonic seconds) has come, the sampler stops, or the data plane turned out
        to be unable to sample keys. Return None also if the log is missing or terminated, or if the data plane raises
        an error, which is logged.

        After each call, whatever its result, the segment is not sampled again for `every_seconds`; for
        `FEW_AGAIN_SECONDS` instead if the sample has fewer than `LEAST_MESSAGES` messages. After Unsupported, the
        data plane is not called again.
        """
        now = self._clock.monotonic_seconds()
        plane = self._planes.get(log_to_sample.data_plane)
        if plane is None or now >= give_up_at or self._stopping.is_set():
            return None
        self._not_before[log_to_sample.topic_id, log_to_sample.segment_id] = now + self._every_seconds
        try:
            sample = plane.sample_keys(log_to_sample.backing_topic, most=self._messages)
        except (SegmentTerminated, SegmentNotFound):
            return None  # The segment is being reshaped.
        except Unsupported as error:
            if self._planes.pop(log_to_sample.data_plane, None) is not None:
                log.warning(
                    "data plane cannot sample keys", data_plane=log_to_sample.data_plane, error=str(error)
                )
        except CleaveError as error:
            log.warning(
                "keys of a log not sampled", backing_topic=log_to_sample.backing_topic, error=str(error)
            )
        except Exception:  # An unexpected error must not lose the samples of all other logs.
            log.exception("sampling the keys of a log failed", backing_topic=log_to_sample.backing_topic)
        else:
            if len(sample.hashes) + sample.keyless < LEAST_MESSAGES:
                self._not_before[log_to_sample.topic_id, log_to_sample.segment_id] = now + FEW_AGAIN_SECONDS
            return sample
        return None


def sketch_of(hash_range: HashRange, sample: KeySample) -> list[float]:
    """Return the key histogram of a segment: the number of sampled messages in each bin. The list is empty if the
    sample has fewer than `LEAST_MESSAGES` messages, or no key whose hash is in `hash_range`.

    Messages without a key, and messages whose hash is outside the range because their producers use another hashing
    rule, are spread evenly over the bins: after a split they could be in any child.
    """
    own_hashes = [key_hash for key_hash in sample.hashes if hash_range.contains(key_hash)]
    if not own_hashes or len(sample.hashes) + sample.keyless < LEAST_MESSAGES:
        return []
    spread_count = (len(sample.hashes) - len(own_hashes) + sample.keyless) / bin_count(hash_range)
    return [count + spread_count for count in count_hashes(hash_range, own_hashes)]
