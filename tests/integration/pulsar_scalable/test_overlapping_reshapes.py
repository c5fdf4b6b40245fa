"""Reshapes of one topic that overlap in time, of which 5.0.0-M1 leaves segments in its layout whose logs do not exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import text

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable
from controller.domain.operation import OperationState
from controller.domain.reshape import ReshapeKind
from controller.services import mirror, segment_admin
from controller.services.operation_runner import Outcome, RunnerContext, run_due, run_operation
from controller.store.journal.request_keys import Intent
from controller.store.mirrors import mirrors
from controller.store.postgres.engine import Store
from controller.store.topics import topics
from tests.integration.pulsar_scalable.conftest import PLANE, Finish, request
from tests.support.brokers import SharedBroker
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.live_operations import live_operations as operations_of
from tests.support.scripted_broker import scripted_broker
from tests.support.waiting import wait_until

SUBSCRIPTIONS = ("s", "billing")
RUNNERS = 4
OVERLAPS = 10
"""Pairs of splits asked for at once. One pair leaves logs out as a rule, ten always did."""


class CountingPlane(PulsarScalableDataPlane):
    """The adapter, which counts how many reshapes are under way at once."""

    def __init__(self, access: PulsarAccess) -> None:
        super().__init__(access, call_timeout_seconds=30.0)
        self._lock, self._under_way, self.most_under_way = threading.Lock(), 0, 0

    def ask_reshape(
        self, topic: str, kind: ReshapeKind, parent_ids: Sequence[int], bucket_count: int
    ) -> None:
        with self._lock:
            self._under_way += 1
            self.most_under_way = max(self.most_under_way, self._under_way)
        try:
            super().ask_reshape(topic, kind, parent_ids, bucket_count)
        finally:
            with self._lock:
                self._under_way -= 1


@pytest.fixture
def counting(pulsar5_broker: SharedBroker) -> Iterator[CountingPlane]:
    with closing(CountingPlane(PulsarAccess(admin_url=pulsar5_broker.admin_url))) as plane:
        yield plane


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make the calls in threads that begin together."""
    begin = threading.Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        begin.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(one, calls))


def split(store: Store, keeper: PulsarScalableDataPlane, topic: str, segment_id: int) -> Intent:
    planner = segment_admin.splitting(segment_id)
    return segment_admin.submit(store, {PLANE: keeper}, topic, planner, request("try"))


def active_ids(keeper: PulsarScalableDataPlane, topic: str) -> list[int]:
    return [one.segment_id for one in keeper.read_layout(topic).active]


def subscribe(keeper: PulsarScalableDataPlane, topic: str) -> None:
    [log, *_] = keeper.list_segments(topic)
    for name in SUBSCRIPTIONS:
        keeper.create_subscription(log, name)


def leave_logs_out(keeper: PulsarScalableDataPlane, topic: str) -> tuple[int, ...]:
    """Split pairs of segments at once by the broker's own API, until the layout has segments without a log."""
    for _ in range(OVERLAPS):
        pair = [i for i in active_ids(keeper, topic) if i not in keeper.check_logs(topic).missing][:2]
        at_once([partial(keeper.ask_reshape, topic, ReshapeKind.SPLIT, [i], 1) for i in pair])
        if missing := keeper.check_logs(topic).missing:
            return missing
    raise AssertionError("the broker created every log: this test shows nothing")


def live_operations(store: Store, topic: str) -> list[int]:
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        return [one.operation_id for one in operations_of(tx, topic_id)]


def run_all(store: Store, keeper: PulsarScalableDataPlane, topic: str) -> None:
    """Several runners, as of several workers, until the topic has no operation to be done."""

    def run(number: int) -> None:
        context = RunnerContext(
            store=store, planes={PLANE: keeper}, runner_id=f"runner {number}", lease_seconds=90.0
        )
        wait_until(
            lambda: run_due(context, limit=64) == 0 and not live_operations(store, topic),
            timeout_seconds=120.0,
        )

    at_once([partial(run, number) for number in range(RUNNERS)])


def reasons(store: Store) -> list[str]:
    with store.transaction() as tx:
        statement = "SELECT reason FROM cleave.operation WHERE origin = 'reconciler' ORDER BY operation_id"
        return list(tx.execute(text(statement)).scalars())


def test_one_reshape_of_a_topic_is_in_flight_whoever_asks_and_no_log_is_left_out(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, counting: CountingPlane
) -> None:
    subscribe(keeper, attached)
    for _ in range(3):  # 2, 4, 8 segments at once
        for segment_id in active_ids(keeper, attached):
            split(store, counting, attached, segment_id)
        run_all(store, counting, attached)
    assert counting.most_under_way == 1
    assert len(active_ids(keeper, attached)) == 16
    assert keeper.check_logs(attached).missing == ()
    assert reasons(store) == []


