"""A subscription goes on from somewhere else, with all its consumers: nothing that was read before counts afterwards."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import Connection

from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.domain.errors import Conflict, DataPlaneUnavailable, SubscriptionNotFound, Unsupported
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step
from controller.domain.seek_target import EARLIEST, LATEST, SeekTarget
from controller.postgres_source import PostgresSource
from controller.services import garbage_collector, subscription_admin
from controller.services.segment_admin import splitting
from controller.store.journal import claims, seeks, steps
from controller.store.journal.request_keys import Intent
from controller.store.journal.steps import StepRecord
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support import joined
from tests.support.bench import TOPIC, Bench
from tests.support.joined import Join, send_numbers
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(20)]
Found = dict[str, list[int]]
BUCKETS = 4
ASKED = "SELECT count(*) FROM cleave.bucket_owner WHERE release_asked_at IS NOT NULL"
DRAINED = """
    SELECT coalesce(array_agg(segment_id ORDER BY segment_id), '{}') FROM cleave.segment_drain WHERE subscription = 'billing'
"""


send = partial(send_numbers, keys=KEYS)


def keep(found: Found, batch: Batch) -> None:
    """Note which numbers came of each key."""
    for message in batch.messages:
        assert message.key is not None
        found.setdefault(message.key.decode(), []).append(int(message.payload))


def take(*consumers: StreamConsumer, count: int) -> Found:
    """Receive and acknowledge so many messages: for each key the numbers in the order in which they came."""
    found = joined.take(*consumers, count=count)
    return {key: [number for _, number in of_key] for key, of_key in found.items()}


def everything(*numbers: int) -> Found:
    """These numbers of every key, in that order."""
    return {key: list(numbers) for key in KEYS}


def intend(bench: Bench, target: SeekTarget, *, release_seconds: float = 60.0) -> Intent:
    """A seek of `billing`."""
    return subscription_admin.seek_subscription(
        bench.store, TOPIC, "billing", target, bench.request(), release_seconds=release_seconds
    )


def reader_across_a_split(bench: Bench, producer: Producer, join: Join) -> StreamConsumer:
    """A consumer that has read all messages of segment 0, which is split, and of its children."""
    reader = join("a")
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    assert take(reader, count=2 * len(KEYS)) == everything(0, 1)
    return reader


def wait_for_no_owner(bench: Bench, consumer: StreamConsumer) -> None:
    """Wait until the consumer has released its buckets and the leader has taken note."""
    wait_until(
        lambda: (
            consumer.receive(0.02) is None and bench.scalar("SELECT count(*) FROM cleave.bucket_owner") == 0
        ),
        message="nobody reads",
    )


def see_through(bench: Bench, intent: Intent, *consumers: StreamConsumer) -> None:
    """Run it, while the consumers do their part; nothing may be delivered before it is committed.

    On a busy machine the claim of the runner may end between the commit and the last step. The consumers then read already.
    """
    operation_id = intent.operation.operation_id

    def ended() -> bool:
        if bench.operation(operation_id).state is not OperationState.COMMITTED:
            assert [consumer.receive(0.02) for consumer in consumers] == [None] * len(consumers)
        bench.run_once(operation_id)
        return not bench.operation(operation_id).state.is_live

    wait_until(ended, message="the seek is done")
    assert bench.operation(operation_id).state is OperationState.DONE


def test_everything_comes_again_in_order_to_whoever_reads_then(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a, b = join("a"), join("b")
    send(producer, 0, 1)
    assert take(a, b, count=2 * len(KEYS)) == everything(0, 1)
    before = bench.scalar("SELECT max(generation) FROM cleave.bucket_owner")

    see_through(bench, intend(bench, EARLIEST), a, b)

    assert take(a, b, count=2 * len(KEYS)) == everything(0, 1)
    assert bench.scalar("SELECT min(generation) FROM cleave.bucket_owner") > before
    assert bench.unread("billing") == 0


def test_what_is_in_hand_is_waited_for_and_counts_for_nothing(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    send(producer, 0)
    in_hand = [wait_until(lambda: a.receive(0.1), message="a batch") for _ in range(BUCKETS)]
    intent = intend(bench, EARLIEST)
    wait_until(
        lambda: a.receive(0.02) is None and bench.scalar(ASKED) == BUCKETS, message="all are asked for"
    )
    bench.run_once(intent.operation.operation_id)
    assert bench.operation(intent.operation.operation_id).state is OperationState.INTENDED

    assert all(a.acknowledge(one) for one in in_hand)
    see_through(bench, intent, a)

    assert take(a, count=len(KEYS)) == everything(0)


def test_who_does_not_let_go_in_time_is_not_waited_for_and_acknowledges_nothing(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    send(producer, 0)
    in_hand = wait_until(lambda: a.receive(0.1), message="a batch")

    see_through(bench, intend(bench, EARLIEST, release_seconds=0.0))

    assert (
        bench.scalar(
            "SELECT detail ->> 'not let go of' FROM cleave.operation_step WHERE step = 'stop-readers'"
        )
        == "0"
    )
    assert not a.acknowledge(in_hand)
    assert take(a, count=len(KEYS)) == everything(0)


def test_what_is_sealed_is_read_again_before_what_came_after_it(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a, b = join("a"), join("b")
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    assert take(a, b, count=2 * len(KEYS)) == everything(0, 1)
    assert bench.scalar(DRAINED) == [0]

    see_through(bench, intend(bench, EARLIEST), a, b)

    assert bench.scalar(DRAINED) == []
    assert take(a, b, count=2 * len(KEYS)) == everything(0, 1)
    wait_until(lambda: (a.receive(0.02), bench.scalar(DRAINED))[1] == [0], message="read to its end again")


def test_an_instant_is_where_it_begins_and_what_was_sealed_before_stays_read(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    send(producer, 0)
    bench.reshape(splitting(0))
    assert take(a, count=len(KEYS)) == everything(0)
    instant_ms = bench.scalar("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 1")
    wait_until(
        lambda: bench.scalar("SELECT extract(epoch FROM clock_timestamp()) * 1000 > :at", at=instant_ms)
    )
    send(producer, 1, 2)
    assert take(a, count=2 * len(KEYS)) == everything(1, 2)

    see_through(bench, intend(bench, SeekTarget(instant_ms)), a)

    assert bench.scalar(DRAINED) == [0]
    assert take(a, count=2 * len(KEYS)) == everything(1, 2)


def test_skipping_everything_leaves_nothing_to_wait_for(bench: Bench, producer: Producer, join: Join) -> None:
    """A sealed segment that nobody has read holds back its children no longer."""
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)

    see_through(bench, intend(bench, LATEST))

    assert bench.scalar(DRAINED) == [0]
    send(producer, 2)
    assert take(join("a"), count=len(KEYS)) == everything(2)


def test_of_two_seeks_the_later_one_waits_and_decides(bench: Bench, producer: Producer, join: Join) -> None:
    a = join("a")
    send(producer, 0)
    assert take(a, count=len(KEYS)) == everything(0)
    first, second = intend(bench, LATEST), intend(bench, EARLIEST)
    wait_for_no_owner(bench, a)

    bench.run_once(second.operation.operation_id)
    assert bench.operation(second.operation.operation_id).state is OperationState.INTENDED
    see_through(bench, first, a)
    see_through(bench, second, a)

    assert take(a, count=len(KEYS)) == everything(0)


def give_up(bench: Bench) -> list[int]:
    """Have the seeks of `billing` given up that wait."""
    found = subscription_admin.give_up_seek(
        bench.store, TOPIC, "billing", actor="ada", reason="the wrong topic"
    )
    return [one.operation_id for one in found]


def test_one_that_waits_is_given_up_and_the_subscription_goes_on_as_it_was(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a, b = join("a"), join("b")
    send(producer, 0)
    assert take(a, b, count=len(KEYS)) == everything(0)
    send(producer, 1)
    found: Found = {}
    in_hand: list[tuple[StreamConsumer, Batch]] = []

    def all_in_hand() -> bool:
        for consumer in (a, b):
            batch = consumer.receive(0.02)
            if batch is not None:
                keep(found, batch)
                in_hand.append((consumer, batch))
        return found == everything(1)

    wait_until(all_in_hand, message="all of them in hand")
    first, second = intend(bench, EARLIEST), intend(bench, LATEST)
    both = [first.operation.operation_id, second.operation.operation_id]
    bench.run_once(both[0])
    wait_until(
        lambda: a.receive(0.02) is b.receive(0.02) is None and bench.scalar(ASKED) == BUCKETS,
        message="all are asked for",
    )

    assert give_up(bench) == give_up(bench) == both
    for operation_id in both:
        bench.drive(operation_id)

    assert [bench.operation(one).state for one in both] == [OperationState.ABORTED] * 2
    assert bench.scalar(
        "SELECT detail ->> 'reason' FROM cleave.operation_step WHERE step = 'abort' LIMIT 1"
    ) == ("ada: the wrong topic")
    assert all(consumer.acknowledge(batch) for consumer, batch in in_hand)
    send(producer, 2)
    assert take(a, b, count=len(KEYS)) == everything(2)


def test_while_a_log_is_out_of_reach_nothing_is_moved_and_it_can_be_given_up(
    bench: Bench, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    bench.plane.skip_all(bench.log_of(0), "billing")
    backlog = bench.plane.backlog

    def away(backing_topic: str, subscription: str) -> int | None:
        if backing_topic == bench.log_of(2):
            raise DataPlaneUnavailable("out of reach", 0.0)
        return backlog(backing_topic, subscription)

    monkeypatch.setattr(bench.runner_plane, "backlog", away)
    operation_id = intend(bench, EARLIEST, release_seconds=0.0).operation.operation_id
    bench.run_once(operation_id)

    assert bench.operation(operation_id).state is OperationState.INTENDED
    assert give_up(bench) == [operation_id]
    bench.drive(operation_id)
    assert bench.operation(operation_id).state is OperationState.ABORTED
    monkeypatch.undo()
    assert bench.unread("billing") == 0


def test_one_that_moves_cursors_is_not_given_up(bench: Bench, producer: Producer, join: Join) -> None:
    """Whoever asks is told so, and what the runner records in that very moment is refused."""
    with pytest.raises(Conflict, match="nothing to cancel"):
        give_up(bench)
    intent = intend(bench, EARLIEST, release_seconds=0.0)
    wait_until(lambda: bench.scalar("SELECT count(*) FROM cleave.bucket_owner") == 0, message="nobody reads")
    bench.run_until(intent.operation.operation_id, OperationState.PREPARED)

    with pytest.raises(Conflict, match="has stopped the readers and cannot be cancelled"):
        give_up(bench)

    see_through(bench, intent)


def test_one_that_was_refused_while_it_moved_cursors_is_not_given_up_and_reads_again_what_it_moved(
    bench: Bench, producer: Producer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = reader_across_a_split(bench, producer, join)
    seek = bench.runner_plane.seek

    def refusing(backing_topic: str, subscription: str, instant_ms: int) -> None:
        if backing_topic == bench.log_of(2):
            raise Unsupported("this log has no such cursor")
        seek(backing_topic, subscription, instant_ms)

    monkeypatch.setattr(bench.runner_plane, "seek", refusing)
    operation_id = intend(bench, EARLIEST).operation.operation_id
    wait_for_no_owner(bench, a)
    refused = []

    def cancel(checkpoint: str) -> None:
        if checkpoint == "abort:after":
            try:
                give_up(bench)
            except Conflict as error:
                refused.append(str(error))

    bench.run_once(operation_id, checkpoint=cancel)

    assert bench.operation(operation_id).state is OperationState.ABORTED
    assert len(refused) == 1
    assert "has stopped the readers and cannot be cancelled" in refused[0]
    assert bench.scalar("SELECT abort_reason FROM cleave.operation WHERE kind = 'seek'") is None
    assert bench.scalar(DRAINED) == []
    unread = bench.unread("billing")
    assert len(KEYS) < unread < 2 * len(KEYS), "all of the parent, and of one of its children"
    found = take(a, count=unread)
    assert found.keys() == set(KEYS)
    assert {tuple(numbers) for numbers in found.values()} == {(0,), (0, 1)}


def test_a_runner_that_looked_before_it_was_asked_to_give_up_goes_no_further(
    bench: Bench, producer: Producer
) -> None:
    operation_id = intend(bench, EARLIEST, release_seconds=0.0).operation.operation_id
    with bench.store.transaction() as tx:
        [claimed] = claims.claim(
            tx, runner="r", lease_seconds=30.0, call_timeout_seconds=5.0, operation_id=operation_id
        )
    give_up(bench)

    record = StepRecord(claimed.operation, ((Step.STOP_READERS, OperationState.PREPARED),))
    with bench.store.transaction() as tx:
        assert steps.record(tx, [record], "r", started_at_ms=0) == {}

    bench.execute("UPDATE cleave.operation SET claimed_by = NULL, claim_expires_at = NULL")
    bench.drive(operation_id)
    assert bench.operation(operation_id).state is OperationState.ABORTED


@pytest.mark.parametrize("moment", ["before the owners end", "after the owners ended"])
def test_one_that_is_given_up_while_it_stops_the_readers_changes_nothing_that_they_read(
    bench: Bench, producer: Producer, servers: Servers, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The subscription began after the split, so it does not read the parent."""
    send(producer, 0)
    bench.reshape(splitting(0))
    bench.subscribe("late", from_latest=True)
    with joined.joining(partial(StreamConsumer, servers, bench.logs, TOPIC, "late")) as join:
        reader = join("a")
        send(producer, 1)
        assert take(reader, count=len(KEYS)) == everything(1)
        seek = subscription_admin.seek_subscription(
            bench.store, TOPIC, "late", EARLIEST, bench.request(), release_seconds=60.0
        )
        wait_for_no_owner(bench, reader)
        end_owners = seeks.end_owners

        def cancel() -> None:
            subscription_admin.give_up_seek(bench.store, TOPIC, "late", actor="ada", reason="too far")

        def cancelled_meanwhile(tx: Connection, operation: Operation) -> int:
            if moment == "before the owners end":
                cancel()
                return end_owners(tx, operation)
            with bench.store.transaction() as own:
                ended = end_owners(own, operation)
            cancel()
            return ended

        monkeypatch.setattr(seeks, "end_owners", cancelled_meanwhile)
        operation_id = seek.operation.operation_id
        bench.drive(operation_id)

        assert bench.operation(operation_id).state is OperationState.ABORTED
        send(producer, 2)
        assert take(reader, count=len(KEYS)) == everything(2)


