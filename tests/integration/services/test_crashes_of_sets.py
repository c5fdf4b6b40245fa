"""The server crashes while several reshapes are under way: journal and logs forget together, or remember together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.dataplane.base import LogState
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.devstack.postgres import EmbeddedPostgres
from controller.domain.operation import OperationState
from controller.domain.operation_steps import Step
from controller.services import segment_admin
from controller.services.operation_runner import run_due
from tests.integration.services.test_server_crashes import RELUCTANT
from tests.support.bench import CALL_TIMEOUT_SECONDS, Bench
from tests.support.migrated import migrate_to_pip483
from tests.support.scratch import scratch

_INTENDED, _FENCING, _COMMITTED = OperationState.INTENDED, OperationState.FENCING, OperationState.COMMITTED
SURVIVES = {
    (Step.SET_FENCING, True): _INTENDED,
    (Step.SET_FENCING, False): _FENCING,
    (Step.COMMIT, True): _COMMITTED,
    (Step.COMMIT, False): _COMMITTED,
    (Step.FINISH, True): _COMMITTED,
}
"""The state certain to be found after a crash behind that step, where the plane knows it shares the server or not."""


class _Crashed(BaseException):
    """Ends the run as a dead server would."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(scratch(tmp_path_factory, "crashing"), settings=RELUCTANT)
    server.start()
    yield server
    server.destroy()


@pytest.mark.parametrize(("step", "shares_server"), SURVIVES, ids=str)
def test_a_log_is_never_closed_under_a_row_that_does_not_know(
    server: EmbeddedPostgres, step: Step, shares_server: bool
) -> None:
    url = server.create_database(f"crash_{step.replace('-', '_')}_{shares_server}".lower())
    migrate_to_pip483(url)
    bench = Bench(url)
    plane = EmbeddedDataPlane(
        url, call_timeout_seconds=CALL_TIMEOUT_SECONDS, shares_journal_server=shares_server
    )
    bench.topic_with(segments=2)
    ids = [bench.intend(segment_admin.splitting(n)).operation.operation_id for n in (0, 1)]

    def crash(checkpoint: str) -> None:
        if checkpoint == f"{step}:after":
            server.kill()
            raise _Crashed

    with pytest.raises(_Crashed):
        run_due(bench.context(planes={"embedded": plane}, checkpoint=crash), limit=8)
    plane.close()
    server.start()

    order = list(OperationState)
    for operation in map(bench.operation, ids):
        closed = [bench.plane.segment_state(log) is LogState.TERMINATED for log in operation.parent_topics]
        is_known = order.index(operation.state) >= order.index(_FENCING)
        is_sealed = order.index(operation.state) >= order.index(_COMMITTED)
        assert is_known or not any(closed)
        assert all(closed) or not is_sealed
    # Operations of one topic commit one after the other: the first recording may be all there was.
    assert order.index(bench.operation(ids[0]).state) >= order.index(SURVIVES[step, shares_server])
    assert [bench.drive(one).state for one in ids] == [OperationState.DONE] * 2
    bench.settle()
    bench.check_laws()
    bench.close()
