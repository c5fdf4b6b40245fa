"""Leaders and consumers as real processes that are killed and paused: who leads, who reads, and what is left to read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller.client.history import read_history
from controller.client.history_check import Kind, check
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.devstack.ports import free_port, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.serving import SECRET, client_of
from controller.domain.errors import LostRace, StoreUnavailable
from controller.domain.seek_target import EARLIEST
from controller.services import subscription_admin
from controller.services.segment_admin import splitting
from tests.integration.conftest import StartWorker, held_by
from tests.support.bench import TOPIC, Bench
from tests.support.traffic import TrafficProcess
from tests.support.unsettled_consumer import unsettled_consumer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)
KEYS = [f"key-{i}" for i in range(40)]
LEASE_SECONDS = 2


@pytest.fixture
def workers(bench: Bench, start_worker: StartWorker) -> Iterator[dict[str, tuple[ChildProcess, str]]]:
    """Two workers that serve, each with its address."""
    bench.topic_with(segments=2)
    found, ports = {}, []
    for name in ("w1", "w2"):
        ports.append(free_port())
        child = start_worker(
            name,
            api_secret=SECRET,
            serve_port=ports[-1],
            worker_lease_seconds=LEASE_SECONDS,
            consumer_grace_seconds=6,
        )
        found[name] = (child, f"http://127.0.0.1:{ports[-1]}")
    wait_until(
        lambda: len(held_by(bench, "w1")) == len(held_by(bench, "w2")) == 8, message="half the shards each"
    )
    yield found
    for port in ports:
        release_port(port)


@pytest.fixture
def servers(workers: dict[str, tuple[ChildProcess, str]]) -> Iterator[Servers]:
    """A client that knows both."""
    servers = client_of(*(address for _, address in workers.values()))
    yield servers
    servers.close()


def leader_of(bench: Bench, workers: dict[str, tuple[ChildProcess, str]]) -> str:
    """The worker that leads the topic; empty while none does."""
    return next((name for name in workers if f"shard/{bench.topic_id % 16}" in held_by(bench, name)), "")


def owners(bench: Bench) -> object:
    """Every bucket's owner and generation."""
    return bench.scalar(
        "SELECT jsonb_agg(to_jsonb(o) ORDER BY segment_id, bucket_start) FROM cleave.bucket_owner o"
    )


def take(*consumers: StreamConsumer, count: int) -> list[str]:
    """The keys of so many messages, received and acknowledged."""
    keys: list[str] = []

    def turn() -> bool:
        for consumer in consumers:
            batch = consumer.receive(0.05)
            if batch is not None and consumer.acknowledge(batch):
                keys.extend(m.key.decode() for m in batch.messages if m.key)
        return len(keys) >= count

    wait_until(turn, timeout_seconds=60, message=f"{count} messages")
    return keys


def test_a_killed_leaders_consumers_find_the_same_at_the_next_one(
    bench: Bench, workers: dict[str, tuple[ChildProcess, str]], servers: Servers
) -> None:
    consumers = [StreamConsumer(servers, bench.logs, TOPIC, "billing", name) for name in "ab"]
    producer = Producer(HttpSource(servers), bench.logs, TOPIC)

    def is_shared() -> bool:
        for consumer in consumers:
            consumer.receive(0.02)
        return [len(consumer.buckets) for consumer in consumers] == [2, 2]

    wait_until(is_shared, message="a segment for each")
    before = owners(bench)
    leader = leader_of(bench, workers)

    workers[leader][0].kill()
    for key in KEYS:
        producer.send(b"1", key)
    producer.flush()
    assert sorted(take(*consumers, count=len(KEYS))) == sorted(KEYS)  # with what they had, whoever leads

    wait_until(lambda: leader_of(bench, workers) not in ("", leader), message="the other worker leads")
    path = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a"

    def serves() -> bool:
        with suppress(StoreUnavailable):
            with pytest.raises(LostRace, match="register again"):
                servers.ask("POST", f"{path}/pulse", document={"incarnation": "nobody's"})
            return True
        return False

    wait_until(serves, message="the new leader serves")
    assert owners(bench) == before
    for key in KEYS:
        producer.send(b"2", key)
    producer.flush()
    assert sorted(take(*consumers, count=len(KEYS))) == sorted(KEYS)
    for consumer in consumers:
        consumer.close()
    producer.close()


def test_a_consumer_stopped_past_its_grace_hands_out_nothing_when_it_wakes(
    bench: Bench, workers: dict[str, tuple[ChildProcess, str]], tmp_path: Path
) -> None:
    """SIGSTOP and SIGCONT: what it had is with others by then, and it takes part again with a session of its own."""
    address = workers["w1"][1]

    def start(role: str, name: str) -> TrafficProcess:
        return TrafficProcess(
            role,
            name,
            url=bench.url,
            topic=TOPIC,
            directory=tmp_path,
            subscription="billing",
            address=address,
            rate=200,
        )

    with start("produce", "p") as producer, start("consume", "a") as sleeper, start("consume", "b") as awake:
        wait_until(lambda: sleeper.count > 50 and awake.count > 50, timeout_seconds=60, message="both read")
        os.kill(sleeper.pid, signal.SIGSTOP)
        wait_until(
            lambda: bench.scalar("SELECT count(*) FROM cleave.bucket_owner WHERE consumer = 'a'") == 0,
            timeout_seconds=60,
            message="the sleeper's buckets are with others",
        )
        os.kill(sleeper.pid, signal.SIGCONT)
        seen = sleeper.count
        wait_until(lambda: sleeper.count > seen + 50, timeout_seconds=60, message="it takes part again")
        producer.stop()
        wait_until(lambda: bench.unread("billing") == 0, timeout_seconds=60, message="the backlog is read")
        sleeper.stop()
        awake.stop()
        verdict = check(read_history(producer.history, sleeper.history, awake.history))
    # It may have been stopped amid the work on a batch and go on with that when it wakes, which no client can keep it from; what
    # it may not do is to begin another one, or to acknowledge.
    assert verdict.in_order_and_complete, verdict
    assert not verdict.of(Kind.DUPLICATED), verdict


