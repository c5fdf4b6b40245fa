"""Reports to Cleave's workers the segments whose log a client found missing or closed. A worker checks the
log, and repairs it if it is broken.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from functools import partial

from controller.client.background_calls import BackgroundCalls
from controller.client.servers import Servers, topic_path
from controller.domain.errors import CleaveError

REPORT_SECONDS = 5.0
"""Shortest time between two reports of one segment by one client."""
MOST_SEGMENTS = 1_000
"""Largest number of segments whose reports are queued or were sent in the last `REPORT_SECONDS`. Further
segments are reported later.
"""


class SuspectReports:
    """Reports of one client about one topic. Safe to use from any thread; `report` neither blocks nor
    raises.
    """

    def __init__(self, servers: Servers, topic: str) -> None:
        """Create the object. `topic` is a full name, `topic://tenant/namespace/name`. The background thread
        starts with the first report.
        """
        self._servers, self._topic = servers, topic
        self._calls = BackgroundCalls(1, "cleave-suspects")
        self._lock = threading.Lock()
        self._reported_at: dict[int, float] = {}

    def report(self, segment_id: int) -> None:
        """Report to a worker, in a background thread, that the client found the log of the segment missing or closed.
        The call neither blocks nor raises.

        The call does nothing after `close`. It also does nothing while a report of this segment is queued or was sent
        less than `REPORT_SECONDS` ago, or while `MOST_SEGMENTS` other segments have such a report. A report that
        fails is not repeated: the caller reports the segment again when the log is still missing at the next attempt.
        """
        now = time.monotonic()
        with self._lock:
            self._reported_at = {i: at for i, at in self._reported_at.items() if now < at + REPORT_SECONDS}
            if segment_id in self._reported_at or len(self._reported_at) >= MOST_SEGMENTS:
                return
            is_queued = self._calls.submit(partial(self._send, segment_id))
            # a report that is queued is not sent yet; a report that no thread can send counts as one that failed
            self._reported_at[segment_id] = math.inf if is_queued else now

    def close(self) -> None:
        """Send no further reports, and drop queued reports. Waits for none. Idempotent."""
        self._calls.close()

    def _send(self, segment_id: int) -> None:
        """Send the report of a segment, and note the time of its end, also after an error. A CleaveError is
        ignored. Runs in a background thread.
        """
        path = f"{topic_path(self._topic)}/suspects"
        try:
            with suppress(CleaveError):  # the client repeats the report when it finds the log missing again
                self._servers.ask("POST", path, document={"segment_id": segment_id})
        finally:
            with self._lock:
                self._reported_at[segment_id] = time.monotonic()
