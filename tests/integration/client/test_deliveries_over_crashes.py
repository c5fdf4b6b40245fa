"""Deliveries that are counted over deaths of the process, on real logs through a real worker.

A life that dies is one whose handler never returns: its session is replaced by the next life's, and it does nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from controller.client import keyed_work
from controller.client.delivery_reports import TROUBLED_OPENINGS
from controller.client.keyed_work import KeyedWork
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.log_client import LogMessage
from controller.domain.errors import LostRace, StoreUnavailable
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(8)]
KILLER = "killer"
ROWS = """
    SELECT coalesce(jsonb_agg(jsonb_build_array(deliveries, deaths, error) ORDER BY position), '[]') FROM cleave.message_delivery
"""


class ConsumerLife:
    """One life of the consumer `a`. Its handler dies of the killer's message."""

    def __init__(
        self, servers: Servers, bench: Bench, name: str, released: threading.Event, **options: Any
    ) -> None:
        self.done: list[tuple[str, int]] = []
        self.dies = threading.Event()
        self.act: Callable[[LogMessage], None] = lambda _message: None
        self._released = released
        self.consumer = StreamConsumer(servers, bench.logs, TOPIC, "billing", name)
        options = {"threads": 4, "first_retry_seconds": 0.01, "longest_retry_seconds": 0.02, **options}
        self.work = KeyedWork(self.consumer, self.handle, **options)

    def handle(self, message: LogMessage) -> None:
        key = (message.key or b"").decode()
        if key == KILLER and message.payload == b"0":
            self.dies.set()
            self._released.wait(100)
            raise AssertionError("a dead process does nothing more")
        self.act(message)
        self.done.append((key, int(message.payload)))

    def until(self, predicate: Callable[[], object]) -> None:
        def turn() -> object:
            self.work.turn(0.02)
            return predicate()

        wait_until(turn)


Begin = Callable[..., ConsumerLife]


@pytest.fixture
def begin(bench: Bench, servers: Servers) -> Iterator[Begin]:
    """The next life of that name."""
    released = threading.Event()
    with ExitStack() as ends:

        def begin(name: str = "a", **options: Any) -> ConsumerLife:
            life = ConsumerLife(servers, bench, name, released, **options)
            ends.callback(life.consumer.close)
            ends.callback(life.work.close)
            return life

        yield begin
        released.set()


@pytest.fixture
def topic(bench: Bench) -> None:
    """A topic of one bucket, so that the killer is between the others."""
    bench.execute(
        "UPDATE cleave.cluster_policy SET policy = '{\"entry_bucket_budget\": 1}', row_version = row_version + 1"
    )
    bench.topic_with(segments=1)


def send(producer: Producer, *messages: tuple[str, int]) -> None:
    for key, number in messages:
        producer.send(b"%d" % number, key)
    producer.flush()


def pretend_openings(bench: Bench) -> None:
    """Let the bucket be in trouble when it is opened next."""
    bench.execute(
        "INSERT INTO cleave.bucket_opening (topic_id, subscription, segment_id, bucket_start, position, openings, opened_by) "
        "SELECT :topic, 'billing', 0, 0, ARRAY[timeline, 0], :openings, 'another' FROM embedded.timeline",
        topic=bench.topic_id,
        openings=TROUBLED_OPENINGS - 1,
    )


def openings(bench: Bench) -> int:
    return int(bench.scalar("SELECT coalesce(max(openings), 0) FROM cleave.bucket_opening"))


