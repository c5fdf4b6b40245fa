"""Both sides of one data plane in the terms of tests: logs, batches, readers, drains."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from controller.dataplane.base import DataPlane
from controller.dataplane.log_client import (
    LogClient,
    LogMessage,
    LogReader,
    OutgoingMessage,
    Ownership,
    Position,
    PositionReader,
    QueueReader,
)
from controller.domain.errors import CleaveError, DataPlaneTimeout
from controller.domain.hash_range import HashRange
from tests.support.waiting import wait_until

_batch_numbers = itertools.count(1)
Reader = TypeVar("Reader", LogReader, PositionReader, QueueReader)


@dataclass
class Planes:
    """Both sides of one data plane, with the shorthands of the tests."""

    plane: DataPlane
    logs: LogClient
    readers: list[LogReader | PositionReader | QueueReader] = field(default_factory=list)
    namespace: str = "contract/tests"

    def topic(self) -> str:
        """Return an unused name of a topic."""
        return f"topic://{self.namespace}/{secrets.token_hex(6)}"

    def log(self, *subscriptions: str, topic: str | None = None, descriptor: str = "0000-ffff-0") -> str:
        """Create a log with these subscriptions, and return its name."""
        name = self.plane.backing_topic(topic or self.topic(), descriptor)
        self.plane.create_segment(name, subscriptions)
        return name

    def filled_log(self, *payloads: bytes) -> str:
        """Create a log with a subscription `s` and one batch of messages, and return its name."""
        log = self.log("s")
        self.send(log, *payloads)
        return log

    def missing_logs(self, count: int) -> list[str]:
        """Return names of logs of one unused topic, none of which exists."""
        topic = self.topic()
        return [self.plane.backing_topic(topic, f"0000-ffff-{number}") for number in range(count)]

    def send(self, log: str, *payloads: bytes, key: bytes | None = None, producer: str = "tests") -> int:
        """Append one batch under a new batch number."""
        batch = [OutgoingMessage(payload, key) for payload in payloads]
        return self.logs.append(log, batch, producer=producer, sequence=next(_batch_numbers))

    def send_to(self, log: str, bucket: HashRange, *payloads: bytes, producer: str = "tests") -> int:
        """Append one batch of messages without keys to an entry bucket."""
        batch = [OutgoingMessage(payload, bucket_hash=bucket.start) for payload in payloads]
        return self.logs.append(
            log, batch, producer=f"{producer}-{bucket}", sequence=next(_batch_numbers), bucket=bucket
        )

    def reader(
        self,
        log: str,
        subscription: str,
        owner: str = "reader",
        live_owners: Collection[str] = (),
        bucket: HashRange | None = None,
        ownership: Ownership | None = None,
    ) -> LogReader:
        """Open a reader, which the fixture closes at the end of the test."""
        return self._open(
            lambda: self.logs.open_reader(
                log,
                subscription,
                owner=owner,
                live_owners=live_owners,
                on_arrival=lambda: None,
                bucket=bucket,
                ownership=ownership,
            )
        )

    def reader_at(self, log: str, after: Position | None) -> PositionReader:
        """Open a reader at a position, which the fixture closes."""
        return self._open(lambda: self.logs.open_reader_at(log, after, on_arrival=lambda: None))

    def queue(self, log: str, subscription: str, owner: str = "reader") -> QueueReader:
        """Open a queue's reader, which the fixture closes."""
        return self._open(
            lambda: self.logs.open_queue_reader(log, subscription, owner=owner, on_arrival=lambda: None)
        )

    def _open(self, open_it: Callable[[], Reader]) -> Reader:
        """Open and keep a reader. Repeated once if a log first had to be loaded, as by every client."""
        try:
            opened = open_it()
        except DataPlaneTimeout:
            opened = open_it()
        self.readers.append(opened)
        return opened

    def positions(self, log: str, *offsets: int) -> list[Position]:
        """Return positions of messages of an embedded log that has one timeline."""
        timeline, _ = self.logs.locate(log, None)
        return [(timeline, offset) for offset in offsets]

    def read(self, reader: LogReader | PositionReader | QueueReader, count: int) -> list[LogMessage]:
        """Return the next `count` messages, and wait for their arrival."""
        messages: list[LogMessage] = []

        def complete() -> bool:
            messages.extend(reader.read(count - len(messages)))
            return len(messages) == count

        wait_until(complete, message=f"{count} messages")
        return messages

    def settles_at(self, log: str, subscription: str, backlog: int) -> None:
        """Wait until the backlog is that number: an acknowledgement may be in transit for a moment."""
        wait_until(
            lambda: self.plane.backlog(log, subscription) == backlog, message=f"a backlog of {backlog}"
        )

    def ends(self, act: Callable[[], object], error: type[CleaveError]) -> CleaveError:
        """Return the error that `act` raises before long: a broker reports a lost cursor by breaking the connection."""

        def fails() -> CleaveError | None:
            try:
                act()
            except error as raised:
                return raised
            return None

        return wait_until(fails, message=error.__name__)  # type: ignore[return-value]

    def drain(self, log: str, subscription: str) -> list[bytes]:
        """Read and acknowledge all present messages, and return their payloads."""
        reader = self.reader(log, subscription)
        backlog = self.plane.backlog(log, subscription)
        assert backlog is not None
        messages = self.read(reader, backlog) if backlog else []
        if messages:
            reader.acknowledge(messages[-1].position)
        reader.close()
        return payloads(messages)

    def close_readers(self) -> None:
        """Close the readers that the test left open."""
        while self.readers:
            self.readers.pop().close()

    def close(self) -> None:
        """Close the readers, and both sides."""
        self.close_readers()
        self.logs.close()
        self.plane.close()


def payloads(messages: Sequence[LogMessage]) -> list[bytes]:
    """Return the payloads of the messages, in order."""
    return [message.payload for message in messages]
