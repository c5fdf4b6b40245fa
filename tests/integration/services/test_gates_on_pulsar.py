"""Standard consumers on a real broker: what a split's children have waits at their gates until the parent is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import requests

from controller.clock import SystemClock
from controller.dataplane.pulsar.barrier import ENTRIES
from controller.devstack.postgres import PostgresServer
from controller.domain.gate_states import GateState
from controller.domain.operation import OperationState
from controller.domain.seek_target import EARLIEST
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services import garbage_collector, subscription_admin
from controller.services.gate_keeper import GateKeeper
from controller.services.segment_admin import merging, splitting
from controller.store.journal.request_keys import Intent
from controller.store.shards import Shards
from tests.support.bench import Bench
from tests.support.bench_planes import UNHURRIED_LEASE_SECONDS, PulsarTopic
from tests.support.benches import benches
from tests.support.brokers import SharedBroker
from tests.support.stock_readers import StockReaders

pytestmark = [pytest.mark.pulsar, pytest.mark.integration]
ALL = Shards.of(1, [0])
_STATES = "SELECT segment_id, state FROM cleave.gate ORDER BY segment_id"
_DRAINED = "SELECT segment_id FROM cleave.segment_drain ORDER BY 1"
_PRUNED = "SELECT count(*) FROM cleave.segment WHERE pruned_epoch IS NOT NULL"


@pytest.fixture
def bench(
    pulsar_broker: SharedBroker, postgres_server: PostgresServer, migrated_template: str
) -> Iterator[Bench]:
    """A topic on the run's broker, with a database of its own."""

    def build(url: str) -> Bench:
        return Bench(url, PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "gates"))

    def remove(bench: Bench) -> None:
        assert bench.pulsar is not None
        bench.pulsar.remove(bench.plane)

    made: Iterator[Callable[[], Bench]] = benches(postgres_server, migrated_template, build, remove)
    for build_one in made:
        yield build_one()


def stock_topic(bench: Bench, segments: int = 1, *others: str) -> None:
    """The topic, with the subscription `billing` for standard consumers, and others for registered ones."""
    bench.topic_with(segments, others)
    create_stock(bench, "billing")


def keeper_of(bench: Bench) -> GateKeeper:
    return GateKeeper(bench.store, bench.looking, lambda: ALL, SystemClock())


def open_all(bench: Bench) -> None:
    """Keep the gates until none is shut."""
    keeper = keeper_of(bench)
    bench.wait_until(lambda: keeper.round() == 0, message="every gate is open")


def readers_of(bench: Bench, subscription: str = "billing") -> StockReaders:
    assert bench.pulsar is not None
    return StockReaders(str(bench.pulsar.service_url), subscription)


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


def test_a_seek_back_over_a_gate_is_read_in_order_once_more(bench: Bench) -> None:
    stock_topic(bench)
    bench.publish(0, 2)
    bench.reshape(splitting(0))
    parent, *children = [bench.log_of(i) for i in range(3)]
    with readers_of(bench) as readers:
        readers.attach(parent, *children)
        assert readers.read(parent, 2) == 2
        open_all(bench)
        bench.publish(1, 2)
        bench.publish(2, 2)
        assert [readers.read(log, 2) for log in children] == [2, 2]
        readers.seen.clear()

        bench.finish(seek(bench))
        keeper = keeper_of(bench)
        keeper.round()
        assert readers.gets_nothing(children)
        bench.publish(1, 1)  # a message that comes meanwhile waits, too
        assert readers.gets_nothing(children, for_seconds=0.5)
        assert readers.read(parent, 2) == 2
        bench.wait_until(lambda: keeper.round() == 0, message="every gate is open")
        assert [readers.read(log, 3) for log in children] == [3, 2]
    assert [log for log, _ in readers.seen] == [parent] * 2 + [children[0]] * 3 + [children[1]] * 2


