"""A topic that applications made becomes a scalable one: nothing of it is lost, and each key stays in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pulsar
import pytest

from controller.bootstrap import plane_settings
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.base import LogState
from controller.dataplane.pulsar.names import subscription_path, topic_path
from controller.dataplane.registry import build_log_client
from controller.domain.operation import OperationState, Origin
from controller.domain.operation_steps import Step
from controller.services import topic_admin, topic_adoption
from controller.services.operation_runner import run_due
from controller.store.journal import operations
from controller.store.journal.operations import Request
from controller.store.topics.subscriptions import SubscriptionKind, list_subscriptions
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.older_runner import record_alone
from tests.support.waiting import wait_until

KEYS, BEFORE, AFTER = 6, 4, 3
"""Messages for each key, before the adoption and after it."""


class SendingApplication(threading.Thread):
    """An application that sends key after key, one message at a time, until the broker refuses it."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        """The producer is there at once."""
        super().__init__(daemon=True)
        self._producer = client.create_producer(topic, producer_name="till")
        self.acknowledged: list[bytes] = []
        self.ended: pulsar.PulsarException | None = None

    def run(self) -> None:
        for number in count(BEFORE):
            for key in range(KEYS):
                payload = f"{key} {number}".encode()
                try:
                    self._producer.send(payload, partition_key=f"key-{key}")
                except pulsar.PulsarException as error:
                    self.ended = error
                    return
                self.acknowledged.append(payload)


def read_until(
    setup: PulsarSetup, servers: Servers, subscription: str, enough: Callable[[list[bytes]], bool]
) -> list[bytes]:
    """What a consumer of Cleave's is given, each message acknowledged, until that is enough."""
    logs = build_log_client("pulsar", plane_settings(setup.app.settings))
    read: list[bytes] = []
    with StreamConsumer(servers, logs, setup.topic, subscription, "one") as consumer:

        def all_read() -> bool:
            batch = consumer.receive(timeout_seconds=0.5)
            if batch is not None:
                read.extend(message.payload for message in batch.messages)
                consumer.acknowledge(batch)
            return enough(read)

        wait_until(all_read, timeout_seconds=60, message="everything unread is read")
    logs.close()
    return read


@pytest.fixture
def partitioned(setup: PulsarSetup) -> str:
    """Three partitions with keyed messages; `billing` has read some of them, `pool` is shared."""
    path = f"persistent/{setup.namespace}/orders"
    setup.admin("PUT", f"{path}/partitions", json=3)
    old = f"persistent://{setup.namespace}/orders"
    client = setup.client()
    ends = [
        client.subscribe(old, "billing", consumer_type=pulsar.ConsumerType.Exclusive),
        client.subscribe(old, "pool", consumer_type=pulsar.ConsumerType.Shared),
    ]
    producer = client.create_producer(old)
    for number in range(BEFORE):
        for key in range(KEYS):
            producer.send(f"{key} {number}".encode(), partition_key=f"key-{key}")
    for _ in range(KEYS):
        ends[0].acknowledge(ends[0].receive(timeout_millis=20_000))
    client.close()
    return old


@pytest.fixture
def connected(setup: PulsarSetup, partitioned: str) -> Iterator[str]:
    """The same, with a producer and a consumer still at it."""
    client = setup.client()
    client.create_producer(partitioned, producer_name="till")
    client.subscribe(partitioned, "billing", consumer_name="clerk")
    yield partitioned
    client.close()


def test_a_dry_run_says_what_would_follow_and_changes_nothing(setup: PulsarSetup, connected: str) -> None:
    told = setup.cleave.json("topics", "adopt", connected, "--segments", "2", "--dry-run")

    assert told["topic"] == setup.topic
    assert told["closes"] == [f"{connected}-partition-{i}" for i in range(3)]
    assert [row["hash_range"] for row in told["creates"]] == ["0000-7fff", "8000-ffff"]
    assert told["subscriptions"] == {"billing": "STREAM", "pool": "QUEUE"}
    assert all("till" in who for who in told["producers"])
    assert any("clerk of billing" in who for who in told["consumers"])
    assert setup.scalar("SELECT count(*) FROM cleave.topic") == 0
    assert [setup.app.planes["pulsar"].segment_state(log) for log in told["closes"]] == [LogState.OPEN] * 3


