"""Gates on a real broker hold messages back from standard consumers until the gates are opened. Other subscriptions are not affected.

After each load of a topic, a broker sends one entry of the barrier through a closed gate. A test waits for this entry, and then checks
that no message was delivered. `tests/chaos/test_gates.py` kills brokers.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pulsar
import pytest

from controller.dataplane.gates import GatedDataPlane
from controller.dataplane.pulsar.barrier import ENTRIES, append_barrier
from controller.dataplane.pulsar.binary import Connections
from controller.domain.errors import DataGone, NotFound, SegmentNotFound, SubscriptionNotFound
from controller.domain.gate_states import FenceState, GateState
from controller.domain.hash_range import FULL_RANGE
from tests.support.brokers import SharedBroker
from tests.support.gated import (
    EXCLUSIVE,
    FAILOVER,
    RATE,
    GatedScene,
    acknowledge_all,
    numbers,
    path_of,
    receive,
    received,
)
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until


@pytest.fixture
def scene(pulsar_broker: SharedBroker) -> Iterator[GatedScene]:
    with closing(GatedScene.at(pulsar_broker.admin_url, pulsar_broker.service_url)) as scene:
        yield scene


def test_the_plane_has_gates(scene: GatedScene) -> None:
    assert isinstance(scene.plane, GatedDataPlane)
    scene.plane.demand_gates(scene.here.topic)


def test_a_namespace_that_is_missing_has_no_gates(scene: GatedScene) -> None:
    with pytest.raises(NotFound):
        scene.plane.demand_gates("topic://cleave-tests/nowhere/orders")


@pytest.mark.parametrize("kind", [FAILOVER, EXCLUSIVE])
def test_a_closed_gate_lets_nothing_pass_until_it_is_opened(
    scene: GatedScene, kind: pulsar.ConsumerType
) -> None:
    """The consumer connects before the rate is set. The gate is closed twice and opened twice."""
    log = scene.log("stock")
    assert scene.plane.gate_state(log, "stock") is GateState.OPEN
    consumer = scene.consumer(log, kind=kind)

    scene.plane.close_gate(log, "stock")
    scene.plane.close_gate(log, "stock")
    scene.send(log, 10)
    scene.spends_its_token(log)
    scene.load_again(log)
    scene.spends_its_token(log)

    assert received(consumer) == []
    assert scene.plane.gate_state(log, "stock") is GateState.CLOSED
    scene.plane.open_gate(log, "stock")
    scene.plane.open_gate(log, "stock")
    assert scene.plane.gate_state(log, "stock") is GateState.OPEN
    assert receive(consumer, 10) == numbers(10)

    def is_read() -> bool:
        acknowledge_all(consumer)
        return scene.plane.backlog(log, "stock") == 0

    wait_until(is_read, message="all messages are acknowledged")


def test_without_a_barrier_the_rate_lets_a_message_pass_after_each_load(scene: GatedScene) -> None:
    """The same steps with the rate but without a barrier deliver a message. The gate counts as breached."""
    log = scene.log("stock")
    scene.admin("POST", f"{path_of(log)}/stock/dispatchRate", json=RATE)
    assert scene.plane.gate_state(log, "stock") is GateState.BREACHED
    scene.send(log, 10)
    consumer = scene.consumer(log)

    scene.spends_its_token(log)
    assert wait_until(lambda: received(consumer))[0] == b"0"


def test_a_gate_that_changes_of_policies_wear_down_is_spent_and_holds_once_it_is_closed_again(
    scene: GatedScene,
) -> None:
    log = scene.log("stock")
    consumer = scene.consumer(log)
    scene.plane.close_gate(log, "stock")
    scene.send(log, 10)
    for _ in range(2):
        scene.wear_down(log)
        scene.plane.close_gate(log, "stock")
        assert scene.plane.gate_state(log, "stock") is GateState.CLOSED

    assert received(consumer) == []
    scene.plane.open_gate(log, "stock")
    assert receive(consumer, 10) == numbers(10)


@pytest.mark.parametrize("queue", [5, 100])
def test_a_consumer_that_connects_right_after_an_opening_is_sent_all_messages_in_order(
    scene: GatedScene, queue: int
) -> None:
    """The consumer before it was sent all messages, or the first ones, and has acknowledged none."""
    for _ in range(5):
        log = scene.gated()
        scene.consumer(log)
        scene.spends_its_token(log)
        scene.consumers.pop().close()
        before = scene.consumer(log, queue=queue)
        scene.plane.open_gate(log, "stock")
        wait_until(partial(received, before, 1), message="messages arrive")
        before.close()

        assert receive(scene.consumer(log), 10) == numbers(10)


def test_consumers_that_connect_before_and_after_an_opening_are_sent_all_messages_in_order(
    scene: GatedScene,
) -> None:
    """A consumer connects half a second before the opening, is sent all messages when the pause after its connection is over, and leaves.

    The next consumer is sent more messages while its own pause lasts. The pauses before differ, because a broker checks rates once a
    second from an instant that no client knows.
    """

    for pause_seconds in (0.6, 0.75, 0.9):
        log = scene.gated()
        first = scene.consumer(log)
        scene.spends_its_token(log)
        time.sleep(pause_seconds)
        first.close()
        before = scene.consumer(log)
        producer = scene.client.create_producer(log)
        time.sleep(0.5)
        scene.plane.open_gate(log, "stock")
        wait_until(partial(received, before, 1), message="messages arrive")
        before.close()
        consumer = scene.consumer(log)
        for number in range(10, 16):
            producer.send(b"%d" % number)
            time.sleep(0.1)
        assert receive(consumer, 10) == numbers(10)


def test_a_topic_is_loaded_again_for_consumers_that_attached_before_the_rate(scene: GatedScene) -> None:
    """The dispatcher of such consumers may wait in a read that the rate does not limit.

    A load resets the broker's counter of added entries to 0, so the counter shows the load.
    """
    log = scene.log("stock")
    scene.consumer(log)
    scene.plane.close_gate(log, "stock")

    statistics = scene.admin("GET", f"{path_of(log)}/internalStats").json()
    assert (statistics["entriesAddedCounter"], statistics["numberOfEntries"]) == (0, ENTRIES)


def test_a_gate_is_closed_again_for_a_seek_and_messages_behind_it_come_again(scene: GatedScene) -> None:
    """Closing sets the rate first, then moves the cursor to the beginning, before the barrier. The log was terminated and reloaded."""
    log = scene.gated()
    scene.plane.open_gate(log, "stock")
    consumer = scene.consumer(log)
    assert receive(consumer, 10) == numbers(10)
    scene.plane.terminate_segment(log)
    scene.load_again(log)

    scene.plane.close_gate(log, "stock")

    assert scene.plane.gate_state(log, "stock") is GateState.CLOSED
    scene.load_again(log)
    scene.spends_its_token(log)
    assert received(consumer) == []
    scene.plane.open_gate(log, "stock")
    assert receive(consumer, 10) == numbers(10)


def test_a_terminated_log_that_was_loaded_again_can_be_opened(scene: GatedScene) -> None:
    log = scene.gated()
    scene.plane.terminate_segment(log)
    scene.load_again(log)

    scene.plane.open_gate(log, "stock")

    assert receive(scene.consumer(log), 10) == numbers(10)


def test_each_subscription_has_a_gate_of_its_own(scene: GatedScene) -> None:
    """Closing the gate of one subscription again must not open the gate of another. Subscriptions without a gate skip the barrier."""
    log = scene.log("stock", "other-stock", "cleave")
    for subscription in ("stock", "other-stock", "stock"):
        scene.plane.close_gate(log, subscription)

    states = {name: scene.plane.gate_state(log, name) for name in scene.plane.list_subscriptions(log)}
    assert states == {
        "stock": GateState.CLOSED,
        "other-stock": GateState.CLOSED,
        "cleave": GateState.OPEN,
    }
    assert scene.plane.backlog(log, "cleave") == 0
    scene.plane.create_subscription(log, "late")
    assert scene.plane.backlog(log, "late") == 0
    scene.plane.open_gate(log, "stock")
    assert scene.plane.gate_state(log, "other-stock") is GateState.CLOSED


@pytest.mark.parametrize("has_deduplication", [True, False])
def test_barriers_that_were_stored_twice_are_passed_together(
    scene: GatedScene, *, has_deduplication: bool
) -> None:
    """A broker that deduplicates drops the second barrier."""
    log = scene.log("stock")
    path = f"{path_of(log)}/deduplicationEnabled"
    scene.admin("POST", path, json=has_deduplication)
    wait_until(lambda: scene.admin("GET", path).json() is has_deduplication)
    scene.plane.close_gate(log, "stock")
    connections = Connections(scene.here.access, call_timeout_seconds=30.0)
    append_barrier(connections, log, scene.plane._admin.deadline())
    connections.close()
    scene.send(log, 3)
    assert scene.plane.backlog(log, "stock") == 3 + ENTRIES * (1 if has_deduplication else 2)

    assert scene.plane.gate_state(log, "stock") is GateState.CLOSED
    scene.plane.open_gate(log, "stock")

    assert scene.plane.backlog(log, "stock") == 3


def test_no_gate_is_closed_behind_a_message(scene: GatedScene) -> None:
    """No rate remains set either: the rate would hold messages back, and no keeper would open the gate."""
    log = scene.log("stock")
    scene.send(log, 1)

    with pytest.raises(DataGone, match=r"begins with a message of an application"):
        scene.plane.close_gate(log, "stock")

    assert scene.plane.gate_state(log, "stock") is GateState.OPEN


def test_what_is_missing_is_closed_for_nobody_and_open(scene: GatedScene) -> None:
    log = scene.log("stock")
    missing = f"{log}9"

    with pytest.raises(SegmentNotFound):
        scene.plane.close_gate(missing, "stock")
    for where, name in ((missing, "stock"), (log, "nobody")):
        scene.plane.open_gate(where, name)
        assert scene.plane.gate_state(where, name) is None
        with pytest.raises((SegmentNotFound, SubscriptionNotFound)):
            scene.plane.persist_cursor_at_end(where, name)


def test_an_empty_log_that_was_terminated_first_is_closed_without_a_barrier(scene: GatedScene) -> None:
    log = scene.log("stock")
    scene.plane.terminate_segment(log)

    scene.plane.close_gate(log, "stock")

    assert scene.plane.gate_state(log, "stock") is GateState.CLOSED
    assert scene.plane.persist_cursor_at_end(log, "stock")


@pytest.mark.parametrize(
    "action", [pulsar.ConsumerCryptoFailureAction.CONSUME, pulsar.ConsumerCryptoFailureAction.DISCARD]
)
def test_an_application_that_acknowledges_the_barrier_is_told_by_the_state(
    scene: GatedScene, action: pulsar.ConsumerCryptoFailureAction
) -> None:
    log = scene.gated(messages=0)
    consumer = scene.consumer(log, action=action)
    if action is pulsar.ConsumerCryptoFailureAction.CONSUME:
        receive(consumer, 1)

    wait_until(lambda: scene.plane.gate_state(log, "stock") is GateState.BREACHED, message="a breach")


def test_a_cursor_is_stored_once_all_of_a_terminated_log_is_acknowledged(scene: GatedScene) -> None:
    log = scene.log("stock")
    scene.send(log, 3)
    consumer = scene.consumer(log)
    assert not scene.plane.persist_cursor_at_end(log, "stock")
    scene.plane.terminate_segment(log)
    before = stored_positions(scene, log)
    assert not scene.plane.persist_cursor_at_end(log, "stock")
    assert stored_positions(scene, log) == before
    assert receive(consumer, 3) == numbers(3)
    wait_until(lambda: scene.plane.backlog(log, "stock") == 0)

    before = stored_positions(scene, log)
    assert scene.plane.persist_cursor_at_end(log, "stock")
    assert stored_positions(scene, log) > before
    assert scene.plane.persist_cursor_at_end(log, "stock")
    assert scene.plane.backlog(log, "stock") == 0


def test_a_seek_back_skips_the_barrier_unless_the_gate_is_closed(scene: GatedScene) -> None:
    log = scene.gated(messages=3)
    scene.plane.seek(log, "stock", 0)
    assert scene.plane.backlog(log, "stock") == 3 + ENTRIES

    scene.plane.open_gate(log, "stock")
    scene.plane.seek(log, "stock", 0)

    assert scene.plane.backlog(log, "stock") == 3


def test_a_cursor_that_an_application_moved_before_the_barrier_of_an_open_gate_is_stored_at_the_end(
    scene: GatedScene,
) -> None:
    log = scene.gated(messages=3)
    scene.plane.open_gate(log, "stock")
    consumer = scene.consumer(log)
    assert receive(consumer, 3) == numbers(3)
    consumer.seek(pulsar.MessageId.earliest)
    assert receive(consumer, 3) == numbers(3)
    wait_until(lambda: scene.plane.backlog(log, "stock") == ENTRIES, message="all messages are acknowledged")
    scene.plane.terminate_segment(log)

    assert scene.plane.persist_cursor_at_end(log, "stock")


def stored_positions(scene: GatedScene, log: str) -> int:
    """Return the last entry of the cursor's ledger. The number rises each time the broker stores the cursor."""
    cursor = scene.admin("GET", f"{path_of(log)}/internalStats").json()["cursors"]["stock"]
    return int(cursor["cursorLedgerLastEntry"])


