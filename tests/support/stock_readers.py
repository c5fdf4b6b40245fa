"""Standard Pulsar consumers, as applications without Cleave have them: one Failover or Exclusive consumer for each log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pulsar

MOST_WAIT_MS = 200


@dataclass
class StockReaders:
    """An application that reads every attached log, as the consumer of a pattern does. Not thread-safe.

    `seen` has (log, payload) in the order of deliveries. `queue`: the library returns no permit to the broker for an entry of a barrier,
    so a queue of a few messages would stay empty behind one.

    Each log has a client of its own. The library (3.13, C++ 4.2) closes a client's connection when one of its consumers reaches the end of
    a terminated topic (apache/pulsar-client-cpp#605). On a shared connection the consumers of all other logs are cut off as well. Each
    cut that interrupts a reconnection doubles the pause before the next one, and a log may have no consumer for minutes.
    """

    service_url: str
    subscription: str
    kind: pulsar.ConsumerType = pulsar.ConsumerType.Failover
    queue: int = 20
    seen: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clients: list[pulsar.Client] = []
        self._consumers: dict[str, pulsar.Consumer] = {}

    def attach(self, *logs: str) -> Self:
        """Subscribe to more logs."""
        for log in logs:
            if log not in self._consumers:
                self._consumers[log] = self._new_client().subscribe(
                    f"persistent://{log.removeprefix('persistent://')}",
                    self.subscription,
                    consumer_type=self.kind,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=self.queue,
                )
        return self

    def _new_client(self) -> pulsar.Client:
        client = pulsar.Client(
            self.service_url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=30,
        )
        self._clients.append(client)
        return client

    def read(self, log: str, count: int, *, within_seconds: float = 15.0) -> int:
        """Receive and acknowledge up to `count` messages of the log within `within_seconds`; return their number."""
        until, taken = time.monotonic() + within_seconds, 0
        wait_ms = max(1, min(MOST_WAIT_MS, int(within_seconds * 1000)))
        while taken < count and time.monotonic() < until:
            with suppress(pulsar.Timeout):
                message = self._consumers[log].receive(wait_ms)
                self._consumers[log].acknowledge(message)
                self.seen.append((log, message.data()))
                taken += 1
        return taken

    def gets_nothing(self, logs: Iterable[str], *, for_seconds: float = 1.5) -> bool:
        """Return True if no message of these logs is delivered within `for_seconds` for each log."""
        return all(self.read(log, 1, within_seconds=for_seconds) == 0 for log in logs)

    def payloads(self, log: str) -> list[bytes]:
        """Return the payloads delivered from the log, in order."""
        return [payload for of, payload in self.seen if of == log]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
