"""Embedded logs with fake gates, for tests of the controller. The product's embedded logs have no gates.

Logs, cursors and messages are real. A gate is a row in the database of the logs, so every process of a test sees the gate, and the gate
survives the crash of a process. A fake gate holds no message back; the tests on a real broker cover this. `GatedLogs.acts` records
every call that changes a gate, probes a fence, persists a cursor, terminates a log or moves a cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import text

from controller.clock import Clock, SystemClock
from controller.dataplane.base import LogState
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.errors import DataGone, SegmentNotFound, SubscriptionNotFound, Unsupported
from controller.domain.gate_states import FenceState, GateState
from controller.domain.observed_consumers import ObservedConsumer
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services.gate_keeper import GateKeeper
from controller.services.segment_admin import splitting
from controller.services.subscription_admin import create_subscription
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from tests.support.bench import CALL_TIMEOUT_SECONDS, Bench

ALL = Shards.of(1, [0])


_TABLES = """
    CREATE SCHEMA IF NOT EXISTS gated_logs;
    CREATE TABLE IF NOT EXISTS gated_logs.gate (log text, subscription text, state text NOT NULL, PRIMARY KEY (log, subscription));
    CREATE TABLE IF NOT EXISTS gated_logs.barrier (log text PRIMARY KEY);
"""
_CLOSE = """
    INSERT INTO gated_logs.gate VALUES (:log, :subscription, 'closed')
    ON CONFLICT (log, subscription) DO UPDATE SET state = 'closed'
