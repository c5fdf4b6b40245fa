"""The worker's loop: wait for a sensor, evaluate, run what was intended, wait again.

It is told what evaluating, running and sweeping mean (bootstrap passes them in), so this file holds only the order of
things: notifications become work, work is done for the shards held, and the agenda says how long to wait. Operations
run on a small pool of threads, since a broker may take a while; evaluation stays on the loop's own thread and never
calls a data plane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import NamedTuple, Protocol

from controller import client_metrics, metrics, telemetry
from controller.clock import Clock, to_ms
from controller.domain.decision import Lane
from controller.domain.errors import CleaveError, Retryable
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.repeating import Repeating
from controller.services.worker.agenda import Agenda, Firing
from controller.services.worker.sensors import Sensor, everything
from controller.services.worker.work import NOTHING, Work
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

RETRY_SECONDS = 0.5
"""Longest pause after an error of the store: ranges that take no writes wait for the worker when the store answers."""
SHORTEST_RETRY_SECONDS = 0.1
REFUSED_PAUSE_SECONDS = 1.0
"""What was refused (a shard lease was lost) is still due. In this time the leases are put right."""


class Evaluate(Protocol):
    """Evaluate dirty and due topics; returns how many acts were intended."""

    def __call__(self, lanes: Collection[Lane], topic_ids: Collection[int] | None, shards: Shards) -> int: ...


class RunOperations(Protocol):
    """Claim and run operations of the shards that are due; returns how many, 0 when there is none to claim."""

    def __call__(self, shards: Shards) -> int: ...


class Round(NamedTuple):
    """What one round of the loop does, and how many threads are to drain the journal if it asks for that."""

    work: Work
    threads: int


class WorkLoop:
    """Drives sensors until told to stop."""

    def __init__(
        self,
        store: Store,
        listener: Listener,
        sensors: Sequence[Sensor],
        *,
        evaluate: Evaluate,
        run_operations: RunOperations,
        sweep_tombstones: Callable[[], None],
        shards: Callable[[], Shards],
        sweep_seconds: float,
        clock: Clock,
        parallel_operations: int,
    ) -> None:
        self._store = store
        self._listener = listener
        self._sensors = tuple(sensors)
        self._evaluate = evaluate
        self._run_operations = run_operations
        self._sweep_tombstones = sweep_tombstones
        self._shards = shards
        self._sweep_seconds = sweep_seconds
        self._clock = clock
        self._agenda = Agenda(sweep_seconds)
        self._stopping = threading.Event()
        self._rescan = threading.Event()
        self._pool = ThreadPoolExecutor(parallel_operations, thread_name_prefix="operation")
        self._parallel_operations = parallel_operations
        self._running: set[Future[None]] = set()
        self._notified_at: dict[int | None, float] = {}
        """Since when consumers of a topic, or of any (None), wait for a decision."""
        self._next: Round | None = None
        """What the next round does; None: everything."""

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called; operation runners ask between steps."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Finish the step in hand and leave. Safe to call from a signal handler."""
        self._stopping.set()
        self._listener.interrupt()

    def pause(self, seconds: float) -> None:
        """Let so much time pass, or less if told to stop."""
        self._stopping.wait(seconds)

    def rescan(self) -> None:
        """Look at everything again, for instance because the shards held have changed."""
        self._rescan.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Work until `stop`; a store that is away is waited for."""
        rounds = Repeating(
            self._round,
            self._stopping,
            log,
            "round failed; trying again",
            retry_seconds=(0.0, min(RETRY_SECONDS, self._sweep_seconds)),
        )
        try:
            rounds.run()
        finally:
            self._pool.shutdown(wait=True)

    def _round(self) -> float:
        """Do what is next, all there is at first and after an error, and wait; the next round comes at once."""
        next_round, self._next = self._next or self._everything(), None
        self._perform(next_round)
        self._next = self._wait()
        return 0.0

    def _everything(self) -> Round:
        """Drain all there is; the next sweep counts from here."""
        self._agenda.start_sweep(self._now())
        return Round(everything(self._sensors), self._parallel_operations)

    def _perform(self, next_round: Round) -> None:
        shards, work = self._shards(), next_round.work
        if not shards.held:
            return
        intended = 0
        if work.lanes and work.topic_ids != frozenset():
            try:
                self._agenda.ask_sensors_again()
                intended = self._evaluate(work.lanes, work.topic_ids, shards)
                self._note_decided(work, shards)
            except Retryable:
                raise
            except CleaveError as error:
                log.error("evaluation refused", error=str(error))
                self._stopping.wait(REFUSED_PAUSE_SECONDS)
            except Exception:  # what is intended already does not depend on it
                self._start_operations(max(next_round.threads, 1))
                raise
        if work.operations or intended:
            self._start_operations(max(next_round.threads, intended, 1))

    def _note_decided(self, work: Work, shards: Shards) -> None:
        """How long the consumers waited on whose topics was decided. Those of shards that are another's now wait there."""
        if Lane.CONSUMER not in work.lanes:
            return
        now, waiting = self._now(), self._notified_at
        self._notified_at = {}
        for topic_id, since in waiting.items():
            is_ours = topic_id is None or shards.owns(topic_id)
            if not is_ours:
                continue
            if work.topic_ids is None or topic_id in work.topic_ids:
                metrics.CONSUMER_DECISION_SECONDS.observe(now - since)
            else:
                self._notified_at[topic_id] = since

    def _start_operations(self, wanted: int) -> None:
        """Have so many threads more drain the journal, up to `parallel_operations` in all.

        While one is at work a single new operation is left to it for a moment.
        """
        self._running = {future for future in self._running if not future.done()}
        if wanted == 1 and self._running:
            self._agenda.help_soon(self._now())
            return
        for _ in range(min(wanted, self._parallel_operations - len(self._running))):
            future = self._pool.submit(copy_context().run, self._drain_operations)
            future.add_done_callback(self._look_again)  # work may have come while it was leaving
            self._running.add(future)

    def _look_again(self, _ended: Future[None]) -> None:
        self._agenda.ask_sensors_again()
        self._listener.interrupt()

    def _drain_operations(self) -> None:
        """Run operations until none is due. Then delete the logs that they and others have made superfluous.

        While the store is away the thread goes on trying: nothing would wake it for its own operations.
        """
        said = ""
        while not self._stopping.is_set() and (shards := self._shards()).held:
            try:
                if self._run_operations(shards) == 0:
                    self._sweep_tombstones()
                    return
                said = ""
            except Retryable as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("operation left for later", error=said)
                self._stopping.wait(min(max(error.delay_seconds, SHORTEST_RETRY_SECONDS), RETRY_SECONDS))
            except CleaveError as error:
                log.warning("operation left for later", error=str(error))
                return
            except Exception:  # a thread of the pool would swallow it unseen
                client_metrics.LOOP_ERRORS.labels("operation runner failed").inc()
                log.exception("operation runner failed")
                self._stopping.wait(
                    RETRY_SECONDS
                )  # the loop is woken by the end of this thread, and begins the next
                return

    def _wait(self) -> Round:
        """Block until a notification, until the agenda says that something is due, or until an interrupt.

        An interrupt alone asks for nothing: the sensors are only asked again when they fire.
        """
        asked_at = self._now()
        if self._agenda.must_ask_sensors(asked_at):
            self._agenda.note_firings(self._firings(), asked_at)
        waited_since = self._now()
        notifications = self._listener.wait(self._agenda.wait_seconds(waited_since))
        now = self._now()
        if (
            self._rescan.is_set()
            or self._agenda.is_sweep_due(now)
            or any(notification.is_resync for notification in notifications)
        ):
            self._rescan.clear()
            return self._everything()
        fired = self._agenda.take_firing(now, waited_since=waited_since, was_notified=bool(notifications))
        asked = self._asked_by(notifications, now)
        work = (fired or NOTHING) | asked.work | self._agenda.take_put_off(now)
        return Round(work, asked.threads if fired is None else self._parallel_operations)

    def _asked_by(self, notifications: Sequence[Notification], now: float) -> Round:
        """What they ask for at once; what may wait for more of its kind goes on the agenda."""
        shards, work, threads = self._shards(), NOTHING, 0
        for notification in notifications:
            topic_id = notification.first_id
            if topic_id is not None and not shards.owns(topic_id):
                continue  # another worker's topic
            for sensor in self._sensors:
                if notification.channel not in sensor.channels:
                    continue
                metrics.WAKEUPS.labels(sensor.name).inc()
                asked = sensor.notified(topic_id)
                if sensor.is_measured:
                    self._notified_at.setdefault(topic_id, now)
                if sensor.patience_seconds > 0:
                    self._agenda.put_off(asked, now, sensor.patience_seconds)
                else:
                    work = work | asked
                    threads += asked.operations
        return Round(work, threads)

    def _firings(self) -> list[Firing]:
        """When the sensors fire by themselves, for the shards held."""
        shards = self._shards()
        firings: list[Firing] = []
        if not shards.held:
            return firings
        with self._store.transaction() as tx:
            now_ms = to_ms(database_now(tx))
            for sensor in self._sensors:
                if sensor.due().operations and self._all_busy():
                    continue  # the thread that ends first wakes the loop
                if sensor.fires_for_patient and self._agenda.has_work_put_off:
                    continue  # it would fire for the work that is put off
                instant = sensor.fires_at(tx, shards)
                if instant is not None:
                    firings.append(Firing((to_ms(instant) - now_ms + 1) / 1000, sensor.due()))
        return firings

    def _now(self) -> float:
        return self._clock.monotonic_seconds()

    def _all_busy(self) -> bool:
        return sum(not future.done() for future in self._running) >= self._parallel_operations
