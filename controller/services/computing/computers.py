"""Runs functions in child processes: bounded in time and memory, and killed when no request waits for the
result.

A child is a new Python process that receives function and arguments through a pipe. Neither its command line
nor its environment contains an address or a password of Cleave. A child that has finished waits a minute for
more work, because starting Python and NumPy takes longer than a small backtest.
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
from controller.services.computing.child_process import IDLE_EXIT_CODE

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

LONGEST_SECONDS = 180.0
"""Maximum seconds of a computation. The command waits somewhat longer for an answer."""
MOST_MEMORY_BYTES = 2 * 2**30
"""Maximum bytes of memory of a computation."""
_REMOVED_VARIABLES = ("CLEAVE_", "AIRFLOW_")
"""Prefixes of environment variables that children do not get: these variables hold passwords, and a
computation needs none.
"""


class Computers:
    """Starts and keeps the child processes that compute for one server. A computation may take
    `longest_seconds`, and a child `most_memory_bytes` of memory. Thread-safe. The caller bounds how many
    computations run at once.
    """

    def __init__(
        self, *, longest_seconds: float = LONGEST_SECONDS, most_memory_bytes: int = MOST_MEMORY_BYTES
    ) -> None:
        self.longest_seconds, self.most_memory_bytes = longest_seconds, most_memory_bytes
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self) -> _Child:
        """Return a child process for one computation: an idle child that is still alive, or a newly started child.
        The number of children is not limited here. The caller must pass the child to `give_back`, also after an
        error. Raises Retryable after `close`, and OSError if no process can be started.
        """
        with self._lock:
            if self._is_closed:
                raise Retryable("this server is stopping; send the request to another server")
            child = next((child for child in self._pop_idle() if child.is_alive), None)
            child = child or _Child(self.most_memory_bytes)
            self._busy.add(child)
            return child

    def _pop_idle(self) -> Iterator[_Child]:
        while self._idle:
            yield self._idle.pop()

    def give_back(self, child: _Child) -> None:
        """Take back a child that `take` has returned. A child that has answered its request is kept for another
        computation. A child whose computation has not ended is killed, and so is any child after `close`.
        """
        with self._lock:
            self._busy.discard(child)
            if child.has_answered and not self._is_closed:
                child.was_used = True
                self._idle.append(child)
                return
        child.kill()

    def close(self) -> None:
        """Kill all children, idle or busy, and wait for their ends. Computations in progress then raise Retryable,
        unless their results have arrived, and so does every later `take`.
        """
        with self._lock:
            self._is_closed = True
            children, self._idle = [*self._idle, *self._busy], []
        for child in children:
            child.kill()


class Computation:
    """The computations of one request, one after another. `cancel` is thread-safe and may be called at any
    time.
    """

    def __init__(self, computers: Computers) -> None:
        self._computers = computers
        self._child: _Child | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def run(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **keywords: Arguments.kwargs
    ) -> Result:
        """Run the function with the arguments in a child process, and return its result or raise its error. The
        function must be defined at module level. Arguments, result and error must be picklable. Arguments that cannot
        be pickled raise the error of pickling. A result or error that cannot be pickled is raised as a RuntimeError
        with its `repr`. Blocks until the result arrives, for about `Computers.longest_seconds` at most.

        Raises InvalidInput if the function takes longer or needs more memory than the computers allow. Raises
        Retryable if `cancel` was called, if the process of the computation ended, or if the computers were closed.
        The child process is killed unless it has answered.
        """
        deadline = time.monotonic() + self._computers.longest_seconds
        while True:
            child = self._begin()
            try:
                child.send(function, arguments, keywords)
                outcome = child.answer(deadline)
            except EOFError:
                if child.was_used and child.ended_idle and not self._is_cancelled:
                    # The child ended while idle, just as it was taken; other idle children may have ended
                    # too.
                    continue
                raise self._process_error(child) from None
            except TimeoutError:
                raise InvalidInput(
                    f"the computation took longer than {self._computers.longest_seconds:g} s and was stopped; choose fewer "
                    "topics, policies or days, or trigger the DAG policy_backtest"
                ) from None
            finally:
                self._end(child)
            result: Result = self._value_of(outcome)
            return result

    def cancel(self) -> None:
        """Kill the computation in progress, and start no more. `run` then raises Retryable, unless its result has
        arrived, and so does each later `run`. Does nothing else if no computation is in progress.
        """
        with self._lock:
            self._is_cancelled = True
            if self._child is not None:
                self._child.kill()

    def _begin(self) -> _Child:
        """Take a child for the next computation, remember it, so that `cancel` can kill it, and return it. Raises
        Retryable if the computation was cancelled, or after `Computers.close`.
        """
        with self._lock:
            if self._is_cancelled:
                raise Retryable(
                    "the computation was stopped, since its client disconnected; send the request again"
                )
            self._child = self._computers.take()
            return self._child

    def _end(self, child: _Child) -> None:
        """Forget the child, and give it back to the computers, which keep it only if it has answered. After a
        cancellation, which has killed the child, the child is not kept in any case.
        """
        with self._lock:
            self._child = None
            # If the computation was cancelled, the child was killed.
            child.has_answered = child.has_answered and not self._is_cancelled
            self._computers.give_back(child)

    def _process_error(self, child: _Child) -> Retryable:
        """Return, without raising, the error for a child process that ended without a result. The message says that
        the computation was cancelled, or otherwise how the process ended. Waits for the end of the process unless the
        computation was cancelled.
        """
        if self._is_cancelled:
            return Retryable(
                "the computation was stopped, since its client disconnected; send the request again"
            )
        return Retryable(
            f"the process of the computation ended ({child.ending}); send the request again, or choose less"
        )

    def _value_of(self, outcome: tuple[bool, Any]) -> Any:
        """Return the result of `outcome`, which `_Child.answer` returned, or raise its error. A MemoryError
        becomes InvalidInput.
        """
        is_done, value = outcome
        if is_done:
            return value
        if isinstance(value, MemoryError):
            raise InvalidInput(
                f"the computation needs more than {self._computers.most_memory_bytes / 2**20:,.0f} MB; choose fewer topics, "
                "policies or days, or trigger the DAG policy_backtest"
            )
        raise value


class _Child:
    """One child process. `has_answered` is False while a computation is in progress; `was_used` is True once the
    child has completed one. Not thread-safe, except `kill`.
    """

    def __init__(self, most_memory_bytes: int) -> None:
        """Start the process, which may use `most_memory_bytes` of memory for data."""
        self._pipe, child_pipe = Pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "controller.services.computing.child_process",
                    str(child_pipe.fileno()),
                    str(most_memory_bytes),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                pass_fds=[child_pipe.fileno()],
                env=_environment(os.environ),
            )
        finally:
            child_pipe.close()
        self.has_answered, self.was_used = True, False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ended_idle(self) -> bool:
        """True if the process ended by itself because no request arrived for a minute. Waits for the end of
        the process.
        """
        return self._process.wait() == IDLE_EXIT_CODE

    @property
    def ending(self) -> str:
        """Signal or exit code with which the process ended, as text. Waits for the end of the process."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def send(
        self, function: Callable[..., object], arguments: tuple[object, ...], keywords: Mapping[str, object]
    ) -> None:
        """Send the function with its arguments and keywords to the process as a request. The child counts as not
        answered until `answer` returns. Raises EOFError if the process has ended, and the errors of pickling.
        """
        self.has_answered = False
        try:
            self._pipe.send((function, arguments, keywords))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None

    def answer(self, deadline: float) -> tuple[bool, Any]:
        """Wait for the outcome of the request until `deadline` (monotonic seconds), and mark the child as answered.
        Return True and the result of the function, or False and the error that the function raised. Raises
        TimeoutError at the deadline, and EOFError if the process has ended.
        """
        try:
            if not self._pipe.poll(max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError
            outcome: tuple[bool, Any] = self._pipe.recv()
        except ConnectionResetError:
            raise EOFError from None
        self.has_answered = True
        return outcome

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a child: without Cleave's and Airflow's, and with this process's import path."""
    other_variables = {
        name: value for name, value in variables.items() if not name.startswith(_REMOVED_VARIABLES)
    }
    return other_variables | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
