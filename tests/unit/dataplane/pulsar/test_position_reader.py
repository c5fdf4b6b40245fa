"""Reading from a position on, with a library that the test scripts: what has come is read, and who has all of it is told of more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pytest

from controller.dataplane.pulsar.position_reader import PulsarPositionReader


def message(entry: int) -> Any:
    """The one of that entry, as the library has it."""
    place = SimpleNamespace(ledger_id=lambda: 1, entry_id=lambda: entry, batch_index=lambda: -1)
    return SimpleNamespace(
        message_id=lambda: place,
        encryption_context=lambda: None,
        publish_timestamp=lambda: 0,
        partition_key=lambda: "",
        data=lambda: b"%d" % entry,
    )


class _Library:
    """A reader, with what the library has for it."""

    def __init__(self) -> None:
        self._consumer = self
        self.is_up = True
        self.queue: deque[Any] = deque()
        self.awaiting: deque[Callable[[object, object], None]] = deque()

    def is_connected(self) -> bool:
        return self.is_up

    def arrive(self, *entries: int) -> None:
        self.queue.extend(map(message, entries))
        while self.awaiting and self.queue:
            self.awaiting.popleft()(pulsar.Result.Ok, self.queue.popleft())

    def receive(self, _timeout_ms: int) -> Any:
        if not self.queue:
            raise pulsar.Timeout
        return self.queue.popleft()

    def receive_async(self, callback: Callable[[object, object], None]) -> None:
        self.awaiting.append(callback)
        self.arrive()


@pytest.fixture
def library() -> _Library:
    return _Library()


@pytest.fixture
def rings() -> list[bool]:
    return []


@pytest.fixture
def reader(library: _Library, rings: list[bool]) -> PulsarPositionReader:
    """At the beginning, attached."""
    reader = PulsarPositionReader(
        cast(Any, SimpleNamespace(is_at_end=lambda *_: False, deadline=lambda: None)),
        cast(Any, SimpleNamespace(close_aside=lambda *_: None)),
        backing_topic="persistent://a/b/c",
        after=None,
        prefetch_messages=10,
        on_arrival=lambda: rings.append(True),
        on_close=lambda _: None,
    )
    reader.attach(cast(Any, SimpleNamespace()), cast(Any, library))
    return reader


def payloads(reader: PulsarPositionReader, limit: int) -> list[bytes]:
    return [one.payload for one in reader.read(limit)]


def test_who_has_read_what_came_is_told_of_the_next(
    library: _Library, reader: PulsarPositionReader, rings: list[bool]
) -> None:
    """Also where no more was asked for than had come."""
    library.arrive(1)
    assert payloads(reader, 1) == [b"1"]
    rings.clear()

    library.arrive(2)

    assert rings == [True]
    assert payloads(reader, 1) == [b"2"]


def test_what_came_before_the_connection_broke_is_read(
    library: _Library, reader: PulsarPositionReader
) -> None:
    library.arrive(*range(1, 31))
    library.is_up = False

    assert payloads(reader, 50) == [b"%d" % entry for entry in range(1, 31)]


@pytest.mark.parametrize("asks", [PulsarPositionReader.is_at_end, PulsarPositionReader.may_wait])
def test_what_has_come_is_no_end_and_nothing_to_ask_about(
    library: _Library, reader: PulsarPositionReader, asks: Callable[[PulsarPositionReader], bool]
) -> None:
    """Though the library has it still."""
    reader._cursors = cast(Any, SimpleNamespace(is_at_end=lambda *_: True, deadline=lambda: None))
    reader._stall._look_at = 0.0
    library.arrive(1)

    assert not asks(reader)
    assert payloads(reader, 1) == [b"1"]


def test_an_entry_that_was_read_in_part_does_not_come_again(
    library: _Library, reader: PulsarPositionReader
) -> None:
    library.arrive(1, 2)
    assert payloads(reader, 5) == [b"1", b"2"]
    library.arrive(2, 3)

    assert payloads(reader, 5) == [b"3"]