def test_gates_and_the_probe_work_where_encryption_is_required(pulsar_broker: SharedBroker) -> None:
    """The barrier is always encrypted, and the probe opens a producer that encrypts."""
    name = f"gates-encrypted-{secrets.token_hex(4)}"
    with closing(GatedScene.at(pulsar_broker.admin_url, pulsar_broker.service_url, name)) as scene:
        namespace = scene.here.topic.removeprefix("topic://").rpartition("/")[0]
        scene.admin("POST", f"namespaces/{namespace}/encryptionRequired", json=True)
        log = scene.log("stock")
        scene.plane.close_gate(log, "stock")
        assert scene.plane.gate_state(log, "stock") is GateState.CLOSED
        assert scene.plane.probe_fence(log) is FenceState.OPEN
        scene.plane.terminate_segment(log)
        assert scene.plane.probe_fence(log) is FenceState.TERMINATED


def test_a_log_with_nothing_but_a_barrier_has_carried_no_message(scene: GatedScene) -> None:
    """The log of an aborted split may therefore be deleted. The topic is reloaded and terminated, because both change its statistics."""
    log, used = scene.log("stock", "cleave"), scene.gated(messages=1)
    scene.plane.close_gate(log, "stock")
    for _ in range(2):
        reports = scene.plane.describe_logs([log, used])
        assert (reports[log].is_unused, reports[used].is_unused) == (True, False)
        scene.load_again(log)
    scene.plane.open_gate(log, "stock")
    assert scene.plane.describe_logs([log])[log].is_unused
    assert not scene.plane.persist_cursor_at_end(log, "stock")
    scene.plane.terminate_segment(log)
    assert scene.plane.describe_logs([log])[log].is_unused


