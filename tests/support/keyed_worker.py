"""A consumer with keyed work, as a separate process, with its history in a file.

Every tenth message fails twice, whichever process handles it, and one kind of message ends the process at once. `KeyedWorker` starts the
process again whenever it dies, as the supervisor of an application does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from controller.client.history import ConsumerHistory, Event
from controller.client.keyed_work import KeyedWork
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogMessage
from controller.devstack.process import ChildProcess
from tests.support.work_history import WorkHistory, named

_ROOT = Path(__file__).resolve().parents[2]
KILLER = b"killer"
"""Producer's name in the payload that kills."""
FAILURES = 2
MAX_DELIVERIES = 8
"""More than a message has that fails so often, and is in hand whenever the killer kills before it is found out: that takes three
deaths at the same first message of its bucket, and a death after which others were done before it counts for nothing.
"""
_EXIT = 9


class KeyedWorker:
    """One process; `history` is its file, of all its incarnations."""

    def __init__(self, name: str, *, url: str, topic: str, directory: Path, address: str) -> None:
        # A worker's modules, which the process itself does without.
        from controller.devstack.serving import token_for

        self.name, self.history = name, directory / f"work-{name}.history"
        self.history.touch()
        self._log = directory / f"work-{name}.log"
        command = [sys.executable, "-m", "tests.support.keyed_worker", name, url, topic, str(self.history)]
        self._command = [*command, address, token_for(topic)]
        self.lives = 0
        self._child = self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()

    @property
    def count(self) -> int:
        """Return the number of messages that it has finished so far."""
        return self.history.read_bytes().count(f"\t{Event.ENDED}\t".encode())

    def look_after(self) -> None:
        """Start the process again if it has died."""
        if not self._child.running:
            self._child.stop()
            self._child = self._begin()

    def stop(self) -> None:
        """Stop the process in good order: messages that it has begun are finished and acknowledged."""
        self._child.stop()

    def _begin(self) -> ChildProcess:
        self.lives += 1
        child = ChildProcess(self._command, log=self._log, cwd=_ROOT)
        child.start()
        return child


class _Desk:
    """The handler: fails, kills the process, or does nothing. Failures are counted by files, for all processes and incarnations."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)

    def handle(self, message: LogMessage) -> None:
        producer, key, number = named(message)
        if message.payload.startswith(KILLER):
            os._exit(_EXIT)
        if number % 10 == 3:
            for failure in range(FAILURES):
                with suppress(FileExistsError):
                    (self._directory / f"{producer}-{key}-{number}-{failure}").touch(exist_ok=False)
                    raise ValueError(f"failure {failure} of {producer}'s {key} {number}")


def main() -> None:
    """Run the process that the module describes until SIGTERM."""
    parser = argparse.ArgumentParser()
    for argument in ("name", "url", "topic", "history", "address", "token"):
        parser.add_argument(argument)
    options = parser.parse_args()
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: ending.set())
    logs, servers = EmbeddedLogClient(options.url), Servers([options.address], options.token)
    with (
        ConsumerHistory(Path(options.history), options.name) as history,
        StreamConsumer(servers, logs, options.topic, "billing", options.name, batch_messages=50) as consumer,
        KeyedWork(
            consumer,
            _Desk(Path(options.history).parent / "failures").handle,
            threads=4,
            held_limit=150,
            first_retry_seconds=0.01,
            longest_retry_seconds=0.05,
            max_deliveries=MAX_DELIVERIES,
            dead_letters=logs,
            observer=WorkHistory(history, named),
        ) as work,
    ):
        work.run(ending.is_set)
    logs.close()
    servers.close()


if __name__ == "__main__":
    main()