def test_a_message_that_kills_is_charged_and_no_other_and_then_not_begun_again(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, (KILLER, 0), *((key, 0) for key in KEYS), (KILLER, 1))
    for life_number in range(1, TROUBLED_OPENINGS + 2):
        life = begin(max_deliveries=2)
        life.until(life.dies.is_set)
        assert openings(bench) == life_number
        charged = max(0, life_number - TROUBLED_OPENINGS)
        if life_number < TROUBLED_OPENINGS:
            assert bench.scalar(ROWS) == []
        else:
            assert [row[:2] for row in bench.scalar(ROWS)] == [[charged + 1, charged]]
            assert life.done == []  # one message at a time

    survivor = begin(max_deliveries=2)
    survivor.until(lambda: len(survivor.done) == len(KEYS))
    assert not survivor.dies.is_set()
    assert survivor.done == [(key, 0) for key in KEYS]
    survivor.until(lambda: len(bench.scalar(ROWS)) == 1)  # the last one's end is noted after its handling
    [(deliveries, deaths, error)] = bench.scalar(ROWS)
    assert (deliveries, deaths) == (2, 2)
    assert error == "the process ended while it was handled"
    [reason] = {one.reason for one in survivor.consumer.why()}
    assert "key 'killer' is held since" in reason
    assert (
        "the process ended while it was handled; 2 processes died, so the message is not begun again"
        in reason
    )
    assert bench.unread("billing") == len(KEYS) + 2