@pytest.mark.parametrize(("is_followed", "close_seconds"), [(False, 10.0), (True, 60.0)])
def test_who_is_interrupted_in_a_rebalance_while_its_leader_is_dead_ends_in_time_and_says_goodbye(
    bench: Bench,
    workers: dict[str, tuple[ChildProcess, str]],
    servers: Servers,
    tmp_path: Path,
    is_followed: bool,
    close_seconds: float,
) -> None:
    """Trap 33. Its time is what it is given for closing, whether another worker takes over or all of them are stopped: those take
    connections and answer nothing. A second interruption comes while it closes.
    """
    with Producer(HttpSource(servers), bench.logs, TOPIC) as producer:
        for key in KEYS:
            producer.send(b"1", key)
    addresses = [address for _, address in workers.values()]
    log = tmp_path / "a.log"
    doomed = unsettled_consumer("a", bench.url, TOPIC, *addresses, log=log, close_seconds=close_seconds)
    doomed.start()
    try:
        wait_until(lambda: "received" in log.read_text(), message="messages in its hands")
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "b")  # never closed: its worker is gone
        wait_until(
            lambda: bench.scalar("SELECT count(*) FROM cleave.bucket_owner WHERE successor IS NOT NULL"),
            message="a rebalance",
        )
        struck = [leader_of(bench, workers)] if is_followed else [*workers]
        for name in struck:
            os.kill(workers[name][0].pid, signal.SIGKILL if is_followed else signal.SIGSTOP)

        doomed.ask_to_end()
        wait_until(lambda: "closing" in log.read_text())
        os.kill(doomed.pid, signal.SIGTERM)
        wait_until(lambda: not doomed.running, timeout_seconds=close_seconds, message="its end")
    finally:
        doomed.kill()
        for child, _ in workers.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)

    reasons = bench.scalar("SELECT array_agg(reason) FROM cleave.departed_consumer WHERE name = 'a'")
    assert reasons == (["left"] if is_followed else None)


def test_seeks_under_load_are_finished_by_the_next_leader_when_theirs_is_killed(
    bench: Bench, workers: dict[str, tuple[ChildProcess, str]], tmp_path: Path
) -> None:
    """Everything published so far comes again, each key in its order, whichever process dies with the seek half done."""

    def start(role: str, name: str) -> TrafficProcess:
        return TrafficProcess(
            role,
            name,
            url=bench.url,
            topic=TOPIC,
            directory=tmp_path,
            subscription="billing",
            address=",".join(address for _, address in workers.values()),
            rate=200,
        )

    def seek() -> int:
        request = bench.request()
        asked = subscription_admin.seek_subscription(
            bench.store, TOPIC, "billing", EARLIEST, request, release_seconds=6.0
        )
        return asked.operation.operation_id

    def is_done(operation_id: int) -> bool:
        return not bench.operation(operation_id).state.is_live

    with start("produce", "p") as producer, start("consume", "a") as a, start("consume", "b") as b:
        wait_until(lambda: a.count > 50 and b.count > 50, timeout_seconds=60, message="both read")
        first = seek()
        wait_until(lambda: is_done(first), timeout_seconds=60, message="the first seek is done")
        bench.reshape(splitting(0))
        os.kill(b.pid, signal.SIGSTOP)  # so that the second one has to wait for somebody
        sent = producer.count
        second = seek()
        workers[leader_of(bench, workers)][0].kill()
        os.kill(b.pid, signal.SIGCONT)
        wait_until(lambda: is_done(second), timeout_seconds=60, message="the next leader finishes the second")
        before = a.count + b.count
        wait_until(
            lambda: a.count + b.count >= before + sent, timeout_seconds=60, message="it all comes again"
        )
        producer.stop()
        wait_until(lambda: bench.unread("billing") == 0, timeout_seconds=60, message="the backlog is read")
        a.stop()
        b.stop()
        verdict = check(read_history(producer.history, a.history, b.history))
    assert verdict.in_order_and_complete, verdict


def test_who_is_cut_off_from_workers_lets_go_though_the_application_is_busy(
    bench: Bench, workers: dict[str, tuple[ChildProcess, str]], servers: Servers
) -> None:
    """Nothing calls `receive`: the log is reached, and others may own what is attached there."""
    consumer = StreamConsumer(servers, bench.logs, TOPIC, "billing", "a")
    wait_until(lambda: consumer.receive(0.05) or len(consumer.buckets) == 4, message="all is a's")

    for child, _ in workers.values():
        child.kill()

    wait_until(lambda: consumer.buckets == (), timeout_seconds=60, message="nothing is attached")
    consumer.close()
