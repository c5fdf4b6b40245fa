"""A bench for operations: store, data planes and the shorthands that tests of services and of chaos share.

Everything is real: PostgreSQL, the embedded logs or a broker's, the operation runner. Claims and calls are short, so that a wait for
their expiry takes seconds, not a minute.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import text

from controller.dataplane.base import DataPlane, LogState
from controller.dataplane.log_client import OutgoingMessage
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationState, Origin
from controller.domain.operation_steps import moves_of
from controller.domain.segment import SegmentState
from controller.services import (
    deletion_sweeper,
    garbage_collector,
    segment_admin,
    subscription_admin,
    topic_admin,
)
from controller.services.operation_runner import Outcome, RunnerContext, run_due, run_operation
from controller.services.reconciler import Finding, FindingKind, reconcile
from controller.store.journal import operations
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, layouts, topics
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench_planes import (
    CALL_TIMEOUT_SECONDS,
    PLAIN_LOGS,
    TOPIC,
    PulsarTopic,
    bench_plane,
)
from tests.support.live_operations import live_operations
from tests.support.older_runner import record_alone
from tests.support.waiting import wait_until

__all__ = ["CALL_TIMEOUT_SECONDS", "TOPIC", "Bench"]
Found = TypeVar("Found")
FOR_PEOPLE = {FindingKind.UNMANAGED_LOG, FindingKind.CURSOR_UNRECORDED, FindingKind.GATE_BREACHED}
"""Differences that the reconciler only reports."""

_ADOPTED = """
    SELECT backing_topic FROM cleave.segment WHERE topic_id = :topic_id AND legacy_topic_name IS NOT NULL
