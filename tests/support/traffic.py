"""Real producers and consumers as processes of their own, with their histories in files.

`python -m tests.support.traffic produce|consume ...`, or `TrafficProcess` from a test. SIGTERM ends one in good
order; anything harsher leaves what it had written.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from controller.client.history import HistoryFile
from controller.client.postgres_source import PostgresSource
from controller.client.producer import Producer
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.base import OutgoingMessage
from controller.dataplane.embedded import EmbeddedLogClient
from controller.devstack.process import ChildProcess

_ROOT = Path(__file__).resolve().parents[2]
KEYS = 200


class TrafficProcess:
    """One of them, started; `history` is its file."""

    def __init__(
        self, role: str, name: str, *, url: str, topic: str, directory: Path, subscription: str = ""
    ) -> None:
        self.history = directory / f"{role}-{name}.history"
        self.history.touch()
        self._child = ChildProcess(
            [
                sys.executable,
                "-m",
                "tests.support.traffic",
                role,
                name,
                url,
                topic,
                self.history,
                subscription,
            ],
            log=directory / f"{role}-{name}.log",
            cwd=_ROOT,
        )
        self._child.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it is alive; one that failed is not, and its log says why."""
        return self._child.running

    @property
    def count(self) -> int:
        """Messages in its history so far."""
        return self.history.read_bytes().count(b"\n")

    def stop(self) -> None:
        """End it in good order: what it has sent is flushed, what it was given is acknowledged."""
        self._child.stop()

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()


def _produce(name: str, url: str, topic: str, history: HistoryFile, ending: list[int]) -> None:
    """Rounds of 100 random keys, each key numbered on its own, as fast as it goes."""
    source, logs = PostgresSource(url), EmbeddedLogClient(url)
    chooser = random.Random(name)
    numbers = {f"key-{i}": itertools.count() for i in range(KEYS)}

    def note(batch: object) -> None:
        messages: list[OutgoingMessage] = list(batch)  # type: ignore[call-overload]
        history.write((name, (m.key or b"").decode(), int(m.payload.split(b" ")[1])) for m in messages)

    producer = Producer(source, logs, topic, name=name, on_stored=note)
    while not ending:
        for key in chooser.choices(list(numbers), k=100):
            producer.send(b"%s %d" % (name.encode(), next(numbers[key])), key)
        producer.flush()
    producer.close()


def _consume(
    name: str, url: str, topic: str, history: HistoryFile, subscription: str, ending: list[int]
) -> None:
    source, logs = PostgresSource(url), EmbeddedLogClient(url)
    with StreamConsumer(source, logs, topic, subscription, name) as consumer:
        while not ending:
            batch = consumer.receive(0.2)
            if batch is None:
                continue
            parts = [(m.payload.split(b" "), m.key or b"") for m in batch.messages]
            history.write((who.decode(), key.decode(), int(number)) for (who, number), key in parts)
            consumer.acknowledge(batch)
    logs.close()
    source.close()


def main() -> None:
    """The process: see the module."""
    parser = argparse.ArgumentParser()
    for argument in ("role", "name", "url", "topic", "history", "subscription"):
        parser.add_argument(argument)
    given = parser.parse_args()
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    with HistoryFile(Path(given.history), given.name if given.role == "consume" else "") as history:
        if given.role == "produce":
            _produce(given.name, given.url, given.topic, history, ending)
        else:
            _consume(given.name, given.url, given.topic, history, given.subscription, ending)


if __name__ == "__main__":
    main()