def test_a_runner_that_dies_between_two_cursors_leaves_it_to_the_next(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = reader_across_a_split(bench, producer, join)
    intent = intend(bench, EARLIEST)
    wait_for_no_owner(bench, a)
    bench.plane.seek(bench.log_of(0), "billing", 0)

    assert a.receive(0.1) is None
    see_through(bench, intent, a)

    assert take(a, count=2 * len(KEYS)) == everything(0, 1)


def test_without_a_leader_it_is_done_when_the_time_to_let_go_is_over(
    bench: Bench, source: PostgresSource
) -> None:
    bench.topic_with(segments=1)
    with Producer(source, bench.logs, TOPIC) as producer:
        send(producer, 0)
    bench.execute("""
        INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)
        VALUES (1, 'billing', 0, 0, 16383, 'dead', 1)
    """)
    bench.plane.skip_all(bench.log_of(0), "billing")

    intent = intend(bench, EARLIEST, release_seconds=0.0)
    bench.run_once(intent.operation.operation_id)
    assert bench.operation(intent.operation.operation_id).state is OperationState.INTENDED
    bench.execute(
        "UPDATE cleave.operation SET intended_at = intended_at - interval '6 s' WHERE kind = 'seek'"
    )
    see_through(bench, intent)

    assert bench.unread("billing") == len(KEYS)
    assert bench.scalar("SELECT count(*) FROM cleave.bucket_owner") == 0


def test_a_runner_that_wakes_up_after_the_seek_was_done_takes_nothing_from_anybody(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    intent = intend(bench, EARLIEST)
    see_through(bench, intent, a)
    send(producer, 0)
    assert take(a, count=len(KEYS)) == everything(0)
    owned = bench.scalar("SELECT count(*) FROM cleave.bucket_owner")

    with bench.store.transaction() as tx:
        assert seeks.end_owners(tx, intent.operation) == 0

    assert bench.scalar("SELECT count(*) FROM cleave.bucket_owner") == owned == BUCKETS


def test_deliveries_are_counted_from_anew(bench: Bench, producer: Producer, join: Join) -> None:
    """Or what failed before would go to the dead letters at once, and a first message that is sought thrice be in trouble."""
    a = join("a")
    for table, columns in (
        ("bucket_opening", "openings, opened_by"),
        ("message_delivery", "deliveries, begun_by"),
    ):
        bench.execute(
            f"INSERT INTO cleave.{table} (topic_id, subscription, segment_id, bucket_start, position, {columns})"
            " VALUES (:topic_id, 'billing', 0, 0, '{0}', 2, 'a')",
            topic_id=bench.topic_id,
        )

    see_through(bench, intend(bench, EARLIEST), a)

    assert (
        bench.rows(
            "SELECT 1 FROM cleave.message_delivery UNION ALL SELECT 1 FROM cleave.bucket_opening WHERE openings > 1"
        )
        == []
    )


def test_what_is_pruned_cannot_be_read_again_and_stops_nothing(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = reader_across_a_split(bench, producer, join)
    intent = intend(bench, EARLIEST)
    assert garbage_collector.collect(bench.store, bench.planes, retention_minutes=0).segments == {TOPIC: (0,)}
    for operation in bench.live_operations():
        if operation.operation_id != intent.operation.operation_id:
            bench.drive(operation.operation_id)

    see_through(bench, intent, a)

    assert take(a, count=len(KEYS)) == everything(1)


def test_a_log_that_is_gone_is_passed_over(bench: Bench, producer: Producer, join: Join) -> None:
    a = reader_across_a_split(bench, producer, join)
    bench.plane.delete_segment(bench.log_of(0))

    see_through(bench, intend(bench, EARLIEST), a)

    assert bench.scalar(DRAINED) == [0]
    assert take(a, count=len(KEYS)) == everything(1)


def test_it_is_refused_where_it_means_nothing(bench: Bench) -> None:
    bench.topic_with(segments=1)
    bench.subscribe("restored", kind=SubscriptionKind.CHECKPOINT)
    for name, error, words in (
        ("restored", Conflict, "read by checkpoints"),
        ("nothing", SubscriptionNotFound, "nothing"),
    ):
        with pytest.raises(error, match=words):
            subscription_admin.seek_subscription(
                bench.store, TOPIC, name, EARLIEST, bench.request(), release_seconds=1.0
            )
    assert bench.live_operations() == []


def test_a_queue_begins_again_too(bench: Bench) -> None:
    bench.topic_with(segments=1)
    bench.subscribe("jobs", kind=SubscriptionKind.QUEUE)
    bench.publish(0)
    bench.plane.skip_all(bench.log_of(0), "jobs")

    bench.finish(
        subscription_admin.seek_subscription(
            bench.store, TOPIC, "jobs", EARLIEST, bench.request(), release_seconds=1.0
        )
    )

    assert bench.unread("jobs") == 3
