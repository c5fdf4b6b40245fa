"""The producer against real logs and the real operation runner: routing, the fence, lost answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from controller.client.producer import Producer
from controller.dataplane.log_client import LogClient, OutgoingMessage
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
from tests.integration.client.conftest import flows, stored
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs, MeetingLogs
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(40)]


@pytest.fixture
def producer(failing_producer: Producer) -> Producer:
    return failing_producer


def send_numbered(producer: Producer, numbers: range) -> None:
    for number in numbers:
        for key in KEYS:
            producer.send(b"%d" % number, key)


def in_order(count: int) -> dict[bytes, list[int]]:
    return {key.encode(): list(range(count)) for key in KEYS}


def test_the_name_of_a_producer_is_the_beginning_of_its_id(
    bench: Bench, source: PostgresSource, producer: Producer
) -> None:
    with Producer(source, bench.logs, TOPIC, name="checkout") as named:
        assert named.producer_id.startswith("checkout-")


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
    wait_until(lambda: producer._routing.watch.changed, message="the new layout is told of")

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
    wait_until(lambda: producer._routing.watch.changed, message="the new layout is told of")

    producer.flush()

    assert sorted(logs.opened) == sorted(producer._lanes.snapshot.backing_topics.values())
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
    wait_until(lambda: producer._routing.watch.changed, message="the new layout is told of")

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

    with pytest.raises(TopicNotFound, match="created again"):
        wait_until(send, message="the producer knows")
    assert bench.unread("billing") == 0


def refuse(*_arguments: object, **_named: object) -> int:
    raise InvalidInput("injected: refused")


def test_what_refuses_an_earlier_message_does_not_refuse_the_next_one(
    bench: Bench, producer: Producer, logs: FaultyLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that takes InvalidInput for a refusal of its message would send the message a second time, or drop it."""
    monkeypatch.setattr(logs, "append", refuse)
    for number in range(10):  # a batch
        producer.send(b"%d" % number, "key-1")
    wait_until(lambda: producer._has_failed, message="the batch is refused")
    with pytest.raises(Terminal, match=r"^queued messages cannot be sent: injected: refused$") as raised:
        producer.send(b"10", "key-1")
    monkeypatch.undo()

    assert not isinstance(raised.value, InvalidInput)
    assert producer.pending == 11
    producer.flush()
    assert flows(bench, 0, 1) == {b"key-1": list(range(11))}


def test_a_layout_that_cannot_be_read_does_not_refuse_the_message(
    bench: Bench, source: PostgresSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a token that is not valid at that moment."""
    monkeypatch.setattr(source, "topic", refuse)
    producer._routing.look_again()
    for call in (lambda: producer.send(b"0", "key-1"), producer.flush):
        with pytest.raises(Terminal, match=r"^queued messages cannot be sent: injected: refused$") as raised:
            call()
        assert not isinstance(raised.value, InvalidInput)
    monkeypatch.undo()

    producer.flush()
    assert flows(bench, 0, 1) == {b"key-1": [0]}


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


def test_buckets_send_at_once_and_each_of_them_one_batch_at_a_time(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    logs = MeetingLogs(bench.logs, at_once=4)
    with Producer(source, logs, TOPIC, batch_messages=5) as producer:
        send_numbered(producer, range(5))
        producer.flush()

    assert logs.met == 4
    assert logs.most_of_one_bucket == 1
    assert flows(bench, 0) == in_order(5)


def test_logs_that_deliver_single_messages_get_one_batch_for_all_buckets_of_a_segment(
    bench: Bench, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call for each of 256 buckets would take seconds."""
    bench.topic_with(segments=2)
    batches, append = list[tuple[str, HashRange | None]](), bench.logs.append

    def record(
        topic: str, messages: Sequence[OutgoingMessage], *, bucket: HashRange | None, **options: Any
    ) -> int:
        batches.append((topic, bucket))
        return append(topic, messages, bucket=bucket, **options)

    monkeypatch.setattr(bench.logs, "append", record)
    with Producer(source, bench.logs, TOPIC) as producer:
        send_numbered(producer, range(5))
        producer.send(b"0", None)
        producer.flush()

    assert all(segment.bucket_splits for segment in bench.layout.active), "each has several buckets"
    assert sorted(batches) == [(bench.log_of(0), None), (bench.log_of(1), None)]
    assert flows(bench, 0, 1) == in_order(5) | {b"": [0]}


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


def test_closing_raises_what_the_application_makes_of_messages_that_are_stored_already(
    bench: Bench, source: PostgresSource
) -> None:
    def fail(_messages: object) -> None:
        raise ValueError("the application's own")

    bench.topic_with(segments=1)
    producer = Producer(source, bench.logs, TOPIC, batch_messages=1, on_stored=fail)
    producer.send(b"0", "key-1")
    wait_until(lambda: producer._has_failed, message="the function has failed")

    with pytest.raises(ValueError, match="own"):
        producer.close()
    producer.close()


def test_closing_says_how_many_messages_an_exception_of_the_application_leaves_behind(
    bench: Bench, source: PostgresSource
) -> None:
    def fail(_messages: object) -> None:
        raise ValueError("the application's own")

    bench.topic_with(segments=1)
    logs = MeetingLogs(bench.logs, at_once=2)
    producer = Producer(source, logs, TOPIC, batch_messages=2, on_stored=fail)
    for number in range(3):
        producer.send(b"%d" % number, "key-1")

    def let_append_once_closing() -> None:
        wait_until(lambda: producer._takes_nothing, message="the producer is being closed")
        logs.meet()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(let_append_once_closing)
        with pytest.raises(Terminal, match=r"with 1 message\(s\) .* \(the application's own\)"):
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
        producer._routing._changed()
    with pytest.raises(InvalidInput, match=r"producer\.send: (payload|key) must be .+, not a value of type"):
        producer.send(payload, key=key)
    assert producer.pending == 1

    producer.send(b"1", "key-1")
    producer.flush()

    assert flows(bench, 0, 1) == {b"key-1": [0, 1]}


@pytest.mark.parametrize("bound", ["batch_messages", "batch_bytes", "max_pending_messages"])
def test_a_bound_below_one_is_refused(
    bench: Bench, source: PostgresSource, producer: Producer, bound: str
) -> None:
    with pytest.raises(InvalidInput, match=f"Producer: {bound} is 0; give 1 or more"):
        Producer(source, bench.logs, TOPIC, **{bound: 0})  # type: ignore[arg-type]