def test_a_seek_back_after_the_parent_was_pruned_holds_no_later_gate_shut(bench: Bench) -> None:
    """No gate is closed for the seek, and a standard consumer acknowledges no barrier."""
    stock_topic(bench)
    bench.publish(0, 1)
    bench.reshape(splitting(0))
    parent, child = bench.log_of(0), bench.log_of(1)
    with readers_of(bench) as readers:
        assert readers.attach(parent).read(parent, 1) == 1
        open_all(bench)
        bench.settle(collects=True)
        assert bench.scalar(_PRUNED) == 1
        bench.publish(1, 2)

        bench.finish(seek(bench))
        assert readers.attach(child).read(child, 2) == 2
        bench.reshape(splitting(1))
        open_all(bench)
    assert {state for _, state in bench.rows(_STATES)} == {"open"}


def test_what_joins_two_segments_waits_for_both_and_a_load_of_the_topic_lets_nothing_through(
    bench: Bench,
) -> None:
    stock_topic(bench, 2)
    bench.publish(0, 2)
    bench.publish(1, 2)
    bench.reshape(merging(0, 1))
    left, right, joined = (bench.log_of(i) for i in range(3))
    bench.publish(2, 3)
    with readers_of(bench) as readers:
        readers.attach(left, right, joined)
        assert readers.read(left, 2) == 2
        keeper = keeper_of(bench)
        keeper.round()
        unload(bench, joined)
        assert readers.gets_nothing([joined])
        assert readers.read(right, 2) == 2
        bench.wait_until(lambda: keeper.round() == 0, message="every gate is open")
        assert readers.read(joined, 3) == 3


def test_a_subscription_that_comes_late_waits_at_the_barriers_of_another(bench: Bench) -> None:
    stock_topic(bench)
    bench.publish(0, 2)
    bench.reshape(splitting(0))
    bench.publish(1, 2)
    create_stock(bench, "audit")
    parent, child = bench.log_of(0), bench.log_of(1)
    with readers_of(bench, "audit") as readers:
        readers.attach(parent, child)
        keeper = keeper_of(bench)
        keeper.round()
        assert readers.gets_nothing([child])
        assert readers.read(parent, 2) == 2
        bench.wait_until(lambda: keeper.round() >= 0 and states_of(bench, "audit") == {"open"})
        assert readers.read(child, 2) == 2
    assert states_of(bench, "billing") == {"closed"}


def test_a_split_closes_the_gates_of_two_subscriptions_at_its_first_attempt(bench: Bench) -> None:
    """A broker refuses a second producer of a barrier while it has the first."""
    stock_topic(bench)
    create_stock(bench, "audit")
    intent = bench.intend(splitting(0))

    unhurried = {"planes": bench.looking, "lease_seconds": UNHURRIED_LEASE_SECONDS}
    bench.run_once(intent.operation.operation_id, parallel_calls=4, **unhurried)

    assert bench.operation(intent.operation.operation_id).state is OperationState.DONE
    assert states_of(bench, "billing") == states_of(bench, "audit") == {"closed"}


def test_the_children_of_an_aborted_split_are_deleted_although_they_have_barriers(bench: Bench) -> None:
    """One child is loaded again, and so is terminated with an empty ledger behind the barrier."""
    stock_topic(bench)
    bench.publish(0, 1)
    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.PREPARED)
    assert bench.rows(_STATES) == [(1, "closed"), (2, "closed")]
    unload(bench, bench.undeleted_logs()[0])
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    assert bench.finish(intent).state is OperationState.ABORTED

    bench.settle()
    bench.check_laws()
    assert bench.rows("SELECT backing_topic, reason FROM cleave.unmanaged_log") == []
    assert bench.rows(_STATES) == []


def test_a_name_that_was_deleted_behind_closed_gates_can_be_used_again(bench: Bench) -> None:
    stock_topic(bench)
    bench.publish(0, 1)
    bench.reshape(splitting(0))
    bench.publish(1, 2)
    bench.finish(
        subscription_admin.delete_subscription(bench.store, bench.topic_name, "billing", bench.request())
    )
    child = bench.log_of(1)
    with readers_of(bench) as readers:
        assert readers.attach(child).read(child, 2) == 2


