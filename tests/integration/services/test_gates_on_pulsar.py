"""Standard consumers on a real broker: what a split's children have waits at their gates until the parent is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from controller.clock import SystemClock
from controller.devstack.postgres import PostgresServer
from controller.domain.gates import GateState
from controller.services import topic_admin
from controller.services.gate_keeper import GateKeeper
from controller.services.segment_admin import splitting
from controller.store.shards import Shards
from controller.store.topics.subscriptions import SubscriptionConsumers
from tests.support.bench import Bench
from tests.support.bench_planes import OnPulsar
from tests.support.benches import benches
from tests.support.brokers import SharedBroker
from tests.support.stock_readers import StockReaders

pytestmark = [pytest.mark.pulsar, pytest.mark.integration]
ALL = Shards.of(1, [0])
_STATES = "SELECT segment_id, state FROM cleave.gate ORDER BY segment_id"
_DRAINED = "SELECT segment_id FROM cleave.segment_drain ORDER BY 1"


@pytest.fixture
def bench(
    pulsar_broker: SharedBroker, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[Bench]:
    """A topic on the run's broker, with a database of its own."""

    def build(url: str) -> Bench:
        return Bench(url, OnPulsar.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "gates"))

    def remove(bench: Bench) -> None:
        assert bench.pulsar is not None
        bench.pulsar.remove(bench.plane)

    made: Iterator[Callable[[], Bench]] = benches(postgres_server, migrated_template, build, remove)
    for build_one in made:
        yield build_one()


def stock_topic(bench: Bench, segments: int = 1, *others: str) -> None:
    """The topic, with the subscription `billing` for standard consumers, and others for registered ones."""
    bench.topic_with(segments, others)
    bench.finish(
        topic_admin.create_subscription(
            bench.store,
            bench.topic_name,
            "billing",
            bench.request(),
            consumers=SubscriptionConsumers.STOCK,
        )
    )


def keeper_of(bench: Bench) -> GateKeeper:
    return GateKeeper(bench.store, bench.looking, lambda: ALL, SystemClock())


def open_all(bench: Bench) -> None:
    """Keep the gates until none is shut."""
    keeper = keeper_of(bench)
    bench.wait_until(lambda: keeper.round() == 0, message="every gate is open")


def readers_of(bench: Bench) -> StockReaders:
    assert bench.pulsar is not None
    return StockReaders(str(bench.pulsar.service_url), "billing")


def test_children_wait_at_their_gates_until_the_parent_is_read(bench: Bench) -> None:
    stock_topic(bench, 1, "audit")
    bench.publish(0, 6)
    with readers_of(bench) as readers:
        parent = bench.log_of(0)
        assert readers.attach(parent).read(parent, 2) == 2
        bench.reshape(splitting(0))
        children = [bench.log_of(1), bench.log_of(2)]
        readers.attach(*children)
        bench.publish(1, 3)
        bench.publish(2, 3)
        keeper = keeper_of(bench)
        keeper.round()

        assert readers.gets_nothing(children)
        assert bench.rows(_STATES) == [(1, "closed"), (2, "closed")]
        assert [bench.plane.gate_state(log, "billing") for log in children] == [GateState.CLOSED] * 2

        assert readers.read(parent, 4) == 4
        bench.wait_until(lambda: keeper.round() == 0, message="every gate is open")
        assert [readers.read(log, 3) for log in children] == [3, 3]
    assert [log for log, _ in readers.seen] == [parent] * 6 + [children[0]] * 3 + [children[1]] * 3
    assert bench.rows(_STATES) == [(1, "open"), (2, "open")]
    assert bench.rows(_DRAINED) == [(0,)]
