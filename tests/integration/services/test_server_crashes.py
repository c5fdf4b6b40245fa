"""The server crashes beside each step: what is forgotten is done again, and what must not be forgotten is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from controller.devstack.postgres import EmbeddedPostgres
from controller.domain.operation import OperationState
from controller.domain.operation_steps import Step
from controller.services import segment_admin
from tests.support.bench import Bench
from tests.support.migrated import migrate_to_pip483
from tests.support.scratch import scratch

RELUCTANT: Mapping[str, str] = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
"""Commits that wait for the disk survive; those that do not are forgotten for as long as can be arranged."""

SURVIVES = {
    Step.CREATE_CHILDREN: OperationState.INTENDED,
    Step.SET_FENCING: OperationState.FENCING,
    Step.TERMINATE_PARENTS: OperationState.FENCING,
    Step.COMMIT: OperationState.COMMITTED,
    Step.FINISH: OperationState.COMMITTED,
}
"""The state that is certain to be found after a crash right behind the recording of a step."""


class _Crashed(BaseException):
    """Ends the run as a dead server would."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(scratch(tmp_path_factory, "crashing"), settings=RELUCTANT)
    server.start()
    yield server
    server.destroy()


@pytest.mark.parametrize("step", SURVIVES, ids=str)
def test_after_a_crash_behind_any_step_the_operation_goes_on(server: EmbeddedPostgres, step: Step) -> None:
    url = server.create_database(f"crash_{step.replace('-', '_')}")
    migrate_to_pip483(url)
    bench = Bench(url)
    bench.topic_with(subscriptions=("billing",))
    bench.publish(0)
    intent = bench.intend(segment_admin.splitting(0))

    def crash(checkpoint: str) -> None:
        if checkpoint == f"{step}:after":
            server.kill()
            raise _Crashed

    with pytest.raises(_Crashed):
        bench.run_once(intent.operation.operation_id, checkpoint=crash)
    server.start()
    found = bench.operation(intent.operation.operation_id).state
    leads_to = bench.drive(intent.operation.operation_id).state

    order = list(OperationState)
    assert order.index(found) >= order.index(SURVIVES[step])
    assert leads_to is OperationState.DONE
    assert (bench.layout.epoch, [s.segment_id for s in bench.layout.active]) == (1, [1, 2])
    bench.settle()
    bench.check_laws()
    bench.close()


def test_a_claim_survives_the_crash_so_that_no_term_is_given_out_twice(server: EmbeddedPostgres) -> None:
    url = server.create_database("crash_claim")
    migrate_to_pip483(url)
    bench = Bench(url)
    bench.topic_with()
    operation_id = bench.intend(segment_admin.splitting(0)).operation.operation_id

    def crash() -> bool:
        """Asked before the first step: nothing that waits for the disk has come after the claim."""
        server.kill()
        raise _Crashed

    with pytest.raises(_Crashed):
        bench.run_once(operation_id, should_stop=crash)
    server.start()

    assert bench.operation(operation_id).claim_term == 1
    assert bench.drive(operation_id).state is OperationState.DONE
    bench.close()
