"""An application with standard consumers slowly reads a topic during random reshapes on a real broker. Each key is delivered in order.

The control run has the same consumers without gates. Its order must break; otherwise the test with gates would prove nothing.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pulsar
import pytest

from controller.clock import SystemClock
from controller.dataplane.base import OutgoingMessage
from controller.domain.key_hash import key_hash
from controller.services import topic_admin
from controller.services.gate_keeper import GateKeeper
from controller.store.topics.subscriptions import SubscriptionConsumers
from tests.chaos.test_pulsar_many_operations import FEWEST, next_planner
from tests.support.bench import Bench
from tests.support.gated_logs import ALL
from tests.support.stock_readers import StockReaders
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]
KEYS = tuple(f"key-{i}" for i in range(20))
ROUND = 4
"""Number of messages of each key that are published before each operation."""
READ_SECONDS = 600.0
"""Maximum seconds until every message is delivered. Segments are read generation by generation, and a broker checks only once a second
if a gate is open.
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
        while not self._stopping.is_set():
            logs = self._bench.plane.list_segments(self._bench.topic_name)
            self.readers.attach(*logs)
            for log in logs:
                self.readers.read(log, 3, within_seconds=0.005)

    def first_deliveries(self) -> dict[str, list[int]]:
        """Return the numbers of each key's messages, in the order of their first deliveries."""
        numbers_by_key: dict[str, dict[int, None]] = {key: {} for key in KEYS}
        for _, payload in list(self.readers.seen):
            key, number = payload.decode().split(":")
            numbers_by_key[key].setdefault(int(number))
        return {key: list(numbers) for key, numbers in numbers_by_key.items()}


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
        topic_admin.create_subscription(
            bench.store, bench.topic_name, "billing", bench.request(), consumers=consumers
        )
    )
    chooser, numbers, sequences = random.Random(operations), itertools.count(), itertools.count()
    application = Application(bench, kind)
    with keeping(bench), application.running():
        for operation in range(operations + 1):
            for number in itertools.islice(numbers, ROUND):
                publish(bench, number, sequences)
            if operation < operations:
                bench.reshape(next_planner(bench.layout, chooser))
        total = ROUND * (operations + 1)
        wait_until(
            lambda: all(len(delivered) == total for delivered in application.first_deliveries().values()),
            timeout_seconds=READ_SECONDS,
            message="every message is delivered",
        )
    deliveries = application.first_deliveries().values()
    return sum(
        later < earlier for delivered in deliveries for earlier, later in itertools.pairwise(delivered)
    )


def publish(bench: Bench, number: int, sequences: Iterator[int]) -> None:
    """Append one message of each key to the segment whose range contains the key."""
    layout = bench.layout
    for key in KEYS:
        segment = layout.segment_for(key_hash(key).segment_hash)
        message = OutgoingMessage(f"{key}:{number}".encode(), key.encode())
        bench.logs.append(
            bench.log_of(segment.segment_id), [message], producer="orders", sequence=next(sequences)
        )


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