def test_what_pulsars_own_api_left_out_beside_cleaves_requests_is_repaired(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, counting: CountingPlane
) -> None:
    subscribe(keeper, attached)
    missing = leave_logs_out(keeper, attached)
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, attached).topic_id
    planes = {PLANE: counting}
    mirror.follow(store, planes, topic_id)
    present = [i for i in active_ids(keeper, attached) if i not in missing]
    split(store, counting, attached, present[0])
    by_hand = threading.Thread(
        target=lambda: keeper.ask_reshape(attached, ReshapeKind.SPLIT, [present[1]], 1)
    )
    by_hand.start()
    run_all(store, counting, attached)
    by_hand.join()

    def is_whole() -> bool:
        mirror.follow(store, planes, topic_id)
        run_all(store, counting, attached)
        return keeper.check_logs(attached).missing == ()

    wait_until(is_whole, timeout_seconds=100.0, message="every segment has its log")
    assert len(reasons(store)) >= len(missing)
    layout = keeper.read_layout(attached)
    assert not [i for i in missing if layout.segments[i].is_active]
    for log in keeper.list_segments(attached):
        assert {name: keeper.backlog(log, name) for name in SUBSCRIPTIONS} == dict.fromkeys(SUBSCRIPTIONS, 0)
    mirror.follow(store, planes, topic_id)
    with store.transaction() as tx:
        found = mirrors.get_mirror(tx, topic_id)
    assert found is not None
    assert found.checked_epoch == layout.epoch


def test_a_segment_without_a_log_is_not_split_before_it_has_one(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    subscribe(keeper, attached)
    [missing, *_] = leave_logs_out(keeper, attached)
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, attached).topic_id
    with store.transaction() as tx:  # so that only the request below splits it
        tx.execute(text("UPDATE cleave.mirror SET checked_epoch = 1000"))
    mirror.follow(store, {PLANE: keeper}, topic_id)

    assert finish(split(store, keeper, attached, missing)) is OperationState.DONE
    assert missing not in keeper.check_logs(attached).missing
    with store.transaction() as tx:
        detail = tx.execute(
            text("SELECT detail FROM inspect.operation_steps WHERE step = 'reshape-on-broker'")
        ).scalar_one()
    assert len(detail["logs found missing"]) == 1


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_a_call_that_timed_out_keeps_the_topic_to_its_operation(
    fault: Fault, store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    first, second = (split(store, keeper, attached, segment_id) for segment_id in (0, 1))
    plane = FaultyDataPlane(
        keeper,
        PlannedFault(fault, call="ask_reshape"),
        PlannedFault(Fault.REFUSED, call="read_layout", number=4),
    )
    context = RunnerContext(
        store=store, planes={PLANE: plane.as_data_plane()}, runner_id="first", lease_seconds=90.0
    )
    assert run_operation(context, first.operation.operation_id) is Outcome.DEFERRED
    other = RunnerContext(store=store, planes={PLANE: keeper}, runner_id="other", lease_seconds=90.0)
    assert run_operation(other, second.operation.operation_id) is Outcome.NOT_CLAIMED
    assert run_due(other) == 0

    with store.transaction() as tx:  # the pause after the time-out is over
        tx.execute(
            text("UPDATE cleave.operation SET not_before = '-infinity', row_version = row_version + 1")
        )
    assert run_operation(other, second.operation.operation_id) is Outcome.NOT_CLAIMED
    assert finish(first) is OperationState.DONE
    assert finish(second) is OperationState.DONE
    assert keeper.check_logs(attached) == (2, ())


def test_a_connection_that_breaks_in_mid_call_is_a_call_that_may_be_under_way() -> None:
    """One that was never made is not."""
    with scripted_broker() as broker, closing(plane_at(broker.url)) as plane:
        broker.behaves(broker.cuts())
        with pytest.raises(DataPlaneTimeout, match="may be in progress"):
            plane.ask_reshape("topic://t/n/x", ReshapeKind.SPLIT, [0], 1)
    with closing(plane_at(broker.url)) as plane, pytest.raises(DataPlaneUnavailable) as refused:
        plane.ask_reshape("topic://t/n/x", ReshapeKind.SPLIT, [0], 1)
    assert not isinstance(refused.value, DataPlaneTimeout)


def plane_at(url: str) -> PulsarScalableDataPlane:
    return PulsarScalableDataPlane(PulsarAccess(admin_url=url), call_timeout_seconds=20.0)
