"""The worker as a whole: leases taken first, then the control loop with what goes on beside it, and all given back.

Decides nothing and runs no operation itself: `work_loop` does, in the shards that `shard_leases` holds.
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
"""How long a worker that cannot start yet waits before it tries again: PostgreSQL is away, or the schema is another
program's. Each wait is twice the one before, up to the longest.
"""


class Beside(Protocol):
    """Something a worker does beside its loop."""

    def run(self) -> None:
        """Until told to stop."""

    def stop(self) -> None:
        """Leave soon."""


def run_part(
    part: Beside, ended: list[str], is_stopping: Callable[[], bool], stop: Callable[[], None]
) -> None:
    """Run a part of a process. One that ends by itself is noted in `ended`, and the process stops: it would go on without that part
    unnoticed, and is started again instead.
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
    """Raises InvariantViolated where a part of the process has ended by itself."""
    if ended:
        raise InvariantViolated(f"{ended[0]} ended by itself, and the process with it; the log says why")


@contextmanager
def running(parts: Sequence[Beside], leave: threading.Event) -> Iterator[None]:
    """Run the parts of a process in threads, and stop them at the end. A part that ends by itself sets `leave`. Raises
    InvariantViolated where one did.
    """
    ended: list[str] = []
    leaving = ended, leave.is_set, leave.set
    threads = [telemetry.start_thread(type(part).__name__, run_part, part, *leaving) for part in parts]
    try:
        yield
    finally:
        leave.set()
        for part in parts:
            part.stop()
        for thread in threads:
            thread.join()
    demand_none_ended(ended)


@dataclass(frozen=True)
class Worker:
    """The control loop with its leases; `run` blocks until `stop`."""

    loop: WorkLoop
    leases: ShardLeases
    listener: Listener
    beside: tuple[Beside, ...] = ()
    """What goes on in threads of its own meanwhile, and is not waited for at the end."""
    name: str = ""
    """Stands on each line that any of its threads logs."""
    schema: Callable[[], None] = lambda: None
    """Raises Retryable while the database's schema is not this program's; asked before the first lease is taken."""

    def run(self) -> None:
        """Take shards, then work; resign the leases at the end. A store that is away, or whose
        schema is another version's, is waited for from the start. Raises WorkerNameInUse when another process works
        under the name.
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
        leasing = telemetry.start_thread("leases", self.leases.run, self.loop.rescan, self.loop.stop)
        ended: list[str] = []
        for other in self.beside:
            leaving = (lambda: self.loop.is_stopping), self.loop.stop
            telemetry.start_thread(type(other).__name__, run_part, other, ended, *leaving)
        try:
            self.loop.run()
        finally:
            with ExitStack() as ends:  # from the last to the first, whatever one of them raises
                ends.callback(self.listener.close)
                ends.callback(self.leases.resign)
                ends.callback(leasing.join)  # a round in hand would take leases that were given back
                ends.callback(self.leases.stop)
                for other in self.beside:
                    ends.callback(other.stop)
        if self.leases.refused is not None:
            raise self.leases.refused
        demand_none_ended(ended)

    def _take_shards(self) -> bool:
        """The first round of leases; False when told to stop before there was one. Raises WorkerNameInUse."""
        delay_seconds, said = FIRST_WAIT_SECONDS, ""
        while not self.loop.is_stopping:
            try:
                self.schema()
                self.leases.round()
            except Terminal:
                raise
            except Exception as error:
                if str(error) != said:
                    said = str(error)
                    is_known = isinstance(error, Retryable)
                    log.warning(
                        "the worker waits to begin",
                        error=said,
                        next_try_in_seconds=delay_seconds,
                        exc_info=None if is_known else error,
                    )
                self.loop.pause(delay_seconds)
                delay_seconds = min(2 * delay_seconds, LONGEST_WAIT_SECONDS)
            else:
                return True
        return False

    def stop(self) -> None:
        """Finish the step in hand and leave; safe in a signal handler."""
        self.loop.stop()
