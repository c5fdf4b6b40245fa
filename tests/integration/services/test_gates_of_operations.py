"""What operations do with gates on real rows and logs: closed before the fence, closed before a cursor moves, gone with what they guard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from controller.actions.action import find_action
from controller.actions.context import Caller, Options
from controller.actions.perform import perform_at
from controller.actions.subscriptions import SetSharing
from controller.bootstrap import Application
from controller.clock import SystemClock
from controller.dataplane.base import LogState
from controller.domain.decision import Lane
from controller.domain.errors import AccessDenied, Conflict, DataPlaneUnavailable, TopicNotLive, Unsupported
from controller.domain.gate_states import FenceState, GateState
from controller.domain.operation import Operation, OperationState, Origin
from controller.domain.seek_target import EARLIEST, SeekTarget
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services import autoscaler, subscription_admin, subscription_consumers, topic_admin
from controller.services.collection.consumer_watch import ConsumerWatch
from controller.services.operation_runner import Outcome
from controller.services.segment_admin import Planner, merging, rebucketing, recutting, replacing, splitting
from controller.settings import Settings
from controller.store.journal.adoptions import Adoption, intend_adopt
from controller.store.topics import consumers, topics
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import Bench
from tests.support.embedded_terminations import forget_termination
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.gated_logs import GatedBench

STOCK, CLEAVE = SubscriptionConsumers.STOCK, SubscriptionConsumers.CLEAVE
_JOURNALLED = """
    SELECT detail -> 'gates closed for' FROM cleave.operation_step WHERE detail ? 'gates closed for'
"""
_FOUND_MISSING = """
    SELECT detail -> 'logs found missing' FROM cleave.operation_step WHERE step = 'create-cursors' ORDER BY operation_id DESC LIMIT 1
