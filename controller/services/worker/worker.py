"""The whole worker: acquires leases, runs the work loop and the background services, and resigns the leases.

This module decides nothing and runs no operations; `work_loop` does, for the shards that `shard_leases`
holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from controller import telemetry
from controller.domain.errors import InvariantViolated, Retryable, Terminal
from controller.postgres.listener import Listener
from controller.services.worker.shard_leases import ShardLeases
from controller.services.worker.work_loop import WorkLoop

log = telemetry.get_logger(__name__)

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 2.0
"""First and longest wait of a worker that cannot start yet, because PostgreSQL is unavailable or has the
schema of another program version. Each wait is twice the previous wait, up to the longest.
"""


class BackgroundService(Protocol):
    """A background service of a worker."""

    def run(self) -> None:
        """Run until `stop`."""

    def stop(self) -> None:
        """Make `run` return soon."""


def run_part(
    part: BackgroundService, ended: list[str], is_stopping: Callable[[], bool], stop: Callable[[], None]
) -> None:
    """Run a part of a process until the part ends. An error of the part is logged, not raised. If `is_stopping`
    returns False when the part ends, the part has ended by itself, with or without an error. The name of its class is
    then appended to `ended`, and `stop` is called, because the process would otherwise continue without the part
    unnoticed.
    """
    try:
        part.run()
    except Exception:
        log.exception("a part of the process failed", part=type(part).__name__)
    finally:
        if not is_stopping():
            ended.append(type(part).__name__)
            stop()


def demand_none_ended(ended: Sequence[str]) -> None:
    """Raise InvariantViolated if a part of the process ended by itself."""
    if ended:
        raise InvariantViolated(
            f"{ended[0]} ended by itself, and so the process stopped; read the reason in the log"
        )


@contextmanager
def running(parts: Sequence[BackgroundService], stopping: threading.Event) -> Iterator[None]:
    """Run each of the parts of a process in a thread of its own during the `with` block. At the end of the block, set
    `stopping`, stop the parts and wait for their threads. An error of a part is logged. A part that ends before
    `stopping` is set sets `stopping`, which the block should watch. InvariantViolated is then raised at the end of
    the block, unless the block itself raised an error.
    """
    ended: list[str] = []
    stop_process = ended, stopping.is_set, stopping.set
    threads = [telemetry.start_thread(type(part).__name__, run_part, part, *stop_process) for part in parts]
    try:
        yield
    finally:
        stopping.set()
        for part in parts:
            part.stop()
        for thread in threads:
            thread.join()
    demand_none_ended(ended)


@dataclass(frozen=True)
class Worker:
    """The work loop with its leases and background services; `run` blocks until `stop`."""

    loop: WorkLoop
    leases: ShardLeases
    listener: Listener
    background_services: tuple[BackgroundService, ...] = ()
    """Background services that run in threads of their own. The worker does not wait for them at the end."""
    name: str = ""
    """Name of the worker, which is added to each log line of its threads."""
    schema: Callable[[], None] = lambda: None
    """Raises Retryable while the database has the schema of another program version. Called before the first
    lease is acquired.
    """

    def run(self) -> None:
        """Acquire shards, run the work loop with the background services until `stop`, then resign the leases and
        close the listener. At the start, wait until the store is available, has the right schema and lets the worker
        acquire the lease of its name; errors that are not Terminal are logged and retried. Returns without having run
        the loop if `stop` is called during this wait.

        Raises WorkerNameInUse if another process runs under the name, other Terminal errors of the schema check and
        of the first round of leases, and InvariantViolated if a background service ended by itself.
        """
        with telemetry.bound(worker=self.name):
            has_shards = False
            try:
                has_shards = self._take_shards()
            finally:
                if not has_shards:
                    self.listener.close()
            if has_shards:
                self._work()

    def _work(self) -> None:
        """Start the threads of the leases and of the background services, and run the loop until it ends. Then stop
        these threads, wait for the thread of the leases (not for the background services), resign the leases and
        close the listener. Each of these steps is made even if another step fails. Raises WorkerNameInUse if another
        process uses the worker's name, and InvariantViolated if a background service ended by itself.
        """
        leasing = telemetry.start_thread("leases", self.leases.run, self.loop.rescan, self.loop.stop)
        ended: list[str] = []
        for service in self.background_services:
            leaving = (lambda: self.loop.is_stopping), self.loop.stop
            telemetry.start_thread(type(service).__name__, run_part, service, ended, *leaving)
        try:
            self.loop.run()
        finally:
            with ExitStack() as ends:
                # The callbacks run from the last to the first, even if one of them raises.
                ends.callback(self.listener.close)
                ends.callback(self.leases.resign)
                # A round in progress would acquire leases that were already resigned.
                ends.callback(leasing.join)
                ends.callback(self.leases.stop)
                for service in self.background_services:
                    ends.callback(service.stop)
        if self.leases.refused is not None:
            raise self.leases.refused
        demand_none_ended(ended)

    def _take_shards(self) -> bool:
        """Check the schema and run the first round of leases. Repeat both until both succeed, with pauses that grow
        up to `LONGEST_WAIT_SECONDS`; then return True. Return False if the worker was stopped before. An error is
        logged, an error with the same text only once. Terminal errors of the check or the round, such as
        WorkerNameInUse, are raised at once.
        """
        delay_seconds, last_error = FIRST_WAIT_SECONDS, ""
        while not self.loop.is_stopping:
            try:
                self.schema()
                self.leases.round()
            except Terminal:
                raise
            except Exception as error:
                if str(error) != last_error:
                    last_error = str(error)
                    is_known = isinstance(error, Retryable)
                    log.warning(
                        "worker cannot start yet",
                        error=last_error,
                        next_try_in_seconds=delay_seconds,
                        exc_info=None if is_known else error,
                    )
                self.loop.pause(delay_seconds)
                delay_seconds = min(2 * delay_seconds, LONGEST_WAIT_SECONDS)
            else:
                return True
        return False

    def stop(self) -> None:
        """Stop after the current step. May be called from a signal handler."""
        self.loop.stop()
