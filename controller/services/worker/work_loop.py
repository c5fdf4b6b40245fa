"""The worker's loop: wait for a sensor, evaluate, run the intended operations, and wait again.

The functions that evaluate, run and sweep are passed in by bootstrap, so this module holds only the order of
steps. Notifications become work, the work is done for the held shards, and the agenda determines how long to
wait. Operations run on a small thread pool, because a broker may be slow. Evaluation runs on the loop's own
thread and never calls a data plane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import NamedTuple

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
"""Maximum seconds between two attempts after an error of the store. The bound is short because fenced ranges
accept no writes until the worker continues.
"""
SHORTEST_RETRY_SECONDS = 0.1
REFUSED_PAUSE_SECONDS = 1.0
"""Seconds of the pause after an evaluation was refused because a shard lease was lost. The refused work is
still due, and the leases are corrected during the pause.
"""


Evaluate = Callable[[Collection[Lane], Collection[int] | None, Shards], int]
"""Evaluates the topics of the shards that are due for the lanes; with ids, only these topics. Returns the number of
intended actions.
"""
RunOperations = Callable[[Shards], int]
"""Claims and runs due operations of the shards. Returns the number of operations; 0 if none can be claimed."""


class Round(NamedTuple):
    """The work of one round of the loop, and the number of threads that run operations if the work requests
    operations.
    """

    work: Work
    threads: int


class WorkLoop:
    """Waits for sensors and does the work that they request, until it is stopped. `stop`, `pause` and
    `rescan` may be called from any thread.
    """

    def __init__(
        self,
        store: Store,
        listener: Listener,
        sensors: Sequence[Sensor],
        *,
        evaluate: Evaluate,
        run_operations: RunOperations,
        sweep_deletion_entries: Callable[[], None],
        shards: Callable[[], Shards],
        sweep_seconds: float,
        clock: Clock,
        parallel_operations: int,
    ) -> None:
        """`shards` returns the shards that this worker holds. `sweep_deletion_entries` is called by a thread
        that has no more operations to run. `sweep_seconds` is the longest time between two sweeps, which do
        all due work. `parallel_operations` is the number of threads that run operations.
        """
        self._store = store
        self._listener = listener
        self._sensors = tuple(sensors)
        self._evaluate = evaluate
        self._run_operations = run_operations
        self._sweep_deletion_entries = sweep_deletion_entries
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
        """Monotonic time since which the consumers of a topic, or of any topic (None), wait for a decision.
        """
        self._next: Round | None = None
        """The next round; None stands for a sweep."""

    @property
    def is_stopping(self) -> bool:
        """True if `stop` was called. Operation runners check this between steps."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Make `run` return after the current step. May be called from a signal handler."""
        self._stopping.set()
        self._listener.interrupt()

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `stop` is called."""
        self._stopping.wait(seconds)

    def rescan(self) -> None:
        """Make the next round a sweep, for example because the held shards changed."""
        self._rescan.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Run rounds until `stop`; then wait until the threads that run operations have ended. An error of a round is
        logged, not raised: the loop pauses, at most `RETRY_SECONDS` after a Retryable error, and the next round is a
        sweep. May be called only once, because the thread pool is closed at the end.
        """
        rounds = Repeating(
            self._round,
            self._stopping,
            log,
            "round of the work loop failed; it will be repeated",
            retry_seconds=(0.0, min(RETRY_SECONDS, self._sweep_seconds)),
        )
        try:
            rounds.run()
        finally:
            self._pool.shutdown(wait=True)

    def _round(self) -> float:
        """Do the next round; then wait, and store the round that follows. Return 0, because the following round
        begins at once. The first round, and the round after an error, is a sweep. Raises the errors of the
        evaluation, of the wait and of the store.
        """
        next_round, self._next = self._next or self._everything(), None
        self._perform(next_round)
        self._next = self._wait()
        return 0.0

    def _everything(self) -> Round:
        """Return a round with all work, and restart the sweep interval."""
        self._agenda.start_sweep(self._now())
        return Round(everything(self._sensors), self._parallel_operations)

    def _perform(self, next_round: Round) -> None:
        """Evaluate the topics of the round that are due, then start threads for operations if the round requests
        operations or the evaluation intended any. Does nothing if the worker holds no shard. The operations
        themselves run later, in the threads.

        After a CleaveError of the evaluation that is not Retryable, such as FencedOut after a lost lease, the error
        is logged, the loop pauses for `REFUSED_PAUSE_SECONDS`, and the requested operations are still started. Any
        other error is raised after the round's threads for operations, at least one, were started.
        """
        shards, work = self._shards(), next_round.work
        if not shards.held:
            return
        intended = 0
        if work.lanes and work.topic_ids != frozenset():
            try:
                self._ask_sensors_after(work)
                intended = self._evaluate(work.lanes, work.topic_ids, shards)
                self._note_decided(work, shards)
            except Exception as error:
                if not isinstance(error, CleaveError) or isinstance(error, Retryable):
                    # Operations that are already intended do not depend on the evaluation.
                    self._start_operations(max(next_round.threads, 1))
                    raise
                log.error("evaluation refused", error=str(error))
                self._stopping.wait(REFUSED_PAUSE_SECONDS)
        if work.operations or intended:
            self._start_operations(max(next_round.threads, intended, 1))

    def _ask_sensors_after(self, work: Work) -> None:
        """Have the agenda query the sensors again after an evaluation of `work`, because the evaluation changes when
        topics are due. After an evaluation of all due topics, the sensors are queried before the next wait. After an
        evaluation of single topics, the sensors are queried `BUSY_SECONDS` later, so that the query does not compete
        with the new operations for the processor.
        """
        if work.topic_ids is None:
            self._agenda.ask_sensors_again()
        else:
            self._agenda.ask_sensors_soon(self._now())

    def _note_decided(self, work: Work, shards: Shards) -> None:
        """Record in a metric how long the consumers of each evaluated topic waited for the decision: the time since
        the first notification about the topic's consumers that no evaluation has followed yet. These topics no longer
        wait afterwards; topics of shards that this worker does not hold are forgotten without a record. Does nothing
        if `work` did not evaluate the consumer lane.
        """
        if Lane.CONSUMER not in work.lanes:
            return
        now, waiting_since = self._now(), self._notified_at
        self._notified_at = {}
        for topic_id, since in waiting_since.items():
            is_ours = topic_id is None or shards.owns(topic_id)
            if not is_ours:
                continue
            if work.topic_ids is None or topic_id in work.topic_ids:
                metrics.CONSUMER_DECISION_SECONDS.observe(now - since)
            else:
                self._notified_at[topic_id] = since

    def _start_operations(self, threads: int) -> None:
        """Start up to `threads` more threads that run due operations, so that at most `parallel_operations` threads
        run in all. Does not wait for the threads. A thread that ends wakes the loop. If `threads` is 1 and a thread
        is busy, no thread is started, because the busy thread may take the operation; the sensors are queried after
        `BUSY_SECONDS`, in case the operation still waits.
        """
        self._running = {future for future in self._running if not future.done()}
        if threads == 1 and self._running:
            self._agenda.ask_sensors_soon(self._now())
            return
        for _ in range(min(threads, self._parallel_operations - len(self._running))):
            future = self._pool.submit(copy_context().run, self._run_due_operations)
            future.add_done_callback(self._check_again)  # Work may have arrived while the thread was ending.
            self._running.add(future)

    def _check_again(self, _ended: Future[None]) -> None:
        """Have the sensors queried again, and end the wait of the loop. Called by a thread that ends."""
        self._agenda.ask_sensors_again()
        self._listener.interrupt()

    def _run_due_operations(self) -> None:
        """Run due operations of the held shards until none can be claimed, then process the deletion entries of
        superfluous logs once. Return early, without this processing, if the loop stops or the worker holds no shard.
        Runs in a thread of the pool, and raises no error.

        After a Retryable error, for example while the store is unavailable, the thread logs the error (a repeated
        message once), pauses and tries again, because nothing would wake the thread for the operations that it
        claimed. Any other error is logged and ends the thread; the loop then queries the sensors again.
        """
        last_error = ""
        while not self._stopping.is_set() and (shards := self._shards()).held:
            try:
                if self._run_operations(shards) == 0:
                    self._sweep_deletion_entries()
                    return
                last_error = ""
            except Retryable as error:
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("operation deferred", error=last_error)
                self._stopping.wait(min(max(error.delay_seconds, SHORTEST_RETRY_SECONDS), RETRY_SECONDS))
            except CleaveError as error:
                log.warning("operation deferred", error=str(error))
                return
            except Exception:  # A thread of the pool would otherwise hide the error.
                client_metrics.LOOP_ERRORS.labels("operation runner failed").inc()
                log.exception("operation runner failed")
                self._stopping.wait(
                    RETRY_SECONDS
                )  # The end of this thread wakes the loop, which starts the next thread.
                return

    def _wait(self) -> Round:
        """Query the sensors if their answers are outdated. Then block until a notification arrives, work is due
        according to the agenda, or the wait is interrupted. Return the next round. The next round is a sweep if a
        sweep is due, `rescan` was called, or notifications may have been lost. Otherwise the round has the work of
        the notifications, of the sensors that fire, and of the deferred work that is due; possibly no work.

        An interrupt alone requests no work, but the next call queries the sensors. Raises the errors of the listener
        and of `Store.transaction`, such as StoreUnavailable.
        """
        queried_at = self._now()
        if self._agenda.must_ask_sensors(queried_at):
            self._agenda.note_firings(self._firings(), queried_at)
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
        requested = self._requested_by(notifications, now)
        work = (fired or NOTHING) | requested.work | self._agenda.take_deferred(now)
        return Round(work, requested.threads if fired is None else self._parallel_operations)

    def _requested_by(self, notifications: Sequence[Notification], now: float) -> Round:
        """Return the work that the notifications request at once, and the number of operation threads for it. The
        work of sensors with patience is not returned, but deferred in the agenda. A notification about a topic of a
        shard that this worker does not hold is ignored, and so is a channel of no sensor. Counts the wake-ups in the
        metrics, and stores the time since which the consumers of a topic wait for a decision. No notifications: no
        work and 0 threads.
        """
        shards, work, threads = self._shards(), NOTHING, 0
        for notification in notifications:
            topic_id = notification.first_id
            if topic_id is not None and not shards.owns(topic_id):
                continue  # The topic belongs to another worker.
            for sensor in self._sensors:
                if notification.channel not in sensor.channels:
                    continue
                metrics.WAKEUPS.labels(sensor.name).inc()
                requested = sensor.notified(topic_id)
                if sensor.is_measured:
                    self._notified_at.setdefault(topic_id, now)
                if sensor.patience_seconds > 0:
                    self._agenda.defer(requested, now, sensor.patience_seconds)
                else:
                    work = work | requested
                    threads += requested.operations
        return Round(work, threads)

    def _firings(self) -> list[Firing]:
        """Query the sensors. Return, for each sensor with a known next instant for the held shards, the seconds until
        this instant by the database's clock (negative if overdue) and the sensor's work. Empty if the worker holds no
        shard. Sensors of operations are skipped while all threads are busy, and sensors with `fires_for_patient` are
        skipped while work is deferred. Raises the errors of `Store.transaction`.
        """
        shards = self._shards()
        firings: list[Firing] = []
        if not shards.held:
            return firings
        with self._store.transaction() as tx:
            now_ms = to_ms(database_now(tx))
            for sensor in self._sensors:
                if sensor.due.operations and self._all_busy():
                    continue  # The first thread that ends wakes the loop.
                if sensor.fires_for_patient and self._agenda.has_deferred_work:
                    continue  # The sensor would fire for the deferred work.
                instant = None if sensor.fires_at is None else sensor.fires_at(tx, shards)
                if instant is not None:
                    firings.append(Firing((to_ms(instant) - now_ms + 1) / 1000, sensor.due))
        return firings

    def _now(self) -> float:
        return self._clock.monotonic_seconds()

    def _all_busy(self) -> bool:
        return sum(not future.done() for future in self._running) >= self._parallel_operations
