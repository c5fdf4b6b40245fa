"""Servers that run for the time of a `with` statement: the base of all servers, and of those that are one process; and a process that runs
one server until a signal.
"""

from __future__ import annotations

import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from controller.devstack.failure import DevstackFailed
from controller.devstack.private_file import write_private
from controller.devstack.process import ChildProcess
from controller.domain.errors import CleaveError

Server = TypeVar("Server", bound="Running")


class Running(ABC):
    """A server that `with` starts and stops."""

    @abstractmethod
    def start(self) -> None:
        """Start the server, and return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server. Does nothing if the server does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class ChildServer(Running):
    """A server that is one child process. `start` creates `_child`, starts it, and calls `_wait_until`."""

    name: str
    """Name of the server in messages."""
    grace_seconds: ClassVar[float] = 15.0
    """Seconds after which `stop` kills a server that has not ended."""
    _child: ChildProcess | None = None

    @property
    def pid(self) -> int:
        """Process id of the server. Raises DevstackFailed if the server was not started, or was stopped."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """True between `start` and the end of the process."""
        return self._child is not None and self._child.running

    def ask_to_end(self) -> None:
        """Send the stop signal and return at once; `stop` then waits."""
        if self._child is not None:
            self._child.ask_to_end()

    def stop(self) -> None:
        """Shut down regularly, and by force after `grace_seconds`; the data stays. Does nothing if the server is not running."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(grace_seconds=self.grace_seconds)

    def kill(self) -> None:
        """Kill the server without a shutdown, like a power failure. Does nothing if the server is not running."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _started(self) -> ChildProcess:
        """Return the process. Raises DevstackFailed if the server was not started, or was stopped."""
        if self._child is None:
            raise DevstackFailed(f"{self.name} is not running; call start() first")
        return self._child

    def _wait_until(self, is_ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Wait until `is_ready` returns True. If the server ends, or is not ready in time, stop it and raise DevstackFailed with the end
        of its log. Raises DevstackFailed also if the server was not started.
        """
        try:
            self._started().wait_ready(is_ready, timeout_seconds=timeout_seconds)
        except DevstackFailed:
            self._child = None
            raise


def serve_until_signal(
    env: Path, create: Callable[[], Server], describe: Callable[[Server], tuple[str, str]]
) -> int:
    """Run the server that `create` returns until SIGTERM or SIGINT, which this process blocks. Return 0, or 1 if the server did not start.

    `describe` returns the content of the file `env`, which is written once the server runs and removed at the end, and the line that this
    process then prints.
    """
    # The signals are blocked before the server starts, so that a signal always stops it.
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
    env.unlink(missing_ok=True)
    try:
        with create() as server:
            exports, notice = describe(server)
            write_private(env, exports)
            sys.stderr.write(f"{notice} in {env}\n")
            signal.sigwait(stop_signals)
    except CleaveError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        env.unlink(missing_ok=True)
    return 0
