"""The producer against real logs and the real operation runner: routing, the fence, lost answers."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from controller.client.producer import Producer
from controller.dataplane.base import LogClient, OutgoingMessage
from controller.domain.errors import (
    DataPlaneUnavailable,
    InvalidInput,
    SegmentTerminated,
    Terminal,
    TopicNotFound,
)
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_hash
from controller.domain.operation import OperationState
from controller.postgres_source import PostgresSource
from controller.services import topic_admin
from controller.services.segment_admin import merging, splitting
from tests.integration.client.conftest import stored
from tests.support.bench import TOPIC, Bench
from tests.support.drawn import cases
from tests.support.faulty_logs import FaultyLogs
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(40)]


@pytest.fixture
def logs(bench: Bench) -> FaultyLogs:
    return FaultyLogs(bench.logs)


@pytest.fixture
def producer(bench: Bench, source: PostgresSource, logs: FaultyLogs) -> Iterator[Producer]:
    bench.topic_with(segments=2)
    producer = Producer(source, logs, TOPIC, batch_messages=10)
    yield producer
    producer.close(flush=False)


def send_numbered(producer: Producer, numbers: range) -> None:
    for number in numbers:
        for key in KEYS:
            producer.send(b"%d" % number, key)


def flows(bench: Bench, *segment_ids: int) -> dict[bytes, list[int]]:
    """The numbers of each key, log by log in the order given."""
    found: dict[bytes, list[int]] = {}
    for segment_id in segment_ids:
        for message in stored(bench, segment_id):
            found.setdefault(message.key or b"", []).append(int(message.payload))
    return found


def in_order(count: int) -> dict[bytes, list[int]]:
    return {key.encode(): list(range(count)) for key in KEYS}


def test_a_key_goes_to_the_segment_that_owns_its_hash(bench: Bench, producer: Producer) -> None:
    send_numbered(producer, range(3))
    producer.flush()

    for segment in bench.layout.active:
        keys = {message.key for message in stored(bench, segment.segment_id)}
        assert keys == {k.encode() for k in KEYS if segment.hash_range.contains(key_hash(k).segment_hash)}
    assert flows(bench, 0, 1) == in_order(3)
    assert producer.pending == 0


def test_a_key_without_a_utf8_form_is_refused_and_the_rest_goes_out(bench: Bench, producer: Producer) -> None:
    producer.send(b"0", "key-1")
    with pytest.raises(InvalidInput, match=r"key .* surrogate"):
        producer.send(b"1", "key-\ud800")
    producer.send(b"2", "key-1")
    producer.flush()

    assert producer.pending == 0
    assert flows(bench, 0, 1) == {b"key-1": [0, 2]}


def test_without_a_key_the_segments_take_turns(bench: Bench, producer: Producer) -> None:
    for _ in range(10):
        producer.send(b"1")
    producer.flush()

    assert [len(stored(bench, i)) for i in (0, 1)] == [5, 5]


def test_full_batches_go_out_without_a_flush_and_the_rest_with_it(bench: Bench, producer: Producer) -> None:
    for number in range(25):
        producer.send(b"%d" % number, "key-1")
    segment_id = bench.layout.segment_for(key_hash("key-1").segment_hash).segment_id

    wait_until(lambda: producer.pending == 5, message="full batches are stored")
    assert len(stored(bench, segment_id)) == 20
    producer.flush()
    assert [int(m.payload) for m in stored(bench, segment_id)] == list(range(25))


def test_after_a_split_each_key_goes_on_in_the_child_where_the_parent_ends(
    bench: Bench, producer: Producer
) -> None:
    send_numbered(producer, range(5))
    producer.flush()
    bench.reshape(splitting(0))
    send_numbered(producer, range(5, 9))
    producer.flush()

    assert flows(bench, 0, 1, 2, 3) == in_order(9)
    assert stored(bench, 2)
    assert stored(bench, 3)


def test_after_a_merge_both_queues_go_on_in_the_child(bench: Bench, producer: Producer) -> None:
    """Half-filled batches of both parents are waiting when the merge happens."""
    send_numbered(producer, range(3))
    assert producer.pending > 0
    bench.reshape(merging(0, 1))
    send_numbered(producer, range(3, 6))
    producer.flush()

    assert flows(bench, 0, 1, 2) == in_order(6)


def test_while_the_fence_is_down_the_other_segments_flow(bench: Bench, producer: Producer) -> None:
    """Between termination and publication only the fenced segment's keys wait; then they follow, in order."""
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.FENCED)
    send_numbered(producer, range(12))
    of_the_other = sum(bench.layout.segment_for(key_hash(key).segment_hash).segment_id == 1 for key in KEYS)

    wait_until(
        lambda: producer.pending <= 12 * len(KEYS) - 12 * of_the_other // 10 * 10,
        message="the other one's are stored",
    )
    assert stored(bench, 0) == []
    with ThreadPoolExecutor(1) as threads:
        flushing = threads.submit(producer.flush)
        bench.drive(operation.operation_id)
        flushing.result()
    assert flows(bench, 1, 2, 3) == in_order(12)


