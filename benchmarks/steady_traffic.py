"""Producers at steady rates and one consumer of all their topics, in a separate process that counts every message.

`SteadyTraffic(service_url, {topic: messages per second})` in a `with` statement; `finish()` stops sending, lets the consumer catch up and
returns the count. A separate process, so that the measuring process does not slow down the measured one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pulsar

from controller.settings import PROJECT_ROOT

PAYLOAD_BYTES = 200
_PACE_SECONDS = 0.02
_IDLE_SECONDS = 30.0
"""Nothing more comes when nothing came for so long."""
_OPERATION_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Count:
    """Message counts of one traffic: `received` are distinct messages, `again` repeated ones."""

    sent: int
    confirmed: int
    failed: int
    received: int
    again: int
    lost: int
    """Confirmed by a broker and never received."""


class SteadyTraffic:
    """The process, from its first message on; the end of the `with` block ends it."""

    def __init__(self, service_url: str, rates: Mapping[str, float]) -> None:
        command = [sys.executable, "-m", "benchmarks.steady_traffic", service_url, json.dumps(dict(rates))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT
        )

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def finish(self) -> Count:
        """Stop sending, receive the messages in transit, and return the count."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return Count(**self._read())

    def _read(self) -> dict[str, Any]:
        """Return the next document; other lines, such as errors of the client, are printed to standard error. Raises RuntimeError if the
        process has ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                document: dict[str, Any] = json.loads(line)
                return document
            print(line, end="", file=sys.stderr)
        raise RuntimeError(f"the traffic ended with exit code {self._process.wait()}; its errors are above")


@dataclass
class _Messages:
    """Message numbers by the index of the topic; each list is written by one thread."""

    confirmed: set[tuple[int, int]] = field(default_factory=set)
    received: set[tuple[int, int]] = field(default_factory=set)
    sent = failed = again = 0
    received_at: float = field(default_factory=time.monotonic)

    def confirm(self, message: tuple[int, int], result: pulsar.Result) -> None:
        """Record a broker's answer to a send."""
        if result == pulsar.Result.Ok:
            self.confirmed.add(message)
        else:
            self.failed += 1

    def receive(self, consumer: pulsar.Consumer, stopping: threading.Event) -> None:
        """Receive and acknowledge messages until `stopping` is set; count distinct and repeated ones."""
        while not stopping.is_set():
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(timeout_millis=200)
                consumer.acknowledge(message)
                topic_index, number = message.data().split(b":")[:2]
                identity = int(topic_index), int(number)
                self.again += identity in self.received
                self.received.add(identity)
                self.received_at = time.monotonic()

    def caught_up(self) -> bool:
        """Return True if every send was answered and all confirmed messages were received, or if no message has come for _IDLE_SECONDS."""
        is_quiet = time.monotonic() - self.received_at > _IDLE_SECONDS
        is_answered = len(self.confirmed) + self.failed == self.sent
        return is_quiet or (is_answered and self.confirmed.copy() <= self.received)

    def count(self) -> dict[str, int]:
        """Return the present `Count`."""
        return {
            "sent": self.sent,
            "confirmed": len(self.confirmed),
            "failed": self.failed,
            "received": len(self.received),
            "again": self.again,
            "lost": len(self.confirmed - self.received),
        }


def _produce(
    client: pulsar.Client, rates: Mapping[str, float], messages: _Messages, stopping: threading.Event
) -> None:
    producers = [
        client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=_OPERATION_SECONDS * 1000)
        for topic in rates
    ]
    print(json.dumps({"producing": len(producers)}), flush=True)
    began, numbers = time.monotonic(), [0] * len(producers)
    while not stopping.wait(_PACE_SECONDS):
        elapsed = time.monotonic() - began
        for place, rate in enumerate(rates.values()):
            while numbers[place] < int(elapsed * rate):
                message = place, numbers[place]
                payload = f"{place}:{numbers[place]}:".encode().ljust(PAYLOAD_BYTES, b".")
                producers[place].send_async(payload, _confirming(messages, message))
                numbers[place] += 1
                messages.sent += 1
    for producer in producers:
        producer.flush()


def _confirming(messages: _Messages, message: tuple[int, int]) -> Callable[[pulsar.Result, Any], None]:
    return lambda result, _: messages.confirm(message, result)


def main() -> None:
    """Send until the standard input ends, then print the count."""
    url, rates = sys.argv[1], json.loads(sys.argv[2])
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(url, logger=logger, operation_timeout_seconds=_OPERATION_SECONDS)
    consumer = client.subscribe(
        list(rates), "steady", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )
    messages, no_more, caught_up = _Messages(), threading.Event(), threading.Event()
    producing = threading.Thread(target=_produce, args=(client, rates, messages, no_more))
    receiving = threading.Thread(target=messages.receive, args=(consumer, caught_up))
    for thread in (producing, receiving):
        thread.start()
    sys.stdin.read()
    no_more.set()
    producing.join()
    while not messages.caught_up():
        time.sleep(_PACE_SECONDS)
    caught_up.set()
    receiving.join()
    print(json.dumps(messages.count()), flush=True)
    client.close()


if __name__ == "__main__":
    main()
