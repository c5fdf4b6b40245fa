"""Consumer watch: who consumes from each topic, as its brokers list it, for applications that never register.

It runs beside the load collector and more often, since the worker is to react to a consumer within seconds. Each round
asks about one topic after the other until the interval is over. The next round goes on where it stopped, so all topics
of a large fleet have their turn. A count is not lowered while a segment of the topic is silent, since silence is not
zero. The store notifies the worker of a change.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller import metrics, telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.dataplane.observation import ObservesConsumers
from controller.domain.errors import CleaveError, InvalidInput
from controller.domain.observed_consumers import ObservedConsumer, subscription_uses
from controller.repeating import Repeating
from controller.store.postgres.engine import Store
from controller.store.topics import observed_consumers
from controller.store.topics import watched_logs as watch_list
from controller.store.topics.observed_consumers import Observation

log = telemetry.get_logger(__name__)

CALL_TOPICS = 32
"""Topics asked about in one call and written in one transaction. When either fails, only these are lost."""
LIST_SHARE = 0.05
"""The list of topics is read anew each round, unless that took more than this share of the time since."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round brought: topics asked about, those with a silent segment, those something was written about."""

    topics: int
    silent: int
    changed: tuple[int, ...]


class ConsumerWatch:
    """Looks at the topics whose names begin with `prefix`, on those of the planes that see consumers."""

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
        """`run` skips a round if `has_turn` returns False, because another process observes. Consumers on logs sealed longer ago than `sealed_for_seconds` are not looked at."""
        if interval_seconds <= 0:
            raise InvalidInput(f"a consumer watch's interval of {interval_seconds:g} s is not longer than 0")
        self._store, self._clock, self._prefix = store, clock, prefix
        self._has_turn = has_turn
        self._planes = {name: plane for name, plane in planes.items() if isinstance(plane, ObservesConsumers)}
        self._interval_seconds, self._sealed_for_seconds = interval_seconds, sealed_for_seconds
        self._stopping = threading.Event()
        self._topics: list[tuple[str, int, list[str]]] = []
        self._list_due = float("-inf")
        self._turn = 0

    @property
    def sees_anything(self) -> bool:
        """Whether a configured data plane sees consumers at all."""
        return bool(self._planes)

    def stop(self) -> None:
        """Finish the call in hand and leave; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """One round an interval until `stop`. A round that fails is logged; the next one comes."""
        retry_seconds = (self._interval_seconds, self._interval_seconds)
        Repeating(
            self._counted_round, self._stopping, log, "round of consumers failed", retry_seconds=retry_seconds
        ).run()

    def _counted_round(self) -> float:
        if not self._has_turn():
            return self._interval_seconds
        began = self._clock.monotonic_seconds()
        outcome = "failed"
        try:
            outcome = "partial" if self.round().silent else "whole"
        finally:
            metrics.CONSUMER_ROUNDS.labels(outcome).inc()
        return max(0.0, began + self._interval_seconds - self._clock.monotonic_seconds())

    def round(self) -> Round:
        """Ask and write until every topic had its turn or the interval is over. Raises StoreUnavailable."""
        began = self._clock.monotonic_seconds()
        topics = self._listed(began)
        left, silent, changed = len(topics), 0, list[int]()
        while left and not self._stopping.is_set():
            self._turn %= len(topics)
            batch = topics[self._turn : self._turn + min(CALL_TOPICS, left)]
            observations = self._look(batch)
            with self._store.transaction() as tx:
                changed += observed_consumers.record(tx, observations)
            silent += len(batch) - sum(one.is_whole for one in observations)
            self._turn += len(batch)
            left -= len(batch)
            if self._clock.monotonic_seconds() >= began + self._interval_seconds:
                break
        if changed:
            log.info("consumers changed", topics=changed)
        return Round(len(topics) - left, silent, tuple(changed))

    def _listed(self, now: float) -> list[tuple[str, int, list[str]]]:
        """Plane, topic and logs of every topic, those of one plane together."""
        if now >= self._list_due:
            with self._store.transaction() as tx:
                logs = watch_list.watched_logs(
                    tx,
                    prefix=self._prefix,
                    sealed_for_seconds=self._sealed_for_seconds,
                    planes=self._planes,
                )
            by_topic: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
            for one in logs:
                by_topic[one.data_plane, one.topic_id].append(one.backing_topic)
            self._topics = [(*key, names) for key, names in sorted(by_topic.items())]
            self._list_due = now + (self._clock.monotonic_seconds() - now) / LIST_SHARE
        return self._topics

    def _look(self, topics: Sequence[tuple[str, int, list[str]]]) -> list[Observation]:
        """What the planes say of these topics; a topic of which no log answered is left out."""
        answers: dict[tuple[str, str], Sequence[ObservedConsumer]] = {}
        for name, plane in self._planes.items():
            logs = [one for of_plane, _, names in topics if of_plane == name for one in names]
            if not logs:
                continue
            try:
                answers |= {(name, one): seen for one, seen in plane.consumers(logs).items()}
            except CleaveError as error:
                log.warning(
                    "data plane did not say of any log who consumes", data_plane=name, error=str(error)
                )
            except Exception:  # what other data planes say would be lost with it
                log.exception("data plane did not say of any log who consumes", data_plane=name)
        observations = []
        for name, topic_id, names in topics:
            heard = {one: answers[name, one] for one in names if (name, one) in answers}
            if heard:
                is_whole = len(heard) == len(names)
                observations.append(Observation(topic_id, subscription_uses(heard), is_whole))
        return observations
