"""A runner struck at one point of one operation, and what is checked afterwards; on any data plane.

The kill matrix parametrizes these over its cells, with a bench on the embedded logs or on a broker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any

from controller.domain.operation import OperationKind, OperationState
from controller.domain.operation_steps import Step
from controller.services import subscription_admin
from controller.services.operation_runner import Outcome
from tests.chaos.cells import Cell, Path, begins_at
from tests.chaos.laws import settle_and_check
from tests.chaos.scenarios import BY_NAME, Scenario, operation_of
from tests.support.bench import Bench
from tests.support.gated_logs import GatedBench

ROOT = FilePath(__file__).parents[2]
LAST_STEPS = (Step.FINISH, Step.FINISH_ABORT)
NewBench = Callable[[], Bench]
RecordCell = Callable[..., None]


def start(module: str, **arguments: object) -> subprocess.Popen[str]:
    """Start a process of this package."""
    command = [sys.executable, "-m", f"tests.chaos.{module}", json.dumps(arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def start_victim(bench: Bench, at: str, by: str, operation_id: int | None = None) -> subprocess.Popen[str]:
    """Start a runner of that operation, or without one of whatever is due, that strikes itself there."""
    return start("victim", operation_id=operation_id, at=at, by=by, **where_of(bench))


def where_of(bench: Bench) -> dict[str, object]:
    """Arguments that tell another process what the bench stands on."""
    pulsar = None if bench.pulsar is None else asdict(bench.pulsar)
    return {"url": bench.url, "pulsar": pulsar, "gated": isinstance(bench, GatedBench)}


def kill_at(bench: Bench, operation_id: int, at: str) -> bool:
    """Have a runner killed there; False when it ended without coming by."""
    victim = start_victim(bench, at, "SIGKILL", operation_id)
    victim.communicate()
    assert victim.returncode in (0, -signal.SIGKILL)
    return victim.returncode != 0


def pause_at(
    bench: Bench, operation_id: int, at: str, meanwhile: Callable[[], object] = lambda: None
) -> Outcome | None:
    """Have a runner paused there, another finish, and the first woken: how it ended. None: it never came by.

    `meanwhile` happens before the other takes over.
    """

    def others() -> None:
        meanwhile()
        bench.drive(operation_id)
        bench.settle()

    answer = pause(start_victim(bench, at, "SIGSTOP", operation_id), others)
    return None if answer is None else Outcome(answer.split()[-1])


def pause(victim: subprocess.Popen[str], others: Callable[[], object]) -> str | None:
    """Let others act while the victim is stopped, wake it and let it end: what it printed. None: it never stopped.

    Its process group must not be an orphan: the kernel wakes the stopped members of such a one.
    """
    try:
        status = os.waitid(os.P_PID, victim.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if status is None or status.si_code != os.CLD_STOPPED:
            victim.communicate()
            assert victim.returncode == 0
            return None
        others()
        victim.send_signal(signal.SIGCONT)
        answer, _ = victim.communicate()
        assert victim.returncode == 0
        return answer
    finally:
        if victim.poll() is None:
            victim.kill()
            victim.communicate()


def begin(bench: Bench, scenario: Scenario, path: Path = Path.FORWARD) -> int:
    """Bring the scenario to where the path begins; returns the operation's id."""
    scenario.prepare(bench)
    operation_id = scenario.intend(bench, "asked")
    assert operation_of(bench, operation_id) is scenario.kind
    if path is not Path.FORWARD:
        bench.run_until(operation_id, begins_at(scenario.kind, path))
    if path is Path.SYNC:
        subscription_admin.create_subscription(bench.store, bench.topic_name, "late", bench.request())
    if path is Path.ABORT and scenario.kind is OperationKind.SEEK:
        subscription_admin.give_up_seek(
            bench.store, bench.topic_name, "billing", actor="ada", reason="a mistake"
        )
    elif path is Path.ABORT:
        pass_deadline(bench, operation_id)
    return operation_id


def pass_deadline(bench: Bench, operation_id: int) -> None:
    """Let the operation's time run out."""
    bench.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1"
        " WHERE operation_id = :operation_id",
        operation_id=operation_id,
    )


@dataclass(frozen=True, slots=True)
class Matrix:
    """What one kill matrix has of its own: how a scenario begins, what must hold at its end, and how it ends."""

    scenarios: Mapping[str, Scenario]
    begin: Callable[[Any, Scenario, Path], int]
    settle_and_check: Callable[[Any, Scenario, int], dict[str, Any]]
    ended_as: Callable[[Scenario, Path], str]


