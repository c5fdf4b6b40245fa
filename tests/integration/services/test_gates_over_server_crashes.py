"""The database crashes beside each act of the gate keeper: no gate is open early, and none stays shut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.devstack.postgres import EmbeddedPostgres
from controller.services.reconciler import verify_topics
from tests.chaos.gated_scene import check_no_gate_is_early, read_and_open
from tests.chaos.test_gate_kills import KEEPER_POINTS
from tests.support.gated_logs import GatedBench
from tests.support.migrated import migrate_to_pip483
from tests.support.scratch import scratch


class _Crashed(BaseException):
    """Ends the round as a dead server would."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(scratch(tmp_path_factory, "crashing-gates"))
    server.start()
    yield server
    server.destroy()


@pytest.mark.parametrize("at", KEEPER_POINTS)
def test_a_keeper_goes_on_when_the_database_is_back(server: EmbeddedPostgres, at: str) -> None:
    url = server.create_database(f"gates_{at.replace(':', '_')}")
    migrate_to_pip483(url)
    bench = GatedBench(url)
    bench.stock_split()
    bench.read(0)

    def crash(point: str) -> None:
        if point == at:
            server.kill()
            raise _Crashed

    with pytest.raises(_Crashed):
        bench.keeper(checkpoint=crash).round()
    server.start()
    check_no_gate_is_early(bench)

    assert bench.keep() == 0, "nothing is done until the logs were compared with the database"
    verify_topics(bench.store, bench.planes)
    read_and_open(bench)
    bench.close()
