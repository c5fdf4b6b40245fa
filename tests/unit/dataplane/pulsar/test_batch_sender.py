"""What a sender does with its producer when the result of a batch cannot be known. The rest is seen on real brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pulsar
import pytest

from controller.dataplane.log_client import Metadata, OutgoingMessage
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.batch_sender import BatchSender
from controller.domain.errors import DataPlaneTimeout, SegmentNotFound


class _Producer:
    """A producer of the library that has lost its connection, and never tells what became of a message."""

    def __init__(self) -> None:
        self._producer = self
        self.is_closed = False
        self.has_connection = False

    def is_connected(self) -> bool:
        return self.has_connection

    def send_async(self, *_: object) -> None:
        pass

    def flush_async(self, *_: object) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def close_async(self, _callback: object) -> None:
        """The broker never responds."""
        self.is_closed = True


class _Connections:
    def __init__(self) -> None:
        self.opened: list[_Producer] = []
        self.aside: list[Callable[[], object]] = []

    def open(self, *_: object) -> _Producer:
        self.opened.append(_Producer())
        return self.opened[-1]

    def run_aside(self, function: Callable[[], object]) -> None:
        self.aside.append(function)


class _End:
    """The end of a topic that is deleted once its producer is open, or after `looks` checks."""

    def __init__(self, looks: int = 0) -> None:
        self._looks = looks
        self.with_end: list[bool] = []

    def place(self, _deadline: Deadline) -> tuple[int, int]:
        return (1, -1)

    def is_terminated(self, _deadline: Deadline, *, with_end: bool) -> bool:
        self.with_end.append(with_end)
        if len(self.with_end) > self._looks:
            raise SegmentNotFound("no such topic; look up the layout again")
        return False


@pytest.fixture
def connections() -> _Connections:
    return _Connections()


@pytest.fixture
def sender(connections: _Connections) -> BatchSender:
    return BatchSender(cast(Any, connections), cast(Any, _End()), "persistent://t/n/x", "p")


def test_a_producer_of_a_deleted_topic_is_dropped_without_waiting_for_its_end(
    connections: _Connections, sender: BatchSender
) -> None:
    """If the topic is made anew, the library would send the messages of the lost batch to it."""
    for _ in range(2):
        with pytest.raises(SegmentNotFound):
            sender.append([OutgoingMessage(b"1")], 0, Deadline(30.0))

    assert len(connections.opened) == 2, "the second append opens another one"
    assert not any(producer.is_closed for producer in connections.opened)
    for close in connections.aside:
        close()
    assert all(producer.is_closed for producer in connections.opened)


def test_only_the_first_check_of_an_append_asks_for_the_metadata_of_ledgers(
    connections: _Connections,
) -> None:
    """A broker that restarts is checked again and again by every producer."""
    end = _End(looks=2)
    sender = BatchSender(cast(Any, connections), cast(Any, end), "persistent://t/n/x", "p")

    with pytest.raises(SegmentNotFound):
        sender.append([OutgoingMessage(b"1")], 0, Deadline(30.0))

    assert end.with_end == [True, False, False]


def test_behind_an_append_that_nobody_waits_for_the_next_one_ends_at_its_deadline(
    connections: _Connections, sender: BatchSender
) -> None:
    sender.open(Deadline(30.0))
    connections.opened[0].has_connection = True
    assert sender.begin([OutgoingMessage(b"1")], 0, Deadline(30.0)) is not None

    for wait in (
        lambda: sender.append([OutgoingMessage(b"2")], 1, Deadline(0.05)),
        lambda: sender.open(Deadline(0.05)),
    ):
        with pytest.raises(
            DataPlaneTimeout, match=r"append to .*: an earlier append of producer p did not end"
        ):
            wait()


def test_a_producer_whose_broker_does_not_respond_is_closed_at_the_deadline(
    connections: _Connections, sender: BatchSender
) -> None:
    sender.open(Deadline(30.0))

    sender.close(Deadline(0.05))

    assert connections.opened[0].is_closed


def test_behind_an_append_that_nobody_waits_for_the_sender_stops_waiting_at_the_deadline(
    connections: _Connections, sender: BatchSender
) -> None:
    sender.open(Deadline(30.0))
    connections.opened[0].has_connection = True
    assert sender.begin([OutgoingMessage(b"1")], 0, Deadline(30.0)) is not None

    sender.close(Deadline(0.05))

    assert not connections.opened[0].is_closed, "its client closes it"


class _StoringProducer(_Producer):
    """A producer whose entries are stored when they are flushed. `entries` are their numbers of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[int] = []
        self._answers: list[Any] = []

    def send_async(self, *arguments: object) -> None:
        self._answers.append(arguments[1])

    def flush_async(self, *_: object) -> None:
        *others, last = self._answers
        assert not any(others), "only the last message has its result reported"
        self.entries.append(len(self._answers))
        self._answers.clear()
        last(pulsar.Result.Ok, None)


class _StoringConnections(_Connections):
    def open(self, *_: object) -> _Producer:
        self.opened.append(_StoringProducer())
        return self.opened[-1]


def test_keys_and_properties_count_when_a_batch_is_divided_and_a_repeat_is_divided_alike() -> None:
    connections = _StoringConnections()
    message = OutgoingMessage(b"", b"k", 0, Metadata((("trace", "x" * 1_000),)))
    batch = [*[message] * 1_500, OutgoingMessage(bytes(2_000_000)), message]
    for _ in range(2):
        sender = BatchSender(cast(Any, connections), cast(Any, _End()), "persistent://t/n/x", "p")
        assert sender.append(batch, 0, Deadline(30.0)) == len(batch)

    divided = [producer.entries for producer in connections.opened if isinstance(producer, _StoringProducer)]
    assert divided == [[979, 521, 1, 1]] * 2, "a message counts 1,070 bytes"
