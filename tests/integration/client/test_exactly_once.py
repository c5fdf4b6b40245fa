"""Results, positions and ownership in one transaction of the application's database: every message is in the results once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from controller.client.exactly_once_table import PositionTable
from controller.client.history import Event, Record, read_history
from controller.client.history_check import Kind, check
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.dataplane.embedded.reader import EmbeddedReader
from controller.dataplane.log_client import Position
from controller.domain.errors import AlreadyStored, Conflict, DataPlaneUnavailable, FencedOut, InvalidInput
from controller.domain.seek_target import EARLIEST
from controller.services import subscription_admin
from controller.services.reconciler import verify_topics
from controller.services.segment_admin import merging, splitting
from controller.store.topics import held_topics
from tests.support.bench import TOPIC, Bench
from tests.support.traffic import TrafficProcess
from tests.support.waiting import wait_until

Join = Callable[..., StreamConsumer]


@pytest.fixture
def table(bench: Bench, table: PositionTable) -> PositionTable:
    """With a table of results beside it."""
    bench.execute(
        """CREATE TABLE public.result (arrived bigserial PRIMARY KEY, consumer text, segment text, bucket text,
                                       attachment text, key text, payload text)"""
    )
    return table


@pytest.fixture
def application(connect: Callable[[], Any]) -> Iterator[Any]:
    with closing(connect()) as connection:
        yield connection


@pytest.fixture
def join(bench: Bench, servers: Servers, producer: Producer, table: PositionTable) -> Iterator[Join]:
    with ExitStack() as joined:
        yield lambda name: joined.enter_context(
            StreamConsumer(servers, bench.logs, TOPIC, "billing", name, positions=table)
        )


def received(consumer: StreamConsumer) -> Batch:
    return wait_until(lambda: consumer.receive(0.1), message=f"a batch for {consumer.name}")


def payloads(batch: Batch) -> list[bytes]:
    return [message.payload for message in batch.messages]


def insert_results(connection: Any, batch: Batch) -> None:
    with connection.cursor() as cursor:
        for message in batch.messages:
            cursor.execute("INSERT INTO result (payload) VALUES (%s)", [message.payload.decode()])


def send(producer: Producer, *payloads: bytes) -> None:
    for payload in payloads:
        producer.send(payload, "key")
    producer.flush()


def test_what_was_committed_and_not_acknowledged_is_not_handed_out_again(
    bench: Bench, producer: Producer, join: Join, application: Any
) -> None:
    send(producer, b"1", b"2")
    first = join("a")
    batch = received(first)
    with application:
        first.commit(batch, application)
    first.close()
    send(producer, b"3")

    heir = join("b")
    rest = received(heir)

    assert (payloads(batch), payloads(rest)) == ([b"1", b"2"], [b"3"])
    assert heir.acknowledge(rest)
    assert bench.unread("billing") == 0


def test_after_a_seek_what_was_committed_comes_again_and_what_was_in_hand_cannot_be(
    bench: Bench, producer: Producer, join: Join, application: Any
) -> None:
    send(producer, b"1", b"2")
    consumer = join("a")
    batch = received(consumer)
    with application:
        consumer.commit(batch, application)
    assert consumer.acknowledge(batch)
    send(producer, b"3")
    in_hand = received(consumer)
    seek = subscription_admin.seek_subscription(
        bench.store, TOPIC, "billing", EARLIEST, bench.request(), release_seconds=0.0
    )
    wait_until(
        lambda: (
            bench.run_once(seek.operation.operation_id)
            and not bench.operation(seek.operation.operation_id).state.is_live
        ),
        message="the seek is done",
    )

    again = received(consumer)

    assert payloads(again) == [b"1", b"2", b"3"]
    with pytest.raises(FencedOut), application:
        consumer.commit(in_hand, application)
    with application:
        consumer.commit(again, application)
    assert consumer.acknowledge(again)


def test_what_is_all_committed_is_acknowledged_unseen(
    bench: Bench, producer: Producer, join: Join, application: Any
) -> None:
    send(producer, b"1", b"2")
    first = join("a")
    with application:
        first.commit(received(first), application)
    first.close()

    heir = join("b")
    wait_until(lambda: heir.receive(0.1) is None and bench.unread("billing") == 0)


def test_what_is_all_committed_is_acknowledged_after_an_outage(
    bench: Bench, producer: Producer, join: Join, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the segment is never drained once it is sealed."""
    send(producer, b"1", b"2")
    first = join("a")
    with application:
        first.commit(received(first), application)
    first.close()
    bench.reshape(splitting(0))
    failures = failing_acknowledgements(monkeypatch)

    heir = join("b")
    wait_until(lambda: heir.receive(0.1) is None and len(failures) >= 2)
    wait_until(lambda: any(one.reason == "out of reach: injected: out of reach" for one in heir.why()))
    monkeypatch.undo()
    send(producer, b"3")

    assert payloads(received(heir)) == [b"3"]
    assert heir._readers._backoffs == {}, "the next loss is repaired as soon as the first"