def test_whoever_is_connected_is_named_and_not_cut_off_unasked(setup: PulsarSetup, connected: str) -> None:
    answer = setup.cleave.refused("topics", "adopt", connected)
    assert "is in use: producers till" in answer
    assert "clerk of billing" in answer


def test_what_was_in_it_is_read_first_and_each_key_in_order(
    setup: PulsarSetup, servers: Servers, partitioned: str
) -> None:
    setup.cleave.ok("topics", "adopt", partitioned, "--segments", "2")

    layout = setup.layout
    assert [str(segment) for segment in layout.active] == ["3 (0000-7fff)", "4 (8000-ffff)"]
    assert all(segment.parent_ids == (0, 1, 2) for segment in layout.active)
    assert setup.states(0, 1, 2) == [LogState.TERMINATED] * 3
    with setup.app.store.transaction() as tx:
        kinds = {row.name: row.kind for row in list_subscriptions(tx, setup.topic_id)}
    assert kinds == {"billing": SubscriptionKind.STREAM, "pool": SubscriptionKind.QUEUE}
    assert setup.cursors(3) == ["billing", "pool"]

    logs = build_log_client("pulsar", plane_settings(setup.app.settings))
    with Producer(HttpSource(servers), logs, setup.topic, name="new") as producer:
        for number in range(BEFORE, BEFORE + AFTER):
            for key in range(KEYS):
                producer.send(f"{key} {number}".encode(), key=f"key-{key}")
        producer.flush()
    logs.close()
    payloads = read_until(setup, servers, "billing", lambda got: len(got) >= KEYS * (BEFORE + AFTER) - KEYS)
    read = [(int(key), int(number)) for key, number in (payload.split() for payload in payloads)]
    assert len(set(read)) == len(read)
    for key in range(KEYS):
        numbers = [number for one, number in read if one == key]
        assert numbers == sorted(numbers)
        assert numbers[-AFTER:] == list(range(BEFORE, BEFORE + AFTER))


def test_cut_off_while_in_use_nothing_that_was_acknowledged_is_lost(
    setup: PulsarSetup, servers: Servers, partitioned: str
) -> None:
    """The producer is told that the topic has ended; whoever consumes reads on, and Cleave's consumers read the rest."""
    client = setup.client()
    consumer = client.subscribe(partitioned, "billing", consumer_name="clerk")
    till = SendingApplication(client, partitioned)
    till.start()
    wait_until(lambda: len(till.acknowledged) >= 3 * KEYS, message="the till is at work")

    setup.cleave.ok("topics", "adopt", partitioned, "--segments", "2", "--cut-off")

    till.join(timeout=60)
    assert isinstance(till.ended, pulsar.TopicTerminated), till.ended
    assert setup.states(0, 1, 2) == [LogState.TERMINATED] * 3
    assert [str(segment) for segment in setup.layout.active] == ["3 (0000-7fff)", "4 (8000-ffff)"]
    clerks = []
    for _ in range(KEYS):
        message = consumer.receive(timeout_millis=20_000)
        clerks.append(message.data())
        consumer.acknowledge(message)
    consumer.close()
    with contextlib.suppress(pulsar.AlreadyClosed):  # what the library says of the producer that was ended
        client.close()

    unread = KEYS * (BEFORE - 1) + len(till.acknowledged)  # at the adoption; the clerk then read some
    read = read_until(setup, servers, "billing", lambda got: len({*clerks, *got}) >= unread)
    assert {*till.acknowledged} <= {*clerks, *read}
    for key in range(KEYS):
        numbers = [int(n) for one, n in (payload.split() for payload in read) if int(one) == key]
        assert numbers == sorted({*numbers})


