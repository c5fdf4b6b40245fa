"""One server as a child process: started in its own group, logged to a file, and always stopped.

The components of the devstack hold one `ChildProcess` each. A *leash* (a shell that waits on a pipe from this
process) ends the group if this process ends without stopping it, so a killed test run leaves no processes behind.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

from controller.devstack.failure import DevstackFailed

_POLL_SECONDS = 0.05
_PRIVATE = 0o077
"""File mode bits that children do not set: logs and data contain names, addresses and keys."""
_LEASH = """
read -r word && exit 0
kill -s "$2" -- "-$1"
for try in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; kill -s 0 -- "-$1" || exit 0; done
kill -s KILL -- "-$1"
"""


class ChildProcess:
    """A command that runs in its own process group; its output is appended to `log`, which only this user may read."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        run_as: pwd.struct_passwd | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Store the settings; the command starts with `start`. `env` is the complete environment, None that of this
        process. `run_as` is the account of a child that must not run under this process's account (PostgreSQL refuses
        root), None this process's account. `stop_signal` requests the end of the group.
        """
        self._command = [str(part) for part in command]
        self._log, self._cwd, self._env, self._run_as = log, cwd, env, run_as
        self._stop_signal = stop_signal
        self._child: subprocess.Popen[bytes] | None = None
        self._leash: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._is_stopping = False
        self._descendants_at_stop: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group. Raises DevstackFailed before `start`, and after `stop` or `kill`."""
        if self._child is None:
            raise DevstackFailed(f"{self._command[0]} is not running; call start() first")
        return self._child.pid

    @property
    def running(self) -> bool:
        """True between `start` and the child's end."""
        return self._child is not None and self._child.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """True if the child was started, is no longer running, and was not requested to end. False after `stop` or `kill`."""
        return self._child is not None and not self._is_stopping and self._child.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """Exit code of a child that has ended; negative: the signal that ended it. None while it runs, before `start`, and after `stop` or
        `kill`, so a child with an exit code has ended by itself or after `ask_to_end`.
        """
        return None if self._child is None else self._child.poll()

    def restart(self) -> None:
        """Kill the processes of the group that still run, and start the command again."""
        self.kill()
        self.start()

    def start(self) -> None:
        """Start the command without waiting until it is ready (see `wait_ready`). The child must not run. Raises OSError if the command
        cannot be started.
        """
        account, self._is_stopping = self._run_as, False
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _private_log(self._log) as log:
            self._log_start = log.tell()
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=dict(self._env) if self._env is not None else None,
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=() if account else None,
                umask=_PRIVATE,
            )
        self._leash = subprocess.Popen(
            ["/bin/sh", "-c", _LEASH, "leash", str(self.pid), self._stop_signal.name.removeprefix("SIG")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def wait_ready(self, is_ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Poll `is_ready` until it returns True. Stop the child and raise DevstackFailed with the end of its log if the child ends or the
        time is over. An error of `is_ready` is raised, and the child runs on.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            self.demand_running()
            if time.monotonic() > deadline:
                self._fail(f"was not ready within {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def demand_running(self) -> None:
        """Raise DevstackFailed with the end of the log if the child has ended unexpectedly."""
        if not self.running:
            self._fail("ended unexpectedly")

    def ask_to_end(self) -> None:
        """Send the stop signal without waiting, so that several children can end at the same time."""
        if self._child is not None and not self._is_stopping:
            self._is_stopping = True
            self._descendants_at_stop = _descendants(self._child.pid)
            _signal_group(self._child.pid, self._stop_signal)

    def stop(self, *, grace_seconds: float = 15.0) -> None:
        """Send the stop signal to the whole group, and kill the group if it does not end in time. May be repeated, and
        called without a start.
        """
        self.ask_to_end()
        child, self._child = self._child, None
        if child is not None:
            if not _wait_gone(child, self._descendants_at_stop, grace_seconds):
                _kill_all(child, self._descendants_at_stop)
            self._drop_leash()

    def kill(self) -> None:
        """Kill the whole group at once, without a chance to clean up, like a power failure."""
        child, self._child = self._child, None
        if child is not None:
            _kill_all(child, _descendants(child.pid))
            self._drop_leash()

    def last_words(self, lines: int = 12) -> str:
        """Return the last `lines` lines that the child has written to the log since this start, joined to one line."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return " / ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())

    def _drop_leash(self) -> None:
        """End the leash without a signal to the group."""
        leash, self._leash = self._leash, None
        if leash is not None:
            leash.communicate(b"done\n")

    def _fail(self, event: str) -> None:
        """Stop the child, and raise DevstackFailed with the event and the end of the log."""
        output = self.last_words()
        self.stop(grace_seconds=5)
        raise DevstackFailed(f"{Path(self._command[0]).name} {event}; its log {self._log} ends: {output}")


def run_checked(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    run_as: pwd.struct_passwd | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a short command to its end, without a time limit, and return its output, standard error included. `run_as` and `env` None: the
    account and the environment of this process. Raises DevstackFailed with the output if the command fails.
    """
    result = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=dict(env) if env is not None else None,
        user=run_as.pw_uid if run_as else None,
        group=run_as.pw_gid if run_as else None,
        extra_groups=() if run_as else None,
        check=False,
    )
    if result.returncode != 0:
        raise DevstackFailed(
            f"{Path(command[0]).name} ended with {result.returncode}: {result.stdout.strip()}"
        )
    return result.stdout


def _private_log(path: Path) -> BinaryIO:
    """Open a file for appending, accessible by this user only; an existing file loses wider permissions."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab")


def _descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that the process has started, directly or not. Empty if the process does not exist."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _kill_all(child: subprocess.Popen[bytes], family: list[psutil.Process]) -> None:
    """Kill the child's group and the processes of `family`, and wait up to 10 s for their end."""
    _signal_group(child.pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_gone(child, family, seconds=10)


def _wait_gone(child: subprocess.Popen[bytes], family: list[psutil.Process], seconds: float) -> bool:
    """Wait until the child and the processes of `family` have ended. Return False if they have not after `seconds`."""
    return wait_until(
        lambda: child.poll() is not None and not any(_alive(process) for process in family), seconds=seconds
    )


def wait_until(is_done: Callable[[], bool], *, seconds: float, poll_seconds: float = _POLL_SECONDS) -> bool:
    """Call `is_done` every `poll_seconds` until it returns True. Return False if it has not after `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_seconds)
    return True


def _alive(process: psutil.Process) -> bool:
    """Return True if the process has not ended. A zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
