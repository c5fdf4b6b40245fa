"""The cells of the kill matrix, enumerated from the domain's own table of moves: nothing can be forgotten here.

A path is a way through the table: forward; with subscriptions that changed meanwhile; giving up. A cell is a
scenario, a path, a step and a side of that step's commit. An outage cell strikes there not the runner but the database
under it, and under producers and consumers at work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from controller.domain.hash_range import FULL_RANGE
from controller.domain.next_step import Observed, abortable_states, next_step
from controller.domain.operation import OperationKind, OperationState, ReservedChild
from controller.domain.operation_steps import MOVES, Step
from controller.domain.reshape import ChildPlan
from tests.chaos.scenarios import SCENARIOS
from tests.support.operations import make_operation


class Path(StrEnum):
    """How an operation goes."""

    FORWARD = "forward"
    SYNC = "sync"
    """A subscription is created between the announcement of the fence and the commit."""
    ABORT = "abort"
    """Its deadline passes when the children are made; a seek is given up by hand while it waits."""


_BEGINS_AT = {
    Path.FORWARD: OperationState.INTENDED,
    Path.SYNC: OperationState.FENCING,
    Path.ABORT: OperationState.PREPARED,
}


def begins_at(kind: OperationKind, path: Path) -> OperationState:
    """The state to which an operation is brought before it goes that way."""
    state = _BEGINS_AT[path]
    return state if path is not Path.ABORT or state in abortable_states(kind) else OperationState.INTENDED


class Side(StrEnum):
    """Of a step's commit."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Cell:
    """Where the runner is struck."""

    scenario: str
    kind: OperationKind
    path: Path
    step: Step
    side: Side

    @property
    def checkpoint(self) -> str:
        """As the runner names it."""
        return f"{self.step}:{self.side}"

    def __str__(self) -> str:
        return f"{self.scenario}-{self.path}-{self.step}-{self.side}"


def paths_of(kind: OperationKind) -> list[Path]:
    """Those its table knows; a topic being created cannot get subscriptions."""
    paths = [Path.FORWARD]
    if kind.is_reshape:
        paths.append(Path.SYNC)
    if abortable_states(kind) & MOVES[kind].keys() and OperationState.ABORTING in MOVES[kind]:
        paths.append(Path.ABORT)
    return paths


def steps_of(kind: OperationKind, path: Path) -> list[Step]:
    """The steps a runner takes on that path, in order; those before the path begins are left to `FORWARD`."""
    children = (
        (ReservedChild(ChildPlan(1, FULL_RANGE), "log"),) if OperationState.PREPARED in MOVES[kind] else ()
    )
    state = begins_at(kind, path)
    operation = make_operation(kind, state, children=children, subscription_version=0)
    observed = Observed(now_ms=0, subscription_version=0)
    if path is Path.SYNC:
        observed = replace(observed, subscription_version=1)
    if path is Path.ABORT:
        observed = replace(observed, abort_requested=True)
    steps: list[Step] = []
    while operation.state.is_live:
        step, leads_to = next_step(operation, observed)
        steps.append(step)
        if step is Step.SYNC_SUBSCRIPTIONS or (path is Path.FORWARD and step is Step.CREATE_CHILDREN):
            operation = replace(operation, subscription_version=observed.subscription_version)
        operation = replace(operation, state=leads_to)
    return steps


class Outage(StrEnum):
    """Of the database: control tables, embedded logs and everybody's connections are in it."""

    SERVER_CRASH = "server crash"
    """The server is killed without a shutdown, and started again on the same data."""
    CONNECTIONS_CUT = "connections cut"
    """Every connection is ended, the runner's, the producers' and the consumers', while the server goes on."""


@dataclass(frozen=True)
class OutageCell:
    """Where a runner is when the database fails."""

    outage: Outage
    cell: Cell

    def __str__(self) -> str:
        return f"{self.outage.replace(' ', '-')}-{self.cell}"


CELLS = tuple(
    Cell(scenario.name, scenario.kind, path, step, side)
    for scenario in SCENARIOS
    for path in paths_of(scenario.kind)
    for step in steps_of(scenario.kind, path)
    for side in Side
    if not (path is Path.SYNC and step is not Step.SYNC_SUBSCRIPTIONS)  # the rest of it is the forward path
)
FAST_CELLS = tuple(
    cell
    for cell in CELLS
    if cell.scenario == "split"
    and (cell.step, cell.side)
    in {
        (Step.CREATE_CHILDREN, Side.BEFORE),
        (Step.TERMINATE_PARENTS, Side.BEFORE),
        (Step.SYNC_SUBSCRIPTIONS, Side.AFTER),
        (Step.COMMIT, Side.BEFORE),
        (Step.COMMIT, Side.AFTER),
        (Step.ABORT, Side.AFTER),
    }
)
OUTAGE_CELLS = tuple(
    OutageCell(outage, cell)
    for outage in Outage
    for cell in CELLS
    if cell.scenario in ("split", "merge") and cell.path is Path.FORWARD
)
FAST_OUTAGE_CELLS = tuple(
    one
    for one in OUTAGE_CELLS
    if one.cell.scenario == "split"
    and (one.outage, one.cell.step, one.cell.side)
    in {
        (Outage.SERVER_CRASH, Step.TERMINATE_PARENTS, Side.AFTER),
        (Outage.CONNECTIONS_CUT, Step.COMMIT, Side.BEFORE),
    }
)


def every_move() -> set[tuple[OperationKind, Step]]:
    """All pairs of kind and step there are, but for those that only a refusal of the data plane leads to: see
    `test_refusals`.
    """
    moves = {
        (kind, step)
        for kind, table in MOVES.items()
        for step, _leads_to in table.values()
        if step is not Step.FINISH_ABORT or abortable_states(kind)
    }
    moves |= {(kind, Step.SYNC_SUBSCRIPTIONS) for kind in MOVES if kind.is_reshape}
    return moves | {
        (kind, Step.ABORT)
        for kind, table in MOVES.items()
        if OperationState.ABORTING in table and abortable_states(kind) & table.keys()
    }
