"""Queue consumers of applications on a real broker: through a split and a merge, with one that vanishes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.servers import Servers
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.queue_reader import PulsarQueueReader
from controller.domain.errors import DataPlaneUnavailable, LostRace
from controller.services import garbage_collector
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(30)]


def test_everything_is_done_by_somebody_through_a_split_and_a_merge(
    setup: PulsarSetup, logs: LogClient, servers: Servers
) -> None:
    setup.create(1)
    setup.cleave.ok("subscriptions", "create", setup.topic, "jobs", "--kind", "queue")
    others = PulsarLogClient(setup.access, call_timeout_seconds=25.0)
    done: set[tuple[str, int]] = set()
    with (
        Producer(HttpSource(servers), logs, setup.topic) as producer,
        QueueConsumer(servers, logs, setup.topic, "jobs", "a") as a,
    ):
        vanishing = QueueConsumer(servers, others, setup.topic, "jobs", "b", queue_messages=5)
        setup.send_rounds(producer, KEYS, 9, split_after=2, merge_after=5)
        assert wait_until(lambda: vanishing.receive_many(20, 0.5), message="work in hand")
        others.close()  # its connections end, and nothing was said

        def all_done() -> bool:
            found = a.receive_many(50, 0.5)
            for one in found:
                if one.deliveries == 1 and len(done) % 40 == 0:
                    a.nack(one, 0.2)
                elif a.acknowledge(one):
                    done.add((str(one.key and one.key.decode()), int(one.payload)))
            return len(done) == 9 * len(KEYS)

        wait_until(all_done, timeout_seconds=60, message="everything is done")

        def drained() -> bool:
            assert a.receive(0.1) is None
            return setup.scalar("SELECT count(*) FROM cleave.segment_drain WHERE subscription = 'jobs'") == 3

        wait_until(drained, timeout_seconds=60, message="the sealed segments are known to be settled")
        vanishing.close()
        report = garbage_collector.collect(setup.app.store, setup.app.planes, retention_minutes=0)

    assert done == {(key, number) for key in KEYS for number in range(9)}
    assert report.operation_ids


def test_each_message_is_acknowledged_once_though_every_first_delivery_is_given_back(
    setup: PulsarSetup, logs: LogClient, servers: Servers
) -> None:
    """Three consumers; an acknowledgement that was True and a message that comes again do not go together without a crash."""
    setup.create(1)
    setup.cleave.ok("subscriptions", "create", setup.topic, "jobs", "--kind", "queue")
    done: Counter[int] = Counter()
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(HttpSource(servers), logs, setup.topic))
        for number in range(2_000):
            producer.send(b"%d" % number, f"key-{number % 50}")
        producer.flush()
        consumers = [
            stack.enter_context(QueueConsumer(servers, logs, setup.topic, "jobs", name)) for name in "abc"
        ]

        def all_done() -> bool:
            for consumer in consumers:
                for one in consumer.receive_many(20, 0.01):
                    if one.deliveries == 1:
                        consumer.nack(one, delay_seconds=0.5)
                    elif consumer.acknowledge(one):
                        done[int(one.payload)] += 1
            return len(done) == 2_000

        wait_until(all_done, timeout_seconds=60, message="everything is done")
        for consumer in consumers:
            done.update(int(one.payload) for one in consumer.receive_many(1, 1.0))

    assert set(done.values()) == {1}


def test_what_is_opened_while_everything_is_closed_is_not_left_open(
    setup: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold messages that nobody takes; the moment is drawn out here, by closing between its two halves."""
    setup.create(1)
    setup.cleave.ok("subscriptions", "create", setup.topic, "jobs", "--kind", "queue")
    logs = PulsarLogClient(setup.access, call_timeout_seconds=25.0)
    log = setup.log_of(0)
    keep = logs._keep

    def late(reader: PulsarQueueReader) -> None:
        logs._ended.set()  # as `close` begins
        keep(reader)

    monkeypatch.setattr(logs, "_keep", late)
    with pytest.raises(DataPlaneUnavailable, match="closed meanwhile"):
        logs.open_queue_reader(log, "jobs", owner="a", on_arrival=lambda: None)
    logs.close()

    def consumers() -> list[object]:
        path = f"persistent/{log.partition('://')[2]}/stats"
        found: list[object] = setup.admin("GET", path).json()["subscriptions"]["jobs"]["consumers"]
        return found

    wait_until(lambda: not consumers(), message="nobody consumes")


@pytest.mark.parametrize("limit", ["maxConsumersPerSubscription", "maxConsumersPerTopic"])
def test_a_limit_of_consumers_is_not_taken_for_a_consumer_in_order(setup: PulsarSetup, limit: str) -> None:
    setup.create(1)
    setup.cleave.ok("subscriptions", "create", setup.topic, "jobs", "--kind", "queue")
    setup.admin("POST", f"namespaces/{setup.namespace}/{limit}", json=1)
    logs, log = PulsarLogClient(setup.access, call_timeout_seconds=25.0), setup.log_of(0)

    def open_another() -> None:
        logs.open_queue_reader(log, "jobs", owner="b", on_arrival=lambda: None)

    first = logs.open_queue_reader(log, "jobs", owner="a", on_arrival=lambda: None)
    with pytest.raises(
        LostRace, match=rf"allows no further consumer of 'jobs'; close a consumer, or raise .*{limit}"
    ):
        open_another()
    first.close()
    logs.open_reader(log, "jobs", owner="a", live_owners=["a"], on_arrival=lambda: None)
    with pytest.raises(LostRace, match="another consumer reads 'jobs' in order; try again after"):
        open_another()
    logs.close()


def test_readers_that_a_limit_of_consumers_refuses_name_the_limit(setup: PulsarSetup) -> None:
    setup.create(1)
    setup.cleave.ok("subscriptions", "create", setup.topic, "jobs", "--kind", "queue")
    setup.cleave.ok("subscriptions", "create", setup.topic, "billing")
    setup.admin("POST", f"namespaces/{setup.namespace}/maxConsumersPerTopic", json=1)
    logs, hurried = (PulsarLogClient(setup.access, call_timeout_seconds=seconds) for seconds in (25.0, 2.0))
    log = setup.log_of(0)
    logs.open_queue_reader(log, "jobs", owner="a", on_arrival=lambda: None)

    with pytest.raises(
        DataPlaneUnavailable, match=f"read {log}: ConsumerBusy; .* raise maxConsumersPerTopic"
    ):
        logs.open_reader_at(log, None, on_arrival=lambda: None)
    with pytest.raises(LostRace, match=r"another reader .* was faster, or .* raise maxConsumersPerTopic"):
        hurried.open_reader(log, "billing", owner="a", live_owners=["a"], on_arrival=lambda: None)
    hurried.close()
    logs.close()