"""


class GatedLogs(EmbeddedDataPlane):
    """Embedded data plane with a fake gate for each log and subscription. Safe for the threads of one gate keeper."""

    def __init__(self, url: str, *, call_timeout_seconds: float) -> None:
        super().__init__(url, call_timeout_seconds=call_timeout_seconds)
        self._gate_store = Store(url, application_name="gated-logs")
        self._run("SELECT pg_advisory_xact_lock(8); " + _TABLES)
        self.acts: list[tuple[str, str]] = []
        """The calls in order, each as the name of the action and the log."""
        self.sought: dict[str, int] = {}
        """Instant in milliseconds to which a log's cursor was moved last, by log."""
        self.unwritten: set[str] = set()
        """Logs whose cursors the fake server has not persisted: `persist_cursor_at_end` returns False for them."""
        self.fences: dict[str, list[FenceState]] = {}
        """Results of the next probes of a fence, by log. Later probes return TERMINATED."""
        self.attached: dict[str, list[ObservedConsumer]] = {}
        """Consumers that a broker would list, by log."""
        self.before: Callable[[str, str], None] = lambda _act, _log: None
        """Hook that runs before each recorded call, with the name of the action and the log."""

    def close(self) -> None:
        """Close the connections."""
        self._gate_store.dispose()
        super().close()

    @property
    def gates(self) -> dict[tuple[str, str], GateState]:
        """States of the gates that are not open, by log and subscription."""
        rows = self._run("SELECT log, subscription, state FROM gated_logs.gate")
        return {(log, name): GateState(state) for log, name, state in rows}

    def set_gate(self, log: str, subscription: str, state: GateState | None) -> None:
        """Set the state of a gate without a call of Cleave. None opens the gate."""
        which = {"log": log, "subscription": subscription}
        self._run("DELETE FROM gated_logs.gate WHERE log = :log AND subscription = :subscription", **which)
        if state is not None:
            self._run(
                "INSERT INTO gated_logs.gate VALUES (:log, :subscription, :state)", **which, state=state.value
            )

    def open_all_by_hand(self) -> None:
        """Open every gate without a call of Cleave."""
        self._run("DELETE FROM gated_logs.gate")

    def _run(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        with self._gate_store.transaction() as tx:
            result = tx.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    def _note(self, act: str, log: str) -> None:
        self.before(act, log)
        self.acts.append((act, log))

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Return the consumers in `attached` for each log."""
        return {log: self.attached.get(log, []) for log in backing_topics}

    def attach(self, log: str, subscription: str, kind: str, *names: str) -> None:
        """Make `consumers` list consumers with these names on the log. They replace the log's consumers."""
        self.attached[log] = [ObservedConsumer(subscription, kind, name, name, "broker") for name in names]

    def demand_gates(self, topic: str) -> None:
        """Raise Unsupported for a topic whose name ends with `-without-policies`."""
        if topic.endswith("-without-policies"):
            raise Unsupported(
                f"topic policies are switched off at the brokers of {topic}; set topicLevelPoliciesEnabled=true"
            )

    def close_gate(self, backing_topic: str, subscription: str) -> None:
        """Record the gate as closed, with a barrier, and create the subscription. Does not move an existing cursor.

        Raises SegmentNotFound, and DataGone if the log had messages before it had a barrier.
        """
        self._note("close", backing_topic)
        state = self.segment_state(backing_topic)
        if state is LogState.MISSING:
            raise SegmentNotFound(f"no log {backing_topic}")
        if not self._run("SELECT FROM gated_logs.barrier WHERE log = :log", log=backing_topic):
            if self.describe_logs([backing_topic])[backing_topic].has_carried_messages:
                raise DataGone(f"{backing_topic} begins with a message of an application")
            self._run(
                "INSERT INTO gated_logs.barrier VALUES (:log) ON CONFLICT DO NOTHING", log=backing_topic
            )
        self._run(_CLOSE, log=backing_topic, subscription=subscription)
        self.create_subscription(backing_topic, subscription)

    def open_gate(self, backing_topic: str, subscription: str) -> None:
        """Delete the row of the gate."""
        self._note("open", backing_topic)
        self.set_gate(backing_topic, subscription, None)

    def gate_state(self, backing_topic: str, subscription: str) -> GateState | None:
        """Return the recorded state, OPEN if there is no row. None if the log lacks the subscription."""
        if subscription not in self.list_subscriptions(backing_topic):
            return None
        return self.gates.get((backing_topic, subscription), GateState.OPEN)

    def skip_barrier(self, backing_topic: str, subscription: str) -> None:
        """Do nothing, because the fake barrier of an open gate does not count as unread."""

    def persist_cursor_at_end(self, backing_topic: str, subscription: str) -> bool:
        """Return True if the log is terminated and drained, its gate is open, and the log is not in `unwritten`.

        A gate that is not open counts as an unacknowledged message, as its barrier would on a broker.
        """
        self._note("persist", backing_topic)
        backlog = self.backlog(backing_topic, subscription)
        if backlog is None:
            raise SubscriptionNotFound(f"no subscription {subscription} on {backing_topic}")
        is_read = backlog == 0 and (backing_topic, subscription) not in self.gates
        is_terminated = self.segment_state(backing_topic) is LogState.TERMINATED
        return is_terminated and is_read and backing_topic not in self.unwritten

    def probe_fence(self, backing_topic: str) -> FenceState:
        """Return the next result from `fences`, TERMINATED if there is none."""
        self._note("probe", backing_topic)
        results = self.fences.get(backing_topic)
        return results.pop(0) if results else FenceState.TERMINATED

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Terminate the logs, and record one call for each log."""
        for log in backing_topics:
            self._note("terminate", log)
        return super().terminate_segments(backing_topics)

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the cursor, and record the call and the instant."""
        self._note("seek", backing_topic)
        self.sought[backing_topic] = instant_ms
        super().seek(backing_topic, subscription, instant_ms)


class GatedBench(Bench):
    """A bench whose logs have fake gates. The bench also creates gate keepers."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gated = GatedLogs(url, call_timeout_seconds=CALL_TIMEOUT_SECONDS)
        self.plane = self.runner_plane = self.gated
        self.planes = {self.gated.name: self.gated}

    def close(self) -> None:
        """Close the connections."""
        self.gated.close()
        super().close()

    def stock_topic(self, segments: int = 1, *others: str) -> int:
        """Create the topic with the subscription `billing` for standard consumers. Return the topic's id.

        `others` are subscriptions for registered consumers.
        """
        self.topic_with(segments, others)
        self.subscribe_standard("billing")
        return self.topic_id

    def stock_split(self) -> None:
        """Create the topic as `stock_topic` does, publish to its segment 0, and split this segment into 1 and 2."""
        self.stock_topic()
        self.publish(0)
        self.reshape(splitting(0))

    def open_split(self) -> None:
        """Split the topic as `stock_split` does, read the parent to its end, and have the gates of the children opened."""
        self.stock_split()
        self.read(0)
        self.keep()

    def subscribe_standard(self, name: str, **options: Any) -> None:
        """Create a subscription for standard consumers, and finish the operation."""
        wanted = {"consumers": SubscriptionConsumers.STOCK, **options}
        self.finish(create_subscription(self.store, self.topic_name, name, self.request(), **wanted))

    def keeper(self, clock: Clock | None = None, **options: Any) -> GateKeeper:
        """Return a new gate keeper of all topics. A new keeper checks every gate in its first round, without a pause."""
        return GateKeeper(self.store, self.planes, lambda: ALL, clock or SystemClock(), **options)

    def keep(self) -> int:
        """Run one round of a new keeper. Return the number of subscriptions that had shut gates before the round."""
        return self.keeper().round()

    def read(self, segment_id: int, subscription: str = "billing") -> None:
        """Acknowledge all messages in the segment's log."""
        self.gated.skip_all(self.log_of(segment_id), subscription)

    def gate_rows(self, subscription: str = "billing") -> dict[int, str]:
        """Return the recorded states of the subscription's gates, by segment id."""
        statement = "SELECT segment_id, state FROM cleave.gate WHERE subscription = :name ORDER BY 1"
        return dict(self.rows(statement, name=subscription))  # type: ignore[arg-type]

    def closed_at_plane(self, subscription: str = "billing") -> set[str]:
        """Return the logs whose gates for the subscription are not open at the data plane."""
        return {log for log, name in self.gated.gates if name == subscription}
