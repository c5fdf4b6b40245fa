"""In which order a bucket's reader hands out what has arrived, and how it acknowledges. The rest is seen on
real brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import _pulsar
import pulsar
import pytest

from controller.dataplane.log_client import Position
from controller.dataplane.pulsar.bucket_reader import BucketReader
from controller.dataplane.pulsar.bucket_slots import HASHES
from controller.dataplane.pulsar.cursors import Attachments, Holder
from controller.dataplane.pulsar.messages import ends_its_entry
from controller.domain.errors import LostRace
from controller.domain.hash_range import FULL_RANGE
from tests.support.scripted_library import IdleConnections, IdleCursors

LOW, _ = FULL_RANGE.halves()


class _Consumer:
    """A consumer of the library that has what it is given, and notes what is acknowledged: index -1 is the whole entry."""

    def __init__(self) -> None:
        self.acknowledged: list[Position] = []
        self.arrived: deque[object] = deque()
        self._awaiting: Callable[[object, object], None] | None = None
        self._consumer = self

    def give(self, message: object) -> None:
        self.arrived.append(message)
        self._tell()

    def receive(self, _timeout_ms: int) -> object:
        if not self.arrived:
            raise pulsar.Timeout
        return self.arrived.popleft()

    def receive_async(self, callback: Callable[[object, object], None]) -> None:
        self._awaiting = callback
        self._tell()

    def _tell(self) -> None:
        if self._awaiting is not None and self.arrived:
            callback, self._awaiting = self._awaiting, None
            callback(pulsar.Result.Ok, self.arrived.popleft())

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def acknowledge(self, message_id: Any) -> None:
        self.acknowledged.append((message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()))


class _Cursors(IdleCursors):
    """The broker's statistics: they show the reader for so many looks."""

    def __init__(self) -> None:
        self.looks_left = 0

    def attachments(self, *_: object) -> Attachments:
        self.looks_left -= 1
        holders = (Holder("o", "m", "here", (LOW,)),) if self.looks_left >= 0 else ()
        return Attachments(holders, is_shared=True, backlog=0)


def _message(entry: int, index: int, properties: dict[str, str], batch_size: int) -> pulsar.Message:
    message_id = SimpleNamespace(
        ledger_id=lambda: 1,
        entry_id=lambda: entry,
        batch_index=lambda: index,
        partition=lambda: -1,
        serialize=lambda: bytes([0x08, 1, 0x10, entry, 0x20, index, 0x30, batch_size]),
    )
    return cast(
        pulsar.Message,
        SimpleNamespace(
            message_id=lambda: message_id,
            partition_key=lambda: "",
            event_timestamp=lambda: 0,
            ordering_key=lambda: "",
            producer_name=lambda: "p",
            properties=lambda: properties,
            publish_timestamp=lambda: 0,
            data=lambda: b"x",
        ),
    )


@pytest.fixture
def consumer() -> _Consumer:
    return _Consumer()


@pytest.fixture
def cursors() -> _Cursors:
    return _Cursors()


@pytest.fixture
def reader(consumer: _Consumer, cursors: _Cursors) -> BucketReader:
    anything: Any = None
    reader = BucketReader(
        cast(Any, cursors),
        cast(Any, IdleConnections()),
        backing_topic="persistent://t/n/a",
        subscription="s",
        owner="o",
        mark="m",
        on_arrival=lambda: None,
        on_close=lambda _reader: None,
        bucket=LOW,
    )
    reader.attach(anything, cast(Any, consumer))
    return reader


def _give(consumer: _Consumer, *places: tuple[int, int], batch_size: int = 9, **properties: str) -> None:
    for entry, index in places:
        consumer.give(_message(entry, index, properties, batch_size))


def _read(reader: BucketReader, limit: int = 100) -> list[Position]:
    return [message.position[1:] for message in reader.read(limit)]


def test_entries_of_other_slots_that_come_later_are_put_in_their_place(
    reader: BucketReader, consumer: _Consumer
) -> None:
    _give(consumer, (1, 0), (5, 0), (5, 1), (3, 0), (3, 1), (7, 0))

    assert _read(reader) == [(1, 0), (3, 0), (3, 1), (5, 0), (5, 1), (7, 0)]


@pytest.mark.parametrize("place", [(3, 0), (4, 0), (5, 0)], ids=["earlier", "the last read", "waiting"])
def test_what_comes_again_or_too_late_ends_the_reading(
    reader: BucketReader, consumer: _Consumer, place: tuple[int, int]
) -> None:
    _give(consumer, (2, 0), (4, 0), (5, 0), (6, 0))
    assert _read(reader, 2) == [(2, 0), (4, 0)]

    _give(consumer, place)

    assert _read(reader, 1) == []
    assert reader.may_wait()
    with pytest.raises(LostRace):
        reader.read(1)


