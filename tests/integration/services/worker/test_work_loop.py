"""The worker's loop on a real store: what it does when it is woken, and that it rests when it is not."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from controller.clock import SystemClock
from controller.domain.decision import Lane
from controller.domain.errors import FencedOut, StoreUnavailable
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.services.worker.sensors import CONSUMERS, Sensor
from controller.services.worker.work import NOTHING, Work
from controller.services.worker.work_loop import Evaluate, WorkLoop
from controller.store.shards import Shards
from tests.support.bench import Bench
from tests.support.waiting import wait_until

NEVER_SECONDS = 600.0
ALL_SHARDS = Shards.of(1, [0])
OVERDUE = datetime.now(UTC) - timedelta(hours=1)


class TimedSensor(Sensor):
    """Fires at an instant of the test's choice; what it asks for says who it was."""

    def __init__(self, lane: Lane, at: datetime | None, *, operations: bool = False) -> None:
        work = Work(operations=True) if operations else Work(frozenset({lane}), None)
        super().__init__("timed", work, fires_at=self._ask)
        self.at = at
        self.asked = 0

    def _ask(self, _tx: Connection, _shards: Shards) -> datetime | None:
        self.asked += 1
        return self.at


class WorkRecord:
    """What a loop was told to do."""

    def __init__(self) -> None:
        self.lanes: list[frozenset[Lane]] = []
        self.topics: list[Collection[int] | None] = []
        self.drains = 0
        self.runs: list[int] = []
        """How many operations the next rounds find, the last first; after them none."""
        self.events: list[str] = []
        self.waits = 0

    def evaluate(self, lanes: Collection[Lane], topic_ids: Collection[int] | None, shards: Shards) -> int:
        """Note it; nothing was intended."""
        self.lanes.append(frozenset(lanes))
        self.topics.append(topic_ids)
        return 0

    def run_operations(self, shards: Shards) -> int:
        """Note it, and answer with what the test has in hand."""
        self.drains += 1
        self.events.append("operations")
        try:
            return self.runs.pop()
        except IndexError:  # two threads drain
            return 0

    def sweep_deletion_entries(self) -> None:
        """Note it."""
        self.events.append("sweep")


class RunningLoop:
    """A loop in a thread, whose every wait is counted."""

    def __init__(
        self,
        bench: Bench,
        sensors: Sequence[Sensor],
        record: WorkRecord,
        evaluate: Evaluate | None,
        sweep_seconds: float,
    ) -> None:
        channels = sorted({channel for sensor in sensors for channel in sensor.channels})
        self.held = ALL_SHARDS
        self.record = record
        self.listener = _CountingListener(bench, channels, record)
        self.loop = WorkLoop(
            bench.store,
            self.listener,
            sensors,
            evaluate=evaluate or record.evaluate,
            run_operations=record.run_operations,
            sweep_deletion_entries=record.sweep_deletion_entries,
            shards=lambda: self.held,
            sweep_seconds=sweep_seconds,
            clock=SystemClock(),
            parallel_operations=2,
        )

    def rings(self) -> int:
        """Wake the loop without work, once it waits; how often it waited until then."""
        seen = self.record.waits
        self.listener.interrupt()
        wait_until(lambda: self.record.waits > seen, message="the loop waits again")
        return self.record.waits


class _CountingListener(Listener):
    def __init__(self, bench: Bench, channels: Sequence[str], record: WorkRecord) -> None:
        super().__init__(bench.store.address, channels)
        self._diary = record
        self.rings_without_end = False
        """Whether there is a notification at every look."""

    def wait(self, timeout_seconds: float) -> list[Notification]:
        self._diary.waits += 1
        found = list(super().wait(0.0 if self.rings_without_end else timeout_seconds))
        return [*found, Notification("cleave_consumers", "1")] if self.rings_without_end else found


@contextmanager
def running(
    bench: Bench, *sensors: Sensor, evaluate: Evaluate | None = None, sweep_seconds: float = NEVER_SECONDS
) -> Iterator[RunningLoop]:
    """A loop at work, past its first round and the resync of its first connection."""
    record = WorkRecord()
    one = RunningLoop(bench, sensors, record, evaluate, sweep_seconds)
    thread = threading.Thread(target=one.loop.run)
    thread.start()
    try:
        wait_until(lambda: record.waits >= 2, message="the loop waits")
        yield one
    finally:
        one.loop.stop()
        thread.join()
        one.listener.close()


def notify(bench: Bench, topic_id: int) -> None:
    """As a trigger does when consumers of the topic change."""
    with bench.store.transaction() as tx:
        tx.execute(text("SELECT pg_notify('cleave_consumers', :topic)"), {"topic": str(topic_id)})