def failing_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> list[Position]:
    """The positions of the acknowledgements, each of which fails until the end of the patch."""
    failed: list[Position] = []

    def fail(_reader: EmbeddedReader, position: Position) -> None:
        failed.append(position)
        raise DataPlaneUnavailable("injected: out of reach", delay_seconds=0.01)

    monkeypatch.setattr(EmbeddedReader, "acknowledge", fail)
    return failed


def test_a_consumer_goes_on_after_a_restore_that_lost_a_seek(
    bench: Bench, producer: Producer, join: Join, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket's row has an origin and a generation that the restored database does not have."""
    monkeypatch.setattr("controller.client.attachments.FENCED_SECONDS", 0.1)
    send(producer, b"1", b"2")
    consumer = join("a")
    with application:
        consumer.commit(received(consumer), application)
    bench.execute("UPDATE public.cleave_position SET origin = origin + 1000, generation = generation + 5")
    bench.store.in_transaction(held_topics.doubt, [bench.topic_id])
    assert verify_topics(bench.store, bench.planes) == (1, 1)
    send(producer, b"3")
    in_hand = received(consumer)
    with pytest.raises(FencedOut), application:
        consumer.commit(in_hand, application)
    consumer.give_back(in_hand)

    again = received(consumer)

    assert payloads(again) == [b"3"]
    with application:
        consumer.commit(again, application)
    assert consumer.acknowledge(again)
    assert bench.unread("billing") == 0


def test_who_lost_the_bucket_cannot_commit(
    bench: Bench, producer: Producer, join: Join, application: Any
) -> None:
    """It was stopped, and goes on where it was: in the middle of its work, before it has heard of anything."""
    send(producer, b"1")
    stopped = join("a")
    batch = received(stopped)
    bench.execute("DELETE FROM cleave.consumer WHERE name = 'a'")
    heir = join("b")
    again = received(heir)

    with pytest.raises(FencedOut, match="roll back"), application:
        stopped.commit(batch, application)
    with application:
        heir.commit(again, application)
    assert payloads(again) == [b"1"]


def test_a_commit_whose_answer_was_lost_is_not_done_again(
    producer: Producer, join: Join, application: Any
) -> None:
    send(producer, b"1")
    consumer = join("a")
    batch = received(consumer)
    with application:
        consumer.commit(batch, application)

    with pytest.raises(AlreadyStored), application:
        consumer.commit(batch, application)
    assert consumer.acknowledge(batch)


def test_a_batch_whose_transaction_failed_is_not_passed_over(
    bench: Bench, servers: Servers, producer: Producer, table: PositionTable, application: Any
) -> None:
    """The application goes on with the next batch, and comes back to the first one later."""
    send(producer, b"1", b"2", b"3")
    with StreamConsumer(
        servers, bench.logs, TOPIC, "billing", "a", positions=table, batch_messages=1
    ) as consumer:
        first, second, third = (received(consumer) for _ in range(3))
        insert_results(application, first)
        application.rollback()  # the application has failed
        for later in (second, third):
            insert_results(application, later)
            with pytest.raises(Conflict, match="commit those messages first") as refusal, application:
                consumer.commit(later, application)
            assert not isinstance(refusal.value, AlreadyStored)

        for batch in (first, second, third):
            with application:
                insert_results(application, batch)
                consumer.commit(batch, application)
            assert consumer.acknowledge(batch)

    assert bench.scalar("SELECT array_agg(payload ORDER BY arrived) FROM public.result") == ["1", "2", "3"]


def test_what_was_acknowledged_without_a_result_stands_in_nobodys_way(
    bench: Bench, servers: Servers, producer: Producer, table: PositionTable, application: Any
) -> None:
    send(producer, b"of no interest", b"2")
    with StreamConsumer(
        servers, bench.logs, TOPIC, "billing", "a", positions=table, batch_messages=1
    ) as consumer:
        first, second = received(consumer), received(consumer)
        assert consumer.acknowledge(first)
        with application:
            consumer.commit(second, application)
        assert consumer.acknowledge(second)


def test_a_batch_that_was_given_back_comes_again_with_what_is_behind_it(
    bench: Bench, servers: Servers, producer: Producer, table: PositionTable, application: Any
) -> None:
    send(producer, b"1", b"2")
    with StreamConsumer(
        servers, bench.logs, TOPIC, "billing", "a", positions=table, batch_messages=1
    ) as consumer:
        first, second = received(consumer), received(consumer)
        consumer.give_back(first)
        with pytest.raises(FencedOut), application:
            consumer.commit(second, application)

        again = [received(consumer), received(consumer)]
        for batch in again:
            with application:
                consumer.commit(batch, application)
    assert [one for batch in again for one in payloads(batch)] == [b"1", b"2"]


def test_without_positions_there_is_nothing_to_commit(
    bench: Bench, servers: Servers, producer: Producer, application: Any
) -> None:
    send(producer, b"1")
    with (
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a") as consumer,
        pytest.raises(InvalidInput, match="stores no positions"),
    ):
        consumer.commit(received(consumer), application)


def test_a_positions_database_that_is_away_is_told_of_when_nothing_else_comes(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    send(producer, b"1")
    elsewhere = PositionTable(lambda: psycopg2.connect("postgresql://nobody@127.0.0.1:1/none"))
    with (
        StreamConsumer(
            servers, bench.logs, TOPIC, "billing", "a", positions=elsewhere, patience_seconds=1.0
        ) as consumer,
        pytest.raises(Exception, match="positions in cleave_position are out of reach"),
    ):
        wait_until(lambda: consumer.receive(0.1))


@pytest.mark.timeout(180)
def test_processes_that_die_or_stand_still_leave_each_message_in_the_results_once(
    bench: Bench, leader: str, table: PositionTable, dsn: str, tmp_path: Path
) -> None:
    """The log alone promises at least once; the commit makes it once."""
    bench.topic_with(segments=2)

    def start(role: str, name: str, **more: Any) -> TrafficProcess:
        return TrafficProcess(
            role,
            name,
            url=bench.url,
            topic=TOPIC,
            directory=tmp_path,
            subscription="billing",
            address=leader,
            **more,
        )

    def results() -> int:
        return int(bench.scalar("SELECT count(*) FROM public.result"))

    def advance() -> None:
        target = results() + 500
        wait_until(lambda: results() >= target, timeout_seconds=60, message="results")

    with ExitStack() as running:
        producer = running.enter_context(start("produce", "p", rate=2000))
        doomed, stopped, heir = (
            running.enter_context(start("settle", name, results=dsn)) for name in ("c1", "c2", "c3")
        )
        advance()
        os.kill(stopped.pid, signal.SIGSTOP)
        doomed.kill()
        bench.execute("DELETE FROM cleave.consumer WHERE name IN ('c1', 'c2')")
        bench.reshape(splitting(0))
        advance()
        os.kill(stopped.pid, signal.SIGCONT)
        bench.reshape(merging(3, 1))
        advance()
        producer.stop()
        wait_until(lambda: bench.unread("billing") == 0, timeout_seconds=60, message="the backlog is read")
        assert stopped.running
        assert heir.running

    sent = list(read_history(producer.history))
    verdict = check([*sent, *records_of_results(bench)], demand_acknowledged=True)
    assert verdict.exactly_once, str(verdict)
    assert verdict.sent == verdict.acknowledged == len(sent) > 0


def records_of_results(bench: Bench) -> list[Record]:
    """What the results say happened to each message, as histories say it: a row is work that was done and counts."""
    rows = bench.scalar(
        """SELECT json_agg(json_build_array(consumer, segment, bucket, attachment, key, payload) ORDER BY arrived)
             FROM public.result"""
    )
    events = (Event.DELIVERED, Event.BEGUN, Event.ENDED, Event.ACKNOWLEDGED)
    found = []
    for arrived, (*owner, key, payload) in enumerate(rows):
        producer, number = payload.split()
        consumer, segment, bucket, attachment = owner
        found += [
            Record(
                len(events) * arrived + i,
                event,
                producer,
                key,
                int(number),
                consumer,
                segment,
                bucket,
                attachment,
            )
            for i, event in enumerate(events)
        ]
    return found


def test_a_result_that_was_lost_is_found_by_the_checker(
    bench: Bench, producer: Producer, table: PositionTable
) -> None:
    """The judge of the test above judges: of three messages one has no result, and one has two."""
    sent = [Record(0, Event.SENT, "p", "key", number) for number in range(3)]
    for number in (0, 2, 2):
        bench.execute(
            "INSERT INTO public.result (consumer, segment, bucket, attachment, key, payload) "
            f"VALUES ('c', '0', 'all', '1', 'key', 'p {number}')"
        )

    verdict = check([*sent, *records_of_results(bench)], demand_acknowledged=True)

    assert not verdict.exactly_once
    assert verdict.of(Kind.LOST) == (("p", "key", 1),)
    assert verdict.of(Kind.DUPLICATED) == (("p", "key", 2),)
