"""Checkpoint consumers against real logs: parents before children, every segment named, nothing passed over in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch, CheckpointConsumer, Start
from controller.client.history import Attachment, ConsumerHistory, Message, ProducerHistory, read_history
from controller.client.history_check import check
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.dataplane.log_client import LogClient, PositionReader
from controller.domain.errors import DataGone, DataPlaneUnavailable, InvalidInput, Terminal, TopicNotFound
from controller.domain.key_hash import key_hash
from controller.services import garbage_collector, topic_admin
from controller.services.segment_admin import merging, splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import send_numbers
from tests.support.rounds import rounds_of
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(20)]
Found = dict[str, list[int]]
Begin = Callable[..., CheckpointConsumer]


@pytest.fixture
def topic(bench: Bench) -> None:
    bench.topic_with(segments=1, subscriptions=())


@pytest.fixture
def begin(bench: Bench, servers: Servers, producer: Producer) -> Iterator[Begin]:
    """Consumers, closed at the end."""
    begun: list[CheckpointConsumer] = []

    def begin(
        start: Checkpoint | bytes | Start | datetime, logs: LogClient | None = None, **options: float
    ) -> CheckpointConsumer:
        begun.append(CheckpointConsumer(servers, logs or bench.logs, TOPIC, start, **options))
        return begun[-1]

    yield begin
    for consumer in begun:
        consumer.close()


send = partial(send_numbers, keys=KEYS)


def take(consumer: CheckpointConsumer, count: int) -> Found:
    """So many messages and no more, by key in the order in which they came."""
    found: Found = {}
    taken = 0

    def complete() -> bool:
        nonlocal taken
        batch = consumer.receive(0.1)
        for message in batch.messages if batch else ():
            assert message.key is not None
            found.setdefault(message.key.decode(), []).append(int(message.payload))
            taken += 1
        return taken >= count

    wait_until(complete, message=f"{count} messages")
    assert taken == count
    return found


def numbers(*found: int) -> Found:
    return {key: list(found) for key in KEYS}


def nothing_comes(consumer: CheckpointConsumer) -> None:
    for _ in range(5):
        assert consumer.receive(0.02) is None


def test_a_topic_is_read_in_order_through_splits_and_merges(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    consumer = begin(Start.EARLIEST, batch_messages=7)
    for number, planner in enumerate((splitting(0), splitting(1), merging(4, 2))):
        send(producer, 2 * number, 2 * number + 1)
        bench.reshape(planner)
    send(producer, 6)

    assert take(consumer, 7 * len(KEYS)) == numbers(*range(7))


def test_a_batch_says_which_position_it_follows(producer: Producer, begin: Begin) -> None:
    consumer = begin(Start.EARLIEST, batch_messages=7)
    send(producer, 0)
    for _ in range(3):
        known = consumer.checkpoint().positions[0]
        batch = consumer.receive(10.0)
        assert batch is not None
        assert batch.before == known


def test_a_segment_that_answers_nothing_keeps_nobody_waiting_for_the_others(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    consumer = begin(Start.LATEST, logs)
    deaf, healthy = (segment.segment_id for segment in bench.layout.active)
    wait_until(
        lambda: consumer.receive(0.0) is None and {one.reason for one in consumer.why()} == {"no data"}
    )
    logs.deaf = {bench.log_of(deaf)}
    try:
        send(producer, 0)
        mine = [key for key in KEYS if segment_of(bench, key) == healthy]
        assert sorted(take(consumer, len(mine))) == sorted(mine)
        wait_until(lambda: consumer.receive(0.0) is None and logs.hung > 0, message="the other is asked")
        bench.reshape(splitting(healthy))
        send(producer, 1)
        assert sorted(take(consumer, len(mine))) == sorted(mine)  # of its children
    finally:
        logs.deaf.clear()
        logs.goes_on.set()
    assert sorted(take(consumer, 2 * (len(KEYS) - len(mine)))) == sorted(set(KEYS) - set(mine))


def test_a_child_waits_until_its_parent_is_read_to_the_end(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    """Trap 12: one who reads without a subscription needs the barrier, too."""
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0)}
    consumer = begin(begin(Start.EARLIEST).checkpoint(), logs)

    nothing_comes(consumer)
    assert {one.segment_id: one.reason for one in consumer.why()}[1] == "after segment(s) 0"
    assert "out of reach" in {one.segment_id: one.reason for one in consumer.why()}[0]
    logs.out_of_reach.clear()

    assert take(consumer, 2 * len(KEYS)) == numbers(0, 1)


def test_every_checkpoint_goes_on_exactly_there(bench: Bench, producer: Producer, begin: Begin) -> None:
    send(producer, 0, 1)
    bench.reshape(splitting(0))
    send(producer, 2)
    bench.reshape(splitting(2))
    send(producer, 3)
    consumer = begin(Start.EARLIEST, batch_messages=9)
    taken: list[tuple[int, bytes]] = [(0, consumer.checkpoint().to_bytes())]
    everything: list[tuple[str, int]] = []

    def all_taken() -> bool:
        batch = consumer.receive(0.1)
        if batch is not None:
            everything.extend((repr(one.key), int(one.payload)) for one in batch.messages)
            taken.append((len(everything), consumer.checkpoint().to_bytes()))
        return len(everything) == 4 * len(KEYS)

    wait_until(all_taken, message="everything")

    for read, kept in taken:
        again = begin(kept)
        for _ in range(3):
            early = again.checkpoint()  # before anything came, and with much that is not opened yet
            assert early == Checkpoint.from_bytes(kept)
            again.restore(early)
        rest = [
            (repr(key), number)
            for key, found in take_keys(again, 4 * len(KEYS) - read).items()
            for number in found
        ]
        again.close()
        assert sorted(rest) == sorted(everything[read:])


def take_keys(consumer: CheckpointConsumer, count: int) -> dict[bytes, list[int]]:
    return {key.encode(): found for key, found in take(consumer, count).items()}


def test_a_checkpoint_names_every_segment_of_its_epoch(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    """Trap 12: untouched ones, finished ones, and those that are not handed back yet."""
    send(producer, 0)
    bench.reshape(splitting(0))
    consumer = begin(Start.EARLIEST)
    assert consumer.checkpoint().positions.keys() == {0, 1, 2}

    assert take(consumer, len(KEYS)) == numbers(0)
    wait_until(
        lambda: consumer.receive(0.02) is None and consumer.checkpoint().done == {0}, message="0 is done"
    )

    found = consumer.checkpoint()
    assert (found.epoch, set(found.positions)) == (1, {1, 2})


def test_a_checkpoint_of_before_a_split_reads_the_children_from_their_beginnings(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, 0)
    consumer = begin(Start.EARLIEST)
    assert take(consumer, len(KEYS)) == numbers(0)
    kept = consumer.checkpoint()
    bench.reshape(splitting(0))
    bench.reshape(splitting(1))
    send(producer, 1)

    assert take(begin(kept), len(KEYS)) == numbers(1)


def test_from_latest_only_what_comes_later_even_after_a_restore(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    kept = begin(Start.LATEST).checkpoint()
    send(producer, 2)

    assert take(begin(kept), len(KEYS)) == numbers(2)


def test_from_an_instant_on(bench: Bench, producer: Producer, begin: Begin) -> None:
    send(producer, 0)
    before = bench.scalar("SELECT max(published_at) FROM embedded.message")
    wait_until(lambda: bench.scalar("SELECT clock_timestamp()") > before + timedelta(milliseconds=1))
    send(producer, 1)
    bench.reshape(splitting(0))
    send(producer, 2)

    assert take(begin(before + timedelta(milliseconds=1)), 2 * len(KEYS)) == numbers(1, 2)
    nothing_comes(begin(datetime.now(UTC) + timedelta(days=1)))
    with pytest.raises(InvalidInput, match="no time zone"):
        begin(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


def test_a_place_that_cannot_be_looked_up_is_no_place(bench: Bench, producer: Producer, begin: Begin) -> None:
    """Trap 5: an error fell back to "latest", and messages were lost."""
    send(producer, 0)
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0)}

    with pytest.raises(DataPlaneUnavailable):
        begin(Start.LATEST, logs, patience_seconds=0.2)


def test_a_segment_out_of_reach_keeps_no_other_waiting_and_goes_on_where_it_was(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    bench.reshape(splitting(0))
    send(producer, 0)
    consumer = begin(Start.EARLIEST)
    assert take(consumer, len(KEYS)) == numbers(0)
    send(producer, 1, 2)
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(1)}
    again = begin(consumer.checkpoint(), logs)
    within_reach = [key for key in KEYS if segment_of(bench, key) == 2]

    first = take(again, 2 * len(within_reach))
    kept = again.checkpoint()
    impatient = begin(kept, logs, patience_seconds=0.2)
    with pytest.raises(DataPlaneUnavailable, match="out of reach"):
        wait_until(lambda: impatient.receive(0.1))
    logs.out_of_reach.clear()
    rest = take(again, 2 * (len(KEYS) - len(within_reach)))

    assert first.keys() == set(within_reach)
    assert first | rest == numbers(1, 2)
    assert take(begin(kept), 2 * (len(KEYS) - len(within_reach))) == rest


def test_a_segment_that_cannot_be_read_keeps_no_other_waiting_and_is_told_of_when_there_is_nothing_else(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    consumer = begin(Start.LATEST, logs, batch_messages=1)
    send(producer, 0)
    found: list[int] = []

    def has_both() -> bool:
        batch = consumer.receive(0.1)
        found.extend([batch.segment_id] if batch else [])
        return set(found) == {1, 2}

    wait_until(has_both)
    logs.unreadable = {bench.log_of(1)}
    left = sum(segment_of(bench, key) == 2 for key in KEYS) - found.count(2)
    rest = [consumer.receive(1.0) for _ in range(left)]

    assert [batch and batch.segment_id for batch in rest] == [2] * left
    with pytest.raises(Terminal, match="cannot be decrypted"):
        wait_until(lambda: consumer.receive(0.1))
    assert "cannot be decrypted" in {one.segment_id: one.reason for one in consumer.why()}[1]


def segment_of(bench: Bench, key: str) -> int:
    return bench.layout.segment_for(key_hash(key).segment_hash).segment_id


def test_what_was_read_is_handed_out_even_if_the_end_cannot_be_asked_for(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    class ReadersFailingAtTheEnd(FaultyLogs):
        """Readers that break when they are asked whether they are at the end, once each."""

        def open_reader_at(self, *given: object, **named: object) -> PositionReader:
            reader = super().open_reader_at(*given, **named)  # type: ignore[arg-type]
            asked = reader.is_at_end

            def is_at_end() -> bool:
                reader.is_at_end = asked  # type: ignore[method-assign]
                raise DataPlaneUnavailable("injected: no answer", delay_seconds=0.0)

            reader.is_at_end = is_at_end  # type: ignore[method-assign]
            return reader

    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)

    assert take(begin(Start.EARLIEST, ReadersFailingAtTheEnd(bench.logs)), 2 * len(KEYS)) == numbers(0, 1)


def test_a_sealed_segment_that_gives_nothing_yet_is_not_taken_for_read_to_its_end(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    logs = FaultyLogs(bench.logs)
    logs.slow_reads = 2

    assert take(begin(Start.EARLIEST, logs), 2 * len(KEYS)) == numbers(0, 1)


def test_pruned_segments_that_were_read_are_passed_over(
    bench: Bench, producer: Producer, begin: Begin
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    consumer = begin(Start.EARLIEST)
    assert take(consumer, len(KEYS)) == numbers(0)
    wait_until(lambda: consumer.receive(0.02) is None and consumer.checkpoint().done, message="0 is done")
    kept = consumer.checkpoint()
    prune(bench)
    send(producer, 1)

    assert take(begin(kept), len(KEYS)) == numbers(1)
    assert take(consumer, len(KEYS)) == numbers(1)
    assert take(begin(Start.EARLIEST), len(KEYS)) == numbers(1)


def prune(bench: Bench) -> None:
    report = garbage_collector.collect(bench.store, bench.planes, retention_minutes=0)
    assert report.operation_ids
    bench.settle()


def test_a_segment_that_was_deleted_unread_is_told(bench: Bench, producer: Producer, begin: Begin) -> None:
    send(producer, 0)
    kept = begin(Start.EARLIEST).checkpoint()
    reading = begin(Start.EARLIEST, batch_messages=1)
    take(reading, 1)
    bench.reshape(splitting(0))
    prune(bench)
    send(producer, 1)

    with pytest.raises(DataGone, match=r"segment\(s\) 0"):
        begin(kept)
    with pytest.raises(DataGone):
        wait_until(lambda: reading.receive(0.1) and False)
    with pytest.raises(DataGone):
        begin(reading.checkpoint())


def test_a_segment_that_left_the_layout_while_it_is_read_is_read_before_what_came_of_it(
    bench: Bench, producer: Producer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split and pruned between two looks: no list has ever said which segments are its children."""
    send(producer, 0)
    consumer = begin(Start.EARLIEST, batch_messages=1)
    (first,) = take(consumer, 1).items()
    with monkeypatch.context() as patch:
        patch.setattr(consumer._watch, "take", lambda: False)
        bench.reshape(splitting(0))
        send(producer, 1)
        for operation_id in garbage_collector.collect(
            bench.store, bench.planes, retention_minutes=0
        ).operation_ids:
            bench.drive(operation_id)
        found = consumer._watch.ask()
    assert set(found.segments) == {1, 2}
    wait_until(lambda: consumer._watch._newest.epoch == found.epoch, message="the newest list")
    rest = take(consumer, 2 * len(KEYS) - 1)

    rest[first[0]] = first[1] + rest[first[0]]
    assert rest == numbers(0, 1)


