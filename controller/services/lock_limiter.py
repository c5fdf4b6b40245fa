"""Lock limiter: makes data planes end application transactions that hold the lock of a log for too long.

All other producers of the log, and the call that terminates it, wait for the log's lock. Any number of limiters
may run. What is too long is defined by the data plane; for embedded logs in sql/schema/89_embedded_long_transactions.sql.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane, LockableDataPlane
from controller.repeating import Repeating, Stoppable, contained

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 2.0
"""Seconds between two checks. A check takes about a millisecond of the server's time."""
AFTER_FAILURE_SECONDS = 60.0
"""Seconds until the next check after a data plane raised an error."""


class LockLimiter(Stoppable):
    """A background service of a worker that has data planes end application transactions that lock a log for
    too long. Checks every `interval_seconds` until it is stopped.
    """

    def __init__(
        self, planes: Mapping[str, DataPlane], *, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        super().__init__()
        self._planes = {name: plane for name, plane in planes.items() if isinstance(plane, LockableDataPlane)}
        self._interval_seconds = interval_seconds

    @property
    def is_needed(self) -> bool:
        """True if applications can lock the logs of a data plane here."""
        return bool(self._planes)

    def run(self) -> None:
        """Check every `interval_seconds` until `stop`, for the first time after this interval. After a check in which
        a data plane raised an error, which is logged, the next check follows after `AFTER_FAILURE_SECONDS`. Raises
        nothing.
        """
        rounds = Repeating(self._round, self._stopping, log, "long transactions not ended")
        rounds.run(first_pause_seconds=self._interval_seconds)

    def _round(self) -> float:
        """Have every data plane with lockable logs end the application transactions that hold a lock for too long.
        Return the seconds until the next check: `AFTER_FAILURE_SECONDS` if a data plane raised an error. An error is
        logged, and the other data planes are called nevertheless.
        """
        answered = 0
        for name, plane in self._planes.items():
            with contained(log, "long transactions not ended", data_plane=name):
                plane.end_long_transactions()
                answered += 1
        return self._interval_seconds if answered == len(self._planes) else AFTER_FAILURE_SECONDS
