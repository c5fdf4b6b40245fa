"""The position of a checkpoint consumer that another thread pauses while `receive` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch
from controller.client.checkpoint_consumer import CheckpointConsumer as AloneConsumer
from controller.client.checkpoint_group import CheckpointGroupConsumer as GroupConsumer
from controller.dataplane.log_client import LogMessage
from pulsar_cleave._checkpoints import CheckpointConsumer

TOPIC = "topic://acme/shop/orders"
BATCH = 3


class Inner(AloneConsumer):
    """A consumer of two segments. `segments` are the segments of its batches, and `aside` runs during each `receive`."""

    def __init__(self) -> None:
        self.aside: Callable[[], None] = lambda: None
        self.calls: list[str] = []
        self._is_paused = False
        self.segments: Sequence[int] = (0, 1)
        self._batches = 0
        self._read: dict[int, int] = {}

    def checkpoint(self) -> Checkpoint:
        positions = {segment_id: (i,) if (i := self._read.get(segment_id)) else None for segment_id in (0, 1)}
        return Checkpoint(1, TOPIC, 1, positions, frozenset())

    def pause(self) -> None:
        self.calls.append("pause")
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def receive(self, _timeout_seconds: float) -> CheckpointBatch | None:
        was_paused = self._is_paused
        self.aside()
        if (was_paused and self._is_paused) or self._batches == len(self.segments):
            return None
        segment_id = self.segments[self._batches]
        self._batches += 1
        first = self._read.get(segment_id, 0) + 1
        self._read[segment_id] = first + BATCH - 1
        messages = [LogMessage((first + i,), 0, None, b"%d" % segment_id) for i in range(BATCH)]
        return CheckpointBatch(segment_id, messages)


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def consumer(inner: Inner) -> CheckpointConsumer:
    """A consumer that was paused while it read the first batch, which is therefore not returned."""
    consumer = CheckpointConsumer(inner, TOPIC, None)
    inner.aside = consumer.pause
    assert consumer.receive_many(BATCH, 0.0) == ()
    inner.aside = lambda: None
    return consumer


def test_what_a_pause_keeps_back_is_not_in_the_checkpoint(consumer: CheckpointConsumer) -> None:
    for _ in range(2):
        assert consumer.receive_many(BATCH, 0.0) == ()
        assert consumer.checkpoint().positions == {0: None, 1: None}


def test_what_was_read_by_a_receive_that_a_resume_ends_is_not_in_it_either(
    consumer: CheckpointConsumer, inner: Inner
) -> None:
    """The read begins while a batch is kept back, so two batches wait."""
    inner.aside = consumer.resume

    assert consumer.receive_many(1, 0.0)[0].message_id == (0, (1,))
    assert consumer.checkpoint().positions == {0: (1,), 1: None}
    consumer.receive_many(BATCH, 0.0)
    assert consumer.checkpoint().positions == {0: (3,), 1: (1,)}


@pytest.mark.parametrize("segments", [(0, 0), (0, 1, 0), (0, 0, 1)])
def test_no_message_of_waiting_batches_moves_the_checkpoint_back(
    consumer: CheckpointConsumer, inner: Inner, segments: Sequence[int]
) -> None:
    inner.segments = segments
    received = {0: 0, 1: 0}

    def receive() -> bool:
        message = consumer.receive(0.0)
        if message is not None:
            received[message.message_id.segment_id] += 1
            assert consumer.checkpoint().positions == {i: (at,) if at else None for i, at in received.items()}
        return message is not None

    for _ in segments[1:]:  # each read begins while messages are kept back
        consumer.pause()
        inner.aside = consumer.resume
        assert receive()
    inner.aside = lambda: None
    while receive():
        pass

    assert received == {i: BATCH * segments.count(i) for i in received}


class Member(GroupConsumer):
    """A member of a group that reads as `Inner` does, and has an ownership of each segment."""

    pause, resume, checkpoint = Inner.pause, Inner.resume, Inner.checkpoint

    def __init__(self, *segments: int) -> None:
        Inner.__init__(self)
        self.segments, self.origins = segments, {i: SimpleNamespace(generation=1) for i in segments}

    def receive(self, timeout_seconds: float) -> CheckpointBatch | None:
        batch = Inner.receive(self, timeout_seconds)
        return None if batch is None else replace(batch, origin=self.origins[batch.segment_id])

    def has(self, batch: CheckpointBatch) -> bool:
        return batch.origin is self.origins[batch.segment_id]


def test_a_batch_of_a_new_ownership_does_not_follow_what_is_kept_back_of_the_old_one() -> None:
    """The new ownership begins before the messages of the old one, which are not delivered."""
    member = Member(1, 0, 0)
    consumer = CheckpointConsumer(member, TOPIC, None)
    member.aside = consumer.pause
    for _ in range(2):  # each read begins before the consumer is paused, as while another thread pauses it
        assert consumer.receive_many(BATCH, 0.0) == ()
        member.resume()
    member.origins[0], member._read[0] = SimpleNamespace(generation=2), 0

    assert consumer.receive_many(BATCH, 0.0) == ()
    assert consumer.checkpoint().positions == {0: None, 1: None}


def test_a_pause_ends_the_reading_before_the_delivery(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a `receive` could read a further batch although the consumer already counts as paused."""
    consumer = CheckpointConsumer(inner, TOPIC, None)
    monkeypatch.setattr(inner, "pause", lambda: inner.calls.append(f"paused {consumer._is_paused}"))

    consumer.pause()

    assert inner.calls == ["paused False"]
