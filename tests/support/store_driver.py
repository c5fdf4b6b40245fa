"""Drives topics through the store alone: intents, claims, steps and commits, without a data plane.

The steps that act on logs are recorded as done, because the store does not depend on their effects; tests of the runner have real logs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, text

from controller.domain.evaluation_input import Capabilities
from controller.domain.layout import SegmentLayout
from controller.domain.next_step import Observed, next_step
from controller.domain.operation import Operation, OperationState, Origin
from controller.domain.operation_steps import Step
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import Reshape, plan_split
from controller.store.decisions.evaluation_inputs import load_evaluation_inputs
from controller.store.journal import (
    claim_check,
    claims,
    commits,
    reshape_intents,
    steps,
    subscription_intents,
    topic_intents,
)
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.journal.steps import StepRecord
from controller.store.postgres.engine import Store
from controller.store.topics import inspector_reads, layouts, topics
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicRow

P = ParamSpec("P")
Result = TypeVar("Result")

RUNNER = "runner-1"
LEASE_SECONDS = 60.0
CALL_TIMEOUT_SECONDS = 1.0
SOMEBODY_WAITS = """
    SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
"""A row for each session of the database that waits for a lock."""


def backing_topic(topic: str, descriptor: str) -> str:
    """Return the name that a broker's data plane gives a log."""
    return f"{topic.replace('topic://', 'persistent://')}-segment-{descriptor}"


def request(key: str | None = None, *, deadline_seconds: float = 600.0) -> Request:
    """Return a manual request, with a random key unless one is given."""
    return Request(key or secrets.token_hex(8), Origin.MANUAL, "tester", "test", deadline_seconds)