def test_messages_that_waited_for_a_fenced_segment_go_before_newer_ones(
    bench: Bench, source: PostgresSource
) -> None:
    """The newer ones are not routed yet when the successors become known."""
    bench.topic_with(segments=1)
    producer = Producer(source, bench.logs, TOPIC, batch_messages=2, send_timeout_seconds=0.0)
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.FENCED)
    for number in range(3):
        producer.send(b"%d" % number, "key-1")
    bench.drive(operation.operation_id)
    for number in range(3, 6):
        producer.send(b"%d" % number, "key-1")
    producer.flush()

    assert flows(bench, 1, 2) == {b"key-1": list(range(6))}
    producer.close()


def test_waiting_for_a_successor_is_bounded_and_loses_nothing(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, send_timeout_seconds=0.2)
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.FENCED)
    send_numbered(producer, range(2))

    with pytest.raises(SegmentTerminated, match="no successor"):
        producer.flush()
    assert producer.pending == 2 * len(KEYS)
    assert len(logs.appended) <= len(bench.layout.active[0].bucket_splits) + 1, (
        "a fenced log is asked once a bucket"
    )

    bench.drive(operation.operation_id)
    producer.flush()
    assert flows(bench, 1, 2) == in_order(2)
    producer.close()


def test_a_batch_whose_answer_was_lost_is_stored_once(
    bench: Bench, producer: Producer, logs: FaultyLogs
) -> None:
    logs.lose_answers = 3
    send_numbered(producer, range(4))
    producer.flush()

    assert logs.lose_answers == 0
    assert flows(bench, 0, 1) == in_order(4)


@pytest.mark.parametrize("was_stored", [True, False])
def test_a_batch_in_doubt_is_settled_before_anything_is_routed_anew(
    bench: Bench, source: PostgresSource, logs: FaultyLogs, was_stored: bool
) -> None:
    """The producer gave up on it; then the segment is fenced. Its log knows whether it is stored."""
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, send_timeout_seconds=0.0)
    logs.lose_answers, logs.refuse = (1, 0) if was_stored else (0, 1)
    for number in range(2):
        producer.send(b"%d" % number, "key-1")
    with pytest.raises(DataPlaneUnavailable):
        producer.flush()
    bench.reshape(splitting(0))
    wait_until(lambda: producer._watch.changed, message="the new layout is told of")

    for number in range(2, 4):
        producer.send(b"%d" % number, "key-1")
    producer.flush()

    assert flows(bench, 0, 1, 2) == {b"key-1": list(range(4))}
    assert len(stored(bench, 0)) == (2 if was_stored else 0)
    assert producer.pending == 0
    producer.close()


class OpensAhead(FaultyLogs):
    """Logs that note what is opened ahead."""

    def __init__(self, inner: LogClient) -> None:
        super().__init__(inner)
        self.opened: list[str] = []

    def begin_append(self, *_given: object, **_named: object) -> None:
        """Each batch is sent aside."""

    def open_ahead(self, backing_topic: str, *, producer: str, bucket: HashRange | None = None) -> None:
        del producer, bucket
        self.opened.append(backing_topic)


