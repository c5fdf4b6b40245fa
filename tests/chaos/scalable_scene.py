"""What the kill matrix acts on where the broker keeps the layout: scenarios, cells, and the laws afterwards.

The counterpart of `scenarios`, `cells` and `laws` for operations marked `on_broker`, enumerated from their own table of
moves. An operation here leaves no logs behind: what can go wrong is an act done twice, rows that say something else than
the broker, and a broker's auto-scaler that stays off, or on, for a topic it should not.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from controller.dataplane.layout_keeper import LayoutKeeper
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import TopicNotFound
from controller.domain.next_step import ABORTABLE, Observed, abortable_states, next_step
from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_steps import MIRROR_MOVES, Step
from controller.services import mirror, segment_admin, topic_admin
from controller.services.operation_runner import run_due
from controller.services.reconciler import Finding
from controller.store.mirrors import mirrors
from controller.store.topics.topics import TopicState
from tests.chaos.cells import Cell, Path, Side
from tests.chaos.laws import unwritable_ms_of
from tests.chaos.scenarios import Scenario, creating, deleting, operation_of, reshaping
from tests.chaos.strikes import Matrix, pass_deadline
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.benches import benches
from tests.support.brokers import SharedBroker
from tests.support.operations import make_operation

BEFORE: Mapping[str, object] = {"enabled": True, "maxSegments": 7}
"""The broker's auto-scaler of a topic that Cleave does not know yet."""
OFF: Mapping[str, object] = {"enabled": False}
REFUSED = frozenset({OperationKind.REBUCKET})
"""Kinds that 5.0.0-M1 has no call for: what is asked of it there is given up."""


class ScalableBench(Bench):
    """A bench on a scalable topic of its own on Pulsar 5, which is not made yet."""

    def __init__(self, url: str, broker: SharedBroker) -> None:
        name = f"topic://public/default/chaos-{secrets.token_hex(6)}"
        super().__init__(url, PulsarTopic(broker.admin_url, broker.service_url, name, keeps_layout=True))
        self.epoch_before = 0

    @property
    def keeper(self) -> LayoutKeeper:
        """The broker, with a test's patience."""
        return cast(LayoutKeeper, self.plane)

    def settle(self, *, collects: bool = False) -> list[Finding]:
        """Run and mirror until nothing is left to do; no reconciler looks after these topics."""

        def settled() -> bool:
            while run_due(self.context("settler")):
                pass
            if self.topic.state is TopicState.LIVE:
                mirror.follow(self.store, self.looking, self.topic_id)
            return not self.live_operations()

        self.wait_until(settled, message="nothing is left to do")
        return []


def scalable_benches(
    server: PostgresServer, template: str, broker: SharedBroker
) -> Iterator[Callable[[], ScalableBench]]:
    """Yield a function that builds a bench with a database and a topic of its own; delete both at the end."""
    return benches(
        server,
        template,
        lambda url: ScalableBench(url, broker),
        lambda bench: bench.keeper.delete_topic(bench.topic_name),
    )


def make_topic(bench: Bench) -> None:
    """Two segments, and an auto-scaler set by somebody."""
    keeper = cast(LayoutKeeper, bench.plane)
    keeper.create_topic(bench.topic_name, 2)
    keeper.set_auto_scaler(bench.topic_name, BEFORE)


def attached(bench: Bench) -> None:
    """That topic, attached."""
    make_topic(bench)
    bench.drive(attaching(bench, "attach"))


def attaching(bench: Bench, key: str) -> int:
    """Intend to take the topic over."""
    return topic_admin.attach_topic(
        bench.store, bench.planes, bench.topic_name, bench.request(key), data_plane=bench.plane.name
    ).operation.operation_id


def detaching(bench: Bench, key: str) -> int:
    """Intend to give it back."""
    return topic_admin.detach_topic(bench.store, bench.topic_name, bench.request(key)).operation.operation_id