def test_a_loop_with_nothing_to_do_rests_although_its_operation_threads_end(bench: Bench) -> None:
    """A thread that ends wakes the loop, which must not take that for a reason to start threads again."""
    with running(bench, CONSUMERS) as one:
        wait_until(lambda: one.record.drains >= 2, message="the first rounds drained the journal")
        one.rings()
        before = one.record.drains
        for _ in range(20):
            one.rings()
        assert one.record.drains == before
        assert len(one.record.lanes) <= 2, "a round at the start and one for the resync"


def test_tombstones_are_swept_when_no_operation_is_due(bench: Bench) -> None:
    due = TimedSensor(Lane.LOAD, None, operations=True)
    with running(bench, due) as one:
        wait_until(lambda: one.record.events[-1:] == ["sweep"], message="the first rounds are over")
        one.record.events.clear()
        one.record.runs = [1, 3]
        due.at = OVERDUE
        one.listener.interrupt()
        wait_until(lambda: "sweep" in one.record.events, message="deletion_entries are swept")
        assert not one.record.runs
        assert one.record.events.index("sweep") >= 3, "three rounds of operations come first"


def test_an_interrupt_alone_is_no_work(bench: Bench) -> None:
    far = TimedSensor(Lane.LOAD, datetime.now(UTC) + timedelta(hours=1))
    with running(bench, far) as one:
        before = len(one.record.lanes)
        one.rings()
        one.rings()
        assert len(one.record.lanes) == before


def test_a_rescan_looks_at_everything(bench: Bench) -> None:
    with running(bench, TimedSensor(Lane.LOAD, None)) as one:
        before = len(one.record.lanes)
        one.loop.rescan()
        wait_until(
            lambda: len(one.record.lanes) > before,
            timeout_seconds=10,
            message="the lanes are evaluated again",
        )


def test_everything_is_looked_at_now_and_then_though_nobody_rang(bench: Bench) -> None:
    """A notification is a doorbell: one that was lost costs no more than the time to the next sweep."""
    with running(bench, TimedSensor(Lane.LOAD, None), sweep_seconds=0.05) as one:
        before = len(one.record.lanes)
        wait_until(
            lambda: len(one.record.lanes) > before + 2, timeout_seconds=10, message="the sweep comes again"
        )


def test_a_thread_that_drains_the_journal_goes_on_when_the_store_answers(bench: Bench) -> None:
    """Nothing else would wake it for the operations that it had in hand: their claims run still."""
    due = TimedSensor(Lane.LOAD, None, operations=True)
    with running(bench, due) as one:
        failures, tries = [StoreUnavailable("away", 60.0)] * 3, list[float]()
        draining = one.record.run_operations

        def failing(shards: Shards) -> int:
            tries.append(1.0)
            if failures:
                raise failures.pop()
            return draining(shards)

        one.loop._parallel_operations = 1
        one.loop._run_operations = failing
        with capture_logs() as lines:
            due.at = OVERDUE
            one.rings()
            wait_until(lambda: len(tries) > 3, timeout_seconds=10, message="the journal is drained")
            due.at = None
    assert [line["error"] for line in lines if line["event"] == "operation deferred"] == ["away"]


def test_operations_are_run_while_every_evaluation_fails(bench: Bench) -> None:
    """As when the statements of a large evaluation take longer than a statement may."""

    def evaluate(*_: object) -> int:
        raise StoreUnavailable("a statement took too long", 0.0)

    with running(bench, CONSUMERS, TimedSensor(Lane.LOAD, None)) as one:
        one.loop._evaluate = evaluate
        before = one.record.drains
        notify(bench, 1)
        # Both threads of the last round that succeeded may not have run yet.
        wait_until(
            lambda: one.record.drains > before + 2 * one.loop._parallel_operations,
            message="operations are run",
        )


def test_after_a_lost_connection_everything_is_looked_at(bench: Bench) -> None:
    """What was notified meanwhile is lost."""
    with running(bench, TimedSensor(Lane.LOAD, None), CONSUMERS) as one:
        before = len(one.record.lanes)
        bench.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%listen%' AND pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
        wait_until(
            lambda: len(one.record.lanes) > before, timeout_seconds=10, message="the lanes are evaluated"
        )


def test_sensors_that_are_due_at_once_are_all_served(bench: Bench) -> None:
    """One that stays overdue (its topic is locked elsewhere) must not keep the others from their turn."""
    stuck, other = TimedSensor(Lane.LOAD, None), TimedSensor(Lane.MERGE, None)
    with running(bench, stuck, other) as one:
        one.record.lanes.clear()
        stuck.at, other.at = OVERDUE - timedelta(hours=1), OVERDUE
        one.rings()
        wait_until(
            lambda: any(Lane.MERGE in lanes for lanes in one.record.lanes),
            timeout_seconds=10,
            message="the second is served",
        )


def decided() -> tuple[float, float]:
    """How often it was measured how long consumers wait for a decision, and the sum of it."""
    count, seconds = (
        REGISTRY.get_sample_value(f"cleave_consumer_decision_seconds_{part}") for part in ("count", "sum")
    )
    return count or 0.0, seconds or 0.0