def test_what_a_batch_in_doubt_may_go_to_is_opened_while_the_log_is_asked_for_it(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    logs = OpensAhead(bench.logs)
    producer = Producer(source, logs, TOPIC, send_timeout_seconds=0.0)
    logs.refuse = 1
    send_numbered(producer, range(1))
    with pytest.raises(DataPlaneUnavailable):
        producer.flush()
    bench.reshape(splitting(0))
    wait_until(lambda: producer._watch.changed, message="the new layout is told of")

    producer.flush()

    assert sorted(logs.opened) == sorted(producer._snapshot.backing_topics.values())
    assert flows(bench, 0, 1, 2) == in_order(1)
    producer.close()


def test_a_batch_that_a_fence_refused_goes_before_what_was_sent_after_it(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, batch_messages=3, send_timeout_seconds=0.0)
    logs.refuse = 1
    for number in range(5):  # from the third on: the batch stays in doubt
        with contextlib.suppress(DataPlaneUnavailable):
            producer.send(b"%d" % number, "key-1")
    wait_until(lambda: logs.refuse == 0, message="the batch was tried")
    bench.reshape(splitting(0))
    wait_until(lambda: producer._watch.changed, message="the new layout is told of")

    producer.flush()

    assert flows(bench, 0, 1, 2) == {b"key-1": list(range(5))}
    producer.close()


def test_a_plane_that_is_away_for_a_moment_is_waited_for(
    bench: Bench, producer: Producer, logs: FaultyLogs
) -> None:
    logs.refuse = 3
    send_numbered(producer, range(2))
    producer.flush()

    assert flows(bench, 0, 1) == in_order(2)


def test_what_a_fence_cut_off_a_batch_goes_to_the_successors(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    """A broker without atomic batches may store the front of one."""
    bench.topic_with(segments=1)
    confirmed: list[bytes] = []
    producer = Producer(
        source, logs, TOPIC, on_stored=lambda batch: confirmed.extend(m.payload for m in batch)
    )
    for number in range(9):
        producer.send(b"%d" % number, "key-1")
    operation = bench.intend(splitting(0)).operation
    logs.store_only = 4
    with ThreadPoolExecutor(1) as threads:
        flushing = threads.submit(producer.flush)
        wait_until(lambda: logs.store_only is None, message="the front of the batch is stored")
        bench.drive(operation.operation_id)
        flushing.result()

    assert flows(bench, 0, 1, 2) == {b"key-1": list(range(9))}
    assert confirmed == [b"%d" % number for number in range(9)]
    producer.close()


def test_a_deleted_topic_takes_no_more(bench: Bench, producer: Producer) -> None:
    producer.send(b"1", "key-1")
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))

    def send() -> None:
        producer.send(b"2", "key-1")
        producer.flush()

    with pytest.raises(TopicNotFound):
        wait_until(send, message="the producer knows")


def test_a_topic_made_anew_under_the_name_is_another_one(bench: Bench, producer: Producer) -> None:
    producer.send(b"1", "key-1")
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    bench.topic_with(segments=2)

    def send() -> None:
        producer.send(b"2", "key-1")
        producer.flush()

    with pytest.raises(TopicNotFound, match="created anew"):
        wait_until(send, message="the producer knows")
    assert bench.unread("billing") == 0


def test_producing_goes_on_in_order_while_the_layout_changes_again_and_again(
    bench: Bench, producer: Producer
) -> None:
    """Splits and merges in a row, with the producer never pausing for them."""
    ended = threading.Event()
    rounds = 0

    def produce() -> int:
        sent = 0
        while not ended.is_set() or sent < 10:
            send_numbered(producer, range(sent, sent + 1))
            sent += 1
        producer.flush()
        return sent

    with ThreadPoolExecutor(1) as threads:
        producing = threads.submit(produce)
        for planner in (splitting(0), splitting(2), merging(3, 1), splitting(6), merging(4, 5)):
            bench.reshape(planner)
            rounds += 1
        ended.set()
        sent = producing.result()

    assert rounds == 5
    oldest_first = sorted(bench.layout.segments)
    assert flows(bench, *oldest_first) == in_order(sent)


def test_a_message_that_no_log_takes_is_refused_and_keeps_no_other_waiting(
    bench: Bench, producer: Producer
) -> None:
    with pytest.raises(InvalidInput, match="send at most"):
        producer.send(b"x" * (5 * 1024 * 1024), "key-1")
    assert producer.pending == 0
    producer.send(b"0", "key-1")
    producer.flush()
    assert flows(bench, 0, 1) == {b"key-1": [0]}


class _HeldLogs(FaultyLogs):
    """The first appends of each bucket wait for each other, and how many of one bucket were at once is noted."""

    def __init__(self, wrapped: LogClient, at_once: int) -> None:
        super().__init__(wrapped)
        self._meeting = threading.Barrier(at_once)
        self._under_way: Counter[tuple[str, HashRange | None]] = Counter()
        self.met = 0
        self.most_of_one_bucket = 0

    def meet(self) -> None:
        """Wait for the others."""
        self._meeting.wait(20.0)
        self.met += 1

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        place = (backing_topic, bucket)
        is_first = place not in self._under_way
        self._under_way[place] += 1
        self.most_of_one_bucket = max(self.most_of_one_bucket, self._under_way[place])
        if is_first:
            self.meet()
        stored = super().append(backing_topic, messages, producer=producer, sequence=sequence, bucket=bucket)
        self._under_way[place] -= 1
        return stored


