"""Drives topics through the store alone: intents, claims, steps and commits, with no data plane behind them.

The steps that act on logs are recorded as done. What they would have done is not the store's to know; tests of
the runner have real logs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, text

from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationState, Origin, Step, next_step
from controller.domain.reshape import Reshape, plan_split
from controller.store.journal import claims as operations
from controller.store.journal import commits, intents
from controller.store.journal.intents import Wanted
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicRow

P = ParamSpec("P")
Result = TypeVar("Result")

RUNNER = "runner-1"
LEASE_SECONDS = 60.0
CALL_TIMEOUT_SECONDS = 1.0


def backing_topic(topic: str, descriptor: str) -> str:
    """The name a broker's data plane gives a log."""
    return f"{topic.replace('topic://', 'persistent://')}-segment-{descriptor}"


def request(key: str | None = None, *, deadline_seconds: float = 600.0) -> intents.Request:
    """A manual request under a key of its own."""
    return intents.Request(key or secrets.token_hex(8), Origin.MANUAL, "tester", "test", deadline_seconds)


class StoreDriver:
    """One store and the usual errands on it."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, application_name="cleave-test")

    def do(
        self, function: Callable[Concatenate[Connection, P], Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """The store function in a transaction of its own."""
        with self.store.transaction() as tx:
            return function(tx, *args, **kwargs)

    def sql(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Rows of a statement in a transaction of its own."""
        with self.store.transaction() as tx:
            result = tx.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    def intend_create(self, name: str, segments: int = 1, key: str | None = None) -> intents.Intent:
        """The intent alone."""
        return self.do(
            intents.intend_create,
            name,
            segments=segments,
            data_plane="embedded",
            backing_topic=backing_topic,
            bucket_budget=4,
            max_buckets=64,
            request=request(key),
        )

    def intend(
        self, topic_id: int, build: Callable[[SegmentLayout], Reshape], key: str | None = None
    ) -> Operation:
        """The intent of a reshape alone."""
        return self.do(intents.intend_reshape, Wanted(topic_id, build, backing_topic, request(key))).operation

    def claim(
        self, operation: Operation, runner: str = RUNNER, lease_seconds: float = LEASE_SECONDS
    ) -> Operation:
        """Claims this very operation."""
        [claimed] = self.do(
            operations.claim,
            runner=runner,
            lease_seconds=lease_seconds,
            call_timeout_seconds=CALL_TIMEOUT_SECONDS,
            operation_id=operation.operation_id,
        )
        return claimed

    def step(self, operation: Operation, runner: str = RUNNER) -> Operation:
        """Takes and records the next step of a claimed operation."""
        observed = self.do(operations.observe, operation)
        step, leads_to = next_step(operation, observed)
        started_at = datetime.now(UTC)
        if step is Step.COMMIT:
            return self.do(commits.commit, operation, runner, started_at=started_at)
        if step is Step.FINISH_ABORT:
            return self.do(commits.abort, operation, runner, started_at=started_at)
        moved, _ = self.do(
            operations.record_step,
            operation,
            runner,
            step,
            leads_to,
            started_at=started_at,
            detail={"positions": dict.fromkeys(operation.parent_topics, "0:9")},
            subscription_version=observed.subscription_version,
        )
        return moved

    def run(self, operation: Operation, until: OperationState | None = None) -> Operation:
        """Claims it and takes steps until the state is reached, or to the end."""
        claimed = self.claim(operation)
        while claimed.state.is_live and claimed.state is not until:
            claimed = self.step(claimed)
        return claimed

    def create(self, name: str = "topic://t/n/a", segments: int = 1) -> TopicRow:
        """A live topic."""
        operation = self.run(self.intend_create(name, segments).operation)
        return self.do(topics.get_topic, operation.topic_id)

    def reshape(self, topic_id: int, build: Callable[[SegmentLayout], Reshape]) -> Operation:
        """A reshape, done."""
        return self.run(self.intend(topic_id, build))

    def split(self, topic_id: int, segment_id: int) -> Operation:
        """A split at the midpoint, done."""
        return self.reshape(topic_id, lambda layout: plan_split(layout, segment_id))

    def subscribe(self, topic_id: int, name: str, kind: SubscriptionKind = SubscriptionKind.STREAM) -> None:
        """A subscription, created to the end."""
        intent = self.do(intents.intend_subscription_create, topic_id, name, kind, request())
        self.run(intent.operation)

    def delete(self, topic_id: int) -> Operation:
        """The topic, deleted to the end."""
        return self.run(self.do(intents.intend_delete, topic_id, request()).operation)

    def layout(self, topic_id: int) -> SegmentLayout:
        """The present layout, its laws checked."""
        layout = self.do(layouts.load_layout, topic_id)
        layout.check_invariants()
        return layout
