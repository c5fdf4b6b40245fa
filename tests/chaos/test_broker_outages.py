"""A real broker dies by SIGKILL around each step of a split and a merge, and comes back on the same data.

Producers and a consumer, processes of their own, are at work meanwhile. The operation ends, nothing acknowledged is
lost, each key stays in order, and producers wait no longer for an acknowledgement than the broker was away and a
runner's deadline together. The bookie waits for the disk before it answers, as Pulsar does by default.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path as FilePath

import pytest

from controller.devstack.postgres import PostgresServer
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.operation import OperationKind, OperationState
from controller.domain.operation_steps import Step
from controller.services.segment_admin import Planner, merging, splitting
from tests.chaos.cells import Path, steps_of
from tests.chaos.laws import check_writable
from tests.chaos.scene import Scene
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.faulty_data_plane import FaultyDataPlane

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]
MESSAGES_A_SECOND = 500
"""Of each producer."""
AUDIT = "audit"
"""A subscription that is read at the end only: what it is given is what the logs hold."""
DEADLINE_SECONDS = 600.0
"""Before the fence an operation gives up at its deadline: here it is not to, however slow the machine."""
RecordCell = Callable[..., None]
RecordFigure = Callable[[str], None]


class Moment(StrEnum):
    """Of a step, when the broker is struck."""

    BEFORE = "before"
    """The broker is gone when the step begins."""
    DURING = "during"
    """It is killed as the first of the step's data-plane calls is made."""
    AFTER = "after"
    """The step's calls are made, and its row is not written yet."""


@dataclass(frozen=True)
class Plan:
    """A reshape, the segments it begins with, and what it is called in the table of moves."""

    segments: int
    kind: OperationKind
    planner: Planner


@dataclass(frozen=True)
class BrokerCell:
    """Where the runner is when the broker dies."""

    plan: str
    step: Step
    moment: Moment

    def __str__(self) -> str:
        return f"{self.plan}-{self.step}-{self.moment}"


PLANS = {
    "split": Plan(1, OperationKind.SPLIT, splitting(0)),
    "merge": Plan(2, OperationKind.MERGE, merging(1, 0)),
}
CALLING = (Step.CREATE_CHILDREN, Step.TERMINATE_PARENTS, Step.FINISH)
"""The other two call nobody, and are recorded with the step before them: they have a beginning only."""
CELLS = tuple(
    BrokerCell(name, step, moment)
    for name, plan in PLANS.items()
    for step in steps_of(plan.kind, Path.FORWARD)
    for moment in (Moment if step in CALLING else (Moment.BEFORE,))
)
FAST = tuple(
    cell
    for cell in CELLS
    if cell.plan == "split" and (cell.step, cell.moment) == (Step.TERMINATE_PARENTS, Moment.DURING)
)


class Striker:
    """Kills the broker at one cell's point, once, and has it started again."""

    def __init__(self, server: PulsarStandalone, cell: BrokerCell) -> None:
        self._server, self._cell = server, cell
        self._steps = steps_of(PLANS[cell.plan].kind, Path.FORWARD)
        self._done: list[str] = []
        self._restart: threading.Thread | None = None
        self.away_seconds = 0.0

    @property
    def has_struck(self) -> bool:
        """Whether the runner came by."""
        return self._restart is not None

    def look(self, moment: Moment) -> None:
        """Strike if this is the point: of the step that comes next after those that are done."""
        if self.has_struck or len(self._done) == len(self._steps):
            return
        if (self._steps[len(self._done)], moment) == (self._cell.step, self._cell.moment):
            self._strike()

    def at_checkpoint(self, name: str) -> None:
        """The runner's: `:before` the commit of a step its calls are made, `:after` it the next step begins."""
        step, _, side = name.partition(":")
        if side == "before":
            self.look(Moment.AFTER)
            return
        self._done.append(step)
        self.look(Moment.BEFORE)

    def wait_back(self) -> None:
        """Until the broker is healthy again."""
        assert self._restart is not None, f"the runner never came by {self._cell}"
        self._restart.join()
        assert self._server.running, f"the broker did not come back; see {self._server.log}"

    def _strike(self) -> None:
        began = time.monotonic()
        os.kill(self._server.pid, signal.SIGKILL)  # whatever is asked next meets a process that is dying

        def bring_back() -> None:
            self._server.kill()  # what there is to tidy up
            self._server.start()
            self.away_seconds = time.monotonic() - began

        self._restart = threading.Thread(target=bring_back)
        self._restart.start()


