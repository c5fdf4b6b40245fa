"""Keyed work on real logs, told by a real leader: order by key, retries, hand-overs, losses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from controller.client.dead_letters import reading_dead_letters
from controller.client.keyed_work import KeyedWork
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.session import Session
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.client.work_observer import WorkObserver
from controller.dataplane.embedded import names as embedded_names
from controller.dataplane.embedded.reader import EmbeddedReader
from controller.dataplane.log_client import LogMessage, Position
from controller.domain.entry_buckets import bucket_of
from controller.domain.errors import DataPlaneUnavailable, Terminal
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_hash
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import send_numbers
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(40)]
Work = Callable[..., KeyedWork]
Handle = Callable[[LogMessage], None]


class RecordingHandler:
    """An application: notes what it has done, and does what the test says for a message before that."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.at_work: set[str] = set()
        self.most_at_work = 0
        self.acts: dict[tuple[str, int], Handle] = {}
        self.overlaps: list[str] = []
        self._lock = threading.Lock()

    def handle(self, message: LogMessage) -> None:
        key, number = (message.key or b"").decode(), int(message.payload)
        with self._lock:
            if key in self.at_work:
                self.overlaps.append(key)
            self.at_work.add(key)
            self.most_at_work = max(self.most_at_work, len(self.at_work))
        try:
            act = self.acts.get((key, number))
            if act is not None:
                act(message)
        finally:
            with self._lock:
                self.at_work.discard(key)
        with self._lock:
            self.done.append((key, number))

    def numbers(self, key: str) -> list[int]:
        return [number for one, number in self.done if one == key]

    def at_work_in(self, bucket: HashRange) -> set[str]:
        with self._lock:
            return {key for key in self.at_work if bucket.contains(key_hash(key).bucket_hash)}


@pytest.fixture
def handler() -> Iterator[RecordingHandler]:
    handler = RecordingHandler()
    yield handler
    assert handler.overlaps == [], "two messages of a key at once"


@pytest.fixture
def work(bench: Bench, servers: Servers, producer: Producer, handler: RecordingHandler) -> Iterator[Work]:
    """Start keyed work under a name; what is left is closed at the end."""
    begun: list[tuple[StreamConsumer, KeyedWork]] = []

    def start(
        name: str = "a",
        handle: Handle = handler.handle,
        on_release: Callable[[int, HashRange], None] = lambda _segment_id, _bucket: None,
        patience_seconds: float = 30.0,
        **options: Any,
    ) -> KeyedWork:
        consumer = StreamConsumer(
            servers,
            bench.logs,
            TOPIC,
            "billing",
            name,
            batch_messages=10,
            on_release=on_release,
            patience_seconds=patience_seconds,
        )
        options = {"threads": 4, "first_retry_seconds": 0.01, "longest_retry_seconds": 0.05, **options}
        begun.append((consumer, KeyedWork(consumer, handle, **options)))
        return begun[-1][1]

    yield start
    for consumer, one in begun:
        one.close()
        consumer.close()


send = partial(send_numbers, keys=KEYS)


def turn_until(predicate: Callable[[], object], *works: KeyedWork) -> None:
    """Let them work until then."""

    def turn() -> object:
        for one in works:
            one.turn(0.02)
        return predicate()

    wait_until(turn)


def raising(error: Exception, times: int) -> Handle:
    """Raises so many times, and no more."""
    left = iter(range(times))

    def act(_message: LogMessage) -> None:
        if next(left, None) is not None:
            raise error

    return act