def test_what_was_trimmed_unread_is_told(bench: Bench, producer: Producer, begin: Begin) -> None:
    send(producer, 0)
    kept = begin(Start.EARLIEST).checkpoint()
    send(producer, 1)
    assert isinstance(bench.plane, EmbeddedDataPlane)
    bench.plane.trim(0.0)
    send(producer, 2)

    with pytest.raises(DataGone, match="trimmed"):
        wait_until(lambda: begin(kept).receive(0.1) and False)
    assert take(begin(Start.EARLIEST), len(KEYS)) == numbers(2)


def test_a_checkpoint_subscription_keeps_everything(bench: Bench, producer: Producer, begin: Begin) -> None:
    bench.subscribe("archive", kind=SubscriptionKind.CHECKPOINT)
    send(producer, 0)
    kept = begin(Start.EARLIEST).checkpoint()
    bench.reshape(splitting(0))
    assert isinstance(bench.plane, EmbeddedDataPlane)
    assert bench.plane.trim(0.0).messages == 0
    report = garbage_collector.collect(bench.store, bench.planes, retention_minutes=0)
    assert report.operation_ids == []

    assert take(begin(kept), len(KEYS)) == numbers(0)


def test_a_topic_that_is_deleted_is_told(bench: Bench, producer: Producer, begin: Begin) -> None:
    consumer = begin(Start.EARLIEST)
    kept = consumer.checkpoint()
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))

    with pytest.raises(TopicNotFound):
        wait_until(lambda: consumer.receive(0.1) and False)
    with pytest.raises(TopicNotFound):
        begin(kept)


