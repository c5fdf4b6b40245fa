"""Both sides of one data plane as tests talk about them: logs, batches, readers, drains."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from controller.dataplane.base import (
    DataPlane,
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


@dataclass
class Planes:
    """Both sides of one data plane, and the few phrases the tests are written in."""

    plane: DataPlane
    logs: LogClient
    readers: list[LogReader | PositionReader | QueueReader] = field(default_factory=list)
    namespace: str = "contract/tests"

    def topic(self) -> str:
        """The name of a topic nobody used before."""
        return f"topic://{self.namespace}/{secrets.token_hex(6)}"

    def log(self, *subscriptions: str, topic: str | None = None, descriptor: str = "0000-ffff-0") -> str:
        """A new log with these subscriptions."""
        name = self.plane.backing_topic(topic or self.topic(), descriptor)
        self.plane.create_segment(name, subscriptions)
        return name

    def send(self, log: str, *payloads: bytes, key: bytes | None = None, producer: str = "tests") -> int:
        """Append one batch under a fresh batch number."""
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
        """Open a reader that the fixture closes at the end of the test; once more where a log first had to be loaded
        anew, as every client does.
        """

        def open_it() -> LogReader:
            return self.logs.open_reader(
                log,
                subscription,
                owner=owner,
                live_owners=live_owners,
                on_arrival=lambda: None,
                bucket=bucket,
                ownership=ownership,
            )

        try:
            found = open_it()
        except DataPlaneTimeout:
            found = open_it()
        self.readers.append(found)
        return found

    def reader_at(self, log: str, after: Position | None) -> PositionReader:
        """Open a reader at a position that the fixture closes; once more after a time-out, as for `reader`."""
        try:
            found = self.logs.open_reader_at(log, after, on_arrival=lambda: None)
        except DataPlaneTimeout:
            found = self.logs.open_reader_at(log, after, on_arrival=lambda: None)
        self.readers.append(found)
        return found

    def queue(self, log: str, subscription: str, owner: str = "reader") -> QueueReader:
        """Open a queue's reader that the fixture closes; once more after a time-out, as for `reader`."""

        def open_it() -> QueueReader:
            return self.logs.open_queue_reader(log, subscription, owner=owner, on_arrival=lambda: None)

        try:
            found = open_it()
        except DataPlaneTimeout:
            found = open_it()
        self.readers.append(found)
        return found

    def positions(self, log: str, *offsets: int) -> list[Position]:
        """Positions of messages of an embedded log that has one timeline."""
        timeline, _ = self.logs.locate(log, None)
        return [(timeline, offset) for offset in offsets]

    def read(self, reader: LogReader | PositionReader | QueueReader, count: int) -> list[LogMessage]:
        """The next `count` messages, waiting for their arrival."""
        found: list[LogMessage] = []

        def complete() -> bool:
            found.extend(reader.read(count - len(found)))
            return len(found) == count

        wait_until(complete, message=f"{count} messages")
        return found

    def settles_at(self, log: str, subscription: str, backlog: int) -> None:
        """The backlog becomes that number: an acknowledgement may be on its way for a moment."""
        wait_until(
            lambda: self.plane.backlog(log, subscription) == backlog, message=f"a backlog of {backlog}"
        )

    def ends(self, act: Callable[[], object], error: type[CleaveError]) -> CleaveError:
        """The error that `act` raises before long: a broker tells of a lost cursor by breaking the connection."""

        def fails() -> CleaveError | None:
            try:
                act()
            except error as raised:
                return raised
            return None

        return wait_until(fails, message=error.__name__)  # type: ignore[return-value]

    def drain(self, log: str, subscription: str) -> list[bytes]:
        """Read and acknowledge what there is now; the payloads."""
        reader = self.reader(log, subscription)
        backlog = self.plane.backlog(log, subscription)
        assert backlog is not None
        found = self.read(reader, backlog) if backlog else []
        if found:
            reader.acknowledge(found[-1].position)
        reader.close()
        return payloads(found)


def payloads(messages: Sequence[LogMessage]) -> list[bytes]:
    """What the messages carry, in order."""
    return [message.payload for message in messages]
