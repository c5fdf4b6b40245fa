"""A goodbye and everything else of that life, at the real leader in every order: whoever has left has nothing.

A consumer may have several words under way at once: a register that nobody answered in time arrives beside the next one, a stream
is asked for twice, and the goodbye overtakes them all (apache/pulsar#26433). The leader's rounds are the test's to begin, so that
what is in its mailbox together is the test's choice as well; its clock stands still, so no grace period helps.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from controller.domain.errors import CleaveError, FencedOut, LostRace, StoreUnavailable
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
from tests.support.orders import cuts, merges

PATIENCE_SECONDS = 60.0
"""No step takes so long."""
pytestmark = pytest.mark.timeout(300)  # thousands of transactions, beside whatever else the machine does


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


RECONNECTS = (("register 1", "attach 1"), ("register 2", "attach 2"))
"""Two at once. A stream is asked for when the register was answered."""


def orders(*others: tuple[Word, ...]) -> list[tuple[Word, ...]]:
    """Of two reconnects, a goodbye and others. Which of the two is called the first makes no difference."""
    found = merges(*RECONNECTS, ("goodbye",), *others)
    return [one for one in found if one.index("register 1") < one.index("register 2")]


REFUSED = {"register": FencedOut, "attach": LostRace, "detach": LostRace, "goodbye": None}
"""What becomes of each word after the goodbye. A goodbye may be said twice."""


def expected(order: Sequence[Word]) -> list[type[CleaveError] | None]:
    """What is said before the goodbye is done, what is said after it is refused."""
    place = order.index("goodbye")
    return [None if i <= place else REFUSED[word.partition(" ")[0]] for i, word in enumerate(order)]


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


@pytest.fixture
def led_topic(bench: Bench) -> Iterator[LedTopic]:
    """See `LedTopic`."""
    led_topic = LedTopic(bench)
    yield led_topic
    led_topic.stop()


def test_whoever_is_there_has_a_session_and_what_there_is_to_read(led_topic: LedTopic) -> None:
    """Or the absence of all that, below, would say nothing."""
    life = led_topic.life("register 0", "attach 0")

    assert {what for what, _ in led_topic.rows(life)} == {"session", "bucket"}
    assert life.streams["0"].owned
    assert life.streams["0"].ended is None


def test_two_reconnects_the_end_of_a_stream_and_a_goodbye_in_every_order_leave_nothing(
    led_topic: LedTopic,
) -> None:
    """Each in a round of its own."""
    for order in orders(("detach 0",)):
        life = led_topic.life("register 0", "attach 0")

        said = [answer for word in order for answer in led_topic.say(life, word)]

        assert said == expected(order), order
        led_topic.demand_gone(life, order)


def test_a_life_of_which_nothing_was_heard_before_leaves_nothing_however_its_words_come_together(
    led_topic: LedTopic,
) -> None:
    """A goodbye may be the first that arrives of all; and one round may find any number of words in the mailbox."""
    for order in orders():
        for rounds in cuts(order):
            life = led_topic.life()

            said = [answer for words in rounds for answer in led_topic.say(life, *words)]

            assert said == expected(order), rounds
            led_topic.demand_gone(life, rounds)


@pytest.mark.parametrize("change", [LedTopic.hand_over, LedTopic.depose])
def test_a_change_of_leader_at_any_place_leaves_nothing_at_either(
    led_topic: LedTopic, change: Callable[[LedTopic], None]
) -> None:
    """What comes after the change is heard by the old leader first, which refuses it, and is said again to the new one."""
    for order in merges(RECONNECTS[0], ("register 2",), ("goodbye",)):
        for place in range(len(order) + 1):
            life = led_topic.life()
            said = [answer for word in order[:place] for answer in led_topic.say(life, word)]

            change(led_topic)
            for word in order[place:]:
                assert led_topic.say_to_the_old(life, word) == [StoreUnavailable], (order, place)
                said += led_topic.say(life, word)

            assert said == expected(order), (order, place)
            led_topic.wake()
            led_topic.demand_gone(life, (order, place))


def test_the_late_words_of_one_life_take_nothing_from_the_next(led_topic: LedTopic) -> None:
    """A process that was replaced says everything once more, its goodbye too: the one that runs now keeps all it has."""
    for order in merges(RECONNECTS[0], ("goodbye",), ("register next", "attach next")):
        before = led_topic.life("register 0", "attach 0")
        life = led_topic.next_life(before)

        for word in order:
            led_topic.say(life if word.endswith("next") else before, word)

        assert ("session", life.incarnation) in led_topic.rows(life), order
        assert life.streams["next"].ended is None, order
        assert life.streams["next"].owned, order
        assert all(stream.ended for stream in before.streams.values()), order
        assert led_topic.say(life, "goodbye") == [None]
        led_topic.demand_gone(life, order)