def test_everything_is_done_once_each_key_in_order_and_several_at_a_time(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    meeting = threading.Barrier(4)
    for key in KEYS[:4]:
        handler.acts[key, 0] = lambda _message: meeting.wait(20) and None
    send(producer, *range(5))

    turn_until(lambda: bench.unread("billing") == 0, work())

    assert {key: handler.numbers(key) for key in KEYS} == {key: list(range(5)) for key in KEYS}
    assert handler.most_at_work == 4


def test_what_fails_is_tried_again_with_its_key_held_while_the_others_go_on(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    first = KEYS[0]
    is_mended = threading.Event()

    def fail(_message: LogMessage) -> None:
        if not is_mended.is_set():
            raise ValueError("the till\nis closed")

    handler.acts[first, 0] = fail
    send(producer, 0, 1, 2)
    doing = work()
    turn_until(lambda: len(handler.done) == 3 * (len(KEYS) - 1), doing)
    assert handler.numbers(first) == []
    unread = bench.unread("billing")
    assert unread >= 3

    is_mended.set()
    turn_until(lambda: bench.unread("billing") == 0, doing)
    assert handler.numbers(first) == [0, 1, 2]


def test_a_message_says_which_attempt_this_is(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    seen: list[int] = []

    def fail_twice(message: LogMessage) -> None:
        seen.append(message.deliveries)
        if len(seen) < 3:
            raise ValueError("the till is closed")

    handler.acts[KEYS[0], 0] = fail_twice
    send(producer, 0, keys=KEYS[:1])
    doing = work()
    turn_until(lambda: bench.unread("billing") == 0, doing)

    assert seen == [1, 2, 3]


def test_why_tells_of_the_key_that_is_held_and_of_the_bucket_that_is_paused(
    bench: Bench, servers: Servers, producer: Producer, handler: RecordingHandler
) -> None:
    handler.acts["k", 0] = raising(ValueError("the till\nis closed"), 10_000)
    send(producer, *range(30), keys=["k"])
    with (
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a", batch_messages=4) as consumer,
        KeyedWork(
            consumer, handler.handle, held_limit=10, first_retry_seconds=0.01, longest_retry_seconds=0.02
        ) as doing,
    ):

        def reasons() -> list[str]:
            return [one.reason for one in consumer.why() if "held" in one.reason and "paused" in one.reason]

        turn_until(reasons, doing)
        turns = iter(range(10))
        turn_until(lambda: next(turns, None) is None, doing)
        [reason] = reasons()
        assert "paused with 12 messages in hand (limit 10)" in reason
        assert "key 'k' is held since 20" in reason
        assert "ValueError: the till is closed" in reason
        splits = bench.layout.active[0].bucket_splits
        paused = bucket_of(splits, key_hash("k").bucket_hash)
        others = {key for key in KEYS if bucket_of(splits, key_hash(key).bucket_hash) != paused}
        send(producer, 0)
        turn_until(lambda: {key for key, _ in handler.done} == others, doing)
        handler.acts.clear()
        turn_until(lambda: bench.unread("billing") == 0, doing)
        assert handler.numbers("k") == list(range(30))
        assert not reasons()


def test_no_acknowledgement_passes_what_is_not_done(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    """Fail the first, pass the second, die: the first comes again (trap 14)."""
    a_key = KEYS[0]
    handler.acts[a_key, 0] = raising(ValueError("no"), 10_000)
    send(producer, 0)
    before = work()
    turn_until(lambda: len(handler.done) == len(KEYS) - 1, before)
    before.close()
    handler.done.clear()
    handler.acts.clear()

    turn_until(lambda: bench.unread("billing") == 0, work())
    assert handler.numbers(a_key) == [0]


def test_a_bucket_that_is_to_go_goes_when_what_has_begun_of_it_is_done(
    bench: Bench, producer: Producer, work: Work
) -> None:
    """Nothing more of it is begun meanwhile, and what waits behind it is the next owner's."""
    may_end, of_a, of_b = threading.Event(), RecordingHandler(), RecordingHandler()
    for key in KEYS:
        of_a.acts[key, 0] = lambda _message: may_end.wait(60) and None
    let_go: list[set[str]] = []
    a = work(
        "a",
        of_a.handle,
        on_release=lambda _segment, bucket: let_go.append(of_a.at_work_in(bucket)),
        threads=len(KEYS),
    )
    turn_until(lambda: bench.scalar("SELECT count(*) FROM cleave.bucket_owner") == 4, a)
    send(producer, 0, 1)
    turn_until(lambda: len(of_a.at_work) == len(KEYS), a)
    began = set(of_a.at_work)
    b = work("b", of_b.handle)
    turn_until(lambda: len(a._consumer.buckets) == 2, a, b)  # it has heard that two are to go
    assert of_a.at_work == began
    assert not {key for key, _ in of_b.done} & began

    may_end.set()
    turn_until(lambda: bench.unread("billing") == 0, a, b)

    assert let_go == [set(), set()], "what had begun of it was done when a bucket went"
    assert {key for key, number in of_a.done if number == 0} >= began
    for key in KEYS:
        numbers = of_a.numbers(key) + of_b.numbers(key)
        assert list(dict.fromkeys(numbers)) == [0, 1], key
    assert of_b.done
    assert bench.scalar("SELECT count(DISTINCT consumer) FROM cleave.bucket_owner") == 2


def test_who_closes_while_a_handler_runs_stays_so_that_its_key_has_one_owner(
    bench: Bench,
    producer: Producer,
    handler: RecordingHandler,
    work: Work,
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_end = threading.Event()
    handler.acts["k", 0] = lambda _message: may_end.wait(60) and None
    send(producer, 0, keys=["k"])
    a = work("a")
    turn_until(lambda: handler.at_work == {"k"}, a)
    try:
        a.close(0.0)
        a._consumer.close()

        assert bench.scalar("SELECT array_agg(name) FROM cleave.consumer") == ["a"]
        assert bench.scalar("SELECT count(*) FROM cleave.departed_consumer") == 0
        assert "its messages are still being processed, so it stays for the grace period" in caplog.text
    finally:
        may_end.set()


def test_who_closes_when_its_handlers_have_ended_leaves(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    """The handler ends after the work was closed, and before the consumer is."""
    may_end = threading.Event()
    handler.acts["k", 0] = lambda _message: may_end.wait(60) and None
    send(producer, 0, keys=["k"])
    a = work("a")
    turn_until(lambda: handler.at_work == {"k"}, a)
    a.close(0.0)
    may_end.set()
    wait_until(lambda: not a._futures, message="the thread's end")
    a._consumer.close()

    assert bench.scalar("SELECT array_agg(reason) FROM cleave.departed_consumer") == ["left"]
    assert bench.unread("billing") == 1


def test_what_was_lost_is_dropped_and_its_key_waits_for_what_had_begun(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    """A seek takes the bucket away in the middle: what had begun is not acknowledged, and nothing overtakes it."""
    may_end = threading.Event()
    handler.acts["k", 0] = lambda _message: may_end.wait(60) and None
    send(producer, 0, 1, keys=["k"])
    doing = work()
    turn_until(lambda: handler.at_work == {"k"}, doing)
    bench.plane.seek(bench.log_of(0), "billing", 0)
    send(producer, 2, keys=["k"])
    send(producer, 2, keys=KEYS)
    turn_until(lambda: len(handler.done) == len(KEYS), doing)  # the handler would notice two of a key
    handler.acts.clear()
    may_end.set()

    turn_until(lambda: bench.unread("billing") == 0, doing)
    assert handler.numbers("k") == [0, 0, 1, 2]
    assert handler.overlaps == []


def test_a_thread_begins_nothing_when_its_bucket_may_be_another_s_by_then(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have been stopped between the giving out and the beginning."""
    here, asked = threading.current_thread(), threading.Event()

    def only_here(consumer: StreamConsumer, batch: Batch) -> bool:
        if threading.current_thread() is not here:
            asked.set()
            return False
        return StreamConsumer.owns(consumer, batch)

    send(producer, 0)
    doing = work()
    with monkeypatch.context() as stopped:
        stopped.setattr(StreamConsumer, "may_begin", only_here)
        turn_until(asked.is_set, doing)
        turns = iter(range(10))
        turn_until(lambda: next(turns, None) is None, doing)
        assert handler.done == []
    turn_until(lambda: bench.unread("billing") == 0, doing)
    assert len(handler.done) == len(KEYS)


def test_while_the_consumer_is_paused_nothing_begins_and_what_is_done_is_acknowledged(
    bench: Bench, servers: Servers, producer: Producer, handler: RecordingHandler
) -> None:
    may_end = threading.Event()
    handler.acts["k", 0] = lambda _message: may_end.wait(60) and None
    send(producer, 0, 1, keys=["k"])
    with (
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a") as consumer,
        KeyedWork(consumer, handler.handle) as doing,
    ):
        turn_until(lambda: handler.at_work == {"k"}, doing)
        consumer.pause()
        may_end.set()
        turn_until(lambda: bench.unread("billing") == 1, doing)
        assert doing.running == 0
        assert handler.numbers("k") == [0]
        consumer.resume()
        turn_until(lambda: bench.unread("billing") == 0, doing)
    assert handler.numbers("k") == [0, 1]


def test_while_the_leader_is_not_heard_a_log_that_is_due_for_another_try_is_not_waited_for(
    bench: Bench, servers: Servers, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be opened then, and the thread would not rest."""
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0)}
    waited: list[float] = []
    with StreamConsumer(servers, logs, TOPIC, "billing", "a") as consumer:
        wait_until(lambda: consumer.receive(0.05) is None and "out of reach" in consumer.why()[0].reason)
        with monkeypatch.context() as silence:
            silence.setattr(Session, "is_current", property(lambda _: False))
            wait_until(lambda: consumer._readers.next_try_at < time.monotonic())
            silence.setattr(consumer._wakeup, "wait", waited.append)
            consumer.wait(0.5)
    assert waited == [0.5]


def test_a_bucket_that_cannot_be_read_stops_no_other_one(
    bench: Bench,
    producer: Producer,
    handler: RecordingHandler,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = EmbeddedReader.read

    def read_all_but_the_first(reader: EmbeddedReader, limit: int) -> Any:
        if reader._bucket.start == 0:
            raise Terminal("injected: cannot be decrypted")
        return read(reader, limit)

    monkeypatch.setattr(EmbeddedReader, "read", read_all_but_the_first)
    one = work()
    readable = [key for key in KEYS if key_hash(key).bucket_hash >= 0x4000]
    send(producer, 0, 1, keys=readable)
    errors: list[Terminal] = []

    def turn() -> bool:
        try:
            one.turn(0.02)
        except Terminal as error:
            errors.append(error)
        return len(handler.done) == 2 * len(readable) and bench.unread("billing") == 0

    wait_until(turn, message="the readable buckets are done and acknowledged")

    assert {str(error) for error in errors} == {"injected: cannot be decrypted"}


def test_a_bucket_that_cannot_be_acknowledged_stops_no_other_one(
    bench: Bench,
    producer: Producer,
    handler: RecordingHandler,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acknowledge = EmbeddedReader.acknowledge
    acknowledged: set[int] = set()
    attempts: list[Position] = []

    def acknowledge_all_but_the_first(reader: EmbeddedReader, position: Position) -> None:
        if reader._bucket.start == 0:
            attempts.append(position)
            raise DataPlaneUnavailable("injected: out of reach", delay_seconds=0.01)
        acknowledge(reader, position)
        acknowledged.add(reader._bucket.start)

    one = work(patience_seconds=5.0)
    send(producer, 0)
    with monkeypatch.context() as outage:
        outage.setattr(EmbeddedReader, "acknowledge", acknowledge_all_but_the_first)
        turn_until(lambda: len(handler.done) == len(KEYS) and len(acknowledged) == 3, one)
        attempts.clear()
        for _ in range(100):
            one.turn(0.01)
        assert 0 < len(attempts) < 50, "an attempt in every turn would leave no time for the others"

    turn_until(lambda: bench.unread("billing") == 0, one)
    assert {(lane.retry_at, lane.outage._since) for lane in one._lanes.values()} == {(0.0, None)}
    send(producer, 1)
    with monkeypatch.context() as outage:
        outage.setattr(EmbeddedReader, "acknowledge", acknowledge_all_but_the_first)
        with pytest.raises(DataPlaneUnavailable, match="injected"):
            turn_until(lambda: False, one)

    turn_until(lambda: bench.unread("billing") == 0, one)


def test_messages_without_a_key_are_each_for_themselves(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    may_end, at_work = threading.Event(), threading.Semaphore(0)

    def handle(_message: LogMessage) -> None:
        at_work.release()
        assert may_end.wait(60)

    for number in range(4):
        producer.send(b"%d" % number)
    producer.flush()
    doing = work(handle=handle)
    turn_until(lambda: doing.running == 4, doing)
    may_end.set()
    turn_until(lambda: bench.unread("billing") == 0, doing)


def test_a_segment_that_was_split_is_done_before_its_children(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    for key in KEYS[::3]:
        handler.acts[key, 0] = raising(ValueError("not yet"), 2)
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)

    turn_until(lambda: bench.unread("billing") == 0, work("a"), work("b"))

    assert {key: handler.numbers(key) for key in KEYS} == {key: [0, 1] for key in KEYS}


def test_what_is_no_failure_of_the_handler_ends_the_work(producer: Producer, work: Work) -> None:
    def leave(_message: LogMessage) -> None:
        raise SystemExit(3)

    send(producer, 0, keys=["k"])
    with pytest.raises(SystemExit):
        turn_until(lambda: False, work(handle=leave))


class FailingObserver(WorkObserver):
    """Raises an error in every call of one method, and counts the calls."""

    def __init__(self, method: str) -> None:
        self.calls = 0
        setattr(self, method, self._fail)

    def _fail(self, *_: object) -> None:
        self.calls += 1
        raise ConnectionError("the database of the statistics is away")


@pytest.mark.parametrize("method", ["delivered", "begun", "failed", "ended", "acknowledged"])
def test_an_observer_that_always_fails_is_told_of_and_changes_nothing(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work, method: str
) -> None:
    handler.acts[KEYS[0], 0] = raising(ValueError("the till is closed"), 1)
    send(producer, 0, 1, 2)
    observer, errors = FailingObserver(method), 0
    doing = work(observer=observer)

    def settled() -> bool:
        nonlocal errors
        try:
            doing.turn(0.02)
        except ConnectionError:
            errors += 1
        return errors > 0 and bench.unread("billing") == 0

    wait_until(settled, message="everything is acknowledged, and an error was raised")

    assert {key: handler.numbers(key) for key in KEYS} == {key: [0, 1, 2] for key in KEYS}
    assert observer.calls >= errors
    with suppress(ConnectionError):
        doing.close()


def test_a_dead_letter_is_stored_once_though_the_observer_fails(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work
) -> None:
    handler.acts["k", 0] = raising(ValueError("the till is closed"), 10_000)
    send(producer, 0, 1, keys=["k"])
    doing = work(observer=FailingObserver("ended"), max_deliveries=2, dead_letters=bench.logs)

    def settled() -> bool:
        with suppress(ConnectionError):
            doing.turn(0.02)
        return bench.unread("billing") == 0

    wait_until(settled, message="everything is acknowledged")
    with suppress(ConnectionError):
        doing.close()

    log = embedded_names.dead_letter_topic(TOPIC, "billing")
    with reading_dead_letters(bench.logs, log) as letters:
        assert [letter.payload for letter in letters.read(2, timeout_seconds=0.2)] == [b"0"]
    assert handler.numbers("k") == [1]


@pytest.mark.parametrize("method", ["ended", "acknowledged"])
def test_what_is_done_is_acknowledged_by_the_close_though_the_observer_fails(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: Work, method: str
) -> None:
    keys, goes_on = KEYS[:4], threading.Event()
    for key in keys:
        handler.acts[key, 0] = lambda _message: goes_on.wait(20) and None
    send(producer, 0, keys=keys)
    doing = work(observer=FailingObserver(method))
    turn_until(lambda: len(handler.at_work) == len(keys), doing)

    goes_on.set()
    with pytest.raises(ConnectionError, match="statistics"):
        doing.close()

    assert bench.unread("billing") == 0
    assert sorted(handler.done) == sorted((key, 0) for key in keys)