def test_who_is_paused_waits_and_goes_round_no_more_often_than_needed(
    bench: Bench, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0)}
    consumer = begin(begin(Start.EARLIEST).checkpoint(), logs)
    consumer.pause()

    assert rounds_of(consumer, 0.3, monkeypatch) < 10


def test_a_pause_is_no_outage(bench: Bench, begin: Begin) -> None:
    """No log is opened meanwhile, so none can be reached again."""
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0)}
    consumer = begin(begin(Start.EARLIEST).checkpoint(), logs, patience_seconds=0.05)
    wait_until(lambda: consumer.receive(0.0) is None and "out of reach" in consumer.why()[0].reason)

    consumer.pause()
    nothing_comes(consumer)

    consumer.resume()
    with pytest.raises(DataPlaneUnavailable, match="out of reach"):
        wait_until(lambda: consumer.receive(0.1))


def test_nothing_comes_while_it_is_paused(producer: Producer, begin: Begin) -> None:
    consumer = begin(Start.EARLIEST)
    consumer.pause()
    send(producer, 0)
    nothing_comes(consumer)

    consumer.resume()

    assert take(consumer, len(KEYS)) == numbers(0)


def test_it_reads_on_while_no_worker_answers(
    bench: Bench, producer: Producer, begin: Begin, servers: Servers
) -> None:
    consumer = begin(Start.EARLIEST)
    send(producer, 0)
    assert take(consumer, len(KEYS)) == numbers(0)

    servers.close()
    send(producer, 1)

    assert take(consumer, len(KEYS)) == numbers(1)


