"""Log trimmer: has data planes whose messages Cleave keeps delete those that are read by everybody and old enough.

A broker does that by itself. What may go, the data plane knows; here is only how often and for how long. Any number of
trimmers may be at work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane, TrimmingDataPlane
from controller.domain.errors import CleaveError
from controller.repeating import repeat_every

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 60.0
"""A look at logs with nothing to trim costs a lookup each, so that tens of thousands are looked at in a second."""


def trim(
    planes: Mapping[str, DataPlane],
    *,
    retention_seconds: float,
    budget_seconds: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Trim until nothing is left or the time is over, and return how many messages went. A negative retention keeps
    all for ever. A plane that is away is left for the next time.
    """
    if retention_seconds < 0:
        return 0
    trimmed, give_up_at = 0, time.monotonic() + budget_seconds
    for name, plane in planes.items():
        if not isinstance(plane, TrimmingDataPlane):
            continue
        try:
            while not should_stop():
                report = plane.trim(retention_seconds)
                trimmed += report.messages
                if report.is_complete or time.monotonic() > give_up_at:
                    break
        except CleaveError as error:
            log.warning("logs not trimmed", data_plane=name, error=str(error))
        except Exception:  # the logs of other data planes would grow
            log.exception("logs not trimmed", data_plane=name)
    return trimmed


class LogTrimmer:
    """Trims again and again, beside a worker's loop, until told to stop."""

    def __init__(
        self,
        planes: Mapping[str, DataPlane],
        *,
        retention_seconds: float,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._planes, self._retention_seconds = planes, retention_seconds
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()

    @property
    def is_needed(self) -> bool:
        """Whether anything here may ever be trimmed."""
        return self._retention_seconds >= 0 and any(
            isinstance(plane, TrimmingDataPlane) for plane in self._planes.values()
        )

    def run(self) -> None:
        """Trim until `stop`."""
        repeat_every(self._interval_seconds, self._trim, self._stopping, log, "logs not trimmed")

    def _trim(self) -> None:
        trimmed = trim(
            self._planes,
            retention_seconds=self._retention_seconds,
            budget_seconds=self._interval_seconds,
            should_stop=self._stopping.is_set,
        )
        if trimmed:
            log.info("logs trimmed", messages=trimmed)

    def stop(self) -> None:
        """Leave after the chunk in hand."""
        self._stopping.set()
