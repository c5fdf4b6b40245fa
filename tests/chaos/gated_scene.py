"""Scenarios of the kill matrix with standard consumers: the operations during which a runner or a gate keeper is killed, and the checks.

The scenarios run on embedded logs with fake gates, and on a real broker. The invariant: a gate of an ACTIVE or sealed segment is never open
while an ancestor has unread messages, and in the end every gate opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.clock import SystemClock
from controller.dataplane.gates import GatedDataPlane
from controller.domain.gate_states import GateState
from controller.domain.operation import OperationKind, OperationState
from controller.domain.seek_target import EARLIEST
from controller.domain.segment import SegmentState
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.services import subscription_admin
from controller.services.gate_keeper import GateKeeper
from controller.services.segment_admin import merging, rebucketing, recutting, splitting
from tests.chaos.cells import Cell, Path, Side, begins_at, paths_of, steps_of
from tests.chaos.laws import unwritable_ms_of
from tests.chaos.scenarios import Scenario, operation_of, reshaping
from tests.chaos.strikes import Matrix, ended_as, pass_deadline
from tests.support.bench import Bench
from tests.support.gated_logs import ALL

MESSAGES = 3
_GATES = "SELECT segment_id, state FROM cleave.gate WHERE subscription = :name ORDER BY 1"


def subscribe(bench: Bench, name: str, key: str | None = None) -> int:
    """Write the intent to create a subscription of standard consumers. Return the operation's id."""
    return subscription_admin.create_subscription(
        bench.store,
        bench.topic_name,
        name,
        bench.request(key),
        consumers=SubscriptionConsumers.STOCK,
    ).operation.operation_id


def a_topic(segments: int) -> Callable[[Bench], None]:
    """Return a preparation that creates a topic with `segments` segments, unread messages and a subscription of standard consumers."""

    def prepare(bench: Bench) -> None:
        bench.topic_with(segments, ())
        bench.drive(subscribe(bench, "billing"))
        for segment_id in range(segments):
            bench.publish(segment_id, MESSAGES)

    return prepare


def a_split_topic(bench: Bench) -> None:
    """Prepare a split topic whose gates are open. The subscription has read the parent and the children."""
    a_topic(1)(bench)
    bench.reshape(splitting(0))
    bench.plane.skip_all(bench.log_of(0), "billing")
    open_gates(bench)
    for segment_id in (1, 2):
        bench.publish(segment_id, MESSAGES)
        bench.plane.skip_all(bench.log_of(segment_id), "billing")


def an_unread_split(bench: Bench) -> None:
    """Prepare a split topic with an unread parent. The gates of the children are closed."""
    a_topic(1)(bench)
    bench.reshape(splitting(0))


def seeking(bench: Bench, key: str) -> int:
    """Write the intent to move the subscription back to the beginning. Return the operation's id."""
    return subscription_admin.seek_subscription(
        bench.store, bench.topic_name, "billing", EARLIEST, bench.request(key), release_seconds=0.0
    ).operation.operation_id


def unsubscribing(bench: Bench, key: str) -> int:
    """Write the intent to delete the subscription, whose gates are closed. Return the operation's id."""
    return subscription_admin.delete_subscription(
        bench.store, bench.topic_name, "billing", bench.request(key)
    ).operation.operation_id