class TestReadersOfCleave:
    """Cleave's readers have no gate, and acknowledge the barrier themselves.

    The subscription was created by an application at the earliest position, so it has not skipped the barrier.
    """

    @pytest.fixture
    def log(self, scene: GatedScene) -> str:
        """A terminated log with a barrier and three messages. The subscription `cleave` has not skipped the barrier."""
        log = scene.gated(messages=3)
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        scene.admin("PUT", f"{path_of(log)}/subscription/cleave", json=earliest)
        scene.plane.terminate_segment(log)
        assert scene.plane.backlog(log, "cleave") == 3 + ENTRIES
        return log

    @pytest.fixture
    def planes(self, scene: GatedScene) -> Iterator[Planes]:
        planes = Planes(scene.plane, scene.logs)
        yield planes
        planes.close_readers()

    @pytest.mark.parametrize("bucket", [None, FULL_RANGE])
    def test_a_reader_in_order(self, planes: Planes, log: str, bucket: object) -> None:
        reader = planes.reader(log, "cleave", bucket=bucket)  # type: ignore[arg-type]
        messages = planes.read(reader, 3)
        assert payloads(messages) == numbers(3)
        reader.acknowledge(messages[-1].position)
        assert wait_until(reader.is_drained)

    def test_a_reader_of_a_queue(self, planes: Planes, log: str) -> None:
        reader = planes.queue(log, "cleave")
        messages = planes.read(reader, 3)
        assert sorted(payloads(messages)) == numbers(3)
        assert reader.acknowledge([message.position for message in messages]) == []
        assert wait_until(reader.is_drained)

    def test_a_reader_at_a_position(self, planes: Planes, log: str) -> None:
        reader = planes.reader_at(log, None)
        assert payloads(planes.read(reader, 3)) == numbers(3)
        assert wait_until(reader.is_at_end)

    def test_a_log_of_nothing_but_a_barrier_is_read_to_its_end(
        self, scene: GatedScene, planes: Planes
    ) -> None:
        log = scene.gated(messages=0)
        scene.plane.terminate_segment(log)
        scene.plane.open_gate(log, "stock")
        reader, at_position = planes.reader(log, "stock"), planes.reader_at(log, None)

        def ends(is_finished: Callable[[], bool]) -> bool:
            return not reader.read(1) and not at_position.read(1) and is_finished()

        assert wait_until(lambda: ends(reader.is_drained))
        assert wait_until(lambda: ends(at_position.is_at_end))

    def test_a_sample_of_keys(self, scene: GatedScene) -> None:
        log = scene.gated(messages=3)
        assert scene.plane.sample_keys(log, most=10).keyless == 3