class StoreDriver:
    """One store and the usual shorthands on it."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, application_name="cleave-test")

    def do(
        self, function: Callable[Concatenate[Connection, P], Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """Call the store function in a transaction of its own."""
        with self.store.transaction() as tx:
            return function(tx, *args, **kwargs)

    def sql(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, run in a transaction of its own."""
        with self.store.transaction() as tx:
            result = tx.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    def sql_as_controller(self, statement: str) -> None:
        """Run a statement with the rights of the controller's role."""
        with self.store.transaction() as tx:
            tx.execute(text("SET LOCAL ROLE cleave_controller"))
            tx.execute(text(statement))

    def input_version(self) -> int:
        """Return the input version of the only topic."""
        [(version,)] = self.sql("SELECT input_version FROM cleave.evaluation")
        return int(version)

    def intend_create(self, name: str, segments: int = 1, key: str | None = None) -> Intent:
        """Write only the intent of a creation."""
        return self.do(
            topic_intents.intend_create,
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
        """Write only the intent of a reshape."""
        return self.intend_reshape(topic_id, build, request(key)).operation

    def intend_reshape(
        self,
        topic_id: int,
        build: Callable[[SegmentLayout], Reshape],
        wanted: Request,
        *,
        epoch: int | None = None,
        input_version: int | None = None,
    ) -> Intent:
        """Read, plan and write the intent in one transaction, as a service does. A repeated request gets its first intent."""
        with self.store.transaction() as tx:
            view = reshape_intents.look(tx, topic_id, wanted.request_key)
            first = reshape_intents.first_intent(tx, view)
            if first is not None:
                return first
            view.demand_current(epoch=epoch, input_version=input_version)
            draft = ReshapeDraft(view, build(view.layout), wanted, backing_topic, input_version)
            return reshape_intents.intend(tx, draft)

    def claim(
        self, operation: Operation, runner: str = RUNNER, lease_seconds: float = LEASE_SECONDS
    ) -> Operation:
        """Claim this very operation."""
        [claimed] = self.do(
            claims.claim,
            runner=runner,
            lease_seconds=lease_seconds,
            call_timeout_seconds=CALL_TIMEOUT_SECONDS,
            operation_id=operation.operation_id,
        )
        return claimed.operation

    def observe(self, operation: Operation) -> Observed:
        """Return what a runner would read now."""
        return self.do(steps.observe, [operation])[operation.operation_id]

    def step(self, operation: Operation, runner: str = RUNNER) -> Operation:
        """Record the next step of a claimed operation as done. Raises the error that prevents it."""
        observed = self.observe(operation)
        move = next_step(operation, observed)
        positions = {"positions": dict.fromkeys(operation.parent_topics, "0:9")}
        notes = move[0] in (Step.CREATE_CHILDREN, Step.SYNC_SUBSCRIPTIONS)
        record = StepRecord(operation, (move,), positions, observed.subscription_version if notes else None)
        return self.record(record, runner)

    def record(self, record: StepRecord, runner: str = RUNNER) -> Operation:
        """Record or commit these steps, and return the operation afterwards. Raises the reason if the record is refused."""
        started_at_ms = int(time.time() * 1000)
        operation, step = record.operation, record.moves[-1][0]
        if step is Step.COMMIT and operation.kind.is_reshape and not operation.is_mirrored:
            with self.store.transaction() as tx:
                done = commits.commit_reshapes(tx, [record], runner, started_at_ms=started_at_ms)
                if operation.operation_id not in done:
                    raise commits.why_skipped(tx, [record], runner)[operation.operation_id]
                return replace(record.moved(), epoch=done[operation.operation_id].epoch)
        if step is Step.COMMIT:
            committed = self.do(commits.commit_one, record, runner, started_at_ms=started_at_ms)
            return replace(record.moved(), epoch=committed.epoch)
        if step is Step.FINISH_ABORT:
            self.do(commits.abort, record, runner, started_at_ms=started_at_ms)
            return record.moved()
        if operation.operation_id not in self.do(steps.record, [record], runner, started_at_ms=started_at_ms):
            raise claim_check.fenced_out(operation, runner)
        return record.moved()

    def give_up(self, operation: Operation) -> Operation:
        """Claim the operation, and abort it as after a refusal of the broker that is final."""
        refused = StepRecord(
            self.claim(operation), ((Step.ABORT, OperationState.ABORTING),), {"reason": "refused"}
        )
        return self.record(StepRecord(self.record(refused), ((Step.FINISH_ABORT, OperationState.ABORTED),)))

    def run(self, operation: Operation, until: OperationState | None = None) -> Operation:
        """Claim the operation and record steps until the state is reached, or to the end."""
        claimed = self.claim(operation)
        while claimed.state.is_live and claimed.state is not until:
            claimed = self.step(claimed)
        return claimed

    def create(
        self,
        name: str = "topic://t/n/a",
        segments: int = 1,
        subscriptions: Sequence[str] = (),
        splits: Sequence[int] = (),
    ) -> TopicRow:
        """Create a live topic, then these subscriptions, and then split these segments, in this order."""
        topic_id = self.run(self.intend_create(name, segments).operation).topic_id
        for subscription in subscriptions:
            self.subscribe(topic_id, subscription)
        for segment_id in splits:
            self.split(topic_id, segment_id)
        return self.do(topics.get_topic, topic_id)

    def reshape(self, topic_id: int, build: Callable[[SegmentLayout], Reshape]) -> Operation:
        """Reshape the topic and finish the operation."""
        return self.run(self.intend(topic_id, build))

    def split(self, topic_id: int, segment_id: int) -> Operation:
        """Split the segment at its midpoint and finish the operation."""
        return self.reshape(topic_id, lambda layout: plan_split(layout, segment_id))

    def subscribe(
        self,
        topic_id: int,
        name: str,
        kind: SubscriptionKind = SubscriptionKind.STREAM,
        *,
        from_latest: bool = False,
    ) -> None:
        """Create a subscription and finish the operation."""
        intent = self.do(
            subscription_intents.intend_subscription_create,
            topic_id,
            name,
            kind,
            request(),
            from_latest=from_latest,
        )
        self.run(intent.operation)

    def delete(self, topic_id: int) -> Operation:
        """Delete the topic and finish the operation."""
        return self.run(self.do(topic_intents.intend_delete, topic_id, request()).operation)

    def layout_at(self, topic_id: int, at: datetime | int) -> SegmentLayout:
        """Return the layout at an epoch or an instant, as a query gives it; also of a deleted topic."""
        with self.store.transaction() as tx:
            row = topics.get_topic(tx, topic_id)
            topic = inspector_reads.InspectedTopic(
                row.topic_id, row.name, row.state, row.data_plane, row.properties
            )
            return inspector_reads.layout_at(tx, topic, at)

    def policy(self, topic_id: int) -> AutoScalePolicy:
        """Return the policy by which the topic is decided."""
        return self.do(load_evaluation_inputs, [topic_id], {"embedded": Capabilities()})[topic_id].policy

    def layout(self, topic_id: int) -> SegmentLayout:
        """Return the present layout, after checking its invariants."""
        layout = self.do(layouts.load_layout, topic_id)
        layout.check_invariants()
        return layout
