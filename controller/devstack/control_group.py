"""A Linux control group for one process: it limits the processor time of the process and counts the time separately.

A broker reports the load of its control group. Brokers that share the control group of the machine all report the
same load, whatever each of them does. The module needs control groups of version 1, and root; otherwise `demand`
reports what is missing.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from controller.devstack.failure import DevstackFailed

_ROOT: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = ("cpu", "cpuacct")
_PERIOD_MICROSECONDS: Final = 100_000
_JOIN: Final = 'for group in cpu cpuacct; do echo $$ >"/sys/fs/cgroup/$group/$0/cgroup.procs" || exit 97; done; exec "$@"'


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A group that exists during a `with` block, and whose processes get at most `cores` seconds of processor time per
    second. A process joins the group with `prefix`. The end of the block removes the group if its processes end within
    5 s; the beginning raises DevstackFailed if no group can be created.
    """

    name: str
    cores: float

    def __enter__(self) -> Self:
        demand()
        for directory in self._directories:
            directory.mkdir(exist_ok=True)
        limit = self._directories[0]
        (limit / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (limit / "cpu.cfs_quota_us").write_text(str(round(self.cores * _PERIOD_MICROSECONDS)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for directory in self._directories:
            for _ in range(50):  # the directory can be removed after the last process was reaped
                with suppress(OSError):
                    directory.rmdir()
                    break
                time.sleep(0.1)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Beginning of a command line: a shell that joins the group and becomes the command."""
        return ("/bin/sh", "-c", _JOIN, self.name)

    @property
    def _directories(self) -> list[Path]:
        return [_ROOT / controller / self.name for controller in _CONTROLLERS]


def demand() -> None:
    """Raise DevstackFailed if no group can be created."""
    if not all(
        os.access(_ROOT / name, os.W_OK) and (_ROOT / name / "cgroup.procs").exists() for name in _CONTROLLERS
    ):
        raise DevstackFailed(
            "cannot create control groups of version 1 for cpu and cpuacct; run as root on a machine that has them"
        )