class TestFenceProbe:
    """The probe reports if the clients of a terminated log can learn that the log has ended."""

    def test_what_is_found(self, scene: GatedScene) -> None:
        log = scene.log("stock")
        assert scene.plane.probe_fence(log) is FenceState.OPEN
        scene.plane.terminate_segment(log)
        assert scene.plane.probe_fence(log) is FenceState.TERMINATED
        assert scene.plane.probe_fence(f"{log}9") is FenceState.MISSING

    def test_a_topic_that_stays_fenced_is_healed(self, scene: GatedScene) -> None:
        heal_a_fence(scene, lambda _log: None)

    def test_what_is_found_where_schemas_are_enforced(self, pulsar_broker: SharedBroker) -> None:
        """The broker refuses the probe's producer there, because it has no schema, whether the topic is fenced or not."""
        name = f"gates-schemas-{secrets.token_hex(4)}"
        with closing(GatedScene.at(pulsar_broker.admin_url, pulsar_broker.service_url, name)) as scene:
            namespace = scene.here.topic.removeprefix("topic://").rpartition("/")[0]
            scene.admin("POST", f"namespaces/{namespace}/schemaValidationEnforced", json=True)

            def add_schema(log: str) -> None:
                schema = {"type": "STRING", "schema": "", "properties": {}}
                scene.admin("POST", f"schemas/{log.removeprefix('persistent://')}/schema", json=schema)

            log = scene.log("stock")
            add_schema(log)
            scene.plane.terminate_segment(log)
            assert scene.plane.probe_fence(log) is FenceState.TERMINATED
            heal_a_fence(scene, add_schema)


