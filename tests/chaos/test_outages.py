"""The database fails under a reshape while producers and consumers, processes of their own, are at work.

Nothing acknowledged is lost, each key stays in order, and no range is without a writable log for longer than the
outage, a takeover and the deadline together. Commits that do not wait for the disk are lost with a crash.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path as FilePath

import pytest

from controller.devstack.postgres import EmbeddedPostgres
from controller.domain.operation import OperationState
from tests.chaos.cells import FAST_OUTAGE_CELLS, OUTAGE_CELLS, Outage, OutageCell, Path, Side, steps_of
from tests.chaos.laws import check_writable, takeover_seconds, unwritable_ms_of
from tests.chaos.scenarios import BY_NAME
from tests.chaos.scene import Scene
from tests.support.bench import Bench
from tests.support.migrated import migrate_to_pip483
from tests.support.scratch import scratch

pytestmark = pytest.mark.timeout(300)
RELUCTANT = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
"""Commits that do not wait for the disk are forgotten in a crash for as long as can be arranged."""
SEGMENTS = {"split": 1, "merge": 2}
RecordCell = Callable[..., None]
_CUT = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One that may be crashed."""
    server = EmbeddedPostgres(scratch(tmp_path_factory, "outages"), settings=RELUCTANT)
    server.start()
    yield server
    server.destroy()


class DatabaseScene(Scene):
    """Traffic on the embedded logs, and the server under it all."""

    def __init__(self, server: EmbeddedPostgres, directory: FilePath, running: ExitStack) -> None:
        self.server = server
        url = server.create_database(f"outage_{secrets.token_hex(4)}")
        migrate_to_pip483(url)
        bench = Bench(url)
        running.callback(bench.close)
        super().__init__(bench, directory, running)
        self.outage_seconds = 0.0

    def strike(self, outage: Outage) -> None:
        """Have the database fail; back when it answers again."""
        began = time.monotonic()
        if outage is Outage.SERVER_CRASH:
            self.server.kill()
            self.server.start()
        else:
            other = Bench(self.bench.url)
            other.scalar(_CUT)
            other.close()
        self.outage_seconds += time.monotonic() - began


def check_outage(
    one: OutageCell, server: EmbeddedPostgres, directory: FilePath, record_cell: RecordCell
) -> None:
    """Strike at the cell's point, once, and see the laws hold."""
    scenario = BY_NAME[one.cell.scenario]
    with ExitStack() as running:
        scene = DatabaseScene(server, directory, running)
        scene.begin(SEGMENTS[scenario.name])
        operation_id = scenario.intend(scene.bench, "asked")
        points = {one.cell.checkpoint}

        def strike(checkpoint: str) -> None:
            if checkpoint in points:
                points.discard(checkpoint)
                scene.strike(one.outage)

        scene.drive(operation_id, scene.bench.context(checkpoint=strike))
        assert not points
        scene.advance()

        verdict = scene.judge()

        assert verdict.in_order_and_complete, verdict
        assert scene.bench.operation(operation_id).state is OperationState.DONE
        unwritable_ms = unwritable_ms_of(scene.bench, operation_id)
        check_writable(scene.bench, unwritable_ms, scene.outage_seconds + takeover_seconds(scene.bench))
        findings = scene.bench.settle()
        scene.bench.check_laws()
    record_cell(
        fault=one.outage, scenario=scenario.name, path=Path.FORWARD, at=one.cell.checkpoint, ended="done",
        findings=len(findings), unwritable_ms=unwritable_ms,
    )  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("cell", FAST_OUTAGE_CELLS, ids=str)
def test_fast_subset_an_outage_under_traffic_loses_nothing(
    cell: OutageCell, server: EmbeddedPostgres, tmp_path: FilePath, record_cell: RecordCell
) -> None:
    check_outage(cell, server, tmp_path, record_cell)


@pytest.mark.chaos
@pytest.mark.parametrize("cell", OUTAGE_CELLS, ids=str)
def test_an_outage_under_traffic_loses_nothing(
    cell: OutageCell, server: EmbeddedPostgres, tmp_path: FilePath, record_cell: RecordCell
) -> None:
    check_outage(cell, server, tmp_path, record_cell)


def test_the_outage_cells_cover_every_step_of_a_split_and_a_merge() -> None:
    assert len(FAST_OUTAGE_CELLS) == len(Outage)
    for outage in Outage:
        for name in SEGMENTS:
            struck = {
                (one.cell.step, one.cell.side)
                for one in OUTAGE_CELLS
                if one.outage is outage and one.cell.scenario == name
            }
            assert struck == set(product(steps_of(BY_NAME[name].kind, Path.FORWARD), Side))