SCENARIOS = (
    Scenario("gated-split", OperationKind.SPLIT, a_topic(1), reshaping(splitting(0))),
    Scenario("gated-merge", OperationKind.MERGE, a_topic(2), reshaping(merging(0, 1))),
    Scenario("gated-rebucket", OperationKind.REBUCKET, a_topic(1), reshaping(rebucketing(0, 8))),
    Scenario("gated-recut", OperationKind.RECUT, a_topic(2), reshaping(recutting([0, 1], [9000, 40000]))),
    Scenario("gated-seek", OperationKind.SEEK, a_split_topic, seeking),
    Scenario(
        "gated-subscribe",
        OperationKind.SUBSCRIPTION_CREATE,
        an_unread_split,
        lambda bench, key: subscribe(bench, "audit", key),
    ),
    Scenario("gated-unsubscribe", OperationKind.SUBSCRIPTION_DELETE, an_unread_split, unsubscribing),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
CELLS = tuple(
    Cell(scenario.name, scenario.kind, path, step, side)
    for scenario in SCENARIOS
    for path in paths_of(scenario.kind)
    if not (path is Path.ABORT and not scenario.kind.is_reshape)
    for step in steps_of(scenario.kind, path)
    for side in Side
)


def begin(bench: Bench, scenario: Scenario, path: Path = Path.FORWARD) -> int:
    """Run the scenario's operation up to the step at which the path begins. Return the operation's id."""
    scenario.prepare(bench)
    operation_id = scenario.intend(bench, "asked")
    assert operation_of(bench, operation_id) is scenario.kind
    if path is not Path.FORWARD:
        bench.run_until(operation_id, begins_at(scenario.kind, path))
    if path is Path.SYNC:
        subscribe(bench, "late")
    if path is Path.ABORT:
        pass_deadline(bench, operation_id)
    return operation_id


def settle_and_check(bench: Bench, scenario: Scenario, operation_id: int) -> dict[str, Any]:
    """Run all operations to their end, then read all messages until every gate is open. Check throughout that no gate opens too early.

    Return the figures that the matrix records for the cell.
    """
    check_no_gate_is_early(bench)
    operation, unwritable_ms = bench.operation(operation_id), unwritable_ms_of(bench, operation_id)
    findings = bench.settle()
    bench.check_laws()
    assert not operation.state.is_live
    if operation.state is OperationState.ABORTED:
        assert bench.rows("SELECT * FROM cleave.gate") == []
    keeper_of(bench).round()
    check_no_gate_is_early(bench)
    read_and_open(bench)
    return {
        "plane": bench.plane.name,
        "ended": str(operation.state),
        "findings": len(findings),
        "unwritable_ms": unwritable_ms,
    }


def check_no_gate_is_early(bench: Bench) -> None:
    """Assert that the gate of each segment is closed at the data plane while an ancestor of the segment has unread messages."""
    plane, layout = gated(bench), bench.layout
    for name in stock(bench):
        unread = {
            i
            for i, segment in layout.segments.items()
            if segment.state is SegmentState.SEALED and plane.backlog(bench.log_of(i), name)
        }
        for segment_id in layout.segments:
            if layout.ancestors(segment_id) & unread and has_cursor(bench, segment_id, name):
                state = plane.gate_state(bench.log_of(segment_id), name)
                assert (segment_id, state) == (segment_id, GateState.CLOSED)


def read_and_open(bench: Bench) -> None:
    """Read all sealed segments whose gates are open, ancestors first, and keep the gates until every gate is open."""

    def is_over() -> bool:
        waiting = keeper_of(bench).round()
        for name in stock(bench):
            shut = {i for i, state in bench.rows(_GATES, name=name) if state != "open"}
            for segment_id, segment in sorted(bench.layout.segments.items()):
                if segment.state is SegmentState.SEALED and segment_id not in shut:
                    bench.plane.skip_all(bench.log_of(segment_id), name)
        check_no_gate_is_early(bench)
        return waiting == 0

    bench.wait_until(is_over, message="every gate is open")
    for name in stock(bench):
        for segment_id, state in bench.rows(_GATES, name=name):
            assert (segment_id, state) == (segment_id, "open")
            assert gated(bench).gate_state(bench.log_of(segment_id), name) is GateState.OPEN


def open_gates(bench: Bench) -> None:
    """Run a gate keeper until no gate is shut."""
    bench.wait_until(lambda: keeper_of(bench).round() == 0, message="every gate is open")


def keeper_of(bench: Bench) -> GateKeeper:
    """Return a new gate keeper, which checks every gate in its first round."""
    return GateKeeper(bench.store, bench.looking, lambda: ALL, SystemClock())


def gated(bench: Bench) -> GatedDataPlane:
    """Return the bench's data plane as one that has gates."""
    assert isinstance(bench.plane, GatedDataPlane)
    return bench.plane


def stock(bench: Bench) -> list[str]:
    """Return the names of the live subscriptions of standard consumers."""
    statement = "SELECT name FROM cleave.subscription WHERE consumers = 'stock' AND state = 'live' ORDER BY 1"
    return [row[0] for row in bench.rows(statement)]


def has_cursor(bench: Bench, segment_id: int, name: str) -> bool:
    """Return True if the segment's log has the subscription. An unfinished operation may not have created the subscription yet."""
    return name in bench.plane.list_subscriptions(bench.log_of(segment_id))


MATRIX = Matrix(BY_NAME, begin, settle_and_check, ended_as)