def heal_a_fence(scene: GatedScene, prepare: Callable[[str], None]) -> None:
    """Terminate logs until one stays fenced, and probe it until its end is known. `prepare` is called with each log before its first probe.

    No consumer can subscribe to a fenced topic. A broker leaves about every second topic fenced that is terminated while three producers
    publish.
    """
    for _ in range(20):
        log = scene.log()
        terminate_while_publishing(scene, log)
        prepare(log)
        if scene.plane.probe_fence(log) is FenceState.FENCED:
            break
    else:
        pytest.fail("no topic stayed fenced; check if the broker still needs the probe")

    assert wait_until(lambda: scene.plane.probe_fence(log) is FenceState.TERMINATED)
    scene.consumer(log)


def terminate_while_publishing(scene: GatedScene, log: str) -> None:
    """Terminate the log while three producers publish, then close their client: the probe must detect the fence without producers."""
    publishing = pulsar.Client(
        scene.here.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    )
    producers = [
        publishing.create_producer(log, batching_enabled=number % 2 == 1, send_timeout_millis=3000)
        for number in range(3)
    ]
    stored: list[object] = []
    has_ended = threading.Event()

    def publish(producer: pulsar.Producer) -> None:
        with contextlib.suppress(pulsar.PulsarException):  # a producer may learn that the log has ended
            while not has_ended.wait(0.001):
                producer.send_async(b"x" * 100, lambda _result, message_id: stored.append(message_id))

    publishers = [threading.Thread(target=publish, args=(producer,)) for producer in producers]
    for publisher in publishers:
        publisher.start()
    wait_until(lambda: len(stored) > 100)
    scene.plane.terminate_segment(log)
    has_ended.set()
    for publisher in publishers:
        publisher.join()
    with contextlib.suppress(pulsar.PulsarException):
        publishing.close()
