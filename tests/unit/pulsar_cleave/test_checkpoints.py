"""The position of a checkpoint consumer that another thread pauses while `receive` runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch
from controller.client.checkpoint_consumer import CheckpointConsumer as AloneConsumer
from controller.dataplane.log_client import LogMessage
from pulsar_cleave._checkpoints import CheckpointConsumer

TOPIC = "topic://acme/shop/orders"
BATCH = 3


class Inner(AloneConsumer):
    """A consumer of two segments, with one batch of messages in each. `aside` runs during each `receive`."""

    def __init__(self) -> None:
        self.aside: Callable[[], None] = lambda: None
        self.calls: list[str] = []
        self._is_paused = False
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
        was_paused, segment_id = self._is_paused, len(self._read)
        self.aside()
        if (was_paused and self._is_paused) or segment_id > 1:
            return None
        self._read[segment_id] = BATCH
        messages = [LogMessage((i + 1,), 0, None, b"%d" % segment_id) for i in range(BATCH)]
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


def test_a_pause_ends_the_reading_before_the_delivery(inner: Inner) -> None:
    """Otherwise a `receive` could read a further batch although the consumer already counts as paused."""
    consumer = CheckpointConsumer(inner, TOPIC, None)
    inner.pause = lambda: inner.calls.append(f"paused {consumer._is_paused}")  # type: ignore[method-assign]

    consumer.pause()

    assert inner.calls == ["paused False"]
