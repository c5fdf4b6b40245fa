"""Logs whose calls wait at places that the test chooses, and a diary of the events of their readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from controller.dataplane.log_client import LogMessage, Position
from tests.support.scripted_leader import PATIENCE_SECONDS
from tests.support.scripted_reader import IdleReader


class EventRecord:
    """Events in their order. Thread-safe."""

    def __init__(self) -> None:
        self.entries: list[tuple[object, ...]] = []
        self._held: set[str] = set()
        self._changed = threading.Condition()

    def note(self, *entry: object) -> None:
        with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()

    def wait_for(self, *entry: object) -> None:
        """Wait until the entry is recorded."""
        with self._changed:
            is_recorded = self._changed.wait_for(lambda: entry in self.entries, PATIENCE_SECONDS)
            assert is_recorded, f"{entry} does not happen; what did: {self.entries}"

    def hold(self, *places: str) -> None:
        """Hold these places: calls that reach one of them wait."""
        with self._changed:
            self._held.update(places)

    def let_go(self, *places: str) -> None:
        """Release these places; without places, all."""
        with self._changed:
            self._held.difference_update(places or tuple(self._held))
            self._changed.notify_all()

    def pass_by(self, place: str) -> None:
        """Wait while the place is held."""
        with self._changed:
            is_released = self._changed.wait_for(lambda: place not in self._held, PATIENCE_SECONDS)
            assert is_released, f"nobody lets go of {place}"


class HeldReader(IdleReader):
    """The n-th opened reader. Its messages contain its number."""

    def __init__(self, logs: HeldLogs, number: int, backing_topic: str) -> None:
        self._logs, self._diary, self.number, self._log = logs, logs.record, number, backing_topic
        self._read = 0

    def read(self, limit: int) -> Sequence[LogMessage]:
        self._diary.note("read", self.number)
        self._diary.pass_by("read")
        first, last = self._read + 1, min(self._read + limit, self._logs.messages.get(self._log, 0))
        self._read = max(self._read, last)
        return [LogMessage((i,), 0, b"k", b"%d" % self.number) for i in range(first, last + 1)]

    def acknowledge(self, position: Position) -> None:
        self._diary.note("ack", self.number)
        self._diary.pass_by("ack")
        self._diary.note("acked", self.number)

    def close(self) -> None:
        self._diary.note("closing", self.number)
        self._diary.pass_by("close")
        self._diary.note("closed", self.number)


class HeldLogs:
    """A `LogClient`. Each reader begins with the first message: acknowledgements of earlier readers are lost, as by a broker that
    crashed.
    """

    def __init__(self, record: EventRecord, **messages: int) -> None:
        """`messages` is the number of messages in each log."""
        self.record, self.messages = record, dict(messages)
        self.opened = 0
        self.numbers: dict[str, int] = {}
        """Of each log which was its last reader."""
        self.arrivals: dict[str, Callable[[], None]] = {}
        """Of each log what its last reader has rung when there is something new."""

    def append(self, *_: Any, **__: Any) -> int:
        raise NotImplementedError

    locate = open_reader_at = open_queue_reader = close = append

    def open_reader(
        self, backing_topic: str, *_: Any, on_arrival: Callable[[], None], **__: Any
    ) -> HeldReader:
        self.opened += 1
        number = self.numbers[backing_topic] = self.opened
        self.record.note("opening", number)
        self.record.pass_by("open")
        self.arrivals[backing_topic] = on_arrival
        self.record.note("opened", number)
        return HeldReader(self, number, backing_topic)

    def arrive(self, backing_topic: str, messages: int) -> None:
        """Set the number of messages in the log, and notify its reader."""
        self.messages[backing_topic] = messages
        self.arrivals[backing_topic]()
