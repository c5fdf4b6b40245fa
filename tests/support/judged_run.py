"""Consumers of one topic in this process, who write their histories, and the checker's verdict at the end.

What each does, and when, is the test's choice, so that a run can be led to where a fault would show. A run that gets nowhere is not
waited for, it is judged: what was not delivered by then is lost.
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
from controller.dataplane.base import LogClient

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
    """One that works on what it takes when the test says so. The first message of each key is begun when it is taken, and ended by
    `finish`.
    """

    def __init__(self, consumer: StreamConsumer, history: ConsumerHistory) -> None:
        self.consumer, self._history = consumer, history
        self._readings = Readings()
        self._in_hand: list[_InHand] = []

    @property
    def messages_in_hand(self) -> int:
        """Taken, and not ended."""
        return sum(len(one.messages) for one in self._in_hand)

    def take(self, seconds: float = TURN_SECONDS) -> None:
        """Begin what comes next, if anything does."""
        batch = self.consumer.receive(seconds)
        if batch is None:
            return
        messages = [("shop", (m.key or b"").decode(), int(m.payload)) for m in batch.messages]
        attachment = self._readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
        self._history.delivered(messages, attachment)
        busy = {key for one in self._in_hand for _, key, _ in one.messages}
        first = {message[1]: message for message in reversed(messages) if message[1] not in busy}
        self._history.begun(first.values(), attachment)
        self._in_hand.append(_InHand(batch, attachment, messages, set(first.values())))

    def finish(self) -> None:
        """End what is in hand and acknowledge it."""
        while self._in_hand:
            batch, attachment, messages, begun = self._in_hand.pop(0)
            for message in messages:
                if message not in begun:
                    self._history.begun([message], attachment)
                self._history.ended([message], attachment)
            if self.consumer.acknowledge(batch):
                self._history.acknowledged(messages, attachment)

    def leave(self) -> None:
        """Go, whatever is in hand."""
        self._in_hand.clear()
        self.consumer.close()


class JudgedRun:
    """Subscription `billing` of a topic; `unread` counts what is left of it."""

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
        """A new one."""
        self._histories.append(ConsumerHistory(self._directory / f"{name}.history", name))
        consumer = StreamConsumer(self._servers, self._logs, self._topic, "billing", name)
        self._consumers.append(JudgedConsumer(consumer, self._histories[-1]))
        return self._consumers[-1]

    def leave(self, consumer: JudgedConsumer) -> None:
        """One goes."""
        self._consumers.remove(consumer)
        consumer.leave()

    def send(self, number: int) -> None:
        """This number, of every key."""
        for key in KEYS:
            self._producer.send(b"%d" % number, key)
        self._producer.flush()
        self._sent.sent(("shop", key, number) for key in KEYS)

    @contextmanager
    def seek(self) -> Iterator[None]:
        """The subscription is moved in here."""
        with self._seeks.seek():
            yield

    def take_until(self, there: Callable[[], bool]) -> None:
        """Everybody begins what comes, and ends nothing."""
        self._go_on(there, JudgedConsumer.take)

    def look_around(self) -> None:
        """Everybody takes what comes by now, which should be nothing."""
        for one in self._consumers:
            one.take(LOOK_SECONDS)

    def work_off(self, there: Callable[[], bool] | None = None) -> None:
        """Everybody takes and finishes what comes, until nothing is left or `there`."""

        def take_and_finish(one: JudgedConsumer) -> None:
            one.take()
            one.finish()

        self._go_on(there or (lambda: self._unread() == 0), take_and_finish)

    def _go_on(self, there: Callable[[], bool], act: Callable[[JudgedConsumer], None]) -> None:
        ends_at = time.monotonic() + GIVES_UP_SECONDS
        while not self._gets_nowhere and not there():
            self._gets_nowhere = time.monotonic() > ends_at
            for one in self._consumers:
                act(one)

    def judge(self) -> Verdict:
        """Of all that happened."""
        return check(read_history(*history_files([self._directory])), demand_acknowledged=True)

    def close(self) -> None:
        """End it."""
        for consumer in self._consumers:
            consumer.leave()
        for history in (*self._histories, self._sent, self._seeks):
            history.close()


def two_come_and_the_first_goes(
    run: JudgedRun, first: JudgedConsumer, is_shared: Callable[[list[tuple[object, ...]]], bool]
) -> None:
    """Messages go on meanwhile, the first has everything of one round in hand when they come, and some when it goes; every key stays
    in order. `is_shared` says of the three consumers' buckets whether they are shared out.
    """
    others = run.join("b"), run.join("c")
    run.send(1)
    run.look_around()
    first.finish()
    run.work_off(lambda: is_shared([one.consumer.buckets for one in (first, *others)]))
    run.send(2)
    run.take_until(lambda: first.messages_in_hand > 0)
    run.leave(first)
    run.send(3)
    for one in others:
        one.finish()
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert verdict.sent == 4 * len(KEYS)
