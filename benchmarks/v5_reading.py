"""Pulsar's own Java client, producing and reading, as `v5_side`; its consumers read, and report the times of messages.

`python -m benchmarks.v5_reading SERVICE_URL DIRECTORY`, with the requests of `paced_client` and `read` and `instants`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.talking_process import Handler, answer_requests
from benchmarks.v5_side import V5Side

ACKNOWLEDGE_EVERY = 100
WAIT_MS = 200


class _Reading(threading.Thread):
    """A thread that receives and acknowledges until `finish`."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(daemon=True)
        self._consumer, self._ending = consumer, threading.Event()
        self.instants: list[float] = []

    def run(self) -> None:
        import jpype

        wait = jpype.JPackage("java").time.Duration.ofMillis(WAIT_MS)
        last, pending = None, 0
        while not self._ending.is_set():
            message = self._consumer.receive(wait)
            if message is not None:
                self.instants.append(time.monotonic())
                last, pending = message.id(), pending + 1
            if last is not None and (message is None or pending >= ACKNOWLEDGE_EVERY):
                self._consumer.acknowledgeCumulative(last)
                last, pending = None, 0

    def finish(self) -> None:
        """Stop reading."""
        self._ending.set()
        self.join()


class V5Reading(V5Side):
    """A `V5Side` whose consumers read."""

    def __init__(self, service_url: str, directory: Path) -> None:
        super().__init__(service_url, directory)
        self._readings: dict[str, _Reading] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers for `answer_requests`."""
        return {**super().handlers(), "read": self._read, "instants": self._instants}

    def leave(self) -> Mapping[str, Any]:
        """Stop reading, and close the consumers."""
        while self._readings:
            self._readings.popitem()[1].finish()
        return super().leave()

    def _read(self, topic: str, subscription: str, name: str) -> Mapping[str, Any]:
        """Subscribe a reader. Its time counts from the call that subscribes."""
        took = self._subscribe(topic, subscription, name)
        self._readings[name] = _Reading(self._consumers[-1])
        self._readings[name].start()
        return took

    def _instants(self, name: str, since: float) -> Mapping[str, Any]:
        """Return the instants at which a reader received messages, from `since` on."""
        return {"instants": [instant for instant in list(self._readings[name].instants) if instant >= since]}


if __name__ == "__main__":
    answer_requests(lambda: V5Reading(sys.argv[1], Path(sys.argv[2])).handlers())
