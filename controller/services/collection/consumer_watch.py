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
from typing import NamedTuple

from controller import metrics, telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.dataplane.optional_abilities import ObservesConsumers
from controller.domain.errors import InvalidInput
from controller.domain.observed_consumers import ObservedConsumer, subscription_uses
from controller.repeating import Repeating, Stoppable, contained
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


class ConsumerRound(NamedTuple):
    """Result of a round."""

    topics: int
    """Number of topics that the round tried to read."""
    silent: int
    """Number of these topics that have a log without an answer."""
    changed: list[int]
    """Ids of the topics whose stored consumers changed."""


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
        """`planes` are the data planes by name; those that cannot list consumers are ignored. Only topics whose names
        begin with `prefix` are read. Consumers of logs that were sealed more than `sealed_for_seconds` ago are
        ignored. `has_turn` is called before each round of `run`; if it returns False, because another process
        observes the consumers, the round is skipped. Raises InvalidInput if `interval_seconds`, the time between the
        beginnings of two rounds, is not above 0.
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
        """Run one round per interval until `stop`, beginning at once. A round is skipped while `has_turn` returns
        False, because another process observes the consumers. If a round fails, log the error, and begin the next
        round after one interval. Raises nothing.
        """
        retry_seconds = (self._interval_seconds, self._interval_seconds)
        Repeating(
            self._counted_round, self._stopping, log, "round of consumers failed", retry_seconds=retry_seconds
        ).run()

    def _counted_round(self) -> float:
        """Run a round, and count it as a metric: `whole` if all logs answered, `partial` if a log did not answer,
        `failed` if the round raises an error, which is raised here too. Return the seconds until the next round,
        which begins one interval after the beginning of this round; 0 if that time is over. If `has_turn` returns
        False, because another process observes the consumers, do nothing and return the whole interval.
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

    def round(self) -> ConsumerRound:
        """Read the consumers of the listed topics, and store the changes, in batches of `CALL_TOPICS` topics with a
        transaction for each batch. The round ends when each topic was read, the interval is over, or `stop` was
        called. Unless `stop` was called, the round reads at least one batch. The next round begins after the last
        topic of this round.

        Return the result; the topics whose stored consumers changed are also logged. If a log of a topic did not
        answer, the stored counts of the topic are not lowered. Errors of a data plane are logged, and its
        logs count as without an answer.

        Raises StoreUnavailable and the other errors of `Store.transaction`, except InvalidInput. The batches before the
        error stay stored.
        """
        began_at = self._clock.monotonic_seconds()
        topics = self._listed(began_at)
        remaining, silent, changed = len(topics), 0, list[int]()
        while remaining and not self._stopping.is_set():
            self._turn %= len(topics)
            batch = topics[self._turn : self._turn + min(CALL_TOPICS, remaining)]
            observations = self._observe(batch)
            silent += len(batch) - sum(observation.is_whole for observation in observations)
            self._turn += len(batch)
            remaining -= len(batch)
            changed += self._stored(observations)
            if self._clock.monotonic_seconds() >= began_at + self._interval_seconds:
                break
        if changed:
            log.info("consumers changed", topics=changed)
        return ConsumerRound(len(topics) - remaining, silent, changed)

    def _stored(self, observations: Sequence[Observation]) -> list[int]:
        """Store the observations, and return the ids of the topics whose stored consumers changed. If the database
        refuses a value of the observations, each is stored by itself, and those with such a value are logged. Raises
        the other errors of `Store.transaction`.
        """
        try:
            return self._store.in_transaction(observed_consumers.record, observations)
        except InvalidInput as error:  # Any client may give a subscription a name that the database refuses.
            if len(observations) > 1:
                return [topic_id for observation in observations for topic_id in self._stored([observation])]
            log.warning(
                "consumers of a topic not stored", topic_id=observations[0].topic_id, error=str(error)
            )
            return []

    def _listed(self, now: float) -> list[tuple[str, int, list[str]]]:
        """Return every topic to observe, as data plane, topic id and names of its logs. These are the live topics
        whose names begin with the prefix, on data planes that can list consumers. The logs are those of segments that
        are active or were sealed less than `sealed_for_seconds` ago. Topics of one data plane are adjacent.

        `now` is the monotonic time in seconds. The list of an earlier call is returned again if reading it took more
        than `LIST_SHARE` of the time since. Otherwise the list is read from the database. Raises StoreUnavailable.
        """
        if now >= self._list_due:
            logs = self._store.in_transaction(
                watch_list.watched_logs,
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
        """Ask the data planes for the consumers of these topics, each given as data plane, topic id and names of its
        logs, and return the observations. The observation of a topic is marked as not whole if some of its logs did
        not answer. A topic is absent if none of its logs answered. Errors of a data plane are logged; all of its logs
        then count as without an answer.
        """
        consumers_by_log: dict[tuple[str, str], Sequence[ObservedConsumer]] = {}
        for name, plane in self._planes.items():
            logs = [log for plane_name, _, names in topics if plane_name == name for log in names]
            if not logs:
                continue
            with contained(log, "consumers of a data plane not listed", data_plane=name):
                consumers_by_log |= {
                    (name, log): consumers for log, consumers in plane.consumers(logs).items()
                }
        observations = []
        for name, topic_id, names in topics:
            answered_logs = {
                log: consumers_by_log[name, log] for log in names if (name, log) in consumers_by_log
            }
            if answered_logs:
                is_whole = len(answered_logs) == len(names)
                observations.append(Observation(topic_id, subscription_uses(answered_logs), is_whole))
        return observations
