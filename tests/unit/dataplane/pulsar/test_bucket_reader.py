"""In which order a bucket's reader hands out what its listener is given, and how it acknowledges. The rest is seen on
real brokers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pytest

from controller.dataplane.base import Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.bucket_reader import BucketReader
from controller.dataplane.pulsar.buckets import HASHES
from controller.dataplane.pulsar.cursors import Attachments, Holder
from controller.domain.errors import LostRace
from controller.domain.hash_range import FULL_RANGE

LOW, _ = FULL_RANGE.halves()


class _Consumer:
    """A consumer of the library that notes what is acknowledged: index -1 is the whole entry."""

    def __init__(self) -> None:
        self.acknowledged: list[Position] = []

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def acknowledge(self, message_id: Any) -> None:
        self.acknowledged.append((message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()))


class _Connections:
    def close_aside(self, *_opened: object) -> None:
        pass


class _Cursors:
    """The broker's statistics: they show the reader for so many looks."""

    def __init__(self) -> None:
        self.looks_left = 0

    def deadline(self) -> Deadline:
        return Deadline(30.0)

    def attachments(self, *_: object) -> Attachments:
        self.looks_left -= 1
        holders = (Holder("o", "m", "here", (LOW,)),) if self.looks_left >= 0 else ()
        return Attachments(holders, is_shared=True, backlog=0)

    def is_drained(self, *_: object) -> bool:
        return False


def _message(entry: int, index: int, properties: dict[str, str]) -> pulsar.Message:
    message_id = SimpleNamespace(
        ledger_id=lambda: 1, entry_id=lambda: entry, batch_index=lambda: index, partition=lambda: -1
    )
    return cast(
        pulsar.Message,
        SimpleNamespace(
            message_id=lambda: message_id,
            partition_key=lambda: "",
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
        cast(Any, _Connections()),
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


def _give(reader: BucketReader, consumer: _Consumer, *places: tuple[int, int], **properties: str) -> None:
    for entry, index in places:
        reader.on_message(cast(Any, consumer), _message(entry, index, properties))


def _read(reader: BucketReader, limit: int = 100) -> list[Position]:
    return [message.position[1:] for message in reader.read(limit)]


def test_entries_of_other_slots_that_come_later_are_put_in_their_place(
    reader: BucketReader, consumer: _Consumer
) -> None:
    _give(reader, consumer, (1, 0), (5, 0), (5, 1), (3, 0), (3, 1), (7, 0))

    assert _read(reader) == [(1, 0), (3, 0), (3, 1), (5, 0), (5, 1), (7, 0)]


@pytest.mark.parametrize("place", [(3, 0), (4, 0), (5, 0)], ids=["earlier", "the last read", "waiting"])
def test_what_comes_again_or_too_late_ends_the_reading(
    reader: BucketReader, consumer: _Consumer, place: tuple[int, int]
) -> None:
    _give(reader, consumer, (2, 0), (4, 0), (5, 0), (6, 0))
    assert _read(reader, 2) == [(2, 0), (4, 0)]

    _give(reader, consumer, place)

    with pytest.raises(LostRace):
        reader.read(1)


def test_entries_are_acknowledged_whole_once_something_follows(
    reader: BucketReader, consumer: _Consumer
) -> None:
    """Of an entry that nothing follows the rest may still be on its way."""
    _give(reader, consumer, (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))
    _read(reader)

    reader.acknowledge((1, 2, 1))
    assert consumer.acknowledged == [(1, 1, -1), (1, 2, -1)]

    reader.acknowledge((1, 3, 0))
    reader.acknowledge((1, 3, 1))
    assert consumer.acknowledged[2:] == [(1, 3, 0), (1, 3, 1)]


def test_an_entry_that_came_late_is_acknowledged_message_by_message(
    reader: BucketReader, consumer: _Consumer
) -> None:
    """More of it may come, though a later entry is there already."""
    _give(reader, consumer, (5, 0), (3, 0), (3, 1))
    assert _read(reader, 2) == [(3, 0), (3, 1)]

    reader.acknowledge((1, 3, 1))

    assert consumer.acknowledged == [(1, 3, 0), (1, 3, 1)]


def test_what_belongs_elsewhere_is_never_acknowledged_with_its_entry(
    reader: BucketReader, consumer: _Consumer
) -> None:
    _give(reader, consumer, (1, 0))
    _give(reader, consumer, (1, 1), **{HASHES: "9000-9000"})
    _give(reader, consumer, (2, 0), **{HASHES: "1000-1000"})
    assert _read(reader) == [(1, 0), (2, 0)]

    reader.acknowledge((1, 1, 0))

    assert consumer.acknowledged == [(1, 1, 0)]
    assert reader.misplaced == 1


def test_close_returns_when_the_broker_shows_it_gone(reader: BucketReader, cursors: _Cursors) -> None:
    """The library says that a consumer is closed even where its connection had broken and the broker knows nothing."""
    cursors.looks_left = 2

    reader.close()

    assert cursors.looks_left == -1