SCENARIOS = (
    Scenario("attach", OperationKind.ATTACH, make_topic, attaching),
    Scenario("create", OperationKind.ATTACH, lambda bench: None, creating),
    Scenario("split", OperationKind.SPLIT, attached, reshaping(segment_admin.splitting(0))),
    Scenario("merge", OperationKind.MERGE, attached, reshaping(segment_admin.merging(0, 1))),
    Scenario("rebucket", OperationKind.REBUCKET, attached, reshaping(segment_admin.rebucketing(0, 8))),
    Scenario("detach", OperationKind.DETACH, attached, detaching),
    Scenario("delete", OperationKind.DELETE, attached, deleting),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ABORTABLES = tuple(one for one in SCENARIOS if abortable_states(one.kind))


def last_abortable(kind: OperationKind) -> OperationState:
    """The latest state in which it can be given up: as much as possible is there to be undone."""
    moves, state = MIRROR_MOVES[kind], OperationState.INTENDED
    while (after := moves[state][1]) in ABORTABLE:
        state = after
    return state


def steps_of(kind: OperationKind, path: Path) -> list[Step]:
    """The steps that are recorded on that path, in order; what the broker refuses is given up at its first."""
    gives_up = path is Path.ABORT or kind in REFUSED
    state = last_abortable(kind) if gives_up else OperationState.INTENDED
    operation = make_operation(kind, state, on_broker=True)
    observed = Observed(now_ms=0, subscription_version=0, abort_requested=gives_up)
    steps: list[Step] = []
    while operation.state.is_live:
        step, leads_to = next_step(operation, observed)
        steps.append(step)
        operation = replace(operation, state=leads_to)
    return steps


def paths_of(kind: OperationKind) -> list[Path]:
    """Forward, and giving up where its table knows that and nobody has to wait for the broker's refusal."""
    can_be_given_up = bool(abortable_states(kind)) and kind not in REFUSED
    return [Path.FORWARD, Path.ABORT] if can_be_given_up else [Path.FORWARD]


CELLS = tuple(
    Cell(scenario.name, scenario.kind, path, step, side)
    for scenario in SCENARIOS
    for path in paths_of(scenario.kind)
    for step in steps_of(scenario.kind, path)
    for side in Side
)


def every_move() -> set[tuple[OperationKind, Step]]:
    """All pairs of kind and step that the table for topics on a broker has, but for those that only a refusal leads to."""
    moves = {
        (kind, step)
        for kind, table in MIRROR_MOVES.items()
        for step, _leads_to in table.values()
        if step is not Step.FINISH_ABORT or abortable_states(kind)
    }
    return moves | {(kind, Step.ABORT) for kind in MIRROR_MOVES if abortable_states(kind)}


def begin(bench: ScalableBench, scenario: Scenario, path: Path = Path.FORWARD) -> int:
    """Bring the scenario to where the path begins; returns the operation's id."""
    scenario.prepare(bench)
    bench.epoch_before = epoch_of(bench) or 0
    operation_id = scenario.intend(bench, "asked")
    assert operation_of(bench, operation_id) is scenario.kind
    if path is Path.ABORT:
        if last_abortable(scenario.kind) is not OperationState.INTENDED:
            bench.run_until(operation_id, last_abortable(scenario.kind))
        pass_deadline(bench, operation_id)
    return operation_id


def epoch_of(bench: ScalableBench) -> int | None:
    """The broker's, or None where it has no such topic."""
    try:
        return bench.keeper.read_layout(bench.topic_name).epoch
    except TopicNotFound:
        return None


_CHANGES = "SELECT count(*) FROM cleave.layout_change WHERE operation_id = :operation_id"
_BY_KEY = "SELECT count(*) FROM cleave.operation WHERE request_key = 'asked'"
_ACTIVE = "SELECT count(*) FROM cleave.segment WHERE topic_id = :topic_id AND state = 'ACTIVE'"
_MIRRORS = "SELECT count(*) FROM cleave.mirror WHERE topic_id = :topic_id"
_UNCOVERED = "SELECT count(*) FROM inspect.uncovered_ranges"


def settle_and_check(bench: ScalableBench, scenario: Scenario, operation_id: int) -> dict[str, Any]:
    """Let everything end, check every law, and return the columns of the table that are known by then.

    No operation here closes a range for us to count: the broker moves a layout at once, and what the journal says of
    fences (nothing) is what goes into the table.
    """
    findings = bench.settle()
    operation = bench.operation(operation_id)
    assert not operation.state.is_live
    assert bench.scalar(_BY_KEY) == 1
    changes = bench.scalar(_CHANGES, operation_id=operation_id)
    acts = 0 if (epoch := epoch_of(bench)) is None else epoch - bench.epoch_before
    if scenario.kind.is_reshape:
        # Given up here, it may yet have been done there: once, and known to be ours.
        assert changes == acts <= 1
        assert acts == 1 or operation.state is OperationState.ABORTED
    else:
        assert (acts, changes) == (0, int(operation.state is OperationState.DONE))
    if bench.topic.state is TopicState.LIVE:
        _check_attached(bench)
    else:
        _check_left(bench, scenario, operation)
    assert bench.scalar(_UNCOVERED) == 0
    return {
        "plane": bench.plane.name,
        "ended": str(operation.state),
        "findings": len(findings),
        "unwritable_ms": unwritable_ms_of(bench, operation_id),
    }


def _check_attached(bench: ScalableBench) -> None:
    """Rows and broker say the same, the ring is tiled, and the broker's own controller is off."""
    here, there = bench.layout, bench.keeper.read_layout(bench.topic_name)
    here.check_invariants()
    assert here.segments == there.segments
    assert (here.epoch, here.next_segment_id) == (there.epoch, there.next_segment_id)
    assert bench.keeper.auto_scaler(bench.topic_name) == OFF
    with bench.store.transaction() as tx:
        found = mirrors.get_mirror(tx, bench.topic_id)
    assert found is not None
    assert found.paused_reason is None


def _check_left(bench: ScalableBench, scenario: Scenario, operation: Operation) -> None:
    """Nothing of it is ours any more, and the broker's own controller is as somebody set it."""
    assert bench.topic.state is TopicState.DELETED
    assert bench.scalar(_ACTIVE, topic_id=bench.topic_id) == 0
    assert bench.scalar(_MIRRORS, topic_id=bench.topic_id) == 0
    is_there = epoch_of(bench) is not None
    if scenario.name == "create":
        assert not is_there or bench.keeper.auto_scaler(bench.topic_name) is None
    else:
        assert is_there is (operation.kind is not OperationKind.DELETE)
        assert not is_there or bench.keeper.auto_scaler(bench.topic_name) == BEFORE


def ended_as(scenario: Scenario, path: Path) -> str:
    """How the operation ends when every fault was one of ours."""
    return "aborted" if path is Path.ABORT or scenario.kind in REFUSED else "done"


MATRIX = Matrix(BY_NAME, begin, settle_and_check, ended_as)