def test_registered_and_standard_consumers_read_one_topic_side_by_side(bench: Bench) -> None:
    """Cleave's own subscription skips the barriers, and is drained without them."""
    stock_topic(bench, 1, "audit")
    bench.publish(0, 2)
    bench.reshape(splitting(0))
    bench.publish(1, 2)
    assert bench.plane.backlog(bench.log_of(1), "audit") == 2
    reader = bench.logs.open_reader(
        bench.log_of(1), "audit", owner="auditor", live_owners=(), on_arrival=lambda: None
    )
    try:
        got = bench.wait_until(lambda: reader.read(10), message="messages arrive")
        reader.acknowledge(got[-1].position)
        bench.wait_until(lambda: bench.plane.backlog(bench.log_of(1), "audit") == 0)
    finally:
        reader.close()


def test_sealed_segments_are_collected_behind_gates(bench: Bench) -> None:
    stock_topic(bench)
    bench.publish(0, 2)
    bench.reshape(splitting(0))
    parent = bench.log_of(0)
    with readers_of(bench) as readers:
        assert readers.attach(parent).read(parent, 2) == 2
    [kept] = garbage_collector.collect(bench.store, bench.looking, retention_minutes=0).kept
    assert "has not stored yet" in kept.reason
    open_all(bench)
    bench.settle(collects=True)
    assert bench.scalar(_PRUNED) == 1
    bench.check_laws()


def test_an_undeclared_subscription_skips_the_barrier_when_the_topic_is_reconciled(bench: Bench) -> None:
    """The broker would keep everything behind the barrier, because a standard consumer acknowledges none."""
    stock_topic(bench)
    bench.reshape(splitting(0))
    child = bench.log_of(1)
    with readers_of(bench, "undeclared") as readers:
        readers.attach(child)
        assert bench.plane.backlog(child, "undeclared") == ENTRIES
        bench.settle()

    assert [bench.plane.backlog(child, name) for name in ("undeclared", "billing")] == [0, ENTRIES]


def test_a_barrier_that_an_undeclared_subscription_has_not_acknowledged_keeps_no_segment(
    bench: Bench,
) -> None:
    stock_topic(bench)
    bench.publish(0, 1)
    bench.reshape(splitting(0))
    logs = [bench.log_of(i) for i in range(3)]
    with readers_of(bench) as readers, readers_of(bench, "undeclared") as others:
        groups = readers.attach(*logs), others.attach(*logs)
        assert [group.read(logs[0], 1) for group in groups] == [1, 1]
        open_all(bench)
        bench.publish(1, 1)
        assert [group.read(logs[1], 1) for group in groups] == [1, 1]
        bench.reshape(splitting(1))
        open_all(bench)
        bench.wait_until(lambda: bench.plane.backlog(logs[1], "undeclared") == ENTRIES)

        bench.settle(collects=True)
    assert bench.scalar(_PRUNED) == 2


def create_stock(bench: Bench, name: str) -> None:
    bench.finish(
        subscription_admin.create_subscription(
            bench.store, bench.topic_name, name, bench.request(), consumers=SubscriptionConsumers.STOCK
        )
    )


def seek(bench: Bench) -> Intent:
    """Of the subscription `billing`, to the first message that is there."""
    return subscription_admin.seek_subscription(
        bench.store, bench.topic_name, "billing", EARLIEST, bench.request(), release_seconds=0.0
    )


def states_of(bench: Bench, name: str) -> set[str]:
    """States of the subscription's gates."""
    return {
        row[0] for row in bench.rows("SELECT state FROM cleave.gate WHERE subscription = :name", name=name)
    }


def unload(bench: Bench, log: str) -> None:
    """Have the broker load the topic again."""
    assert bench.pulsar is not None
    path = log.removeprefix("persistent://")
    answer = requests.put(f"{bench.pulsar.admin_url}/admin/v2/persistent/{path}/unload", timeout=30)
    answer.raise_for_status()