@pytest.fixture
def url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """A database of the cell's own, which processes may still be connected to at the end."""
    name = f"cleave_outage_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


def check_broker_outage(
    cell: BrokerCell,
    server: PulsarStandalone,
    url: str,
    directory: FilePath,
    record_cell: RecordCell,
    record_figure: RecordFigure,
) -> None:
    """Kill the broker at the cell's point, once, and see the laws hold."""
    plan = PLANS[cell.plan]
    with ExitStack() as running:
        bench = Bench(url, PulsarTopic.fresh(server.admin_url, server.service_url, "outages"))
        running.callback(bench.close)
        scene = Scene(bench, directory, running, rate=MESSAGES_A_SECOND)
        scene.begin(plan.segments, unread_by=(AUDIT,))
        striker = Striker(server, cell)
        plane = FaultyDataPlane(bench.planes["pulsar"])
        plane.before_call = lambda _call, _number: striker.look(Moment.DURING)
        context = bench.context(planes={"pulsar": plane.as_data_plane()}, checkpoint=striker.at_checkpoint)
        request = bench.request(deadline_seconds=DEADLINE_SECONDS)
        operation_id = bench.intend(plan.planner, request).operation.operation_id

        striker.look(Moment.BEFORE)
        scene.drive(operation_id, context)
        striker.wait_back()
        scene.advance()
        verdict = scene.judge()

        assert verdict.in_order_and_complete, verdict
        assert verdict.sent > 0
        stored = scene.stored(AUDIT)
        assert (len(stored), len(set(stored))) == (verdict.sent, verdict.sent), "each is stored once"
        assert bench.operation(operation_id).state is OperationState.DONE
        pause_ms = scene.longest_pause_ms
        check_writable(bench, pause_ms, striker.away_seconds)
        findings = bench.settle()
        bench.check_laws()
    record_cell(
        plane="pulsar", fault="broker killed", scenario=cell.plan, path=Path.FORWARD,
        at=str(cell).removeprefix(f"{cell.plan}-"), ended="done", findings=len(findings), unwritable_ms=pause_ms,
    )  # fmt: skip
    record_figure(
        f"{cell}: broker away {striker.away_seconds:.1f} s, longest pause {pause_ms} ms; {verdict.summary}"
    )


@pytest.mark.parametrize("cell", FAST, ids=str)
def test_fast_subset_a_broker_that_dies_under_traffic_costs_nothing(
    cell: BrokerCell,
    killable_broker: PulsarStandalone,
    url: str,
    tmp_path: FilePath,
    record_cell: RecordCell,
    record_figure: RecordFigure,
) -> None:
    check_broker_outage(cell, killable_broker, url, tmp_path, record_cell, record_figure)


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_broker_that_dies_under_traffic_costs_nothing(
    cell: BrokerCell,
    killable_broker: PulsarStandalone,
    url: str,
    tmp_path: FilePath,
    record_cell: RecordCell,
    record_figure: RecordFigure,
) -> None:
    check_broker_outage(cell, killable_broker, url, tmp_path, record_cell, record_figure)


def test_the_cells_cover_every_step_of_a_split_and_a_merge() -> None:
    assert len(FAST) == 1
    for name, plan in PLANS.items():
        struck = {cell.step for cell in CELLS if cell.plan == name}
        assert struck == set(steps_of(plan.kind, Path.FORWARD))
