"""One of many processes that change the same few topics with every action, and run the operations that they and others began.

Everything is real: intents, runner, sweeper, logs. A round is one random action and a short run of operations. Refusals are expected and
counted; any other error ends the process with its traceback.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.dataplane.embedded import EmbeddedDataPlane
from controller.domain.errors import Conflict, InvalidLayoutChange, NotFound, Retryable, TopicNotFound
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Origin
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import Reshape, plan_merge, plan_rebucket, plan_split
from controller.services.deletion_sweeper import sweep
from controller.services.operation_runner import RunnerContext, run_due
from controller.store.journal import reshape_intents, subscription_intents, topic_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.engine import Store
from controller.store.topics import policies, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicRow

NAMESPACE = "t/n"
CALL_TIMEOUT_SECONDS = 3.0
CROWDED = 12
"""From so many segments on a topic is merged rather than split, so that rounds stay short."""

_REFUSALS = (Retryable, Conflict, NotFound, InvalidLayoutChange)


@dataclass
class ProcessRecord:
    """Actions of one process, for a comparison with the database."""

    outcomes: Counter[str] = field(default_factory=Counter)
    bumps: Counter[int] = field(default_factory=Counter)
    """Successful compare-and-set increments, by topic id."""
    namespace_writes: int = 0
    operation_of_key: dict[str, int] = field(default_factory=dict)


def churn(url: str, seed: int, rounds: int, names: Sequence[str]) -> ProcessRecord:
    """Run `rounds` rounds on the topics `names`, each followed by the due operations and sometimes by a sweep. Return the record of the
    process.
    """
    store = Store(url, application_name=f"churn-{seed}", pool_size=2)
    plane = EmbeddedDataPlane(url, call_timeout_seconds=CALL_TIMEOUT_SECONDS, pool_size=1)
    context = RunnerContext(
        store=store,
        planes={"embedded": plane},
        runner_id=f"churn-{seed}",
        lease_seconds=30.0,
        parallel_calls=1,
    )
    player = _Player(store, plane, random.Random(seed), f"{seed}", names)
    try:
        for number in range(rounds):
            player.play(number)
            run_due(context, limit=2)
            if player.rng.random() < 0.2:
                sweep(store, {"embedded": plane}, limit=10)
        return player.record
    finally:
        store.dispose()
        plane.close()


class _Player:
    def __init__(
        self, store: Store, plane: EmbeddedDataPlane, rng: random.Random, who: str, names: Sequence[str]
    ) -> None:
        self.rng = rng
        self.record = ProcessRecord()
        self._store = store
        self._plane = plane
        self._who = who
        self._names = names
        self._requests = 0

    def play(self, number: int) -> None:
        """Perform one action on one topic; on an unused name, create the topic. Refusals are counted."""
        name = self.rng.choice(self._names)
        acts: dict[str, tuple[Callable[[TopicRow], None], int]] = {
            "reshape": (self._reshape, 10),
            "reshape together": (lambda topic: self._reshape_together(topic, number), 5),
            "bump": (self._bump, 4),
            "topic policy": (self._set_topic_policy, 2),
            "namespace policy": (self._set_namespace_policy, 2),
            "subscribe": (self._subscribe, 4),
            "unsubscribe": (self._unsubscribe, 3),
            "delete": (self._delete, 1),
        }
        [label] = self.rng.choices(list(acts), [weight for _act, weight in acts.values()])
        topic = self._find(name)
        label = label if topic else "create"
        try:
            if topic is None:
                self._create(name)
            else:
                act, _weight = acts[label]
                act(topic)
        except _REFUSALS as refusal:
            self.record.outcomes[f"{label}: {type(refusal).__name__}"] += 1
        else:
            self.record.outcomes[f"{label}: done"] += 1

    def _find(self, name: str) -> TopicRow | None:
        try:
            with self._store.transaction() as tx:
                return topics.find_topic(tx, name)
        except TopicNotFound:
            return None

    def _request(self, key: str | None = None) -> Request:
        self._requests += 1
        return Request(key or f"{self._who}-{self._requests}", Origin.API, self._who, "churn", 600.0)

    def _create(self, name: str) -> None:
        with self._store.transaction() as tx:
            topic_intents.intend_create(
                tx,
                name,
                segments=self.rng.randint(1, 3),
                data_plane="embedded",
                backing_topic=self._plane.backing_topic,
                bucket_budget=4,
                max_buckets=64,
                request=self._request(),
            )

    def _plan(self, layout: SegmentLayout) -> Reshape:
        active, roll = layout.active, self.rng.random()
        index = self.rng.randrange(len(active))
        if len(active) > 1 and (roll < 0.3 or len(active) >= CROWDED):
            index = min(index, len(active) - 2)
            return plan_merge(layout, active[index].segment_id, active[index + 1].segment_id)
        if roll < 0.45:
            return plan_rebucket(layout, active[index].segment_id, self.rng.randint(1, 8))
        return plan_split(layout, active[index].segment_id)

    def _intend_reshape(self, topic: TopicRow, request: Request) -> Intent:
        with self._store.transaction() as tx:
            topics.get_topic(tx, topic.topic_id, lock=True)
            view = reshape_intents.look(tx, topic.topic_id, request.request_key)
            first = reshape_intents.first_intent(tx, view)
            if first is not None:
                return first
            view.demand_current()
            draft = ReshapeDraft(view, self._plan(view.layout), request, self._plane.backing_topic)
            return reshape_intents.intend(tx, draft)

    def _reshape(self, topic: TopicRow) -> None:
        self._intend_reshape(topic, self._request())

    def _reshape_together(self, topic: TopicRow, number: int) -> None:
        """Request a reshape with a key that several processes use: all get one operation."""
        key = f"together-{topic.topic_id}-{number}"
        intent = self._intend_reshape(topic, self._request(key))
        self.record.operation_of_key[key] = intent.operation.operation_id

    def _bump(self, topic: TopicRow) -> None:
        """Read a counter and write it by compare-and-set, the simplest change in which an update could be lost."""
        bumps = int(topic.properties.get("bumps", "0"))
        with self._store.transaction() as tx:
            topics.update_topic(tx, topic, properties={**topic.properties, "bumps": str(bumps + 1)})
        self.record.bumps[topic.topic_id] += 1

    def _set_topic_policy(self, topic: TopicRow) -> None:
        override = PolicyOverride(max_segments=self.rng.randint(1, 99))
        with self._store.transaction() as tx:
            policies.set_topic(tx, topic.topic_id, override)

    def _set_namespace_policy(self, _topic: TopicRow) -> None:
        with self._store.transaction() as tx:
            _, row_version = policies.stored_version(tx, namespace=NAMESPACE)
        override = PolicyOverride(max_segments=self.rng.randint(1, 99))
        with self._store.transaction() as tx:
            policies.set_namespace(tx, NAMESPACE, override, actor=self._who, seen_row_version=row_version)
        self.record.namespace_writes += 1

    def _subscribe(self, topic: TopicRow) -> None:
        with self._store.transaction() as tx:
            subscription_intents.intend_subscription_create(
                tx, topic.topic_id, f"s{self.rng.randrange(6)}", SubscriptionKind.STREAM, self._request()
            )

    def _unsubscribe(self, topic: TopicRow) -> None:
        with self._store.transaction() as tx:
            names = [row.name for row in subscriptions.list_subscriptions(tx, topic.topic_id)]
            if names:
                subscription_intents.intend_subscription_delete(
                    tx, topic.topic_id, self.rng.choice(names), self._request()
                )

    def _delete(self, topic: TopicRow) -> None:
        with self._store.transaction() as tx:
            topic_intents.intend_delete(tx, topic.topic_id, self._request())
