"""Reading from a position on, with a library that the test scripts: what has come is read, and who has all of it is told of more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.dataplane.pulsar.position_reader import PulsarPositionReader
from tests.support.scripted_library import ScriptedLibrary


def message(entry: int) -> Any:
    """The one of that entry, as the library has it."""
    place = SimpleNamespace(ledger_id=lambda: 1, entry_id=lambda: entry, batch_index=lambda: -1)
    return SimpleNamespace(
        message_id=lambda: place,
        encryption_context=lambda: None,
        publish_timestamp=lambda: 0,
        partition_key=lambda: "",
        event_timestamp=lambda: 0,
        properties=dict,
        data=lambda: b"%d" % entry,
    )


@pytest.fixture
def library() -> ScriptedLibrary[Any]:
    return ScriptedLibrary()


@pytest.fixture
def rings() -> list[bool]:
    return []


@pytest.fixture
def reader(library: ScriptedLibrary[Any], rings: list[bool]) -> PulsarPositionReader:
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
    library: ScriptedLibrary[Any], reader: PulsarPositionReader, rings: list[bool]
) -> None:
    """Also where no more was asked for than had come."""
    library.arrive(message(1))
    assert payloads(reader, 1) == [b"1"]
    rings.clear()

    library.arrive(message(2))

    assert rings == [True]
    assert payloads(reader, 1) == [b"2"]


def test_what_came_before_the_connection_broke_is_read(
    library: ScriptedLibrary[Any], reader: PulsarPositionReader
) -> None:
    library.arrive(*map(message, range(1, 31)))
    library.is_up = False

    assert payloads(reader, 50) == [b"%d" % entry for entry in range(1, 31)]


@pytest.mark.parametrize("asks", [PulsarPositionReader.is_at_end, PulsarPositionReader.may_wait])
def test_what_has_come_is_no_end_and_nothing_to_ask_about(
    library: ScriptedLibrary[Any], reader: PulsarPositionReader, asks: Callable[[PulsarPositionReader], bool]
) -> None:
    """Though the library has it still."""
    reader._cursors = cast(Any, SimpleNamespace(is_at_end=lambda *_: True, deadline=lambda: None))
    reader._stall._check_at = 0.0
    library.arrive(message(1))

    assert not asks(reader)
    assert payloads(reader, 1) == [b"1"]


def test_an_entry_that_was_read_in_part_does_not_come_again(
    library: ScriptedLibrary[Any], reader: PulsarPositionReader
) -> None:
    library.arrive(message(1), message(2))
    assert payloads(reader, 5) == [b"1", b"2"]
    library.arrive(message(2), message(3))

    assert payloads(reader, 5) == [b"3"]