"""
_CONSUMERS = "SELECT consumers FROM cleave.subscription WHERE name = 'billing'"
_SHARING = "SELECT consumers, parents_block, drain_consumers FROM cleave.subscription WHERE name = 'billing'"


@pytest.fixture
def bench(database: str) -> Iterator[GatedBench]:
    """See `GatedBench`."""
    bench = GatedBench(database)
    yield bench
    bench.close()


def set_consumers(bench: GatedBench, wanted: SubscriptionConsumers) -> None:
    subscription_consumers.set_sharing(
        bench.store, bench.planes, bench.topic_name, "billing", consumers=wanted
    )


def set_sharing(bench: GatedBench, fields: dict[str, Any], *, is_dry_run: bool) -> None:
    """Perform the action, on fake gates."""
    app = Application(Settings(database_url=bench.url), bench.store)  # type: ignore[arg-type]
    app.__dict__["planes"] = bench.planes
    caller = Caller("ada", Origin.API, "a test", "only-once")
    action = find_action("subscriptions set")
    request = SetSharing(topic=bench.topic_name, subscription="billing", **fields)
    perform_at(app, caller, Options(dry_run=is_dry_run), action, request)


RESHAPES = pytest.mark.parametrize(
    ("segments", "planner"),
    [
        pytest.param(1, splitting(0), id="split"),
        pytest.param(1, splitting(0, parts=3), id="split-3"),
        pytest.param(2, merging(0, 1), id="merge"),
        pytest.param(1, rebucketing(0, 8), id="rebucket"),
        pytest.param(1, replacing(0), id="heal"),
        pytest.param(2, recutting([0, 1], [9000, 40000]), id="recut"),
    ],
)


@RESHAPES
def test_each_reshape_closes_the_gates_of_its_children_before_it_closes_a_parent(
    bench: GatedBench, segments: int, planner: Planner
) -> None:
    bench.stock_topic(segments)
    bench.publish(0)
    bench.gated.acts.clear()

    operation = bench.reshape(planner)

    children = {child.backing_topic for child in operation.children}
    acts = [act for act in bench.gated.acts if act[0] in ("close", "terminate")]
    fence = next(i for i, (act, _) in enumerate(acts) if act == "terminate")
    assert {log for act, log in acts[:fence]} == children
    assert bench.closed_at_plane() == children
    assert bench.gate_rows() == {child.plan.segment_id: "closed" for child in operation.children}
    assert bench.rows(_JOURNALLED) == [(["billing"],)]


def test_without_standard_consumers_nothing_is_done_about_gates(bench: GatedBench) -> None:
    bench.topic_with(1)
    bench.reshape(splitting(0))
    assert {act for act, _ in bench.gated.acts} <= {"terminate", "probe"}
    assert bench.gate_rows() == {}


def test_a_gate_that_somebody_opened_before_the_fence_is_closed_again(bench: GatedBench) -> None:
    bench.stock_topic()
    bench.publish(0)
    opened: list[str] = []

    def open_by_hand(act: str, _log: str) -> None:
        if act == "terminate":
            opened.extend(log for log, _ in bench.gated.gates)

    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.FENCING)
    assert len(bench.closed_at_plane()) == 2
    bench.gated.open_all_by_hand()
    bench.gated.before = open_by_hand
    bench.finish(intent)

    assert len(opened) == 2, "both were closed when the parent was terminated"


def test_a_subscription_that_comes_late_gets_its_gates_before_the_commit(bench: GatedBench) -> None:
    bench.topic_with(1, ())
    bench.publish(0)
    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.FENCING)
    subscription_admin.create_subscription(
        bench.store, bench.topic_name, "billing", bench.request(), consumers=STOCK
    )

    bench.finish(intent)
    assert bench.gate_rows() == {1: "closed", 2: "closed"}
    bench.settle()
    assert bench.closed_at_plane() == {bench.log_of(1), bench.log_of(2)}


def test_a_field_that_changes_during_a_reshape_is_taken_along(bench: GatedBench) -> None:
    bench.topic_with(1)
    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.FENCING)
    set_consumers(bench, STOCK)

    bench.finish(intent)
    assert bench.closed_at_plane() == {bench.log_of(1), bench.log_of(2)}


def test_the_database_refuses_a_child_without_its_gate(bench: GatedBench) -> None:
    bench.stock_topic()
    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.FENCING)
    bench.execute("DELETE FROM cleave.gate")

    assert bench.run_once(intent.operation.operation_id) is Outcome.DEFERRED
    error = str(bench.operation(intent.operation.operation_id).last_error)
    assert "has no gate for subscription billing" in error
    assert [one.segment_id for one in bench.layout.active] == [0]


def test_an_aborted_split_leaves_no_gate(bench: GatedBench) -> None:
    bench.stock_topic()
    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.PREPARED)
    assert bench.gate_rows() == {1: "closed", 2: "closed"}
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")

    assert bench.finish(intent).state is OperationState.ABORTED
    assert bench.gate_rows() == {}
    bench.settle()
    assert bench.keep() == 0


def test_a_gate_that_cannot_be_closed_ends_the_split_before_the_fence(bench: GatedBench) -> None:
    bench.stock_topic()
    plane = FaultyDataPlane(bench.gated, PlannedFault(Fault.REFUSED, "close_gate", times=None))
    intent = bench.intend(splitting(0))
    planes = {"embedded": plane.as_data_plane()}

    bench.run_once(intent.operation.operation_id, planes=planes)
    assert bench.operation(intent.operation.operation_id).state is OperationState.INTENDED
    assert bench.plane.segment_state(bench.log_of(0)) is LogState.OPEN


def test_a_runner_that_lost_its_claim_records_no_gate(bench: GatedBench) -> None:
    """The other runner may have committed, and the keeper opened the gate."""
    bench.stock_topic()
    intent = bench.intend(splitting(0))
    operation_id = intent.operation.operation_id
    plane = FaultyDataPlane(bench.gated)

    def taken_over(call: str, _number: int) -> None:
        if call == "close_gate":
            bench.execute(
                "UPDATE cleave.operation SET claim_term = claim_term + 1, row_version = row_version + 1"
            )

    plane.before_call = taken_over
    bench.run_once(operation_id, planes={"embedded": plane.as_data_plane()})
    assert bench.gate_rows() == {}


def test_a_parent_that_stays_fenced_is_healed_after_the_commit(bench: GatedBench) -> None:
    bench.topic_with(1)
    bench.gated.fences[bench.log_of(0)] = [FenceState.FENCED, FenceState.FENCED]
    seen: list[int] = []

    def look(act: str, _log: str) -> None:
        if act == "probe":
            seen.append(len(bench.layout.active))

    bench.gated.before = look
    operation = bench.reshape(splitting(0))

    assert operation.state is OperationState.DONE
    assert seen == [2, 2, 2], "the layout had moved at the first probe, and two found it fenced"


def test_a_parent_whose_termination_the_broker_forgot_is_terminated_again(bench: GatedBench) -> None:
    bench.topic_with(1)
    parent = bench.log_of(0)
    bench.gated.fences[parent] = [FenceState.OPEN]

    def forget(act: str, _log: str) -> None:
        if act == "probe" and bench.gated.fences[parent]:
            forget_termination(bench, parent)

    bench.gated.before = forget
    operation = bench.reshape(splitting(0))

    assert operation.state is OperationState.DONE
    assert bench.plane.segment_state(parent) is LogState.TERMINATED


def test_a_probe_that_fails_does_not_undo_or_delay_the_commit(bench: GatedBench) -> None:
    bench.topic_with(1)

    def away(act: str, _log: str) -> None:
        if act == "probe":
            raise DataPlaneUnavailable("the broker is away")

    bench.gated.before = away
    intent = bench.intend(splitting(0))
    bench.run_once(intent.operation.operation_id)
    assert len(bench.layout.active) == 2
    assert bench.operation(intent.operation.operation_id).state is OperationState.COMMITTED

    bench.gated.before = lambda _act, _log: None
    assert bench.finish(intent).state is OperationState.DONE


# Subscriptions.


def test_a_new_subscription_waits_at_barriers_that_others_have_made(bench: GatedBench) -> None:
    bench.stock_split()
    bench.publish(1)
    bench.gated.acts.clear()

    bench.subscribe_standard("audit")

    assert bench.closed_at_plane("audit") == {bench.log_of(1), bench.log_of(2)}
    assert bench.gate_rows("audit") == {1: "closed", 2: "closed"}
    bench.read(0, "audit")
    bench.keep()
    assert bench.gate_rows("audit") == {1: "open", 2: "open"}


def test_a_new_subscription_is_made_although_a_log_behind_a_barrier_is_missing(bench: GatedBench) -> None:
    bench.stock_split()
    bench.gated.delete_segment(bench.log_of(1))

    bench.subscribe_standard("audit")

    assert bench.scalar(_FOUND_MISSING) == [bench.log_of(1)]
    assert bench.closed_at_plane("audit") == {bench.log_of(2)}
    assert bench.gate_rows("audit") == {1: "closed", 2: "closed"}
    bench.settle()
    assert bench.closed_at_plane("audit") == {bench.log_of(1), bench.log_of(2)}


@pytest.mark.parametrize("is_known", [True, False], ids=["an application's", "of the creation"])
def test_a_creation_that_is_given_up_leaves_no_gate_closed(bench: GatedBench, is_known: bool) -> None:
    bench.stock_split()
    bench.publish(1)
    if is_known:
        bench.plane.create_subscription(bench.log_of(1), "audit")
    plane = FaultyDataPlane(bench.gated)

    def refuse(call: str, _number: int) -> None:
        if call == "create_subscription":  # of the sealed segment, which is behind no gate
            raise AccessDenied("the token has expired")

    plane.before_call = refuse
    create = subscription_admin.create_subscription
    intent = create(bench.store, bench.topic_name, "audit", bench.request(), consumers=STOCK)
    bench.gated.before = lambda act, _log: acts.append((act, bench.gate_rows("audit") != {}))
    acts: list[tuple[str, bool]] = []

    bench.run_once(intent.operation.operation_id, planes={"embedded": plane.as_data_plane()})
    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    bench.settle()

    assert acts == [("close", True)] * 2 + [("open", True)] * 2
    assert bench.closed_at_plane("audit") == set()
    has_cursor = ["audit" in bench.plane.list_subscriptions(bench.log_of(one)) for one in (1, 2)]
    assert has_cursor == [is_known, is_known]


def test_a_new_subscription_is_refused_where_messages_came_without_a_barrier(bench: GatedBench) -> None:
    bench.topic_with(1)
    bench.publish(0)
    bench.reshape(splitting(0))

    with pytest.raises(Conflict, match=r"segment\(s\) 1, 2 .* have messages and no barrier"):
        bench.subscribe_standard("audit")
    bench.subscribe_standard("audit", from_latest=True)
    assert bench.gate_rows("audit") == {}
    bench.reshape(splitting(1))
    assert bench.gate_rows("audit") == {3: "closed", 4: "closed"}


def test_a_seek_is_refused_where_messages_came_without_a_barrier(bench: GatedBench) -> None:
    bench.topic_with(1)
    bench.publish(0)
    bench.reshape(splitting(0))
    bench.subscribe_standard("audit", from_latest=True)

    with pytest.raises(Conflict, match="no barrier"):
        seek(bench, "audit", EARLIEST)
    seek(bench, "audit", SeekTarget(3_900_000_000_000))


def test_a_deleted_subscription_leaves_nothing_at_the_broker(bench: GatedBench) -> None:
    bench.stock_split()

    bench.finish(
        subscription_admin.delete_subscription(bench.store, bench.topic_name, "billing", bench.request())
    )
    assert bench.gated.gates == {}
    assert bench.gate_rows() == {}


def test_a_deleted_topic_takes_its_gates_along(bench: GatedBench) -> None:
    bench.stock_topic()
    bench.reshape(splitting(0))
    bench.finish(topic_admin.delete_topic(bench.store, bench.topic_name, bench.request()))
    assert bench.gate_rows() == {}


def test_subscriptions_of_an_adopted_topic_may_stay_with_standard_consumers(bench: GatedBench) -> None:
    for log in bench.plain_logs():
        bench.plane.create_segment(log, ["billing", "audit"])
    bench.append(bench.plain_logs()[0])
    adoption = Adoption(
        name=bench.topic_name,
        data_plane="embedded",
        old_topics=bench.plain_logs(),
        subscriptions={"billing": SubscriptionKind.STREAM, "audit": SubscriptionKind.STREAM},
        segments=2,
        bucket_budget=4,
        max_buckets=16,
        stock=frozenset({"billing"}),
    )
    intent = bench.store.in_transaction(
        intend_adopt, adoption, backing_topic=bench.plane.backing_topic, request=bench.request()
    )
    bench.finish(intent)

    assert bench.gate_rows() == {2: "closed", 3: "closed"}
    bench.keep()
    assert bench.gate_rows() == {2: "closed", 3: "closed"}
    bench.gated.skip_all(bench.plain_logs()[0], "billing")
    bench.keep()
    assert bench.gate_rows() == {2: "open", 3: "open"}


# The field.


def test_the_field_changes_while_nobody_reads(bench: GatedBench) -> None:
    bench.topic_with(1)
    bench.store.in_transaction(consumers.register, bench.topic_id, "billing", "c1")
    with pytest.raises(Conflict, match="c1 read subscription billing"):
        set_consumers(bench, STOCK)
    bench.store.in_transaction(consumers.unregister, bench.topic_id, "billing", "c1")

    set_consumers(bench, STOCK)
    assert bench.scalar(_CONSUMERS) == "stock"
    with (
        pytest.raises(Conflict, match="read by standard Pulsar consumers"),
        bench.store.transaction() as tx,
    ):
        consumers.register(tx, bench.topic_id, "billing", "c1")

    set_consumers(bench, CLEAVE)
    assert bench.store.in_transaction(consumers.register, bench.topic_id, "billing", "c1")


@pytest.mark.parametrize(
    ("before", "is_blocking", "fields", "is_refused"),
    [
        (CLEAVE, True, {"consumers": STOCK, "parents_block": False}, True),
        (CLEAVE, True, {"consumers": STOCK, "drain_consumers": 4}, False),
        (CLEAVE, False, {"consumers": STOCK}, True),
        (CLEAVE, False, {"consumers": STOCK, "parents_block": True}, False),
        (STOCK, True, {"consumers": CLEAVE, "parents_block": False}, False),
        (STOCK, True, {"consumers": STOCK, "parents_block": False}, True),
        (STOCK, True, {"consumers": STOCK, "drain_consumers": 4}, False),
        (STOCK, True, {"parents_block": False}, True),
    ],
)
def test_a_dry_run_of_the_sharing_refuses_what_the_action_refuses(
    bench: GatedBench,
    before: SubscriptionConsumers,
    is_blocking: bool,
    fields: dict[str, Any],
    is_refused: bool,
) -> None:
    """All fields are set together or not at all."""
    bench.topic_with(1)
    bench.execute("UPDATE cleave.subscription SET parents_block = :value", value=is_blocking)
    set_consumers(bench, before)
    sharing_before = bench.rows(_SHARING)
    wanted = {"consumers": before, "parents_block": is_blocking, "drain_consumers": 1, **fields}

    for is_dry_run in (True, False):
        with pytest.raises(Conflict) if is_refused else nullcontext():
            set_sharing(bench, fields, is_dry_run=is_dry_run)
        if is_refused or is_dry_run:
            assert bench.rows(_SHARING) == sharing_before
    if not is_refused:
        assert bench.rows(_SHARING) == [tuple(wanted.values())]


def test_the_field_stays_while_standard_consumers_are_attached(bench: GatedBench) -> None:
    bench.stock_topic()
    bench.gated.attach(bench.log_of(0), "billing", "Failover", "a", "b")
    with pytest.raises(Conflict, match="consumers are attached to subscription billing"):
        set_consumers(bench, CLEAVE)
    set_consumers(bench, STOCK)  # as it is


def test_consumers_of_another_subscription_do_not_keep_the_field_as_it_is(bench: GatedBench) -> None:
    bench.topic_with(1, ("billing", "audit"))
    bench.gated.attach(bench.log_of(0), "audit", "Failover", "a")
    set_consumers(bench, STOCK)
    assert bench.scalar(_CONSUMERS) == "stock"


def test_the_field_can_be_taken_back_where_the_data_plane_is_not_configured(bench: GatedBench) -> None:
    bench.stock_topic()

    subscription_consumers.set_sharing(bench.store, {}, bench.topic_name, "billing", consumers=CLEAVE)

    assert bench.scalar(_CONSUMERS) == "cleave"


def test_the_field_stays_while_a_bucket_has_an_owner(bench: GatedBench) -> None:
    """The owner may still read, although it is no longer registered."""
    bench.topic_with(1)
    bench.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)"
        " VALUES (:id, 'billing', 0, 0, 16383, 'c1', 1)",
        id=bench.topic_id,
    )
    with pytest.raises(Conflict, match="c1 read subscription billing"):
        set_consumers(bench, STOCK)
    assert bench.scalar(_CONSUMERS) == "cleave"


def test_the_field_stays_while_a_seek_is_in_progress(bench: GatedBench) -> None:
    bench.topic_with(1)
    intent = subscription_admin.seek_subscription(
        bench.store, bench.topic_name, "billing", EARLIEST, bench.request(), release_seconds=0.0
    )
    with pytest.raises(Conflict, match=f"seek {intent.operation.operation_id} of subscription billing"):
        set_consumers(bench, STOCK)

    bench.finish(intent)
    set_consumers(bench, STOCK)
    assert bench.scalar(_CONSUMERS) == "stock"


def test_the_field_stays_while_the_topic_is_deleted(bench: GatedBench) -> None:
    bench.topic_with(1)
    topic_admin.delete_topic(bench.store, bench.topic_name, bench.request())
    with pytest.raises(TopicNotLive):
        set_consumers(bench, STOCK)
    assert bench.scalar(_CONSUMERS) == "cleave"


def test_key_shared_is_refused_with_the_reason_and_reported_where_it_comes_later(bench: GatedBench) -> None:
    bench.topic_with(1, ())
    bench.gated.attach(bench.log_of(0), "billing", "Key_Shared", "a")
    topic = bench.store.in_transaction(topics.find_topic, bench.topic_name)
    with pytest.raises(
        Unsupported, match="used as Key_Shared: the broker may deliver a message of a child before"
    ):
        subscription_consumers.demand_stock(
            bench.store, bench.planes, topic, "billing", SubscriptionKind.STREAM
        )
    bench.subscribe_standard("billing")
    watch = ConsumerWatch(
        bench.store, bench.planes, interval_seconds=60.0, sealed_for_seconds=600.0, clock=SystemClock()
    )
    watch.round()

    assert bench.rows("SELECT DISTINCT reason FROM inspect.buckets") == [
        ("read as Key_Shared, which no gate keeps in order: use Failover or Exclusive",)
    ]
    assert bench.scalar("SELECT unordered_stock_subscriptions FROM inspect.health") == 1


def test_standard_consumers_at_the_broker_count_in_the_consumer_lane(bench: GatedBench) -> None:
    bench.stock_topic(2)
    bench.gated.attach(bench.log_of(0), "billing", "Failover", "a", "b")
    bench.gated.attach(bench.log_of(1), "billing", "Failover", "b", "c")
    watch = ConsumerWatch(
        bench.store, bench.planes, interval_seconds=60.0, sealed_for_seconds=600.0, clock=SystemClock()
    )
    watch.round()
    decided = autoscaler.run_pass(bench.store, bench.planes, {Lane.CONSUMER}, decided_by="test", limit=10)
    [operation_id] = decided.operation_ids
    operation = bench.drive(operation_id)

    assert bench.gate_rows() == {child.plan.segment_id: "closed" for child in operation.children}
    assert bench.rows("SELECT in_decisions, consumers FROM inspect.observed_consumers") == [("counts", 3)]


def test_the_field_changes_when_sealed_segments_are_read(bench: GatedBench) -> None:
    bench.topic_with(1)
    bench.publish(0)
    bench.reshape(splitting(0))

    with pytest.raises(Conflict, match=r"sealed segment\(s\) 0 .* are not read to their end"):
        set_consumers(bench, STOCK)


@pytest.mark.parametrize("state", [GateState.CLOSED, GateState.SPENT], ids=str)
def test_the_field_finds_the_gates_again_that_a_restored_database_has_forgotten(
    bench: GatedBench, state: GateState
) -> None:
    bench.stock_split()
    bench.gated.set_gate(bench.log_of(1), "billing", state)
    bench.execute("DELETE FROM cleave.gate")
    bench.execute("UPDATE cleave.subscription SET consumers = 'cleave'")

    set_consumers(bench, STOCK)
    assert bench.gate_rows() == {1: "closed", 2: "closed"}
    bench.read(0)
    bench.keep()
    assert bench.gate_rows() == {1: "open", 2: "open"}


def test_one_closed_gate_does_not_replace_another(bench: GatedBench) -> None:
    bench.stock_split()
    bench.execute("DELETE FROM cleave.gate")
    bench.execute("UPDATE cleave.subscription SET consumers = 'cleave'")
    bench.gated.set_gate(bench.log_of(1), "billing", None)

    with pytest.raises(Conflict, match=r"sealed segment\(s\) 0 .* have no gates"):
        set_consumers(bench, STOCK)
    assert bench.gate_rows() == {}


@pytest.mark.parametrize("kind", [SubscriptionKind.QUEUE, SubscriptionKind.CHECKPOINT])
def test_kinds_without_an_order_take_no_standard_consumers(bench: GatedBench, kind: SubscriptionKind) -> None:
    bench.topic_with(1, ())
    bench.finish(
        subscription_admin.create_subscription(
            bench.store, bench.topic_name, "billing", bench.request(), kind=kind
        )
    )
    with pytest.raises(Conflict, match=f"is of kind {kind}"):
        set_consumers(bench, STOCK)


def test_a_data_plane_without_gates_refuses_standard_consumers(database: str) -> None:
    bench = Bench(database)
    bench.topic_with(1)
    try:
        with pytest.raises(Unsupported, match=r"'embedded' of .* has no gates"):
            subscription_consumers.set_sharing(
                bench.store, bench.planes, bench.topic_name, "billing", consumers=STOCK
            )
    finally:
        bench.close()


def test_a_broker_that_cannot_keep_gates_says_why(bench: GatedBench) -> None:
    bench.topic_name = "topic://acme/shop/orders-without-policies"
    bench.topic_with(1)
    with pytest.raises(Unsupported, match="topicLevelPoliciesEnabled=true"):
        set_consumers(bench, STOCK)


def test_a_subscription_of_standard_consumers_always_waits_for_parents(bench: GatedBench) -> None:
    bench.stock_topic()
    with pytest.raises(Conflict, match="Standard consumers need gates only where order counts"):
        bench.execute("UPDATE cleave.subscription SET parents_block = false")


def seek(bench: GatedBench, name: str, target: SeekTarget) -> Operation:
    intent = subscription_admin.seek_subscription(
        bench.store, bench.topic_name, name, target, bench.request(), release_seconds=0.0
    )
    return bench.finish(intent)