def test_what_an_evaluation_of_one_topic_makes_due_is_done_without_another_notification(bench: Bench) -> None:
    due, evaluated = TimedSensor(Lane.LOAD, None), list[frozenset[Lane]]()

    def evaluate(lanes: Collection[Lane], topic_ids: Collection[int] | None, _shards: Shards) -> int:
        due.at = None if topic_ids is None else OVERDUE
        evaluated.append(frozenset(lanes))
        return 0

    with running(bench, CONSUMERS, due, evaluate=evaluate) as one:
        one.rings()
        evaluated.clear()
        notify(bench, 1)
        wait_until(lambda: evaluated[-1:] == [{Lane.LOAD}], message="the due topics are evaluated")


def test_it_is_measured_how_long_consumers_wait_for_a_decision(bench: Bench) -> None:
    before = decided()
    with running(bench, CONSUMERS, TimedSensor(Lane.LOAD, None)) as one:
        one.record.topics.clear()
        notify(bench, 1)
        notify(bench, 2)
        wait_until(lambda: one.record.topics, message="their topics are evaluated")
        one.rings()
    count, seconds = decided()
    assert count - before[0] == 2, "once for each topic"
    assert seconds > before[1]


def test_consumers_of_a_topic_that_goes_to_another_worker_wait_there(bench: Bench) -> None:
    before, failing = decided(), [True]

    def evaluate(lanes: Collection[Lane], topic_ids: Collection[int] | None, shards: Shards) -> int:
        if topic_ids == frozenset({1}) and failing:
            one.held = Shards.of(2, [0])
            failing.clear()
            raise StoreUnavailable("away for a moment")
        return one.record.evaluate(lanes, topic_ids, shards)

    with running(bench, CONSUMERS) as one:
        one.loop._evaluate = evaluate
        notify(bench, 1)
        wait_until(lambda: not failing, message="the evaluation fails while the topic goes away")
        notify(bench, 2)
        wait_until(
            lambda: any(topics and 2 in topics for topics in one.record.topics),
            message="the topic of our shard is evaluated",
        )
        one.rings()
        assert not one.loop._notified_at
    assert decided()[0] == before[0] + 1


@pytest.mark.parametrize("hammering", [True, False], ids=["under a stream of notifications", "in silence"])
def test_what_is_due_is_done(bench: Bench, hammering: bool) -> None:
    """A steady stream of notifications must not starve what is due by itself."""
    due = TimedSensor(Lane.MERGE, None)
    with running(bench, CONSUMERS, due) as one:
        one.record.lanes.clear()
        one.listener.rings_without_end = hammering
        one.listener.interrupt()
        if hammering:
            wait_until(lambda: len(one.record.lanes) > 10, message="notifications are served")
        due.at = OVERDUE
        one.listener.interrupt()
        wait_until(
            lambda: any(Lane.MERGE in lanes for lanes in one.record.lanes),
            timeout_seconds=10,
            message="what is due is done",
        )


def test_a_notification_about_another_workers_topic_is_passed_over(bench: Bench) -> None:
    with running(bench, CONSUMERS) as one:
        one.held = Shards.of(2, [0])
        one.record.topics.clear()
        notify(bench, 3)
        notify(bench, 4)
        wait_until(lambda: one.record.topics, message="the topic of our shard is evaluated")
        assert one.record.topics == [frozenset({4})]


def test_without_a_shard_nothing_is_asked_of_the_sensors(bench: Bench) -> None:
    """Something due for any worker must not make one spin that may not act."""
    due = TimedSensor(Lane.LOAD, OVERDUE, operations=True)
    with running(bench, due) as one:
        one.held = Shards.of(1, [])
        one.rings()
        one.rings()
        before = one.record.drains, due.asked
        for _ in range(3):
            one.rings()
        assert (one.record.drains, due.asked) == before


def test_a_refused_evaluation_is_tried_again(bench: Bench) -> None:
    answers = iter([FencedOut("a shard lease was lost")])
    tried: list[int] = []

    def refuse_once(lanes: Collection[Lane], topic_ids: Collection[int] | None, shards: Shards) -> int:
        tried.append(1)
        for refusal in answers:
            raise refusal
        return 0

    with running(bench, TimedSensor(Lane.LOAD, OVERDUE), evaluate=refuse_once):
        wait_until(lambda: len(tried) > 2, message="it goes on")


def test_work_adds_up() -> None:
    one, other = (
        Work(frozenset({Lane.LOAD}), frozenset({1})),
        Work(frozenset({Lane.MERGE}), frozenset({2}), True),
    )
    assert one | other == Work(frozenset({Lane.LOAD, Lane.MERGE}), frozenset({1, 2}), True)
    assert (one | Work(frozenset(), None)).topic_ids is None
    assert one | NOTHING == one