def test_a_message_that_is_retried_beside_a_killer_is_not_charged(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    """However often the process dies during a retry, and though the bucket is never in trouble."""
    send(producer, ("retried", 0))
    before = begin()

    def fail(_message: LogMessage) -> None:
        raise ValueError("no such account")

    before.act = fail
    before.until(lambda: len(bench.scalar(ROWS)) == 1)
    before.work.close()
    [known] = bench.scalar(ROWS)

    send(producer, (KILLER, 0))
    for _ in range(TROUBLED_OPENINGS - 1):
        bench.execute("UPDATE cleave.bucket_opening SET openings = 1")  # as if it had moved forward
        die_during_a_retry(begin())
    survivor = begin()
    assert bench.scalar(ROWS) == [known]
    assert survivor.done == []


def die_during_a_retry(life: ConsumerLife) -> None:
    """Let the process die while it retries the message that failed."""
    retrying = threading.Event()

    def never_ends(_message: LogMessage) -> None:
        retrying.set()
        threading.Event().wait(100)
        raise AssertionError("a dead process does nothing more")

    life.act = never_ends
    life.until(lambda: life.dies.is_set() and retrying.is_set())


def test_a_message_that_was_charged_runs_alone_though_its_bucket_moved_forward(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, ("ahead", 0), (KILLER, 0), *((key, 0) for key in KEYS))
    pretend_openings(bench)
    first = begin()
    first.until(lambda: first.dies.is_set() and bench.unread("billing") == len(KEYS) + 1)
    assert first.done == [("ahead", 0)]

    for deaths in (1, 2):
        bench.execute("UPDATE cleave.bucket_opening SET openings = 1")  # as if it had moved forward again
        life = begin()
        life.until(life.dies.is_set)
        assert [row[:2] for row in bench.scalar(ROWS)] == [[deaths + 1, deaths]]
        for _ in range(10):
            life.work.turn(0.02)
        assert life.done == []


def test_a_failure_is_kept_over_a_death_and_forgotten_with_success(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, ("k", 0))
    life = begin()

    def fail(_message: LogMessage) -> None:
        raise ValueError("no such account")

    life.act = fail
    life.until(lambda: bench.scalar(ROWS) and bench.scalar(ROWS)[0][0] >= 3)
    assert bench.scalar(ROWS)[0][1:] == [0, "ValueError: no such account"]
    life.work.close()
    [[failed, _, _]] = bench.scalar(ROWS)

    heir, seen = begin(), []
    heir.act = lambda message: seen.append(message.deliveries)
    heir.until(lambda: bench.unread("billing") == 0)
    assert heir.done == [("k", 0)]
    assert seen == [failed + 1]
    assert bench.scalar(ROWS) == []


def test_who_restarts_in_good_order_is_not_taken_for_one_that_died(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    """However often, and though it gets nothing done."""
    send(producer, ("k", 0))
    for number in range(TROUBLED_OPENINGS + 2):
        life, tried = begin(longest_retry_seconds=10.0, first_retry_seconds=10.0), threading.Event()

        def fail(_message: LogMessage, tried: threading.Event = tried) -> None:
            tried.set()
            raise ValueError("no")

        life.act = fail
        life.until(tried.is_set)
        assert openings(bench) == (2 if number else 1)
        life.work.close()
        life.consumer.close(leave=False)
        assert openings(bench) == 1


def test_a_healthy_bucket_costs_one_call_and_one_row(
    bench: Bench, producer: Producer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = StreamConsumer.ask

    def counted(consumer: StreamConsumer, what: str, document: object) -> object:
        asked.append(what)
        return ask(consumer, what, document)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamConsumer, "ask", counted)
    send(producer, *((key, number) for number in range(20) for key in KEYS))
    life = begin()
    life.until(lambda: bench.unread("billing") == 0)
    life.work.close()

    assert asked == ["opened"]
    assert bench.scalar(ROWS) == []


def test_nothing_begins_while_no_worker_says_what_is_known(
    bench: Bench, producer: Producer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known may be that the message kills."""
    send(producer, ("k", 0))
    life = begin()
    with monkeypatch.context() as away:

        def refuse(*_: object) -> object:
            raise StoreUnavailable("injected: away", 0.01)

        away.setattr(life.work._counts, "_ask", refuse)
        life.until(
            lambda: any("cannot read the stored delivery counts" in one.reason for one in life.consumer.why())
        )
        assert life.done == []
    life.until(lambda: life.done == [("k", 0)])


def test_who_does_not_own_the_bucket_charges_nothing(bench: Bench, producer: Producer, begin: Begin) -> None:
    send(producer, (KILLER, 0))
    before = begin()
    before.until(before.dies.is_set)
    begin()  # replaces it
    row = bench.scalar("SELECT to_jsonb(o) FROM cleave.bucket_owner o")
    document = {"segment_id": 0, "bucket_start": 0, "generation": row["generation"], "position": [0]}
    with pytest.raises(LostRace, match="does not own"):
        before.consumer.ask("deliveries", {**document, "event": "begun", "deliveries": 1})
    assert bench.scalar(ROWS) == []


def test_a_bucket_is_in_trouble_no_more_when_nothing_was_left_to_begin(
    bench: Bench, producer: Producer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is held does not keep the process at one message at a time."""
    monkeypatch.setattr(keyed_work, "CALM_SECONDS", 0.1)
    send(producer, ("held", 0), ("held", 1))
    pretend_openings(bench)
    life, meeting = begin(), threading.Barrier(4)

    def act(message: LogMessage) -> None:
        if message.key == b"held":
            raise ValueError("no")
        meeting.wait(30)

    life.act = act
    life.until(lambda: any("one at a time" in one.reason for one in life.consumer.why()))
    life.until(lambda: not any("one at a time" in one.reason for one in life.consumer.why()))
    assert any("key 'held' is held" in one.reason for one in life.consumer.why())
    send(producer, *((key, 0) for key in KEYS))
    life.until(lambda: len(life.done) == len(KEYS))


def test_a_segment_that_is_read_to_its_end_leaves_nothing_behind(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, *((key, 0) for key in KEYS))
    life, refused = begin(), iter(range(1))

    def fail_once(_message: LogMessage) -> None:
        if next(refused, None) is not None:
            raise ValueError("no")

    life.act = fail_once
    life.until(lambda: bench.unread("billing") == 0)
    assert openings(bench) == 1
    bench.reshape(splitting(0))
    life.until(lambda: bench.scalar("SELECT count(*) FROM cleave.segment_drain") == 1)
    assert bench.scalar("SELECT count(*) FROM cleave.bucket_opening") == 0
    assert bench.scalar(ROWS) == []