def test_until_the_fence_deleting_the_new_topic_undoes_everything(
    setup: PulsarSetup, partitioned: str
) -> None:
    planned = topic_adoption.plan(setup.app.planes, partitioned)
    request = Request("adopt", Origin.MANUAL, "tester", "try")
    intent = topic_adoption.adopt(setup.app.store, setup.app.planes, planned, request)
    adopting = intent.operation.operation_id  # the new segments are there, and no fence
    record_alone(setup.app.runner("half"), adopting, Step.CREATE_CHILDREN, OperationState.PREPARED)

    deletion = Request("delete", Origin.MANUAL, "tester", "no")
    deleting = topic_admin.delete_topic(setup.app.store, setup.topic, deletion).operation.operation_id

    def ended() -> bool:
        run_due(setup.app.runner("worker"), limit=10)
        with setup.app.store.transaction() as tx:
            return not operations.get_operation(tx, deleting).state.is_live

    wait_until(ended, message="the deletion ends")
    with setup.app.store.transaction() as tx:
        adoption = operations.get_operation(tx, intent.operation.operation_id)
    assert adoption.state is OperationState.ABORTED
    plane = setup.app.planes["pulsar"]
    assert [plane.segment_state(log) for log in planned.found.logs] == [LogState.OPEN] * 3
    client = setup.client()
    client.create_producer(partitioned).send(b"still here")
    client.close()


def test_a_plain_topic_becomes_the_parent_of_one_segment(setup: PulsarSetup) -> None:
    old = f"persistent://{setup.namespace}/plain"
    setup.admin("PUT", f"persistent/{setup.namespace}/plain")
    client = setup.client()
    client.create_producer(old).send(b"x")
    client.close()
    setup.cleave.ok("topics", "adopt", old, "--topic", setup.topic)

    assert [str(segment) for segment in setup.layout.active] == ["1 (0000-ffff)"]
    assert setup.log_of(0) == old
    assert "is already terminated" in setup.cleave.refused("topics", "adopt", old)


def test_a_topic_that_is_not_there_is_refused_in_one_line(setup: PulsarSetup) -> None:
    assert "has no topic" in setup.cleave.refused(
        "topics", "adopt", f"persistent://{setup.namespace}/nothing"
    )


@pytest.mark.parametrize("options", [["--dry-run"], []])
def test_a_partition_of_a_topic_is_not_adopted_without_the_others(
    setup: PulsarSetup, partitioned: str, options: list[str]
) -> None:
    told = setup.cleave.refused("topics", "adopt", f"{partitioned}-partition-0", *options)
    assert f"adopt {partitioned} with all its partitions" in told
    assert f"{partitioned}-partition-0" in setup.app.planes["pulsar"].describe_topic(partitioned).logs  # type: ignore[attr-defined]
    assert not setup.app.planes["pulsar"].describe_topic(partitioned).terminated  # type: ignore[attr-defined]


def test_a_subscription_that_no_consumer_could_join_is_listed_and_refused(setup: PulsarSetup) -> None:
    old = f"persistent://{setup.namespace}/shared"
    setup.admin("PUT", f"persistent/{setup.namespace}/shared")
    client = setup.client()
    for name in ("billing", "team/billing", "two words"):
        client.subscribe(old, name).close()  # the broker may see the end of the client's connection later
    client.close()
    served = {"billing": "STREAM", "team/billing": "STREAM", "two words": "STREAM"}

    told = setup.cleave.json("topics", "adopt", old, "--topic", setup.topic, "--dry-run")
    assert told["subscriptions"] == served
    assert [reason.partition(" contains ")[0] for reason in told["unserved"]] == [
        "subscription 'team/billing'",
        "subscription 'two words'",
    ]
    refused = setup.cleave.refused("topics", "adopt", old, "--topic", setup.topic)
    assert "team/billing" in refused
    assert "Delete them first" in refused
    assert not setup.app.planes["pulsar"].describe_topic(old).terminated  # type: ignore[attr-defined]

    for name in ("team/billing", "two words"):
        setup.admin("DELETE", f"{topic_path(old)}/subscription/{subscription_path(name)}")
    setup.cleave.ok("topics", "adopt", old, "--topic", setup.topic)