def ended_as(_scenario: Scenario, path: Path) -> str:
    """How an operation ends when every fault was one of ours."""
    return "aborted" if path is Path.ABORT else "done"


OF_LOGS = Matrix(BY_NAME, begin, settle_and_check, ended_as)
"""Of topics whose layout Cleave keeps."""


def check_killed(bench: Bench, cell: Cell, record_cell: RecordCell, matrix: Matrix = OF_LOGS) -> None:
    """Killed there, resumed by another."""
    scenario = matrix.scenarios[cell.scenario]
    operation_id = matrix.begin(bench, scenario, cell.path)
    assert kill_at(bench, operation_id, cell.checkpoint)
    bench.drive(operation_id)
    row = matrix.settle_and_check(bench, scenario, operation_id)
    assert row["ended"] == matrix.ended_as(scenario, cell.path)
    record_cell(fault="killed", scenario=cell.scenario, path=cell.path, at=cell.checkpoint, **row)


def check_paused(bench: Bench, cell: Cell, record_cell: RecordCell, matrix: Matrix = OF_LOGS) -> None:
    """Paused there, woken after another has finished: it must be refused."""
    scenario = matrix.scenarios[cell.scenario]
    operation_id = matrix.begin(bench, scenario, cell.path)
    outcome = pause_at(bench, operation_id, cell.checkpoint)
    nothing_left = cell.step in LAST_STEPS and cell.side == "after"
    assert outcome is (Outcome.FINISHED if nothing_left else Outcome.FENCED_OUT), outcome
    row = matrix.settle_and_check(bench, scenario, operation_id)
    assert row["ended"] == matrix.ended_as(scenario, cell.path)
    record_cell(fault="paused", scenario=cell.scenario, path=cell.path, at=cell.checkpoint, **row)


def check_killed_at_each_call(
    scenario: Scenario, new_bench: NewBench, record_cell: RecordCell, matrix: Matrix = OF_LOGS
) -> int:
    """Killed just before its first data-plane call, then before its second, as long as there is one; how many."""
    number, struck = 0, True
    while struck:
        number += 1
        bench = new_bench()
        operation_id = matrix.begin(bench, scenario, Path.FORWARD)
        struck = kill_at(bench, operation_id, f"call:{number}")
        bench.drive(operation_id)
        row = matrix.settle_and_check(bench, scenario, operation_id)
        assert row["ended"] == matrix.ended_as(scenario, Path.FORWARD)
        if struck:
            record_cell(fault="killed", scenario=scenario.name, path=Path.FORWARD, at=f"call:{number}", **row)
    return number - 1


def check_late_calls(
    scenario: Scenario, new_bench: NewBench, record_cell: RecordCell, matrix: Matrix = OF_LOGS
) -> int:
    """The runner is paused between its last look at the claim and the call: nothing can refuse that call. How many."""
    number, outcome = 0, None
    while number == 0 or outcome is not None:
        number += 1
        bench = new_bench()
        operation_id = matrix.begin(bench, scenario, Path.FORWARD)
        outcome = pause_at(bench, operation_id, f"call:{number}")
        assert outcome in (None, Outcome.FENCED_OUT), outcome
        row = matrix.settle_and_check(bench, scenario, operation_id)
        if outcome is not None:
            assert row["ended"] == matrix.ended_as(scenario, Path.FORWARD)
            record_cell(
                fault="late call", scenario=scenario.name, path=Path.FORWARD, at=f"call:{number}", **row
            )
    return number - 1


def check_calls_after_giving_up(scenario: Scenario, new_bench: NewBench, record_cell: RecordCell) -> None:
    """The worst of late calls: the operation is aborted and its deletion_entries are closed when a child is created."""
    number, gave_up = 0, True
    while gave_up:
        number += 1
        bench = new_bench()
        operation_id = begin(bench, scenario)

        def give_up(bench: Bench = bench, operation_id: int = operation_id) -> None:
            pass_deadline(bench, operation_id)
            bench.drive(operation_id)
            bench.wait_until(lambda: bench.settle() == [] and not bench.open_deletion_entries())

        pause_at(bench, operation_id, f"call:{number}", give_up)
        gave_up = bench.operation(operation_id).state is OperationState.ABORTED
        row = settle_and_check(bench, scenario, operation_id)
        if gave_up:
            record_cell(
                fault="late call", scenario=scenario.name, path=Path.ABORT, at=f"call:{number}", **row
            )
    assert number > 1
