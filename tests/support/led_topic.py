"""One topic with leaders that go on when a test lets them, and the lives of its consumers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.domain.errors import CleaveError
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.services.consumer_sessions.leader import CHANNELS, SessionLeader
from controller.services.consumer_sessions.requests import (
    Attach,
    Deregister,
    Detach,
    PushedAssignment,
    Register,
    Request,
)
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.services.worker.shard_leases import ShardLeases
from controller.store.postgres.engine import Store
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.bench import Bench
from tests.support.manual_clock import ManualClock

PATIENCE_SECONDS = 60.0
"""No step takes so long."""


class SteppedListener(Listener):
    """Each wait of the leader lasts until the test has it go on."""

    def __init__(self, url: str) -> None:
        super().__init__(url, CHANNELS)
        self._goes_on, self._waits = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, timeout_seconds: float) -> list[Notification]:
        self._waits.release()
        self._goes_on.acquire()
        return super().wait(0.0)

    def go_on(self) -> None:
        self._goes_on.release()

    def step(self) -> None:
        """One round of the leader, from one wait to the next."""
        self.go_on()
        assert self._waits.acquire(timeout=PATIENCE_SECONDS), "the leader's round does not end"

    def begin(self) -> None:
        assert self._waits.acquire(timeout=PATIENCE_SECONDS)


class Leader:
    """One worker's leader with its leases of the one shard there is."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.clock = ManualClock()
        self.leases = ShardLeases(bench.store, name, shard_count=1, ttl_seconds=600.0, clock=self.clock)
        self._listener = SteppedListener(bench.url)
        self._leader = SessionLeader(
            Store(bench.url, pool_size=1),
            self._listener,
            self.leases,
            shard_count=1,
            timing=ConsumerTiming(10.0),
            clock=self.clock,
        )
        self._thread = threading.Thread(target=self._leader.run, name=f"leader-{name}")
        self._thread.start()
        self._listener.begin()

    def round(self) -> None:
        """Whatever it has to do."""
        self._listener.step()

    def answers(self, requests: Sequence[Request]) -> list[type[CleaveError] | None]:
        """What becomes of these, which are in the mailbox together."""
        for request in requests:
            self._leader.submit(request)
        self.round()
        return [_answer(request) for request in requests]

    def submit(self, request: Request) -> None:
        """Put it into the mailbox; a later round answers it."""
        self._leader.submit(request)

    def led_topic_id(self, topic: str) -> int | None:
        """Of the leader."""
        return self._leader.led_topic_id(topic)

    def stop(self) -> None:
        self._leader.stop()
        self._listener.go_on()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def _answer(request: Request) -> type[CleaveError] | None:
    error = request.done.exception(timeout=0)
    assert error is None or isinstance(error, CleaveError)
    return None if error is None else type(error)


class RecordedStream:
    """A stream that keeps what it was told."""

    def __init__(self) -> None:
        self.owned: int | None = None
        self.ended: str | None = None

    def push(self, assignment: PushedAssignment) -> None:
        self.owned = len(assignment.buckets)

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason


Word = str
"""What is asked and of which connection: "register 1"."""


@dataclass
class ConsumerLife:
    """One life of a consumer; it says its words anew each time, as a client does that had no answer."""

    key: SubscriptionKey
    consumer: str
    incarnation: str
    streams: dict[str, RecordedStream] = field(default_factory=dict)
    """By their connections: those that were taken and have not broken."""

    def request(self, word: Word) -> Request:
        """As it comes over the web."""
        what, _, connection = word.partition(" ")
        who = {"key": self.key, "consumer": self.consumer, "incarnation": self.incarnation}
        match what:
            case "register":
                return Register(**who)
            case "attach":
                return Attach(**who, stream=self.streams.setdefault(connection, RecordedStream()))
            case "detach":
                return Detach(**who, stream=self.streams[connection])
        return Deregister(**who)


_ROWS = """
    SELECT 'session', incarnation FROM cleave.consumer WHERE name = :name
    UNION ALL SELECT 'bucket', segment_id::text FROM cleave.bucket_owner WHERE :name IN (consumer, successor)
"""


class LedTopic:
    """A topic whose consumers come and go, and the workers that lead it in turn."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.key = SubscriptionKey(bench.topic_with(segments=1), "billing")
        self._names = itertools.count()
        self.leader, self.other = Leader(bench, "one"), Leader(bench, "two")
        self.leader.leases.round()

    def stop(self) -> None:
        for one in (self.leader, self.other):
            one.stop()

    def life(self, *words: Word) -> ConsumerLife:
        """A new consumer that has said this."""
        number = next(self._names)
        life = ConsumerLife(self.key, f"consumer-{number}", f"life-{number}")
        for word in words:
            assert self.say(life, word) == [None]
        return life

    def next_life(self, before: ConsumerLife) -> ConsumerLife:
        """Another process under that name."""
        return ConsumerLife(self.key, before.consumer, f"{before.incarnation}-next")

    def say(self, life: ConsumerLife, *words: Word) -> list[type[CleaveError] | None]:
        """All of it at once, to the leader of the moment."""
        answers = self.leader.answers([life.request(word) for word in words])
        for word, refused in zip(words, answers, strict=True):
            what, _, connection = word.partition(" ")
            if what == "detach" or (what == "attach" and refused):
                del life.streams[connection]
        return answers

    def say_to_the_old(self, life: ConsumerLife, *words: Word) -> list[type[CleaveError] | None]:
        """To who led before."""
        return self.other.answers([life.request(word) for word in words])

    def hand_over(self) -> None:
        """The leader gives its shard back, and the other has it."""
        self.leader.leases.resign()
        self._take()

    def depose(self) -> None:
        """The leader's lease has run out while it was stopped; it knows nothing of that."""
        with self._bench.store.transaction() as tx:
            tx.exec_driver_sql(
                "UPDATE cleave.lease SET expires_at = clock_timestamp() WHERE starts_with(name, 'shard/')"
            )
        self._take()

    def _take(self) -> None:
        self.leader, self.other = self.other, self.leader
        self.leader.leases.round()
        assert self.leader.leases.terms, "it leads now"

    def wake(self) -> None:
        """Who led before looks at its leases."""
        self.other.leases.round()
        self.other.round()

    def rows(self, life: ConsumerLife) -> list[tuple[str, str]]:
        """What the database has of this consumer: its session, and each of its buckets."""
        return self._bench.rows(_ROWS, name=life.consumer)

    def demand_gone(self, life: ConsumerLife, order: object) -> None:
        """Nothing is left of it."""
        assert self.rows(life) == [], order
        assert all(stream.ended for stream in life.streams.values()), order
