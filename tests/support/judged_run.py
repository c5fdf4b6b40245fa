"""Consumers of one topic in this process, which write their histories, and the checker's verdict at the end.

The test chooses what each consumer does and when, so that a run can be led to a place where a fault would show. A run without progress is
not waited for but judged: messages that were not delivered by then are lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from controller.client.history import (
    Attachment,
    ConsumerHistory,
    Message,
    ProducerHistory,
    Readings,
    SeekHistory,
    history_files,
    read_history,
)
from controller.client.history_check import Verdict, check
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.dataplane.log_client import LogClient

KEYS = [f"key-{i}" for i in range(40)]
TURN_SECONDS = 0.02
LOOK_SECONDS = 0.7
"""For what must not come; a hand-over takes a tenth of it."""
GIVES_UP_SECONDS = 10.0
"""What has not come by then does not come; a run without a fault needs less than a tenth of it."""


class _InHand(NamedTuple):
    batch: Batch
    attachment: Attachment
    messages: list[Message]
    begun: set[Message]


class JudgedConsumer:
    """A consumer that processes its messages when the test requests it. The first message of each key is begun when it is taken, and
    ended by `finish`.
    """

    def __init__(self, consumer: StreamConsumer, history: ConsumerHistory) -> None:
        self.consumer, self._history = consumer, history
        self._readings = Readings()
        self._in_hand: list[_InHand] = []

    @property
    def messages_in_hand(self) -> int:
        """Number of messages that are taken and not ended."""
        return sum(len(entry.messages) for entry in self._in_hand)

    def take(self, seconds: float = TURN_SECONDS) -> None:
        """Receive the next batch, if one comes in time, and begin the first message of each key that is not in progress."""
        batch = self.consumer.receive(seconds)
        if batch is None:
            return
        messages = [("shop", (m.key or b"").decode(), int(m.payload)) for m in batch.messages]
        attachment = self._readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
        self._history.delivered(messages, attachment)
        busy = {key for entry in self._in_hand for _, key, _ in entry.messages}
        first = {message[1]: message for message in reversed(messages) if message[1] not in busy}
        self._history.begun(first.values(), attachment)
        self._in_hand.append(_InHand(batch, attachment, messages, set(first.values())))

    def finish(self) -> None:
        """End all messages in hand and acknowledge them."""
        while self._in_hand:
            batch, attachment, messages, begun = self._in_hand.pop(0)
            for message in messages:
                if message not in begun:
                    self._history.begun([message], attachment)
                self._history.ended([message], attachment)
            if self.consumer.acknowledge(batch):
                self._history.acknowledged(messages, attachment)

    def leave(self) -> None:
        """Close the consumer, whatever is in hand."""
        self._in_hand.clear()
        self.consumer.close()


class JudgedRun:
    """Subscription `billing` of a topic; `unread` returns the number of its unread messages."""

    def __init__(
        self,
        servers: Servers,
        logs: LogClient,
        topic: str,
        producer: Producer,
        directory: Path,
        unread: Callable[[], int],
    ) -> None:
        self._servers, self._logs, self._topic, self._producer = servers, logs, topic, producer
        self._directory, self._unread = directory, unread
        self._sent = ProducerHistory(directory / "shop.history")
        self._seeks = SeekHistory(directory / "seeks.history")
        self._histories: list[ConsumerHistory] = []
        self._consumers: list[JudgedConsumer] = []
        self._gets_nowhere = False

    def join(self, name: str) -> JudgedConsumer:
        """Add a consumer."""
        self._histories.append(ConsumerHistory(self._directory / f"{name}.history", name))
        consumer = StreamConsumer(self._servers, self._logs, self._topic, "billing", name)
        self._consumers.append(JudgedConsumer(consumer, self._histories[-1]))
        return self._consumers[-1]

    def leave(self, consumer: JudgedConsumer) -> None:
        """Remove a consumer."""
        self._consumers.remove(consumer)
        consumer.leave()

    def send(self, number: int) -> None:
        """Send message `number` of every key."""
        for key in KEYS:
            self._producer.send(b"%d" % number, key)
        self._producer.flush()
        self._sent.sent(("shop", key, number) for key in KEYS)

    @contextmanager
    def seek(self) -> Iterator[None]:
        """Record that the subscription is moved during the block."""
        with self._seeks.seek():
            yield

    def take_until(self, condition: Callable[[], bool]) -> None:
        """Let all consumers begin messages, and end none, until `condition` is True."""
        self._go_on(condition, JudgedConsumer.take)

    def look_around(self) -> None:
        """Let all consumers take what has come by now, which should be nothing."""
        for consumer in self._consumers:
            consumer.take(LOOK_SECONDS)

    def work_off(self, condition: Callable[[], bool] | None = None) -> None:
        """Let all consumers take and finish messages until none is left, or until `condition` is True."""

        def take_and_finish(consumer: JudgedConsumer) -> None:
            consumer.take()
            consumer.finish()

        self._go_on(condition or (lambda: self._unread() == 0), take_and_finish)

    def _go_on(self, condition: Callable[[], bool], act: Callable[[JudgedConsumer], None]) -> None:
        ends_at = time.monotonic() + GIVES_UP_SECONDS
        while not self._gets_nowhere and not condition():
            self._gets_nowhere = time.monotonic() > ends_at
            for consumer in self._consumers:
                act(consumer)

    def judge(self) -> Verdict:
        """Return the verdict on the whole run."""
        return check(read_history(*history_files([self._directory])), demand_acknowledged=True)

    def close(self) -> None:
        """Close the consumers and the histories."""
        for consumer in self._consumers:
            consumer.leave()
        for history in (*self._histories, self._sent, self._seeks):
            history.close()


def two_come_and_the_first_goes(
    run: JudgedRun, first: JudgedConsumer, is_shared: Callable[[list[tuple[object, ...]]], bool]
) -> None:
    """Let two consumers join while the first has a whole round in hand, and let the first leave while it has messages in hand. Assert
    that the order of every key is kept.

    `is_shared` returns True for the buckets of the three consumers once they are distributed.
    """
    others = run.join("b"), run.join("c")
    run.send(1)
    run.look_around()
    first.finish()
    run.work_off(lambda: is_shared([consumer.consumer.buckets for consumer in (first, *others)]))
    run.send(2)
    run.take_until(lambda: first.messages_in_hand > 0)
    run.leave(first)
    run.send(3)
    for consumer in others:
        consumer.finish()
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert verdict.sent == 4 * len(KEYS)
