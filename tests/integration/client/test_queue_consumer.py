"""Queue consumers against real logs: each message settled by somebody, whatever is split, merged, killed or moved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from controller import client_metrics
from controller.client.history import read_history
from controller.client.history_check import Kind, check
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer, QueuedMessage
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogClient
from controller.domain.errors import (
    Conflict,
    DataPlaneUnavailable,
    InvalidInput,
    LostRace,
    SubscriptionNotFound,
    Terminal,
)
from controller.domain.key_hash import key_hash
from controller.domain.seek_target import EARLIEST
from controller.services import garbage_collector, subscription_admin
from controller.services.segment_admin import merging, splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import joining, send_numbers, settle
from tests.support.rounds import rounds_of
from tests.support.traffic import TrafficProcess, advance
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(20)]
Join = Callable[..., QueueConsumer]


@pytest.fixture
def topic(bench: Bench) -> None:
    bench.topic_with(segments=1, subscriptions=("jobs",), kind=SubscriptionKind.QUEUE)


@pytest.fixture
def join(bench: Bench, servers: Servers, producer: Producer) -> Iterator[Join]:
    """Consumers of queue `jobs`, closed at the end."""

    def consumer(name: str, logs: LogClient | None = None, **options: float) -> QueueConsumer:
        return QueueConsumer(servers, logs or bench.logs, TOPIC, "jobs", name, **options)

    with joining(consumer) as join:
        yield join


send = partial(send_numbers, keys=KEYS)


def receive(consumer: QueueConsumer, count: int) -> list[QueuedMessage]:
    found: list[QueuedMessage] = []

    def complete() -> bool:
        found.extend(consumer.receive_many(count - len(found), 0.1))
        return len(found) == count

    wait_until(complete, message=f"{count} messages for {consumer.name}")
    return found


def drain(*consumers: QueueConsumer, count: int) -> dict[str, list[tuple[bytes, int]]]:
    """Receive and acknowledge so many messages in all; who got what."""
    found: dict[str, list[tuple[bytes, int]]] = {one.name: [] for one in consumers}

    def complete() -> bool:
        for one in consumers:
            messages = one.receive_many(3, 0.02)
            assert not messages or one.acknowledge(*messages)
            found[one.name] += [(m.key or b"", int(m.payload)) for m in messages]
        return sum(map(len, found.values())) >= count

    wait_until(complete, message=f"{count} messages")
    return found


def everything(*numbers: int) -> list[tuple[bytes, int]]:
    return sorted((key.encode(), number) for key in KEYS for number in numbers)


def test_a_segment_that_answers_nothing_keeps_nobody_waiting_for_the_others(
    bench: Bench, producer: Producer, join: Join
) -> None:
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    a = join("a", logs)
    settle(a, until=lambda: len(a.segment_ids) == 2)  # the parent was drained when it was empty
    deaf, healthy = a.segment_ids
    logs.deaf = {bench.log_of(deaf)}
    try:
        send(producer, 0)
        mine = [
            key for key in KEYS if bench.layout.segment_for(key_hash(key).segment_hash).segment_id == healthy
        ]
        found = receive(a, len(mine))
        settle(a, until=lambda: logs.hung > 0)  # the other is asked
        assert sorted(one.key or b"" for one in found) == sorted(key.encode() for key in mine)
        assert a.acknowledge(*found)
        bench.reshape(splitting(healthy))  # its end is asked for beside it
        settle(a, until=lambda: healthy not in a.segment_ids)
    finally:
        logs.deaf.clear()
        logs.goes_on.set()
    assert len(receive(a, len(KEYS) - len(mine))) == len(KEYS) - len(mine)


def test_consumers_share_every_segment_old_and_new(bench: Bench, producer: Producer, join: Join) -> None:
    """Parents and children side by side: a queue has no order to wait for."""
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    a, b = join("a", queue_messages=2), join("b", queue_messages=2)
    settle_open(a, b, segments=(0, 1, 2))

    found = drain(a, b, count=2 * len(KEYS))

    assert sorted(found["a"] + found["b"]) == everything(0, 1)
    assert all(found.values()), "both had some"
    assert bench.unread("jobs") == 0


def settle_open(*consumers: QueueConsumer, segments: tuple[int, ...]) -> None:
    """Until each is attached to all of these, without a message delivered."""

    def attached() -> bool:
        for one in consumers:
            one._before_poll()
            one._readers.open_due()
        return all(set(segments) <= set(one.segment_ids) for one in consumers)

    wait_until(attached, message="every consumer is attached")


def test_segments_that_are_split_and_merged_meanwhile_are_attached_to(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    for number, planner in enumerate((splitting(0), splitting(1), merging(4, 2))):
        send(producer, number)
        bench.reshape(planner)
    send(producer, 3)

    assert sorted(drain(a, count=4 * len(KEYS))["a"]) == everything(0, 1, 2, 3)
    settle(a, until=lambda: len(a.segment_ids) == len(bench.layout.active))


def test_what_was_received_before_an_error_is_returned(
    producer: Producer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(producer, 0)
    a = join("a")
    received: list[QueuedMessage] = []
    poll, follow = a._poll, a._before_poll

    def noted_poll() -> QueuedMessage | None:
        message = poll()
        received.extend([message] if message else [])
        return message

    def follow_until_the_third() -> None:
        if len(received) == 3:
            raise SubscriptionNotFound("it was deleted meanwhile")
        follow()

    monkeypatch.setattr(a, "_poll", noted_poll)
    monkeypatch.setattr(a, "_before_poll", follow_until_the_third)

    messages = a.receive_many(10, 30)

    assert (len(messages), a.in_hand) == (3, 3)
    assert a.acknowledge(*messages)
    with pytest.raises(SubscriptionNotFound):
        a.receive_many(10, 0)


def test_a_sealed_segment_is_collected_when_the_queue_has_settled_it_and_not_before(
    bench: Bench, producer: Producer, join: Join
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    a = join("a")
    held = receive(a, len(KEYS))
    assert a.acknowledge(*held[1:])
    looks = iter(range(80))  # longer than a segment is left alone
    settle(a, until=lambda: next(looks, None) is None)
    assert garbage_collector.collect(bench.store, bench.planes, retention_minutes=0).operation_ids == []
    assert bench.scalar("SELECT count(*) FROM cleave.segment_drain") == 0

    assert a.acknowledge(held[0])

    settle(a, until=lambda: a.segment_ids == (1, 2))
    assert bench.scalar("SELECT array_agg(segment_id) FROM cleave.segment_drain") == [0]
    assert garbage_collector.collect(bench.store, bench.planes, retention_minutes=0).operation_ids
    bench.settle()
    bench.check_laws()


def test_what_is_given_back_comes_again_after_its_delay_to_anybody(producer: Producer, join: Join) -> None:
    a = join("a")
    send(producer, 0)
    (first, *rest) = receive(a, len(KEYS))
    assert a.acknowledge(*rest)

    a.nack(first, delay_seconds=0.3)
    assert not a.acknowledge(first), "it is given back"

    (again,) = receive(join("b"), 1)
    assert (again.message.position, again.deliveries) == (first.message.position, 2)


def test_a_message_that_is_taken_back_was_never_delivered(producer: Producer, join: Join) -> None:
    a = join("a")
    send(producer, 0)
    (first, *rest) = receive(a, len(KEYS))
    assert a.acknowledge(*rest)

    a.take_back(first)
    assert (a.in_hand, a.holds(first)) == (0, False)
    assert receive(a, 1) == [first]

    a.take_back(first)
    a.close()
    (again,) = receive(join("b"), 1)
    assert (again.message.position, again.deliveries) == (first.message.position, 1)


def test_a_consumer_that_leaves_gives_back_what_it_has(bench: Bench, producer: Producer, join: Join) -> None:
    a = join("a")
    send(producer, 0)
    in_hand = receive(a, 3)
    b = join("b")

    a.close()

    found = receive(b, len(KEYS))
    positions = {one.message.position for one in in_hand}
    assert {
        one.message.position: one.deliveries for one in found if one.message.position in positions
    } == dict.fromkeys(positions, 2)
    assert all(one.deliveries == 1 for one in found if one.message.position not in positions), (
        "it only waited there"
    )
    assert not a.acknowledge(in_hand[0])


def test_what_a_consumer_holds_that_is_not_heard_any_more_comes_again_and_is_not_its_own(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """A process that was stopped for too long: what waits in it is not delivered, what it acknowledges is refused."""
    mute = EmbeddedLogClient(bench.url, queue_life_seconds=0.5)
    mute._keeper.add = lambda reader: None  # type: ignore[method-assign]
    stopped = join("stopped", mute)
    send(producer, 0)
    (in_hand,) = receive(stopped, 1)

    other = join("b")
    found = receive(other, len(KEYS))

    assert sorted((one.key or b"", int(one.payload)) for one in found) == everything(0)
    assert not stopped.acknowledge(in_hand)
    assert other.acknowledge(*found)
    settle(stopped, until=lambda: bench.unread("jobs") == 0)
    send(producer, 1)
    assert sorted(drain(stopped, count=len(KEYS))["stopped"]) == everything(1)
    stopped.close()
    mute.close()


def test_a_queue_of_one_gets_everything_and_no_segment_keeps_another_waiting(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """Trap 28: a lost wake-up at size 1, and a busy segment before an idle one."""
    bench.reshape(splitting(0))
    send(producer, *range(10))
    a = join("a", queue_messages=1)
    settle_open(a, segments=(1, 2))

    first = [one.segment_id for one in receive(a, 20)]

    assert abs(first.count(1) - first.count(2)) <= 1
    rest = drain(a, count=10 * len(KEYS) - 20)["a"]
    assert len(rest) == 10 * len(KEYS) - 20


def test_who_is_paused_waits_and_goes_round_no_more_often_than_needed(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = join("a")
    a.pause()

    assert rounds_of(a, 0.3, monkeypatch) < 10


def test_a_paused_consumer_keeps_what_is_in_hand_and_leaves_the_rest_to_others(
    producer: Producer, join: Join
) -> None:
    a, b = join("a"), join("b")
    send(producer, 0)
    (in_hand,) = receive(a, 1)

    a.pause()
    assert a.receive(0.02) is None
    assert a.acknowledge(in_hand)
    assert a.receive(0.02) is None

    assert len(drain(b, count=len(KEYS) - 1)["b"]) == len(KEYS) - 1
    a.resume()
    send(producer, 1)
    assert sorted(drain(a, count=len(KEYS))["a"]) == everything(1)


def test_a_pause_is_no_outage_of_a_segment_with_messages_in_hand(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """No log is read meanwhile, so none can be reached again."""
    logs = FaultyLogs(bench.logs)
    logs.goes_on.set()
    a = join("a", logs, patience_seconds=0.05)
    send(producer, 0)
    in_hand = receive(a, len(KEYS))
    logs.deaf = {bench.log_of(0)}
    wait_until(lambda: a.receive(0.0) is None and "has not answered" in a.why()[0].reason)

    a.pause()
    assert [a.receive(0.02) for _ in range(5)] == [None] * 5

    a.resume()
    with pytest.raises(DataPlaneUnavailable, match="has not answered"):
        wait_until(lambda: a.receive(0.1))
    assert a.acknowledge(*in_hand)


def test_several_threads_settle_what_one_receives(bench: Bench, producer: Producer, join: Join) -> None:
    send(producer, *range(10))
    a = join("a")
    with ThreadPoolExecutor(4) as threads:
        settled = list(threads.map(a.acknowledge, receive(a, 10 * len(KEYS))))

    assert all(settled)
    assert (a.in_hand, bench.unread("jobs")) == (0, 0)


def test_closing_waits_for_what_other_threads_have_in_hand(
    bench: Bench, producer: Producer, join: Join
) -> None:
    send(producer, 0)
    a = join("a")
    held = receive(a, len(KEYS))
    closing = threading.Thread(target=lambda: a.close(timeout_seconds=60.0))
    closing.start()
    assert a.acknowledge(*held)
    closing.join(30.0)

    assert not closing.is_alive()
    assert bench.unread("jobs") == 0


def test_a_seek_back_gives_everything_out_again_and_refuses_what_is_in_hand(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    send(producer, 0)
    (in_hand, *others) = receive(a, len(KEYS))
    assert a.acknowledge(*others)

    bench.plane.seek(bench.log_of(0), "jobs", 0)

    assert not a.acknowledge(in_hand)
    assert sorted(drain(a, count=len(KEYS))["a"]) == everything(0)


def test_a_seek_of_the_subscription_opens_its_drained_segments_again(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """What was said of a drain before the seek, and comes after it, counts for nothing."""
    a = join("a")
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    drain(a, count=2 * len(KEYS))
    drained = "SELECT count(*) FROM cleave.segment_drain"
    settle(a, until=lambda: bench.scalar(drained) == 1)
    before = a._watch.current.as_of

    seek = subscription_admin.seek_subscription(
        bench.store, TOPIC, "jobs", EARLIEST, bench.request(), release_seconds=1.0
    )
    bench.finish(seek)

    with pytest.raises(LostRace):
        a._watch.report_drained([0], before)
    a._watch.look_again()
    assert sorted(drain(a, count=2 * len(KEYS))["a"]) == everything(0, 1)
    settle(a, until=lambda: bench.scalar(drained) == 1)


def test_a_segment_out_of_reach_keeps_no_other_waiting_and_is_told_of_when_there_is_nothing_else(
    bench: Bench, producer: Producer, join: Join
) -> None:
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(1)}
    send(producer, 0)
    within_reach = [
        key for key in KEYS if bench.layout.segment_for(key_hash(key).segment_hash).segment_id == 2
    ]
    a = join("a", logs)

    first = drain(a, count=len(within_reach))["a"]
    with (
        join("impatient", logs, patience_seconds=0.2) as impatient,
        pytest.raises(DataPlaneUnavailable, match="out of reach"),
    ):
        wait_until(lambda: impatient.receive(0.1))
    assert "out of reach" in {one.segment_id: one.reason for one in a.why()}[1]
    logs.out_of_reach.clear()

    assert sorted(first + drain(a, count=len(KEYS) - len(first))["a"]) == everything(0)


def test_a_segment_that_cannot_be_read_keeps_no_other_waiting_and_is_told_of_when_there_is_nothing_else(
    bench: Bench, producer: Producer, join: Join
) -> None:
    bench.reshape(splitting(0))
    logs = FaultyLogs(bench.logs)
    consumer = join("a", logs, queue_messages=1)
    send(producer, 0)
    found: list[QueuedMessage] = []

    def has_both() -> bool:
        found.extend(consumer.receive_many(1, 0.1))
        return {one.segment_id for one in found} == {1, 2}

    wait_until(has_both)
    logs.unreadable = {bench.log_of(1)}
    readable = sum(bench.layout.segment_for(key_hash(key).segment_hash).segment_id == 2 for key in KEYS)
    left = readable - sum(one.segment_id == 2 for one in found)
    rest = [consumer.receive(1.0) for _ in range(left)]

    assert [one and one.segment_id for one in rest] == [2] * left
    with pytest.raises(Terminal, match="cannot be decrypted"):
        wait_until(lambda: consumer.receive(0.1))
    assert "cannot be decrypted" in {one.segment_id: one.reason for one in consumer.why()}[1]


def test_lost_connections_are_a_pause_and_no_more(bench: Bench, producer: Producer, join: Join) -> None:
    a = join("a")
    send(producer, 0)
    held = receive(a, 5)
    bench.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name IN ('cleave-embedded', 'cleave-listener') AND datname = current_database()"
    )
    send(producer, 1)

    assert a.acknowledge(*held)
    assert len(drain(a, count=2 * len(KEYS) - 5)["a"]) == 2 * len(KEYS) - 5


def test_a_subscription_has_one_kind(bench: Bench, servers: Servers, producer: Producer) -> None:
    bench.subscribe("billing")

    with pytest.raises(Conflict, match="recorded as STREAM"):
        QueueConsumer(servers, bench.logs, TOPIC, "billing", "a")
    with pytest.raises(Conflict, match="recorded as QUEUE"):
        StreamConsumer(servers, bench.logs, TOPIC, "jobs", "a")
    with pytest.raises(SubscriptionNotFound):
        QueueConsumer(servers, bench.logs, TOPIC, "nobody", "a")


def test_a_subscription_that_is_deleted_is_told(bench: Bench, producer: Producer, join: Join) -> None:
    a = join("a")
    assert a.receive(0.0) is None
    bench.finish(subscription_admin.delete_subscription(bench.store, TOPIC, "jobs", bench.request()))
    a._watch.look_again()

    with pytest.raises(SubscriptionNotFound):
        wait_until(lambda: a.receive(0.1))


def test_values_that_can_never_be_right_are_refused(producer: Producer, join: Join) -> None:
    with pytest.raises(InvalidInput, match="queue_messages"):
        join("a", queue_messages=0)
    a = join("b")
    send(producer, 0)
    (one,) = receive(a, 1)
    with pytest.raises(InvalidInput, match="delay"):
        a.nack(one, delay_seconds=-1.0)
    with pytest.raises(InvalidInput, match="not received by a queue consumer"):
        a.acknowledge(QueuedMessage(0, one.message, object()))


@pytest.mark.timeout(180)
def test_killed_consumers_lose_nothing_through_splits_and_merges(
    bench: Bench, producer: Producer, leader: str, tmp_path: Path
) -> None:
    with ExitStack() as running:

        def start(role: str, name: str) -> TrafficProcess:
            return running.enter_context(
                TrafficProcess(
                    role,
                    name,
                    url=bench.url,
                    topic=TOPIC,
                    directory=tmp_path,
                    subscription="jobs",
                    address=leader,
                    rate=500 if role == "produce" else 0,
                )
            )

        producers = [start("produce", "p1"), start("produce", "p2")]
        consumers = [start("share", "c1"), start("share", "c2")]
        dead: list[TrafficProcess] = []
        for number, planner in enumerate((splitting(0), splitting(1), merging(4, 2))):
            advance(*producers, *consumers)
            bench.reshape(planner)
            if number == 0:
                dead.append(consumers.pop(0))
                dead[0].kill()
                consumers.append(start("share", "c3"))
        advance(*producers, *consumers)
        for one in producers:
            one.stop()
        wait_until(lambda: bench.unread("jobs") == 0, timeout_seconds=90, message="the backlog is settled")
        for one in consumers:
            one.stop()

    verdict = check(read_history(*(one.history for one in (*producers, *consumers, *dead))))
    assert verdict.sent > 2000
    assert verdict.counts[Kind.LOST] == 0, verdict
    assert verdict.redelivered > 0


def test_what_is_received_and_acknowledged_is_counted(producer: Producer, join: Join) -> None:
    received = client_metrics.CONSUMER_MESSAGES.labels("queue")
    acknowledged = client_metrics.CONSUMER_ACKNOWLEDGED.labels("queue")
    before = received._value.get(), acknowledged._value.get()
    send(producer, 0)
    a = join("a")

    one, *others = receive(a, len(KEYS))
    a.nack(one, 0.0)
    assert a.acknowledge(*others)
    assert a.acknowledge(*receive(a, 1))

    assert received._value.get() - before[0] == len(KEYS) + 1
    assert acknowledged._value.get() - before[1] == len(KEYS)
