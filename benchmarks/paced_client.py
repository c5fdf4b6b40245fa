"""One application of a measured topic: a producer at a steady rate that records every acknowledgement, and consumers.

Common base of `v5_side` (Pulsar's Java client) and `cleave_side` (pulsar-client routed by Cleave's layout), so that both are paced, timed
and counted alike. Instants are seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

from benchmarks.talking_process import Handler

PAYLOAD = "x" * 100
TICK_SECONDS = 0.005
INSTANTS_KEPT = 200_000


def random_key() -> str:
    """Return a random key. Keys never repeat, so the ring is loaded evenly down to its smallest parts."""
    return f"{random.getrandbits(64):016x}"


class Acknowledgements:
    """Acknowledgements of one producer: their instants, their numbers of messages, and the number of failed sends."""

    def __init__(self) -> None:
        self._instants: deque[float] = deque(maxlen=INSTANTS_KEPT)
        self.messages = self.failed = 0
        self.first_failure = ""

    def note(self, messages: int) -> None:
        """Record an acknowledgement at the present instant."""
        self._instants.append(time.monotonic())
        self.messages += messages

    def note_failure(self, messages: int, reason: str) -> None:
        """Record an error in place of an acknowledgement."""
        self.failed += messages
        self.first_failure = self.first_failure or reason

    def worst_gap_ms(self, begin: float, end: float) -> float:
        """Return the longest time between two consecutive acknowledgements whose interval touches the window, in milliseconds. Raises
        ValueError for fewer than two acknowledgements.
        """
        instants = sorted(self._instants)
        first = max(bisect_left(instants, begin) - 1, 0)
        last = min(bisect_left(instants, end) + 1, len(instants))
        in_window = instants[first:last]
        if len(in_window) < 2:
            raise ValueError("fewer than two acknowledgements in the window: nothing was produced")
        return max(later - earlier for earlier, later in pairwise(in_window)) * 1000


class PacedProducer:
    """A thread that calls `send(count)` every few milliseconds with the number of messages that are due."""

    def __init__(self, send: Callable[[int], None], rate: float) -> None:
        self._send, self._rate = send, rate
        self._stopping = threading.Event()
        threads = ThreadPoolExecutor(1, thread_name_prefix="producer")
        self._ended = threads.submit(self._run)
        threads.shutdown(wait=False)

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stopping.wait(TICK_SECONDS):
            owed = int((time.monotonic() - began) * self._rate) - sent
            now = min(owed, round(self._rate))  # a second's worth at most: it looks for the stop between
            self._send(now)
            sent += now

    def stop(self) -> None:
        """Stop sending. Raises the error that ended the thread, if any."""
        self._stopping.set()
        self._ended.result()


class ClientSide(ABC):
    """One producer at a time and any number of consumers; `handlers` are the requests that a measuring parent may send."""

    def __init__(self) -> None:
        self._acknowledgements = Acknowledgements()
        self._producer: PacedProducer | None = None
        self._close_producer: Callable[[], None] = lambda: None

    @abstractmethod
    def open_producer(
        self, topic: str, acknowledgements: Acknowledgements, note_every: int
    ) -> tuple[Callable[[int], None], Callable[[], None]]:
        """Return a function that sends a number of messages with random keys, and a function that closes the producer.

        `note_every`: if messages are acknowledged one by one, one recorded acknowledgement stands for this number of messages.
        """

    @abstractmethod
    def open_consumer(self, topic: str, subscription: str, name: str) -> None:
        """Subscribe a consumer, which stays subscribed until `leave`."""

    @abstractmethod
    def leave(self) -> Mapping[str, Any]:
        """Close every consumer."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers for `answer_requests`."""
        return {
            "subscribe": self._subscribe,
            "leave": self.leave,
            "produce": self._produce,
            "gaps": self._gaps,
            "count": self._count,
            "stop": self._stop,
        }

    def _subscribe(self, topic: str, subscription: str, name: str) -> Mapping[str, Any]:
        began = time.monotonic()
        self.open_consumer(topic, subscription, name)
        return {"began": began, "took_ms": (time.monotonic() - began) * 1000}

    def _produce(self, topic: str, rate: float, note_every: int = 1) -> Mapping[str, Any]:
        self._acknowledgements = Acknowledgements()
        send, self._close_producer = self.open_producer(topic, self._acknowledgements, note_every)
        self._producer = PacedProducer(send, rate)
        return {}

    def _gaps(self, windows: Sequence[tuple[float, float]]) -> Mapping[str, Any]:
        return {"worst_ms": [self._acknowledgements.worst_gap_ms(*window) for window in windows]}

    def _count(self) -> Mapping[str, Any]:
        acknowledgements = self._acknowledgements
        return {
            "messages": acknowledgements.messages,
            "failed": acknowledgements.failed,
            "first_failure": acknowledgements.first_failure,
        }

    def _stop(self) -> Mapping[str, Any]:
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.stop()
        finally:
            with suppress(Exception):  # what it had sent last may have failed with its topic
                self._close_producer()
        return self._count()
