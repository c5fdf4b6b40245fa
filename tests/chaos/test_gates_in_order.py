"""An application with standard consumers slowly reads a topic during random reshapes on a real broker. Each key is delivered in order.

The control run has the same consumers without gates. Its order must break; otherwise the test with gates would prove nothing.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pulsar
import pytest

from controller.clock import SystemClock
from controller.dataplane.log_client import OutgoingMessage
from controller.domain.key_hash import key_hash
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services import subscription_admin
from controller.services.gate_keeper import GateKeeper
from tests.chaos.test_pulsar_many_operations import FEWEST, next_planner
from tests.support.bench import Bench
from tests.support.gated_logs import ALL
from tests.support.gated_report import gated_report
from tests.support.stock_readers import StockReaders
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600)]
KEYS = tuple(f"key-{i}" for i in range(20))
ROUND = 4
"""Number of messages of each key that are published before each operation."""
READ_SECONDS = 15.0
"""Maximum seconds, for each operation, until every message is delivered. Segments are read generation by generation, and a broker checks
only once a second if a gate is open. Five operations, with the publishing, took 12 to 15 s beside twenty busy processes.
"""
NewBench = Callable[[], Bench]


class Application:
    """An application that reads up to three messages of each log in turn.

    A sealed segment therefore still has unread messages when its children exist.
    """

    def __init__(self, bench: Bench, kind: pulsar.ConsumerType) -> None:
        assert bench.pulsar is not None
        self._bench = bench
        self.readers = StockReaders(str(bench.pulsar.service_url), "billing", kind=kind)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="application")
        self._error: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read in a background thread until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()
            self.readers.__exit__(None, None, None)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                logs = self._bench.plane.list_segments(self._bench.topic_name)
                self.readers.attach(*logs)
                for log in logs:
                    self.readers.read(log, 3, within_seconds=0.005)
        except Exception as error:  # noqa: BLE001 - the test raises it
            self._error = error

    def missing(self, sent: Mapping[bytes, int]) -> dict[bytes, int]:
        """Return the messages that were not delivered yet. Raises AssertionError if the application has failed."""
        if self._error is not None:
            raise AssertionError("the application failed") from self._error
        delivered = {payload for _, payload in list(self.readers.seen)}
        return {payload: segment_id for payload, segment_id in sent.items() if payload not in delivered}

    def first_deliveries(self) -> dict[str, list[int]]:
        """Return the numbers of each key's messages, in the order of their first deliveries."""
        numbers_by_key: dict[str, dict[int, None]] = {key: {} for key in KEYS}
        for _, payload in list(self.readers.seen):
            key, number = payload.decode().split(":")
            numbers_by_key[key].setdefault(int(number))
        return {key: list(numbers) for key, numbers in numbers_by_key.items()}

    def report(self, sent: Mapping[bytes, int]) -> str:
        """Describe what was not delivered, what the application does, and the gates."""
        missing = sorted((segment_id, payload.decode()) for payload, segment_id in self.missing(sent).items())
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)[-3:]) if frame else "has ended"
        return (
            f"{len(self.readers.seen)} deliveries, missing (segment, message): {missing}\n"
            f"{gated_report(self._bench, 'billing')}\nthe application's thread: {stack}"
        )


@contextmanager
def keeping(bench: Bench) -> Iterator[None]:
    """Run a gate keeper in a background thread until the block ends, as a worker does."""
    keeper = GateKeeper(bench.store, bench.looking, lambda: ALL, SystemClock())
    thread = threading.Thread(target=keeper.run, name="keeper")
    thread.start()
    try:
        yield
    finally:
        keeper.stop()
        thread.join()


def overtaken(
    bench: Bench, operations: int, *, gated: bool, kind: pulsar.ConsumerType = pulsar.ConsumerType.Failover
) -> int:
    """Return the number of messages that were delivered before their predecessor during `operations` random reshapes.

    Waits until every message is delivered.
    """
    bench.topic_with(FEWEST, ())
    consumers = SubscriptionConsumers.STOCK if gated else SubscriptionConsumers.CLEAVE
    bench.finish(
        subscription_admin.create_subscription(
            bench.store, bench.topic_name, "billing", bench.request(), consumers=consumers
        )
    )
    chooser, numbers, sequences = random.Random(operations), itertools.count(), itertools.count()
    application, sent = Application(bench, kind), dict[bytes, int]()
    with keeping(bench), application.running():
        for operation in range(operations + 1):
            for number in itertools.islice(numbers, ROUND):
                sent |= publish(bench, number, sequences)
            if operation < operations:
                bench.reshape(next_planner(bench.layout, chooser))
        wait_until(
            lambda: application.missing(sent) == {},
            timeout_seconds=READ_SECONDS * operations,
            message=lambda: f"every message is delivered\n{application.report(sent)}",
        )
    deliveries = application.first_deliveries().values()
    return sum(
        later < earlier for delivered in deliveries for earlier, later in itertools.pairwise(delivered)
    )


def publish(bench: Bench, number: int, sequences: Iterator[int]) -> dict[bytes, int]:
    """Append one message of each key to the segment whose range contains the key. Return the segments by payload."""
    layout, segments = bench.layout, dict[bytes, int]()
    for key in KEYS:
        segment_id = layout.segment_for(key_hash(key).segment_hash).segment_id
        payload = f"{key}:{number}".encode()
        stored = bench.logs.append(
            bench.log_of(segment_id),
            [OutgoingMessage(payload, key.encode())],
            producer="orders",
            sequence=next(sequences),
        )
        assert stored == 1
        segments[payload] = segment_id
    return segments


def test_standard_consumers_get_each_key_in_order_through_splits_and_merges(
    new_pulsar_bench: NewBench,
) -> None:
    assert overtaken(new_pulsar_bench(), 5, gated=True) == 0


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Failover, pulsar.ConsumerType.Exclusive], ids=str)
def test_standard_consumers_get_each_key_in_order_through_many_reshapes(
    kind: pulsar.ConsumerType, new_pulsar_bench: NewBench
) -> None:
    assert overtaken(new_pulsar_bench(), 15, gated=True, kind=kind) == 0


@pytest.mark.chaos
def test_without_gates_the_same_consumers_get_keys_out_of_order(new_pulsar_bench: NewBench) -> None:
    assert overtaken(new_pulsar_bench(), 5, gated=False) > 0