def test_acknowledging_asks_nobody_why_the_reading_has_ended(
    reader: BucketReader, consumer: _Consumer, cursors: _Cursors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may be away, and whoever acknowledges has other buckets to see to."""

    def ask(*_: object) -> Attachments:
        raise AssertionError("the broker is asked")

    monkeypatch.setattr(cursors, "attachments", ask)
    monkeypatch.setattr(cursors, "is_drained", ask)
    _give(consumer, (1, 0), (2, 0))
    _read(reader)
    reader.acknowledge((1, 1, 0))
    reader.interrupt()

    reader.acknowledge((1, 1, 0))  # which it is
    with pytest.raises(LostRace):
        reader.acknowledge((1, 2, 0))


def test_entries_are_acknowledged_whole_once_something_follows(
    reader: BucketReader, consumer: _Consumer
) -> None:
    """Of an entry that nothing follows the rest may still be on its way."""
    _give(consumer, (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))
    _read(reader)

    reader.acknowledge((1, 2, 1))
    assert consumer.acknowledged == [(1, 1, -1), (1, 2, -1)]

    reader.acknowledge((1, 3, 0))
    reader.acknowledge((1, 3, 1))
    assert consumer.acknowledged[2:] == [(1, 3, 0), (1, 3, 1)]


def test_the_last_entry_in_hand_is_acknowledged_whole_when_its_last_message_is(
    reader: BucketReader, consumer: _Consumer
) -> None:
    _give(consumer, (1, 0), (1, 1), (1, 2), batch_size=3)
    _read(reader)

    reader.acknowledge((1, 1, 1))
    assert consumer.acknowledged == [(1, 1, 0), (1, 1, 1)]

    reader.acknowledge((1, 1, 2))
    assert consumer.acknowledged[2:] == [(1, 1, -1)]


def test_an_entry_with_messages_of_another_bucket_is_never_acknowledged_whole(
    reader: BucketReader, consumer: _Consumer
) -> None:
    _give(consumer, (1, 0), batch_size=3, **{HASHES: "9000-9000"})
    _give(consumer, (1, 1), (1, 2), batch_size=3, **{HASHES: "1000-1000"})
    _read(reader)

    reader.acknowledge((1, 1, 2))

    assert consumer.acknowledged == [(1, 1, 1), (1, 1, 2)]


@pytest.mark.parametrize("pieces", [[3], [1, 2], [2, 1], [1, 1, 1]], ids=str)
def test_the_first_message_of_an_entry_tells_of_those_behind_it(
    reader: BucketReader, consumer: _Consumer, pieces: list[int]
) -> None:
    """However they arrive; what is said of one entry is not said of the next."""
    found, index = [], 0
    for count in pieces:
        for _ in range(count):
            marks = {} if index else {HASHES: "9000-9000"}
            _give(consumer, (1, index), batch_size=3, **marks)
            index += 1
        found += _read(reader)
    assert found == []
    assert reader.misplaced == 3

    _give(consumer, (2, 0), (2, 1), batch_size=2)
    assert _read(reader) == [(2, 0), (2, 1)]


def test_an_id_of_the_library_says_how_many_messages_its_entry_has() -> None:
    message_id = _pulsar.MessageId.deserialize(bytes([0x08, 1, 0x10, 200, 1, 0x20, 2, 0x30, 3]))

    assert ends_its_entry(message_id)
    assert not ends_its_entry(_pulsar.MessageId.deserialize(bytes([0x08, 1, 0x10, 5, 0x20, 1, 0x30, 3])))
    assert not ends_its_entry(pulsar.MessageId(-1, 1, 5, -1))
    assert not ends_its_entry(pulsar.MessageId(-1, 1, 5, 0))


def test_an_entry_that_came_late_is_acknowledged_message_by_message(
    reader: BucketReader, consumer: _Consumer
) -> None:
    """More of it may come, though a later entry is there already."""
    _give(consumer, (5, 0), (3, 0), (3, 1))
    assert _read(reader, 2) == [(3, 0), (3, 1)]

    reader.acknowledge((1, 3, 1))

    assert consumer.acknowledged == [(1, 3, 0), (1, 3, 1)]


def test_what_belongs_elsewhere_is_never_acknowledged_with_its_entry(
    reader: BucketReader, consumer: _Consumer
) -> None:
    _give(consumer, (1, 0))
    _give(consumer, (1, 1), **{HASHES: "9000-9000"})
    _give(consumer, (2, 0), **{HASHES: "1000-1000"})
    assert _read(reader) == [(1, 0), (2, 0)]

    reader.acknowledge((1, 1, 0))

    assert consumer.acknowledged == [(1, 1, 0)]
    assert reader.misplaced == 1


def test_close_returns_when_the_broker_shows_it_gone(reader: BucketReader, cursors: _Cursors) -> None:
    """The library says that a consumer is closed even where its connection had broken and the broker knows nothing."""
    cursors.looks_left = 2

    reader.close()

    assert cursors.looks_left == -1