"""


class Bench:
    """One database, one topic (`topic_name`), any number of runners; on a broker if `pulsar` is given."""

    def __init__(self, url: str, pulsar: PulsarTopic | None = None) -> None:
        self.url, self.pulsar = url, pulsar
        self.store = Store(url, application_name="bench")
        self._ground = bench_plane(url, pulsar)
        self.plane, self.runner_plane, self.logs = (
            self._ground.plane,
            self._ground.of_runners,
            self._ground.logs,
        )
        self.planes: Mapping[str, DataPlane] = {self.plane.name: self.runner_plane}
        self.topic_name = pulsar.topic if pulsar else TOPIC
        self.lease_seconds = self._ground.lease_seconds
        self._keys = itertools.count()

    def close(self) -> None:
        """Close all connections."""
        self._ground.close()
        self.store.dispose()

    @property
    def call_timeout_seconds(self) -> float:
        """Longest data-plane call of a runner in seconds."""
        return self.runner_plane.call_timeout_seconds

    def request(self, key: str | None = None, deadline_seconds: float = 60.0) -> Request:
        """Return a manual request, with a new key unless one is given."""
        return Request(
            key or f"request-{next(self._keys)}", Origin.MANUAL, "tester", "test", deadline_seconds
        )

    def context(self, runner_id: str = "runner", **changes: Any) -> RunnerContext:
        """Return the context of a runner on this bench, with these fields changed."""
        base = RunnerContext(
            store=self.store,
            planes=self.planes,
            runner_id=runner_id,
            lease_seconds=self.lease_seconds,
            parallel_calls=1,
        )
        return replace(base, **changes)

    # What people ask for.

    def topic_with(
        self,
        segments: int = 1,
        subscriptions: tuple[str, ...] = ("billing",),
        *,
        kind: SubscriptionKind = SubscriptionKind.STREAM,
        **options: Any,
    ) -> int:
        """Create the topic with its subscriptions, all of one kind, finish the operations, and return the topic's id."""
        self.create(segments, **options)
        for name in subscriptions:
            self.subscribe(name, kind=kind)
        return self.topic_id

    def subscribe(self, name: str, **options: Any) -> Operation:
        """Create the subscription and finish the operation."""
        return self.finish(
            subscription_admin.create_subscription(
                self.store, self.topic_name, name, self.request(), **options
            )
        )

    def create(self, segments: int = 1, **options: Any) -> Operation:
        """Create the topic and finish the operation."""
        options = {"segments": segments, "data_plane": self.plane.name, **options}
        return self.finish(
            topic_admin.create_topic(self.store, self.planes, self.topic_name, self.request(), **options)
        )

    def intend(self, planner: segment_admin.Planner, request: Request | None = None) -> Intent:
        """Write the intent of a reshape of the topic."""
        request = request or self.request()
        return segment_admin.submit(self.store, self.planes, self.topic_name, planner, request)

    def reshape(self, planner: segment_admin.Planner) -> Operation:
        """Reshape the topic and finish the operation."""
        return self.finish(self.intend(planner))

    def publish(self, segment_id: int, count: int = 3) -> None:
        """Append messages to the segment's log."""
        self.append(self.log_of(segment_id), count)

    def append(self, log: str, count: int = 1) -> None:
        """Append messages to any log."""
        batch = [OutgoingMessage(b"payload", b"key")] * count
        stored = self.logs.append(log, batch, producer="tests", sequence=next(self._keys))
        assert stored == count

    def create_again(self, log: str, subscriptions: Sequence[str] = ()) -> None:
        """Create a log as the operation that reserved its name creates the log."""
        with self.store.transaction() as tx:
            origin = backing_logs.origins(tx, [log])[log]
        self.plane.create_segment(log, subscriptions, origin)

    # Running.

    def finish(self, intent: Intent) -> Operation:
        """Run the operation to its end; wait for the claims of other runners to expire."""
        return self.drive(intent.operation.operation_id)

    def drive(self, operation_id: int, context: RunnerContext | None = None) -> Operation:
        """Run the operation repeatedly until it is final; claims of dead runners and delays must expire first. Return the operation."""
        runner = context or self.context("driver")

        def ended() -> Operation | None:
            run_operation(runner, operation_id)
            operation = self.operation(operation_id)
            return None if operation.state.is_live else operation

        operation = self.wait_until(ended, message=f"operation {operation_id} ends")
        assert operation is not None
        return operation

    def run_once(self, operation_id: int, **changes: Any) -> Outcome:
        """Run the operation once, by a runner with these changes."""
        return run_operation(self.context(**changes), operation_id)

    def run_until(self, operation_id: int, state: OperationState) -> None:
        """Run the operation until it is in that state, and release the claim.

        Runners record two steps at once if the second needs no action, so they never stop in `prepared` or `fenced`; an older program
        did, and leaves operations in these states.
        """
        if state in (OperationState.PREPARED, OperationState.FENCED):
            moves = moves_of(self.operation(operation_id))
            before, step = next(
                (earlier, step) for earlier, (step, leads_to) in moves.items() if leads_to is state
            )
            self.run_until(operation_id, before)
            patient = self.context(
                "older",
                planes=self.looking,
                lease_seconds=self.lease_seconds + self.plane.call_timeout_seconds,
            )
            record_alone(patient, operation_id, step, state)
            return

        def there() -> bool:
            return self.operation(operation_id).state is state

        self.wait_until(lambda: there() or (self.run_once(operation_id, should_stop=there) and there()))

    def settle(self, *, collects: bool = False) -> list[Finding]:
        """Run, reconcile and sweep until no work is left. Return the findings of the reconciler on the way.

        `collects`: sealed segments that are drained are also collected at once.
        """
        all_findings: list[Finding] = []

        def settled() -> bool:
            while run_due(self.context("settler")):
                pass
            findings = [
                finding
                for finding in reconcile(self.store, self.looking, self.topic_id)
                if finding.kind not in FOR_PEOPLE
            ]
            all_findings.extend(findings)
            deletion_sweeper.sweep(self.store, self.planes)
            if collects:
                garbage_collector.collect(self.store, self.planes, retention_minutes=0)
            return not findings and not self.live_operations() and not self.undeleted_logs()

        self.wait_until(settled, message="nothing is left to do")
        return all_findings

    def wait_until(self, predicate: Callable[[], Found], *, message: str = "") -> Found:
        """Wait as `waiting.wait_until`, as long as claims and calls of dead runners may last on this bench."""
        return wait_until(predicate, timeout_seconds=self._ground.patience_seconds, message=message)

    # Looking.

    @property
    def looking(self) -> Mapping[str, DataPlane]:
        """The data plane for the test's own calls, which have a longer timeout than those of runners."""
        return {self.plane.name: self.plane}

    def plain_logs(self) -> tuple[str, str]:
        """Create two logs that applications made before there was a topic, and return their names."""
        if self.pulsar is None:
            return PLAIN_LOGS
        self.pulsar.make_plain_topic()
        return self.pulsar.plain_logs

    @property
    def topic_id(self) -> int:
        """Id of the newest topic of the name, deleted or not."""
        newest = "SELECT max(topic_id) FROM cleave.topic WHERE name = :name"
        return int(self.scalar(newest, name=self.topic_name))

    @property
    def topic(self) -> topics.TopicRow:
        """The row of the topic."""
        with self.store.transaction() as tx:
            return topics.get_topic(tx, self.topic_id)

    @property
    def layout(self) -> SegmentLayout:
        """The present layout."""
        with self.store.transaction() as tx:
            return layouts.load_layout(tx, self.topic_id)

    def operation(self, operation_id: int) -> Operation:
        """Return the present row of the operation."""
        with self.store.transaction() as tx:
            return operations.get_operation(tx, operation_id)

    def live_operations(self) -> list[Operation]:
        """Return the live operations of all topics."""
        with self.store.transaction() as tx:
            return live_operations(tx)

    def log_of(self, segment_id: int) -> str:
        """Return the backing topic of a segment, pruned or not."""
        statement = (
            "SELECT backing_topic FROM cleave.segment WHERE topic_id = :topic_id AND segment_id = :segment_id"
        )
        return str(self.scalar(statement, topic_id=self.topic_id, segment_id=segment_id))

    def open_deletion_entries(self) -> int:
        """Return the number of logs whose deletion is not confirmed yet."""
        return int(self.scalar("SELECT count(*) FROM cleave.deletion_entry WHERE closed_at IS NULL"))

    def undeleted_logs(self) -> list[str]:
        """Return the logs on the data plane that belong to no segment."""
        with self.store.transaction() as tx:
            expected = set(backing_logs.backing_topics(tx, self.topic_id))
        return [name for name in self.plane.list_segments(self.topic_name) if name not in expected]

    def unread(self, subscription: str) -> int:
        """Return the number of messages that the subscription has not acknowledged, over all logs of the topic."""
        return sum(
            self.plane.backlog(log, subscription) or 0 for log in self.plane.list_segments(self.topic_name)
        )

    def scalar(self, statement: str, **parameters: object) -> Any:
        """Return one value from the database."""
        with self.store.transaction() as tx:
            return tx.execute(text(statement), parameters).scalar_one()

    def rows(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        with self.store.transaction() as tx:
            return [tuple(row) for row in tx.execute(text(statement), parameters)]

    def execute(self, statement: str, **parameters: object) -> None:
        """Change rows directly, in a transaction."""
        with self.store.transaction() as tx:
            tx.execute(text(statement), parameters)

    def make_due(self) -> None:
        """Make every deferred operation due at once."""
        self.execute("UPDATE cleave.operation SET not_before = '-infinity', row_version = row_version + 1")

    def check_laws(self) -> None:
        """Assert the layout's invariants, and that the data plane has exactly the logs and states that the metadata expects."""
        layout = self.layout
        with self.store.transaction() as tx:
            books = backing_logs.read_expected_logs(tx, [self.topic_id])[self.topic_id]
            uncovered = tx.execute(text("SELECT * FROM inspect.uncovered_ranges")).all()
            adopted = set(tx.execute(text(_ADOPTED), {"topic_id": self.topic_id}).scalars())
        assert uncovered == []
        if books.topic_state == "live":
            layout.check_invariants()
        else:
            assert books.logs == ()
        assert sorted(self.plane.list_segments(self.topic_name)) == sorted(
            log.backing_topic
            for log in books.logs
            if log.backing_topic not in adopted  # which the plane did not name
        )
        for log in books.logs:
            is_active = log.state is SegmentState.ACTIVE
            expected = LogState.OPEN if is_active else LogState.TERMINATED
            assert (log.backing_topic, self.plane.segment_state(log.backing_topic)) == (
                log.backing_topic,
                expected,
            )
            missing = set(books.expected_on(log)) - set(self.plane.list_subscriptions(log.backing_topic))
            assert (log.backing_topic, missing) == (log.backing_topic, set())
