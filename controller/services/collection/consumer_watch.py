"""Consumer watch: reads from the brokers which consumers each topic has, for applications that do not
register consumers with Cleave.

The watch runs next to the load collector, and more often, because the worker must react to a consumer within
seconds. Each round reads one batch of topics after another until the interval is over. The next round
continues after the last batch, so that all topics of a large fleet are read in turn. A consumer count is not
lowered while a segment of the topic does not answer, because no answer does not mean no consumers. The store
notifies the worker of a change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller import metrics, telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.dataplane.optional_abilities import ObservesConsumers
from controller.domain.errors import CleaveError, InvalidInput
from controller.domain.observed_consumers import ObservedConsumer, subscription_uses
from controller.repeating import Repeating, Stoppable
from controller.store.postgres.engine import Store
from controller.store.topics import observed_consumers
from controller.store.topics import watched_logs as watch_list
from controller.store.topics.observed_consumers import Observation

log = telemetry.get_logger(__name__)

CALL_TOPICS = 32
"""Number of topics that are read in one call and written in one transaction. A failure loses only these
topics.
"""
LIST_SHARE = 0.05
"""Largest share of the time that listing the topics may take: the list is reloaded each round, unless loading
it took more than this share of the time since.
"""


@dataclass(frozen=True, slots=True)
class Round:
    """Result of one round. `topics` is the number of topics that the round tried to read, `silent` the number of
    these with a segment that did not answer, and `changed` the ids of the topics whose consumers changed.
    """

    topics: int
    silent: int
    changed: tuple[int, ...]


class ConsumerWatch(Stoppable):
    """Reads the consumers of the topics whose names begin with `prefix`, on those data planes that can list
    consumers.
    """

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        *,
        interval_seconds: float,
        sealed_for_seconds: float,
        clock: Clock,
        prefix: str = "",
        has_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        """`run` skips a round if `has_turn` returns False, because another process observes. Consumers of logs
        that were sealed more than `sealed_for_seconds` ago are ignored. Raises InvalidInput if
        `interval_seconds` is not above 0.
        """
        super().__init__()
        if interval_seconds <= 0:
            raise InvalidInput(
                f"the interval of a consumer watch must be longer than 0 s, not {interval_seconds:g}"
            )
        self._store, self._clock, self._prefix = store, clock, prefix
        self._has_turn = has_turn
        self._planes = {name: plane for name, plane in planes.items() if isinstance(plane, ObservesConsumers)}
        self._interval_seconds, self._sealed_for_seconds = interval_seconds, sealed_for_seconds
        self._topics: list[tuple[str, int, list[str]]] = []
        self._list_due = float("-inf")
        self._turn = 0

    @property
    def can_observe(self) -> bool:
        """True if a configured data plane can list consumers."""
        return bool(self._planes)

    def run(self) -> None:
        """Run one round per interval until `stop`, unless another process observes. If a round fails, log the
        error and continue with the next round.
        """
        retry_seconds = (self._interval_seconds, self._interval_seconds)
        Repeating(
            self._counted_round, self._stopping, log, "round of consumers failed", retry_seconds=retry_seconds
        ).run()

    def _counted_round(self) -> float:
        """Run a round, and count it as a metric: `whole`, `partial` if a log did not answer, or `failed` if the round
        raises an error, which this method raises too. Return the seconds until the next round, which begins one
        interval after the beginning of this one; 0 if that time is over. If another process observes the consumers,
        do nothing and return the whole interval.
        """
        if not self._has_turn():
            return self._interval_seconds
        began_at = self._clock.monotonic_seconds()
        outcome = "failed"
        try:
            outcome = "partial" if self.round().silent else "whole"
        finally:
            metrics.CONSUMER_ROUNDS.labels(outcome).inc()
        return max(0.0, began_at + self._interval_seconds - self._clock.monotonic_seconds())

    def round(self) -> Round:
        """Read the consumers of topics and store them, in batches of `CALL_TOPICS` topics with a transaction each,
        until each topic was read, the interval is over or `stop` was called. The next round begins after the last topic
        of this round. Logs and returns the ids of the changed topics; also returns the number of topics that the round
        tried to read, and how many of these have a log that did not answer. A data plane that does not answer is
        logged. Raises StoreUnavailable.
        """
        began_at = self._clock.monotonic_seconds()
        topics = self._listed(began_at)
        remaining, silent, changed = len(topics), 0, list[int]()
        while remaining and not self._stopping.is_set():
            self._turn %= len(topics)
            batch = topics[self._turn : self._turn + min(CALL_TOPICS, remaining)]
            observations = self._observe(batch)
            with self._store.transaction() as tx:
                changed += observed_consumers.record(tx, observations)
            silent += len(batch) - sum(observation.is_whole for observation in observations)
            self._turn += len(batch)
            remaining -= len(batch)
            if self._clock.monotonic_seconds() >= began_at + self._interval_seconds:
                break
        if changed:
            log.info("consumers changed", topics=changed)
        return Round(len(topics) - remaining, silent, tuple(changed))

    def _listed(self, now: float) -> list[tuple[str, int, list[str]]]:
        """Return data plane, id and logs (of segments that are active, or were sealed within `sealed_for_seconds`) of
        every topic to observe: live topics whose names begin with the prefix, on data planes that can list consumers.
        The list is read again in each round, unless reading it took more than `LIST_SHARE` of the time since; `now` is
        the monotonic time in seconds. Topics of one data plane are adjacent. Raises StoreUnavailable.
        """
        if now >= self._list_due:
            with self._store.transaction() as tx:
                logs = watch_list.watched_logs(
                    tx,
                    prefix=self._prefix,
                    sealed_for_seconds=self._sealed_for_seconds,
                    planes=self._planes,
                )
            by_topic: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
            for log in logs:
                by_topic[log.data_plane, log.topic_id].append(log.backing_topic)
            self._topics = [(*key, names) for key, names in sorted(by_topic.items())]
            self._list_due = now + (self._clock.monotonic_seconds() - now) / LIST_SHARE
        return self._topics

    def _observe(self, topics: Sequence[tuple[str, int, list[str]]]) -> list[Observation]:
        """Return the observations of these topics, each given as data plane, id and logs. A topic of which no
        log answered is left out; a topic of which some logs did not answer is marked as not whole. Errors of a
        data plane are logged.
        """
        consumers_by_log: dict[tuple[str, str], Sequence[ObservedConsumer]] = {}
        for name, plane in self._planes.items():
            logs = [log for plane_name, _, names in topics if plane_name == name for log in names]
            if not logs:
                continue
            try:
                consumers_by_log |= {
                    (name, log): consumers for log, consumers in plane.consumers(logs).items()
                }
            except CleaveError as error:
                log.warning("consumers of a data plane not listed", data_plane=name, error=str(error))
            except Exception:  # An unexpected error must not lose the answers of other data planes.
                log.exception("consumers of a data plane not listed", data_plane=name)
        observations = []
        for name, topic_id, names in topics:
            answered_logs = {
                log: consumers_by_log[name, log] for log in names if (name, log) in consumers_by_log
            }
            if answered_logs:
                is_whole = len(answered_logs) == len(names)
                observations.append(Observation(topic_id, subscription_uses(answered_logs), is_whole))
        return observations
