"""Tells Cleave's workers of segments whose log a client found missing or closed. A worker looks, and repairs what is broken."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from functools import partial

from controller.client.aside import AsideCalls
from controller.client.servers import Servers, topic_path
from controller.domain.errors import CleaveError

REPORT_SECONDS = 5.0
"""Between two reports of one segment by one client."""
MOST_SEGMENTS = 1_000
"""Segments whose reports wait or were sent a moment ago; others are reported later."""


class SuspectReports:
    """Reports of one client about one topic. For any thread; a report neither blocks nor raises."""

    def __init__(self, servers: Servers, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._calls = AsideCalls(1, "cleave-suspects")
        self._lock = threading.Lock()
        self._reported_at: dict[int, float] = {}

    def report(self, segment_id: int) -> None:
        """Tell a worker of the segment, unless the report waits or was sent a moment ago."""
        now = time.monotonic()
        with self._lock:
            self._reported_at = {i: at for i, at in self._reported_at.items() if now < at + REPORT_SECONDS}
            if segment_id in self._reported_at or len(self._reported_at) >= MOST_SEGMENTS:
                return
            self._reported_at[segment_id] = math.inf  # until the report was sent
        self._calls.submit(partial(self._tell, segment_id))

    def close(self) -> None:
        """Report no more. Safe to repeat."""
        self._calls.close()

    def _tell(self, segment_id: int) -> None:
        path = f"{topic_path(self._topic)}/suspects"
        try:
            with suppress(CleaveError):  # the client reports again what it finds again
                self._servers.ask("POST", path, document={"segment_id": segment_id})
        finally:
            with self._lock:
                self._reported_at[segment_id] = time.monotonic()
