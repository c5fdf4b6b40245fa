"""A checkpoint consumer and a queue beside each other, through random reshapes, restores, restarts, outages and lost connections.

What the checkpoint consumer was given, without what it goes back over, is every key's messages in order, each once. What the queue's
consumers acknowledged is every message.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer, QueuedMessage
from controller.client.servers import Servers
from controller.postgres_source import PostgresSource
from controller.services.segment_admin import merging, splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.drawn import cases
from tests.support.faulty_logs import FaultyLogs
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(30)]
PATIENCE_SECONDS = 300.0
"""A log may stay out of reach for many steps on a busy machine."""
STEPS = cases(20, 60)
_CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE application_name IN ('cleave-embedded', 'cleave-listener') AND datname = current_database()
"""


class Run:
    """One of them; `step` does something at random."""

    def __init__(self, bench: Bench, servers: Servers, source: PostgresSource, chance: random.Random) -> None:
        self.bench, self.servers, self.chance = bench, servers, chance
        self.logs = FaultyLogs(bench.logs)
        self.producer = Producer(source, bench.logs, TOPIC)
        self.sent = dict.fromkeys(KEYS, 0)
        self.reader = self.begin(Start.EARLIEST)
        self.read: dict[str, list[int]] = {key: [] for key in KEYS}
        self.keep()
        self.queue = [self.join(), self.join()]
        self.held: list[tuple[QueueConsumer, QueuedMessage]] = []
        self.done: set[tuple[str, int]] = set()

    def begin(self, start: Start | bytes) -> CheckpointConsumer:
        batch_messages = self.chance.choice([1, 13, 500])
        return CheckpointConsumer(
            self.servers,
            self.logs,
            TOPIC,
            start,
            batch_messages=batch_messages,
            patience_seconds=PATIENCE_SECONDS,
        )

    def join(self) -> QueueConsumer:
        size = self.chance.choice([1, 5, 50])
        return QueueConsumer(
            self.servers,
            self.logs,
            TOPIC,
            "jobs",
            "a",
            queue_messages=size,
            patience_seconds=PATIENCE_SECONDS,
        )

    def close(self) -> None:
        for one in (self.producer, self.reader, *self.queue):
            one.close()

    # What may happen.

    def step(self) -> None:
        """Some messages, one act, some reading."""
        for _ in range(self.chance.randint(0, 3)):
            self.send()
        acts: list[Callable[[], None]] = [
            self.split, self.merge, self.restart_reader, self.restore, self.restart_queue, self.lose_log, self.heal,
            self.cut, self.heal, self.heal,
        ]  # fmt: skip
        if self.chance.random() < 0.7:
            self.chance.choice(acts)()
        for _ in range(self.chance.randint(0, 10)):
            self.take()
        for _ in range(self.chance.randint(0, 6)):
            self.work()

    def send(self) -> None:
        for key in KEYS:
            self.sent[key] += 1
            self.producer.send(b"%d" % self.sent[key], key)
        self.producer.flush()

    def split(self) -> None:
        active = self.bench.layout.active
        if len(active) < 8:
            self.bench.reshape(splitting(self.chance.choice(active).segment_id))

    def merge(self) -> None:
        active = self.bench.layout.active
        if len(active) > 1:
            at = self.chance.randrange(len(active) - 1)
            self.bench.reshape(merging(active[at].segment_id, active[at + 1].segment_id))

    def keep(self) -> None:
        """The application keeps its place, and knows what it had read by then."""
        self.kept = self.reader.checkpoint().to_bytes()
        self.kept_read = {key: len(found) for key, found in self.read.items()}

    def go_back(self) -> None:
        for key, count in self.kept_read.items():
            del self.read[key][count:]

    def restart_reader(self) -> None:
        self.reader.close()
        self.reader = self.begin(self.kept)
        places = Checkpoint.from_bytes(self.kept).positions
        assert {i: self.reader.checkpoint().positions[i] for i in places} == places
        self.go_back()

    def restore(self) -> None:
        self.reader.restore(self.kept)
        self.go_back()

    def restart_queue(self) -> None:
        self.queue.pop(0).close()
        self.queue.append(self.join())

    def lose_log(self) -> None:
        self.logs.out_of_reach = {self.bench.log_of(self.chance.choice(list(self.bench.layout.segments)))}

    def heal(self) -> None:
        self.logs.out_of_reach = set()

    def cut(self) -> None:
        self.bench.execute(_CUT)

    def take(self) -> None:
        batch = self.reader.receive(0.01)
        if batch is None:
            return
        for message in batch.messages:
            self.read[str(message.key and message.key.decode())].append(int(message.payload))
        if self.chance.random() < 0.6:
            self.keep()

    def work(self, most_held: int = 30) -> None:
        consumer = self.chance.choice(self.queue)
        self.held += [(consumer, one) for one in consumer.receive_many(self.chance.randint(1, 20), 0.01)]
        self.chance.shuffle(self.held)
        while len(self.held) > self.chance.randint(0, most_held):
            owner, one = self.held.pop()
            if self.chance.random() < 0.1:
                owner.nack(one, self.chance.choice([0.0, 0.05]))
            elif owner.acknowledge(one):
                self.done.add((str(one.key and one.key.decode()), int(one.payload)))

    # What must be so in the end.

    def everything_is_read_in_order(self) -> None:
        def all_read() -> bool:
            self.take()
            return all(len(self.read[key]) >= count for key, count in self.sent.items())

        wait_until(all_read, message="the reader has everything")
        assert self.read == {key: list(range(1, count + 1)) for key, count in self.sent.items()}

    def everything_is_done(self) -> None:
        def all_done() -> bool:
            self.work(most_held=0)
            return not self.held and not self.bench.unread("jobs")

        wait_until(all_done, message="the queue has settled everything")
        assert self.done == {(key, i) for key, count in self.sent.items() for i in range(1, count + 1)}

    def nothing_is_left_to_read(self) -> None:
        sealed = {i for i, one in self.bench.layout.segments.items() if not one.is_active}

        def all_known() -> bool:
            assert [one.receive(0.02) for one in (*self.queue, self.reader)] == [None] * 3
            drained = self.bench.scalar(
                "SELECT count(*) FROM cleave.segment_drain WHERE subscription = 'jobs'"
            )
            return drained == len(sealed) and sealed == self.reader.checkpoint().done

        wait_until(all_known, message="every sealed segment is known to be read")


@pytest.fixture
def topic(bench: Bench) -> Bench:
    bench.topic_with(segments=2, subscriptions=("jobs",), kind=SubscriptionKind.QUEUE)
    return bench


@pytest.mark.drawn
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", range(cases(1, 20)))
def test_a_random_run(topic: Bench, servers: Servers, source: PostgresSource, case: int) -> None:
    seed = random.randrange(10**9)
    logging.getLogger(__name__).warning("case %d: seed %d", case, seed)  # shown when it fails
    run = Run(topic, servers, source, random.Random(seed))
    try:
        for _ in range(STEPS):
            run.step()
        run.heal()
        run.everything_is_read_in_order()
        run.everything_is_done()
        run.nothing_is_left_to_read()
    finally:
        run.close()