def test_buckets_send_at_once_and_each_of_them_one_batch_at_a_time(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    logs = _HeldLogs(bench.logs, at_once=4)
    with Producer(source, logs, TOPIC, batch_messages=5) as producer:
        send_numbered(producer, range(5))
        producer.flush()

    assert logs.met == 4
    assert logs.most_of_one_bucket == 1
    assert flows(bench, 0) == in_order(5)


def test_what_could_not_be_sent_meanwhile_is_raised_by_the_next_send_which_is_kept(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, batch_messages=1, send_timeout_seconds=0.0)
    logs.refuse = 1
    producer.send(b"0", "key-1")
    wait_until(lambda: producer._has_failed, message="it is refused")

    with pytest.raises(DataPlaneUnavailable):
        producer.send(b"1", "key-1")
    producer.flush()

    assert flows(bench, 0) == {b"key-1": [0, 1]}
    producer.close()


def test_what_the_application_makes_of_stored_messages_fails_loudly(
    bench: Bench, source: PostgresSource
) -> None:
    def fail(_messages: object) -> None:
        raise ValueError("the application's own")

    bench.topic_with(segments=1)
    producer = Producer(source, bench.logs, TOPIC, on_stored=fail)
    producer.send(b"0", "key-1")

    with pytest.raises(ValueError, match="own"):
        producer.flush()
    assert producer.pending == 0
    producer.close()


@pytest.mark.parametrize("batch_messages", [3, 1_000], ids=["full batches", "none full"])
def test_sending_waits_for_room(bench: Bench, source: PostgresSource, batch_messages: int) -> None:
    bench.topic_with(segments=1)
    most = 0
    with Producer(
        source, bench.logs, TOPIC, batch_messages=batch_messages, max_pending_messages=7
    ) as producer:
        for number in range(40):
            producer.send(b"%d" % number, KEYS[number % 5])
            most = max(most, producer.pending)

    assert most < 7
    assert sum(map(len, flows(bench, 0).values())) == 40


@pytest.fixture
def prompt(bench: Bench, source: PostgresSource, logs: FaultyLogs, producer: Producer) -> Iterator[Producer]:
    """One that sends by itself what has waited."""
    prompt = Producer(source, logs, TOPIC, batch_delay_seconds=0.02, send_timeout_seconds=0.3)
    yield prompt
    prompt.close(flush=False)


def test_what_has_waited_for_the_delay_is_sent_without_a_flush(bench: Bench, prompt: Producer) -> None:
    for number in range(3):
        send_numbered(prompt, range(number, number + 1))
        wait_until(lambda: prompt.pending == 0, message="all is stored")

    assert flows(bench, 0, 1) == in_order(3)


def test_what_has_waited_follows_a_split_by_itself(bench: Bench, prompt: Producer) -> None:
    send_numbered(prompt, range(1))
    bench.reshape(splitting(0))
    send_numbered(prompt, range(1, 3))
    wait_until(lambda: prompt.pending == 0, message="all is stored")

    assert flows(bench, 0, 2, 3, 1) == in_order(3)


def test_what_could_not_be_sent_is_tried_again_and_told_by_the_next_call(
    bench: Bench, prompt: Producer, logs: FaultyLogs
) -> None:
    logs.refuse = 1_000_000
    prompt.send(b"0", KEYS[0])
    with pytest.raises(DataPlaneUnavailable):
        prompt.flush()
    assert prompt.pending == 1

    logs.refuse = 0
    wait_until(lambda: prompt.pending == 0, message="it is stored")

    assert sum(map(len, flows(bench, 0, 1).values())) == 1


@pytest.mark.parametrize("delay_seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_delay_that_means_nothing_is_refused(
    bench: Bench, source: PostgresSource, producer: Producer, delay_seconds: float
) -> None:
    with pytest.raises(InvalidInput, match=r"batch.delay"):
        Producer(source, bench.logs, TOPIC, batch_delay_seconds=delay_seconds)


def test_a_closed_producer_takes_nothing_more_and_says_what_it_dropped(
    bench: Bench, producer: Producer
) -> None:
    producer.send(b"0", "key-1")
    producer.close(flush=False)

    for act in (producer.flush, lambda: producer.send(b"1", "key-1")):
        with pytest.raises(Terminal, match=r"was closed with 1 message\(s\) that are not known to be stored"):
            act()
    assert producer.pending == 1
    assert flows(bench, 0, 1) == {}


def test_a_close_stores_what_was_sent(bench: Bench, producer: Producer) -> None:
    for number in range(7):
        producer.send(b"%d" % number, "key-1")
    producer.close()

    assert producer.pending == 0
    assert flows(bench, 0, 1) == {b"key-1": [*range(7)]}


def test_a_close_that_cannot_store_what_was_sent_says_how_much_is_dropped_and_why(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    bench.topic_with(segments=1)
    logs.refuse = 1_000_000
    producer = Producer(source, logs, TOPIC, send_timeout_seconds=0.2)
    producer.send(b"0", "key-1")

    with pytest.raises(
        Terminal, match=r"was closed with 1 message\(s\) that are not known to be stored \(.+\); make"
    ) as refusal:
        producer.close()
    producer.close()

    assert isinstance(refusal.value.__cause__, DataPlaneUnavailable)


def test_a_block_that_ends_with_an_error_drops_what_is_pending(
    bench: Bench, source: PostgresSource, producer: Producer
) -> None:
    def send() -> None:
        with Producer(source, bench.logs, TOPIC) as dropping:
            dropping.send(b"0", "key-1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send()

    assert flows(bench, 0, 1) == {}


@pytest.mark.parametrize("is_outdated", [False, True], ids=["routed at once", "to be routed"])
@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({}, "k"),
        ("text", "k"),
        (None, "k"),
        (bytearray(b"x"), "k"),
        (b"x", 7),
        (b"x", []),
        (b"x", 1.5),
        (b"x", True),
    ],
)
def test_what_is_of_a_wrong_type_is_refused_and_keeps_no_other_waiting(
    bench: Bench, producer: Producer, payload: Any, key: Any, is_outdated: bool
) -> None:
    producer.send(b"0", "key-1")
    if is_outdated:
        producer._changed()
    with pytest.raises(InvalidInput, match=r"Producer\.send: (payload|key) must be .+, not a value of type"):
        producer.send(payload, key=key)
    assert producer.pending == 1

    producer.send(b"1", "key-1")
    producer.flush()

    assert flows(bench, 0, 1) == {b"key-1": [0, 1]}


@pytest.mark.parametrize("bound", ["batch_messages", "batch_bytes", "max_pending_messages"])
def test_a_bound_below_one_is_refused(
    bench: Bench, source: PostgresSource, producer: Producer, bound: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{bound} = 0; give a whole number from 1"):
        Producer(source, bench.logs, TOPIC, **{bound: 0})  # type: ignore[arg-type]


def test_a_producer_closed_with_nothing_pending_has_flushed(producer: Producer) -> None:
    producer.send(b"0", "key-1")
    producer.flush()
    producer.close()
    producer.close()

    producer.flush()
    with pytest.raises(Terminal, match="was closed; make a new one"):
        producer.send(b"1", "key-1")


def test_a_send_while_another_thread_closes_says_what_is_dropped_and_not_what_is_being_stored(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    logs = _HeldLogs(bench.logs, at_once=2)
    producer = Producer(source, logs, TOPIC, batch_messages=1)
    producer.send(b"0", "key-1")
    with ThreadPoolExecutor(2) as threads:
        closing = threads.submit(producer.close, flush=False)
        wait_until(lambda: producer._busy_threads, message="it closes")
        late = threads.submit(producer.send, b"1", "key-1")
        wait_until(lambda: late.done() or len(producer._busy_threads) == 2, message="it waits for that")
        logs.meet()
        closing.result()
        with pytest.raises(Terminal, match="was closed; make a new one"):
            late.result()
    assert stored(bench, 0)


@pytest.mark.parametrize("delay_seconds", [None, 0.01])
def test_a_flush_that_is_under_way_ends_when_another_thread_closes(
    bench: Bench, source: PostgresSource, logs: FaultyLogs, delay_seconds: float | None
) -> None:
    bench.topic_with(segments=1)
    logs.refuse = 1_000_000
    producer = Producer(source, logs, TOPIC, batch_delay_seconds=delay_seconds)
    producer.send(b"0", "key-1")
    with ThreadPoolExecutor(1) as threads:
        flushing = threads.submit(producer.flush)
        wait_until(lambda: logs.refuse < 1_000_000, message="a try of the flush")
        producer.close()
        with pytest.raises(Terminal, match=r"closed with 1 message\(s\)"):
            flushing.result(timeout=30)


@pytest.mark.parametrize("delay_seconds", [None, 0.01])
def test_a_flush_that_is_under_way_ends_when_a_signal_s_handler_closes(
    bench: Bench, source: PostgresSource, logs: FaultyLogs, delay_seconds: float | None
) -> None:
    """The handler runs in the thread that flushes, anywhere in it: what it closes, that call has to end."""
    bench.topic_with(segments=1)
    logs.refuse = 1_000_000
    producer = Producer(source, logs, TOPIC, batch_delay_seconds=delay_seconds)
    before = signal.signal(signal.SIGUSR2, lambda _number, _frame: producer.close())
    try:
        producer.send(b"0", "key-1")
        signalling = threading.Thread(
            target=lambda: (
                wait_until(lambda: logs.refuse < 1_000_000, message="a try of the flush"),
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2),
            )
        )
        signalling.start()
        with pytest.raises(Terminal, match=r"closed with 1 message\(s\)"):
            producer.flush()
        signalling.join()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_handler_that_closes_in_the_middle_of_a_send_waits_for_nothing_that_the_send_holds_up(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    """The signal comes where the key is coded: with the producer's lock held."""
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, batch_messages=1, batch_delay_seconds=0.01)
    producer.send(b"0", "key-1")

    class Closes(str):
        __slots__ = ()

        def encode(self, *_given: str) -> bytes:  # type: ignore[override]
            producer.close()
            return b"key-2"

    with pytest.raises(Terminal, match="was closed"):
        producer.send(b"1", Closes("key-2"))


def test_a_handler_that_sends_and_closes_in_the_middle_of_a_send_waits_for_nothing_either(
    bench: Bench, source: PostgresSource, logs: FaultyLogs
) -> None:
    """The end of the handler's own send is not the end of the send that it interrupts."""
    bench.topic_with(segments=1)
    producer = Producer(source, logs, TOPIC, batch_messages=1, batch_delay_seconds=0.01)
    producer.send(b"0", "key-1")

    class SendsAndCloses(str):
        __slots__ = ()

        def encode(self, *_given: str) -> bytes:  # type: ignore[override]
            producer.send(b"1", "key-1")
            producer.close()
            assert not producer._sends._shutdown, "the send that is interrupted ends the producer"
            return b"key-2"

    with pytest.raises(Terminal, match="was closed"):
        producer.send(b"2", SendsAndCloses("key-2"))


@pytest.mark.drawn
def test_closed_in_the_middle_of_a_split_a_key_is_stored_in_order_and_the_rest_is_counted(
    bench: Bench, source: PostgresSource
) -> None:
    """Trap 29, at drawn places: what is stored is the beginning of what was sent, and what is not is said."""
    bench.topic_with(segments=1)
    for round_number in range(cases(4, 60)):
        chooser = random.Random(round_number)
        check_a_close_over_a_split(bench, source, b"%d" % round_number, chooser)


def check_a_close_over_a_split(
    bench: Bench, source: PostgresSource, mark: bytes, chooser: random.Random
) -> None:
    split_at, close_at = (chooser.randrange(0, 10_000) for _ in range(2))
    segment_id = bench.layout.segment_for(key_hash("key-1").segment_hash).segment_id
    is_split_due, is_close_due = threading.Event(), threading.Event()
    producer = Producer(
        source, bench.logs, TOPIC, batch_messages=chooser.choice((50, 500)), max_pending_messages=100_000
    )
    with ThreadPoolExecutor(2) as threads:
        splitting_aside = threads.submit(lambda: (is_split_due.wait(), bench.reshape(splitting(segment_id))))
        closing = threads.submit(lambda: (is_close_due.wait(), producer.close()))
        said = None
        try:
            for number in range(10_000):
                if number == split_at:
                    is_split_due.set()
                if number == close_at:
                    is_close_due.set()
                producer.send(mark + b" %d" % number, "key-1")
            producer.flush()
        except Terminal as error:
            said = str(error)
        sent = number + 1
        closing.result()
        is_split_due.set()
        splitting_aside.result()

    logs = sorted({0, segment_id, *(one.segment_id for one in bench.layout.active)})
    numbers = [
        int(message.payload.split()[1])
        for one in logs
        for message in stored(bench, one)
        if message.payload.split()[0] == mark
    ]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) + producer.pending in (sent - 1, sent)  # the last one was refused, or was kept
    assert producer.pending == 0 or f"{producer.pending} message(s)" in (said or "")
