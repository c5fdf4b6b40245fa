"""What happens to topics on a real broker behind Cleave's back is found, reported and healed; data is never destroyed."""

from __future__ import annotations

from contextlib import closing

import pytest

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.base import LogState
from controller.dataplane.log_client import OutgoingMessage
from controller.domain.operation import OperationKind, OperationState, Origin
from controller.services.operation_runner import run_operation
from controller.services.reconciler import FindingKind
from controller.store.journal import operations
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.waiting import wait_until


def kinds(setup: PulsarSetup) -> list[FindingKind]:
    """What a comparison finds now."""
    return [finding.kind for finding in setup.reconcile()]


def path_of(log: str) -> str:
    """The topic's part of an admin call."""
    return log.replace("://", "/")


def test_a_segment_terminated_by_hand_is_healed_by_a_successor(setup: PulsarSetup) -> None:
    """Its messages stay where they are, and the application's own subscription goes on on the successor."""
    setup.create(2, "billing")
    log = setup.log_of(0)
    with_messages = setup.app.log_client("pulsar")
    with_messages.append(log, [OutgoingMessage(b"kept", b"key")], producer="p", sequence=1)
    setup.app.planes["pulsar"].create_subscription(log, "of-an-application")
    setup.admin("POST", f"{path_of(log)}/terminate")

    [finding] = setup.reconcile()

    assert finding.kind is FindingKind.ACTIVE_TERMINATED
    assert finding.operation_id is not None
    run_operation(setup.app.runner(), finding.operation_id)
    with setup.app.store.transaction() as tx:
        healed = operations.get_operation(tx, finding.operation_id)
    assert (healed.kind, healed.state, healed.origin) == (
        OperationKind.HEAL,
        OperationState.DONE,
        Origin.RECONCILER,
    )
    assert setup.ranges == ["0000-7fff", "8000-ffff"]
    assert setup.states(0, 2) == [LogState.TERMINATED, LogState.OPEN]
    assert setup.cursors(2) == ["billing", "of-an-application"]
    assert setup.app.planes["pulsar"].backlog(log, "billing") == 1
    assert kinds(setup) == [FindingKind.CURSOR_UNRECORDED]
    with_messages.close()


def test_a_segment_deleted_by_hand_is_made_again(setup: PulsarSetup) -> None:
    setup.create(2, "billing")
    setup.admin("DELETE", f"{path_of(setup.log_of(1))}?force=true")

    assert kinds(setup) == [FindingKind.ACTIVE_MISSING]

    assert setup.states(0, 1) == [LogState.OPEN, LogState.OPEN]
    assert setup.cursors(1) == ["billing"]
    assert kinds(setup) == []


def test_a_subscription_deleted_by_hand_is_made_again(setup: PulsarSetup) -> None:
    setup.create(1, "billing")
    setup.admin("DELETE", f"{path_of(setup.log_of(0))}/subscription/billing?force=true")

    assert kinds(setup) == [FindingKind.CURSOR_MISSING]
    assert setup.cursors(0) == ["billing"]


def test_a_topic_named_like_a_segment_but_never_reserved_is_reported_and_left_alone(
    setup: PulsarSetup,
) -> None:
    setup.create(1)
    foreign = f"persistent://{setup.namespace}/orders-segment-0000-ffff-77"
    setup.admin("PUT", path_of(foreign))

    assert kinds(setup) == [FindingKind.UNMANAGED_LOG]
    assert setup.app.planes["pulsar"].segment_state(foreign) is LogState.OPEN


def test_a_deleted_topic_is_not_made_anew_by_clients_that_are_still_there(setup: PulsarSetup) -> None:
    """A producer and a consumer that know nothing of Cleave keep trying; the namespace forbids it."""
    setup.create(1, "billing")
    log = setup.log_of(0)
    client = setup.client()
    producer, consumer = client.create_producer(log), client.subscribe(log, "billing")

    setup.app.planes["pulsar"].delete_segment(log)
    try:
        client.create_producer(log)
        made = True
    except Exception as error:  # noqa: BLE001 - whatever the library calls it
        made = "TopicNotFound" not in repr(error)

    assert not made
    assert setup.app.planes["pulsar"].segment_state(log) is LogState.MISSING
    del producer, consumer
    client.close()


@pytest.mark.parametrize("how", ["terminate", "delete"])
def test_clients_have_a_worker_repair_what_was_done_by_hand(
    setup: PulsarSetup, servers: Servers, how: str
) -> None:
    """Nobody runs maintenance: the producer that meets the log reports it."""
    setup.create(1, "billing")
    with (
        closing(setup.app.log_client("pulsar")) as logs,
        Producer(HttpSource(servers), logs, setup.topic) as producer,
        closing(StreamConsumer(servers, logs, setup.topic, "billing", "reader")) as consumer,
    ):
        producer.send(b"before", "key")
        producer.flush()
        batch = wait_until(lambda: consumer.receive(1.0), message="the first message")
        consumer.acknowledge(batch)
        path = path_of(setup.log_of(0))
        if how == "terminate":
            setup.admin("POST", f"{path}/terminate")
        else:
            setup.admin("DELETE", f"{path}?force=true")
        producer.send(b"after", "key")
        producer.flush()
        found = wait_until(lambda: consumer.receive(1.0), message="the message behind the repair")

    assert [message.payload for message in found.messages] == [b"after"]
    assert setup.ranges == ["0000-ffff"]
