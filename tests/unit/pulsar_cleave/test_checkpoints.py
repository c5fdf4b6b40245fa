"""The position of a checkpoint consumer that another thread pauses while `receive` runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch
from controller.client.checkpoint_consumer import CheckpointConsumer as AloneConsumer
from controller.client.checkpoint_group import CheckpointGroupConsumer as GroupConsumer
from controller.dataplane.log_client import LogMessage, Position
from pulsar_cleave._asynchronous import AsyncCheckpointConsumer
from pulsar_cleave._checkpoints import CheckpointConsumer

TOPIC = "topic://acme/shop/orders"
BATCH = 3


class Inner(AloneConsumer):
    """A consumer of two segments. `segments` are the segments of its batches, and `aside` runs during each `receive`."""

    def __init__(self) -> None:
        self.aside: Callable[[], None] = lambda: None
        self.calls: list[str] = []
        self.checkpoints = 0
        self._is_paused = False
        self.segments: Sequence[int] = (0, 1)
        self._batches = 0
        self._read: dict[int, int] = {}

    def checkpoint(self) -> Checkpoint:
        self.checkpoints += 1
        positions = {segment_id: self._at(segment_id) for segment_id in (0, 1)}
        return Checkpoint(1, TOPIC, 1, positions, frozenset())

    def _at(self, segment_id: int) -> Position | None:
        read = self._read.get(segment_id)
        return (read,) if read else None

    def pause(self) -> None:
        self.calls.append("pause")
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        self.calls.append(f"close {timeout_seconds} {leave}")

    def receive(self, _timeout_seconds: float) -> CheckpointBatch | None:
        was_paused = self._is_paused
        self.aside()
        if (was_paused and self._is_paused) or self._batches == len(self.segments):
            return None
        segment_id = self.segments[self._batches]
        self._batches += 1
        before = self._at(segment_id)
        first = self._read.get(segment_id, 0) + 1
        self._read[segment_id] = first + BATCH - 1
        messages = [LogMessage((first + i,), 0, None, b"%d" % segment_id) for i in range(BATCH)]
        return CheckpointBatch(segment_id, messages, before)


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

    pause, resume, checkpoint, _at = Inner.pause, Inner.resume, Inner.checkpoint, Inner._at

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
    member._read[0] = 5
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


def test_receiving_asks_the_inner_consumer_for_no_checkpoint(inner: Inner) -> None:
    """A checkpoint has every segment that was ever read to its end, and a member that made one waits to store it."""
    consumer = CheckpointConsumer(inner, TOPIC, None)

    assert len([message for _ in range(3 * BATCH) if (message := consumer.receive(0.0))]) == 2 * BATCH

    assert inner.checkpoints == 0


def test_receiving_with_asyncio_asks_for_none_either(inner: Inner) -> None:
    async def receive() -> Checkpoint:
        async with AsyncCheckpointConsumer(lambda: CheckpointConsumer(inner, TOPIC, None)) as consumer:
            for _ in range(BATCH + 1):
                assert await consumer.receive(0.0) is not None
            assert inner.checkpoints == 0
            return await consumer.checkpoint()

    assert asyncio.run(receive()).positions == {0: (BATCH,), 1: (1,)}


def test_what_was_taken_and_not_returned_is_not_in_the_checkpoint(inner: Inner) -> None:
    """As after a cancelled `receive` of the asynchronous consumer."""
    consumer = CheckpointConsumer(inner, TOPIC, None)
    first, *_ = taken = [message for _ in range(BATCH) if (message := consumer.receive(0.0))]

    assert consumer._checkpoint_before(taken[1:]).positions == {0: first.message_id.position, 1: None}
    assert consumer._checkpoint_before(taken).positions == {0: None, 1: None}


def test_a_segment_whose_last_messages_are_kept_back_is_not_done(
    consumer: CheckpointConsumer, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Checkpoint(1, TOPIC, 1, {1: None}, frozenset({0}))
    monkeypatch.setattr(inner, "checkpoint", lambda: whole)

    assert consumer.checkpoint() == Checkpoint(1, TOPIC, 1, {0: None, 1: None}, frozenset())

    consumer.resume()
    consumer.receive_many(BATCH, 0.0)
    assert consumer.checkpoint() == whole


def test_the_checkpoint_of_a_member_has_the_ownership_of_what_is_kept_back() -> None:
    """The starting position of a segment is known only in the `receive` that reads it."""
    member = Member(1)
    consumer = CheckpointConsumer(member, TOPIC, None)
    member._read[1] = 5  # of a stored value
    member.aside = consumer.pause
    assert consumer.receive_many(BATCH, 0.0) == ()

    kept_back = consumer.checkpoint()

    assert (kept_back.positions[1], dict(kept_back.generations)) == ((5,), {1: 1})


def test_nothing_is_kept_of_segments_whose_messages_were_all_returned(inner: Inner) -> None:
    """Otherwise a consumer that lives long keeps an entry for each segment that it ever read."""
    consumer = CheckpointConsumer(inner, TOPIC, None)
    for _ in inner.segments:
        assert len(consumer.receive_many(BATCH, 0.0)) == BATCH

    kept = {
        name: value for name, value in vars(consumer).items() if isinstance(value, dict | list | deque | set)
    }

    assert kept
    assert not any(kept.values()), kept
