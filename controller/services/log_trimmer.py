"""Log trimmer: makes data planes whose messages Cleave stores delete messages that every subscription has
read and that are old enough.

A broker does this by itself. The data plane decides which messages may be deleted; this module decides how
often trimming runs, and for how long. Any number of trimmers may run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane, TrimmingDataPlane
from controller.repeating import Stoppable, contained, repeat_every

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 60.0
"""Seconds between two trims. A log without anything to trim costs one lookup, so tens of thousands of logs
are checked in a second.
"""


def trim(
    planes: Mapping[str, DataPlane],
    *,
    retention_seconds: float,
    budget_seconds: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Delete messages that every subscription has read and that are older than `retention_seconds`, one data plane
    after another, and return the number of deleted messages. A data plane is left when nothing is left to delete, the
    budget is used up, or `should_stop` returns True. A negative retention keeps all messages, and the result is 0. In
    a log without a subscription, all messages older than the retention are deleted.

    `budget_seconds` bounds the time for all data planes together. Each data plane that can be trimmed nevertheless
    gets at least one call, unless `should_stop` returns True. Raises no error of a data plane: the error is logged,
    and the next call of `trim` tries again.
    """
    if retention_seconds < 0:
        return 0
    deleted_messages, give_up_at = 0, time.monotonic() + budget_seconds
    for name, plane in planes.items():
        if not isinstance(plane, TrimmingDataPlane):
            continue
        with contained(log, "logs not trimmed", data_plane=name):
            while not should_stop():
                report = plane.trim(retention_seconds)
                deleted_messages += report.messages
                if report.is_complete or time.monotonic() > give_up_at:
                    break
    return deleted_messages


class LogTrimmer(Stoppable):
    """A background service of a worker that calls `trim` for the data planes every `interval_seconds`, until
    it is stopped.
    """

    def __init__(
        self,
        planes: Mapping[str, DataPlane],
        *,
        retention_seconds: float,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__()
        self._planes, self._retention_seconds = planes, retention_seconds
        self._interval_seconds = interval_seconds

    @property
    def is_needed(self) -> bool:
        """True if a data plane here can be trimmed, and the retention is not unlimited."""
        return self._retention_seconds >= 0 and any(
            isinstance(plane, TrimmingDataPlane) for plane in self._planes.values()
        )

    def run(self) -> None:
        """Trim periodically until `stop`."""
        repeat_every(self._interval_seconds, self._trim, self._stopping, log, "logs not trimmed")

    def _trim(self) -> None:
        deleted_messages = trim(
            self._planes,
            retention_seconds=self._retention_seconds,
            budget_seconds=self._interval_seconds,
            should_stop=self._stopping.is_set,
        )
        if deleted_messages:
            log.info("logs trimmed", messages=deleted_messages)