def named(batch: CheckpointBatch) -> list[Message]:
    return [("p", str(one.key and one.key.decode()), int(one.payload)) for one in batch.messages]


def work(history: ConsumerHistory, batch: CheckpointBatch, attachment: Attachment) -> None:
    history.delivered(named(batch), attachment)
    for message in named(batch):
        history.begun([message], attachment)
        history.ended([message], attachment)


def test_the_order_certificate_of_a_run_with_restores(
    bench: Bench, producer: Producer, begin: Begin, tmp_path: Path
) -> None:
    """A process that dies between two checkpoints does some of its work again, and no key goes over anything."""
    planners = iter((splitting(0), splitting(1), splitting(2), merging(4, 5)))
    with (
        ProducerHistory(tmp_path / "p.history") as of_producer,
        ConsumerHistory(tmp_path / "c.history", "c") as of_consumer,
    ):
        kept = begin(Start.EARLIEST).checkpoint().to_bytes()
        for life in range(24):
            send(producer, life)
            of_producer.sent([("p", key, life) for key in KEYS])
            if life % 6 == 3:
                bench.reshape(next(planners))
            with begin(kept, batch_messages=11) as consumer:
                for _ in range(6):
                    batch = consumer.receive(0.05)
                    if batch is not None:
                        attachment = Attachment(batch.segment_id, "whole", f"life-{life}")
                        work(of_consumer, batch, attachment)
                        if life % 3:  # or else it dies before it keeps its place
                            of_consumer.acknowledged(named(batch), attachment)
                            kept = consumer.checkpoint().to_bytes()
        consumer = begin(kept)

        def finished() -> bool:
            batch = consumer.receive(0.2)
            if batch is not None:
                work(of_consumer, batch, Attachment(batch.segment_id, "whole", "the rest"))
            return batch is None and len(consumer.checkpoint().positions) == len(bench.layout.active)

        wait_until(finished, message="the rest")

    verdict = check(read_history(tmp_path / "p.history", tmp_path / "c.history"))
    assert verdict.sent == 24 * len(KEYS)
    assert verdict.redelivered > 0
    assert verdict.is_clean, verdict
