"""Lock limiter: has data planes end the transactions of applications that keep logs locked.

A log's lock is what the fence and each other producer of the log wait for. Any number of limiters may be at work.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane, LockableDataPlane
from controller.domain.errors import CleaveError
from controller.repeating import Repeating

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 2.0
"""A look costs a millisecond of the server's."""
AFTER_FAILURE_SECONDS = 60.0


class LockLimiter:
    """Looks again and again in a thread of the worker, until stopped."""

    def __init__(
        self, planes: Mapping[str, DataPlane], *, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._planes = {name: plane for name, plane in planes.items() if isinstance(plane, LockableDataPlane)}
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()

    @property
    def is_needed(self) -> bool:
        """True if applications can lock the logs of a data plane here."""
        return bool(self._planes)

    def run(self) -> None:
        """Look until `stop`. After a failure the next look is a minute later."""
        rounds = Repeating(self._round, self._stopping, log, "long transactions not ended")
        rounds.run(first_pause_seconds=self._interval_seconds)

    def stop(self) -> None:
        """End the loop after the check that is under way."""
        self._stopping.set()

    def _round(self) -> float:
        """Return the seconds until the next look."""
        return self._interval_seconds if self._look() else AFTER_FAILURE_SECONDS

    def _look(self) -> bool:
        """Return True if every data plane answered."""
        is_done = True
        for name, plane in self._planes.items():
            try:
                plane.end_long_transactions()
            except CleaveError as error:
                is_done = False
                log.warning("long transactions not ended", data_plane=name, error=str(error))
            except Exception:  # the thread would end unseen, and logs would stay locked
                is_done = False
                log.exception("ending long transactions failed")
        return is_done
