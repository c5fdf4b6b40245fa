"""What a queue's reader does with entries that come again, as brokers send them. The rest is seen on real brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pytest

from controller.dataplane.log_client import Position
from controller.dataplane.pulsar import queue_reader
from controller.dataplane.pulsar.drain_query_pace import DrainCheck
from controller.dataplane.pulsar.queue_reader import PulsarQueueReader
from controller.domain.errors import LostRace
from tests.support.scripted_library import IdleConnections, IdleCursors


class _Consumer:
    """A consumer of the library that notes what is settled; `copy` tells the deliveries of one message apart."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[Position, int]] = []
        self.asked_for: list[Position] = []
        self.listens = self.connected = True

    def is_connected(self) -> bool:
        return self.connected

    def acknowledge(self, message_id: Any) -> None:
        self.acknowledged.append((_position(message_id), message_id.copy))

    def negative_acknowledge(self, message_id: Any) -> None:
        self.asked_for.append(_position(message_id))

    def pause_message_listener(self) -> None:
        self.listens = False

    def resume_message_listener(self) -> None:
        self.listens = True


def _position(message_id: Any) -> Position:
    return (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def message(index: int, copy: int = 1) -> pulsar.Message:
    message_id = SimpleNamespace(
        ledger_id=lambda: 1,
        entry_id=lambda: 0,
        batch_index=lambda: index,
        copy=copy,
        serialize=lambda: b"\x30\x04",  # field 6, four messages in the batch
    )
    return cast(
        pulsar.Message,
        SimpleNamespace(
            message_id=lambda: message_id,
            partition_key=lambda: "k",
            event_timestamp=lambda: 0,
            properties=dict,
            publish_timestamp=lambda: 0,
            data=lambda: b"%d" % index,
            redelivery_count=lambda: copy - 1,
            encryption_context=lambda: None,
        ),
    )


@pytest.fixture
def consumer() -> _Consumer:
    return _Consumer()


@pytest.fixture
def reader(consumer: _Consumer) -> PulsarQueueReader:
    reader = PulsarQueueReader(
        cast(Any, IdleCursors()),
        cast(Any, IdleConnections()),
        backing_topic="persistent://t/n/a",
        subscription="s",
        mark="m",
        prefetch_messages=4,
        on_arrival=lambda: None,
        on_close=lambda _reader: None,
    )
    reader.attach(cast(pulsar.Client, None), cast(pulsar.Consumer, consumer))
    return reader


def deliver(reader: PulsarQueueReader, consumer: _Consumer, *indexes: int, copy: int = 1) -> None:
    for index in indexes:
        reader.on_message(cast(pulsar.Consumer, consumer), message(index, copy))


def payloads(reader: PulsarQueueReader, limit: int = 10) -> list[bytes]:
    return [one.payload for one in reader.read(limit)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given back without a delay is due at once."""
    monkeypatch.setattr(queue_reader, "AGAIN_MS", 0)


@pytest.mark.usefixtures("at_once")
def test_of_a_batch_what_is_given_back_is_handed_out_again_here(
    reader: PulsarQueueReader, consumer: _Consumer
) -> None:
    """The broker would give the whole batch to any reader: with what is in hand, and what is being acknowledged."""
    deliver(reader, consumer, 0, 1, 2, 3)
    assert payloads(reader, 3) == [b"0", b"1", b"2"]
    assert reader.acknowledge([(1, 0, 0)]) == []
    for deliveries in (2, 3):
        reader.give_back([(1, 0, 1)])
        found = reader.read(10)
        assert {one.payload: one.deliveries for one in found if one.payload != b"3"} == {b"1": deliveries}

    assert reader.acknowledge([(1, 0, 1)]) == []
    assert consumer.asked_for == []


@pytest.mark.usefixtures("at_once")
def test_a_message_alone_in_its_entry_is_asked_for_again(
    reader: PulsarQueueReader, consumer: _Consumer
) -> None:
    deliver(reader, consumer, -1)
    payloads(reader)

    reader.give_back([(1, 0, 0)])
    assert payloads(reader) == []
    deliver(reader, consumer, -1, copy=2)

    assert consumer.asked_for == [(1, 0, -1)]
    assert [one.deliveries for one in reader.read(10)] == [2]


def test_what_came_again_is_acknowledged_as_it_came_last(
    reader: PulsarQueueReader, consumer: _Consumer
) -> None:
    """The library counts a batch's acknowledgements for each time that it came. What is settled is settled again."""
    deliver(reader, consumer, 0, 1, 2)
    assert payloads(reader, 2) == [b"0", b"1"]
    assert reader.acknowledge([(1, 0, 0)]) == []
    deliver(reader, consumer, 0, 1, 2, copy=2)
    assert payloads(reader) == [b"2"]

    assert reader.acknowledge([(1, 0, 1), (1, 0, 2)]) == []

    assert consumer.acknowledged == [((1, 0, 0), 1), ((1, 0, 0), 2), ((1, 0, 1), 2), ((1, 0, 2), 2)]


@pytest.mark.usefixtures("at_once")
def test_what_waits_for_its_delay_is_not_handed_out_with_its_batch(
    reader: PulsarQueueReader, consumer: _Consumer
) -> None:
    deliver(reader, consumer, 0, 1)
    payloads(reader)
    reader.give_back([(1, 0, 0)], delay_seconds=60.0)
    reader.give_back([(1, 0, 1)])

    deliver(reader, consumer, 0, 1, copy=2)

    assert payloads(reader) == [b"1"]
    assert reader.acknowledge([(1, 0, 0)]) == [(1, 0, 0)]


def test_a_listener_is_held_up_while_much_waits(reader: PulsarQueueReader, consumer: _Consumer) -> None:
    deliver(reader, consumer, 0, 1, 2, 3)
    assert not consumer.listens

    payloads(reader, 2)

    assert consumer.listens


def test_a_connection_that_broke_ends_the_reading(reader: PulsarQueueReader, consumer: _Consumer) -> None:
    """The cursor may have been moved: what is in hand is not acknowledged, what waits is not delivered."""
    deliver(reader, consumer, 0, 1)
    payloads(reader, 1)
    assert reader.is_current
    consumer.connected = False

    assert not reader.is_current
    with pytest.raises(LostRace):
        reader.acknowledge([(1, 0, 0)])
    with pytest.raises(LostRace):
        reader.read(1)
    assert consumer.acknowledged == []


def test_only_what_was_acknowledged_counts_as_acknowledged(
    reader: PulsarQueueReader, consumer: _Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a check of a drained topic waits for acknowledgements that were never sent."""
    counts: list[int] = []
    monkeypatch.setattr(DrainCheck, "note_acknowledged", lambda _check, messages: counts.append(messages))
    deliver(reader, consumer, 0, 1, 2)
    payloads(reader, 2)

    assert reader.acknowledge([(1, 0, 0), (1, 0, 0), (1, 0, 2)]) == [(1, 0, 2)]
    reader.acknowledge([(1, 0, 0), (1, 0, 1)])

    assert counts == [1, 1]
