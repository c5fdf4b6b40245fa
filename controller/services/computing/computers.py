"""Runs functions in child processes: bounded in time and memory, and killed once no request waits for the result.

A child is a fresh Python that gets function and arguments through a pipe. Neither its command line nor its environment holds an
address or a password of Cleave's. A child that has finished waits a minute for more work, since starting Python and NumPy takes
longer than a small backtest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pipe
from typing import Any, ParamSpec, TypeVar

from controller.domain.errors import InvalidInput, Retryable
from controller.services.computing.child import GAVE_UP_WAITING

Result = TypeVar("Result")
Given = ParamSpec("Given")

LONGEST_SECONDS = 180.0
"""A computation may take; the command waits for an answer somewhat longer."""
MOST_MEMORY_BYTES = 2 * 2**30
_HIDDEN = ("CLEAVE_", "AIRFLOW_")
"""Variables whose names begin so are not for children: they hold passwords, and a computation needs none."""


class Computers:
    """Children that compute for one server. Thread-safe. The caller bounds how many computations run at once."""

    def __init__(
        self, *, longest_seconds: float = LONGEST_SECONDS, most_memory_bytes: int = MOST_MEMORY_BYTES
    ) -> None:
        self.longest_seconds, self.most_memory_bytes = longest_seconds, most_memory_bytes
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self) -> _Child:
        """Return a child that waits, or a new one. Raises Retryable once closed."""
        with self._lock:
            if self._is_closed:
                raise Retryable("this server is stopping; ask another one")
            child = next((one for one in self._pop_idle() if one.is_alive), None)
            child = child or _Child(self.most_memory_bytes)
            self._busy.add(child)
            return child

    def _pop_idle(self) -> Iterator[_Child]:
        while self._idle:
            yield self._idle.pop()

    def give_back(self, child: _Child) -> None:
        """Let a child that has finished wait for more work, and end one that has not."""
        with self._lock:
            self._busy.discard(child)
            if child.has_answered and not self._is_closed:
                child.was_used = True
                self._idle.append(child)
                return
        child.kill()

    def close(self) -> None:
        """End all children, and start no more."""
        with self._lock:
            self._is_closed = True
            children, self._idle = [*self._idle, *self._busy], []
        for child in children:
            child.kill()


class Computation:
    """The computations of one request, one after the other. `cancel` may be called by any thread, at any time."""

    def __init__(self, computers: Computers) -> None:
        self._computers = computers
        self._child: _Child | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def run(self, function: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
        """Return what the function returns, or raise what it raises; both have to survive pickling, and the function a module's own.

        Raises InvalidInput if it takes too long or too much memory, Retryable if it was cancelled or its process ended.
        """
        until = time.monotonic() + self._computers.longest_seconds
        while True:
            child = self._begin()
            try:
                child.send(function, given, named)
                outcome = child.answer(until)
            except EOFError:
                if child.was_used and child.gave_up_waiting and not self._is_cancelled:
                    continue  # its minute was over as it was taken; what waits besides may be gone too
                raise self._ended(child) from None
            except TimeoutError:
                raise InvalidInput(
                    f"the computation took longer than {self._computers.longest_seconds:g} s and was stopped; ask about fewer "
                    "topics, policies or days, or trigger the DAG policy_backtest"
                ) from None
            finally:
                self._end(child)
            result: Result = self._result(outcome)
            return result

    def cancel(self) -> None:
        """Stop what runs, and let nothing more run."""
        with self._lock:
            self._is_cancelled = True
            if self._child is not None:
                self._child.kill()

    def _begin(self) -> _Child:
        with self._lock:
            if self._is_cancelled:
                raise Retryable("the computation was stopped, since its client has gone; ask again")
            self._child = self._computers.take()
            return self._child

    def _end(self, child: _Child) -> None:
        with self._lock:
            self._child = None
            child.has_answered = child.has_answered and not self._is_cancelled  # it was killed
            self._computers.give_back(child)

    def _ended(self, child: _Child) -> Retryable:
        if self._is_cancelled:
            return Retryable("the computation was stopped, since its client has gone; ask again")
        return Retryable(f"the process of the computation ended ({child.ending}); ask again, or about less")

    def _result(self, outcome: tuple[bool, Any]) -> Any:
        is_done, value = outcome
        if is_done:
            return value
        if isinstance(value, MemoryError):
            raise InvalidInput(
                f"the computation needs more than {self._computers.most_memory_bytes / 2**20:,.0f} MB; ask about fewer topics, "
                "policies or days, or trigger the DAG policy_backtest"
            )
        raise value


class _Child:
    """One process. Not thread-safe, but for `kill`."""

    def __init__(self, most_memory_bytes: int) -> None:
        self._pipe, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "controller.services.computing.child",
                    str(theirs.fileno()),
                    str(most_memory_bytes),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                pass_fds=[theirs.fileno()],
                env=_environment(os.environ),
            )
        finally:
            theirs.close()
        self.has_answered, self.was_used = True, False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def gave_up_waiting(self) -> bool:
        """True if the process ended by itself before it was given anything."""
        return self._process.wait() == GAVE_UP_WAITING

    @property
    def ending(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def send(
        self, function: Callable[..., object], given: tuple[object, ...], named: Mapping[str, object]
    ) -> None:
        """Raises EOFError if the process is gone."""
        self.has_answered = False
        try:
            self._pipe.send((function, given, named))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None

    def answer(self, until: float) -> tuple[bool, Any]:
        """Return whether it is done, and the result or the error. Raises TimeoutError, EOFError if the process is gone."""
        try:
            if not self._pipe.poll(max(until - time.monotonic(), 0.0)):
                raise TimeoutError
            outcome: tuple[bool, Any] = self._pipe.recv()
        except ConnectionResetError:
            raise EOFError from None
        self.has_answered = True
        return outcome

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in ours.items() if not name.startswith(_HIDDEN)}
    return kept | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
