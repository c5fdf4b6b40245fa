"""The producer with a log in memory: the time of delayed batches, the limits of a message, and threads that do not start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from controller.client.producer import MAX_MESSAGE_BYTES, Producer
from controller.client.send_lane import SendLane
from controller.dataplane.log_client import Metadata, OutgoingMessage
from controller.domain.errors import DataPlaneUnavailable, InvalidInput
from tests.support.one_segment import OneSegment
from tests.support.scripted_leader import BackgroundCall
from tests.support.waiting import wait_until

NAME = "topic://acme/shop/orders"
LONGEST_SECONDS = 0.01
"""A batch delay that is shorter than the time between two attempts."""
SEND_TIMEOUT_SECONDS = 1.0


class Logs:
    """A log whose appends wait until `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.appends = 0

    def append(self, _log: str, messages: Sequence[OutgoingMessage], **_: Any) -> int:
        """As `LogClient.append`."""
        self.appends += 1
        assert self.goes_on.wait(30.0)
        return len(messages)

    def close(self) -> None:
        """As `LogClient.close`."""

    locate = open_reader = open_reader_at = open_queue_reader = close


@pytest.fixture
def logs() -> Logs:
    return Logs()


@pytest.fixture
def producer(logs: Logs) -> Iterator[Producer]:
    producer = Producer(OneSegment(), logs, NAME, send_timeout_seconds=SEND_TIMEOUT_SECONDS)
    yield producer
    logs.goes_on.set()
    producer.close(flush=False)


def test_a_batch_of_more_messages_than_pulsar_numbers_is_refused_before_anything_begins() -> None:
    def fail(*_: object) -> None:
        pytest.fail("the topic is read")

    source = SimpleNamespace(topic=fail, watch=fail)
    with pytest.raises(InvalidInput, match="batch_messages = 65537; give a whole number from 1 to 65536"):
        Producer(source, Logs(), NAME, batch_messages=65_537)


def test_messages_behind_a_batch_in_flight_wait_for_no_longer_than_the_delay(
    producer: Producer, logs: Logs
) -> None:
    """The thread that sends them does not hear of the end of the batch, so it looks again after the delay."""
    producer.send(b"1", "k")
    producer._send_due(0.0)
    wait_until(lambda: logs.appends == 1)
    producer.send(b"2", "k")

    due_at = producer._send_due(LONGEST_SECONDS)

    assert due_at is not None
    assert due_at <= time.monotonic() + LONGEST_SECONDS


def test_a_batch_for_which_no_thread_can_be_started_fails(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of the process, when the main thread has ended: nothing else would end the flush."""

    def refuse(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(producer._sends, "submit", refuse)
    producer.send(b"1", "k")
    began_at = time.monotonic()

    with pytest.raises(DataPlaneUnavailable, match="after interpreter shutdown"):
        producer.flush()
    assert time.monotonic() - began_at >= SEND_TIMEOUT_SECONDS
    assert producer.pending == 1


def test_a_batch_for_which_a_thread_can_be_started_later_is_stored(
    producer: Producer, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close that raises at the first refusal would drop the messages."""
    submit, refusals = producer._sends.submit, ["can't start new thread"] * 2

    def hesitate(*call: Any) -> object:
        if refusals:
            raise RuntimeError(refusals.pop())
        return submit(*call)

    monkeypatch.setattr(producer._sends, "submit", hesitate)
    logs.goes_on.set()
    producer.send(b"1", "k")

    producer.close()

    assert (producer.pending, logs.appends) == (0, 1)


def test_a_batch_that_runs_although_its_start_failed_counts_once(
    producer: Producer, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that cannot start a thread keeps the batch, and a later thread runs it."""
    submit = producer._sends.submit

    def refuse(*call: Any) -> None:
        submit(*call)
        raise RuntimeError("can't start new thread")

    producer.send(b"1", "k")
    with monkeypatch.context() as patched:
        patched.setattr(producer._sends, "submit", refuse)
        with pytest.raises(DataPlaneUnavailable, match="can't start new thread"):
            producer.flush()
    flush = BackgroundCall(producer.flush)
    wait_until(lambda: logs.appends >= 2)
    logs.goes_on.set()
    flush.result()
    producer.close()

    assert producer.pending == 0


@pytest.mark.parametrize(
    "message",
    [
        {"payload": b"x" * (MAX_MESSAGE_BYTES + 1)},
        {"payload": b"x" * MAX_MESSAGE_BYTES, "key": "k"},
        {"payload": b"x" * (MAX_MESSAGE_BYTES - 4), "metadata": Metadata((("a", "\u20ac\u20ac"),))},
        {"payload": b"x", "key": b"k" * MAX_MESSAGE_BYTES},
        {"payload": b"xx", "key": "\u20ac" * (MAX_MESSAGE_BYTES // 3)},
    ],
    ids=["payload", "payload and key", "payload and properties", "bytes of a key", "characters of a key"],
)
def test_a_message_that_no_log_stores_is_not_queued(producer: Producer, message: dict[str, Any]) -> None:
    """Queued, it would be refused for ever, and with it every later message of its lane."""
    with pytest.raises(InvalidInput, match=f"send at most {MAX_MESSAGE_BYTES}"):
        producer.send(**message)
    assert producer.pending == 0


@pytest.mark.parametrize("key", ["", b""])
@pytest.mark.parametrize("metadata", [None, Metadata((("a", "b"),))])
def test_an_empty_key_is_refused(producer: Producer, key: str | bytes, metadata: Metadata | None) -> None:
    """On Pulsar it is no key, so its messages would have an order on the embedded logs alone."""
    with pytest.raises(InvalidInput, match="the key is empty; give a longer key, or None"):
        producer.send(b"x", key, metadata)
    assert producer.pending == 0


def test_the_longest_messages_are_queued(producer: Producer) -> None:
    producer.send(b"x" * (MAX_MESSAGE_BYTES - 6), "\u20ac", Metadata((("a", "bc"),)))
    producer.send(b"", "k" * MAX_MESSAGE_BYTES)
    assert producer.pending == 2


def test_keys_and_properties_count_in_a_batch() -> None:
    """A log accepts a batch up to a size that includes them."""
    lane = SendLane(0, "log_0", None, "p")
    for _ in range(3):
        lane.put(b"x", b"kk", 0, Metadata((("a", "\u20ac"),)))

    assert lane.waiting_bytes == 3 * 7
    batch = lane.take(10, 8)
    assert (len(batch), lane.waiting_bytes) == (2, 7)
    lane.put_back(batch)
    assert lane.waiting_bytes == 3 * 7
