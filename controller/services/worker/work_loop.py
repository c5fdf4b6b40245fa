"""The worker's loop: wait for a sensor, evaluate, run what was intended, wait again.

It is told what evaluating, running and sweeping mean (bootstrap passes them in), so this file holds only the order of
things: notifications become work, work is done for the shards held, and the time to the next instant at which a
sensor fires by itself bounds the wait. Operations run on a small pool of threads, since a broker may take a while;
evaluation stays on the loop's own thread and never calls a data plane.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from controller import telemetry
from controller.clock import Clock, to_ms
from controller.domain.decision import Lane
from controller.domain.errors import CleaveError, Retryable
from controller.services.worker.sensors import NOTHING, Sensor, Work, everything, topic_of
from controller.store.postgres.engine import Store
from controller.store.postgres.notifications import Listener, Notification
from controller.store.shards import Shards
from controller.store.topics.topics import database_now

log = telemetry.get_logger(__name__)

SHORTEST_WAIT_SECONDS = 0.02
"""What is due but locked by somebody else must not make the loop spin."""
REFUSED_PAUSE_SECONDS = 1.0
"""What was refused (a shard lease was lost) is still due: time for the leases to be put right."""
BUSY_SECONDS = 0.03
"""A thread at work takes what is intended meanwhile along in its next round; one that is slow gets help after this."""
DUE_KEPT_SECONDS = 0.25
"""The next instant at which a sensor fires is not asked for again so soon, if only notifications came meanwhile."""


class Evaluate(Protocol):
    """Evaluate dirty and due topics; returns how many acts were intended."""

    def __call__(self, lanes: Collection[Lane], topic_ids: Collection[int] | None, shards: Shards) -> int: ...


class RunOperations(Protocol):
    """Claim and run operations of the shards that are due; returns how many, 0 when there is none to claim."""

    def __call__(self, shards: Shards) -> int: ...


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
        parallel_operations: int = 2,
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
        self._sweep_at = 0.0
        self._stopping = threading.Event()
        self._rescan = threading.Event()
        self._pool = ThreadPoolExecutor(parallel_operations, thread_name_prefix="operation")
        self._parallel_operations = parallel_operations
        self._running: set[Future[None]] = set()
        self._rings = 0
        self._later, self._later_at = NOTHING, math.inf
        self._due, self._due_at, self._due_until = NOTHING, 0.0, -math.inf
        self._help_at = math.inf

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
        work = self._everything()
        try:
            while not self._stopping.is_set():
                try:
                    self._perform(work)
                    work = self._wait()
                except Retryable as error:
                    log.warning(
                        "round failed; trying again", error=str(error), delay_seconds=error.delay_seconds
                    )
                    self._stopping.wait(min(error.delay_seconds, self._sweep_seconds))
                    work = self._everything()
        finally:
            self._pool.shutdown(wait=True)

    def _everything(self) -> Work:
        """Drain all there is; the next sweep counts from here."""
        self._sweep_at = self._clock.monotonic_seconds() + self._sweep_seconds
        self._later, self._later_at = NOTHING, math.inf
        self._rings = self._parallel_operations
        return everything(self._sensors)

    def _perform(self, work: Work) -> None:
        shards = self._shards()
        if not shards.held:
            return
        intended = 0
        if work.lanes and work.topic_ids != frozenset():
            try:
                self._due_until = -math.inf
                intended = self._evaluate(work.lanes, work.topic_ids, shards)
            except Retryable:
                raise
            except CleaveError as error:
                log.error("evaluation refused", error=str(error))
                self._stopping.wait(REFUSED_PAUSE_SECONDS)
        if work.operations or intended:
            self._start_operations(max(self._rings, intended, 1))

    def _start_operations(self, wanted: int) -> None:
        """Have so many threads more drain the journal, up to `parallel_operations` in all.

        While one is at work a single new operation is left to it for a moment.
        """
        self._running = {future for future in self._running if not future.done()}
        if wanted == 1 and self._running:
            self._help_at = min(self._help_at, self._clock.monotonic_seconds() + BUSY_SECONDS)
            return
        for _ in range(min(wanted, self._parallel_operations - len(self._running))):
            future = self._pool.submit(self._drain_operations)
            future.add_done_callback(self._look_again)  # work may have come while it was leaving
            self._running.add(future)

    def _look_again(self, _ended: Future[None]) -> None:
        self._due_until = -math.inf
        self._listener.interrupt()

    def _drain_operations(self) -> None:
        """Run operations until none is due. Then delete the logs that they and others have made superfluous."""
        try:
            while not self._stopping.is_set():
                shards = self._shards()
                if not shards.held:
                    return
                if self._run_operations(shards) == 0:
                    self._sweep_tombstones()
                    return
        except CleaveError as error:
            log.warning("operation left for later", error=str(error))
        except Exception:  # a thread of the pool would swallow it unseen
            log.exception("operation runner failed")

    def _wait(self) -> Work:
        """Block until a notification, the next instant a sensor fires by itself, the sweep, or an interrupt.

        An interrupt alone asks for nothing: it only has the instants computed anew.
        """
        self._rings = 0
        due_in_seconds = self._due_in_seconds()
        began = self._clock.monotonic_seconds()
        notifications = self._listener.wait(max(due_in_seconds, SHORTEST_WAIT_SECONDS))
        now = self._clock.monotonic_seconds()
        if (
            self._rescan.is_set()
            or now >= self._sweep_at
            or any(notification.is_resync for notification in notifications)
        ):
            self._rescan.clear()
            return self._everything()
        # What is overdue is done when others ring, too: a steady stream of notifications must not starve it.
        work = NOTHING
        if now >= (self._due_at if notifications else max(self._due_at, began + SHORTEST_WAIT_SECONDS)):
            work, self._due_until = self._due, -math.inf
            self._rings = self._parallel_operations
        if not notifications:  # somebody interrupted, and may have made something due
            self._due_until = -math.inf
        work = work | self._work_of(notifications, now)
        if now >= self._later_at:
            work = work | self._later
            self._later, self._later_at = NOTHING, math.inf
        return work

    def _work_of(self, notifications: Sequence[Notification], now: float) -> Work:
        """What they ask for at once; what may wait for more of its kind is kept in mind."""
        shards, work = self._shards(), NOTHING
        for notification in notifications:
            topic_id = topic_of(notification.payload)
            if topic_id is not None and not shards.owns(topic_id):
                continue  # another worker's topic
            for sensor in self._sensors:
                if notification.channel not in sensor.channels:
                    continue
                telemetry.WAKEUPS.labels(sensor.name).inc()
                asked = sensor.notified(topic_id)
                if sensor.patience_seconds > 0:
                    self._later = self._later | asked
                    self._later_at = min(self._later_at, now + sensor.patience_seconds)
                else:
                    work = work | asked
                    self._rings += asked.operations
        return work

    def _due_in_seconds(self) -> float:
        """Seconds until a sensor fires, patience ends or the sweep comes; `_due` is what those that fire ask for."""
        now = self._clock.monotonic_seconds()
        if now >= min(self._due_until, self._help_at):
            self._help_at = math.inf
            kept_until = now + DUE_KEPT_SECONDS  # counted from before the look, like a claim
            seconds, self._due = self._next_due()
            self._due_at, self._due_until = now + seconds, kept_until
        return min(self._due_at, self._later_at, self._help_at) - self._clock.monotonic_seconds()

    def _next_due(self) -> tuple[float, Work]:
        """Seconds until a sensor fires by itself or the sweep comes, and what all that fire by then ask for."""
        shards = self._shards()
        sweep_in_seconds = self._sweep_at - self._clock.monotonic_seconds()
        if not shards.held:
            return sweep_in_seconds, NOTHING
        firing: list[tuple[float, Sensor]] = []
        with self._store.transaction() as tx:
            now_ms = to_ms(database_now(tx))
            for sensor in self._sensors:
                if sensor.due().operations and self._all_busy():
                    continue  # the thread that ends first wakes the loop
                if sensor.fires_for_patient and self._later is not NOTHING:
                    continue  # it would fire for just that
                instant = sensor.fires_at(tx, shards)
                if instant is not None:
                    firing.append(((to_ms(instant) - now_ms + 1) / 1000, sensor))
        first = min((seconds for seconds, _ in firing), default=sweep_in_seconds)
        work = NOTHING
        for seconds, sensor in firing:
            if seconds <= max(first, 0.0):
                work = work | sensor.due()
        return min(first, sweep_in_seconds), work if first <= sweep_in_seconds else NOTHING

    def _all_busy(self) -> bool:
        return sum(not future.done() for future in self._running) >= self._parallel_operations
