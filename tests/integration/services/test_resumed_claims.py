"""A live runner resumes its own operations at once when the journal comes back without its newest records.

Claims last an hour here, so that no operation of these tests ends because its runner waited for a claim's end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from controller.devstack.postgres import EmbeddedPostgres
from controller.domain.errors import LostRace, OperationNotFound, StoreUnavailable
from controller.domain.operation import OperationState
from controller.domain.operation_steps import Step
from controller.services import subscription_admin
from controller.services.operation_runner import Outcome, RunnerContext, run_due, run_operation
from controller.services.segment_admin import splitting
from tests.support.bench import CALL_TIMEOUT_SECONDS, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.migrated import migrate_to_pip483
from tests.support.scratch import scratch

HOUR = 3600.0
FORGETS: Mapping[str, str] = {
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
}
"""A crash loses every commit since the last one that waited for the disk, as an asynchronous fail-over does."""
STEPS = (Step.CREATE_CHILDREN, Step.TERMINATE_PARENTS, Step.COMMIT, Step.FINISH)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server of which a crash loses what it was told last."""
    server = EmbeddedPostgres(scratch(tmp_path_factory, "forgetting"), settings=FORGETS)
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def forgetful(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench on a database of that server."""
    url = server.create_database(f"resumed_{abs(hash(request.node.name))}")
    migrate_to_pip483(url)
    bench = Bench(url)
    yield bench
    bench.close()


def keep(bench: Bench) -> None:
    """Have everything until now survive a crash."""
    bench.execute(
        "SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'keep', '')"
    )


def fails_over(server: EmbeddedPostgres, bench: Bench, keeps: str, at: str, *, tells: bool) -> RunnerContext:
    """A runner whose store loses, at the checkpoint `at`, all that was recorded since the checkpoint `keeps`."""
    ahead = [keeps, at]

    def checkpoint(name: str) -> None:
        if ahead and name == keeps and ahead[0] == keeps:
            ahead.pop(0)
            keep(bench)
        if ahead and name == at and ahead[0] == at:
            ahead.pop(0)
            server.kill()
            server.start()
            if tells:
                raise StoreUnavailable("the answer is lost")

    return bench.context(lease_seconds=HOUR, checkpoint=checkpoint)


def run_until_done(bench: Bench, context: RunnerContext, operation_id: int) -> int:
    """Run what is due as the threads of a worker do; returns how many runs it took."""
    for run in range(1, 10):
        with suppress(StoreUnavailable):
            run_due(context, limit=8)
        if bench.operation(operation_id).state is OperationState.DONE:
            return run
    raise AssertionError(f"operation {operation_id} waits for its claim: {bench.operation(operation_id)}")


@pytest.mark.parametrize("tells", [True, False], ids=["in-a-statement", "between-two"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_runner_goes_on_from_what_is_left_of_its_records(
    server: EmbeddedPostgres, forgetful: Bench, step: Step, tells: bool
) -> None:
    """Its claim is kept, the records behind it are lost."""
    forgetful.topic_with()
    operation_id = forgetful.intend(splitting(0)).operation.operation_id
    context = fails_over(server, forgetful, f"{Step.CREATE_CHILDREN}:before", f"{step}:after", tells=tells)

    run_until_done(forgetful, context, operation_id)

    assert forgetful.operation(operation_id).claim_term > 1
    assert forgetful.layout.epoch == 1
    forgetful.settle()
    forgetful.check_laws()


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_runner_whose_claim_is_lost_claims_again(
    server: EmbeddedPostgres, forgetful: Bench, step: Step
) -> None:
    forgetful.topic_with()
    operation_id = forgetful.intend(splitting(0)).operation.operation_id
    keep(forgetful)
    at, crashed = f"{step}:after", list[str]()

    def checkpoint(name: str) -> None:
        if name == at and not crashed:
            crashed.append(name)
            server.kill()
            server.start()

    run_until_done(forgetful, forgetful.context(lease_seconds=HOUR, checkpoint=checkpoint), operation_id)

    assert crashed
    assert forgetful.layout.epoch == 1
    forgetful.check_laws()


@pytest.mark.parametrize("at", [f"{Step.CREATE_CHILDREN}:before", f"{Step.COMMIT}:before"])
def test_an_operation_whose_intent_is_lost_is_left(
    server: EmbeddedPostgres, forgetful: Bench, at: str
) -> None:
    """The others of its set go on."""
    forgetful.topic_with(segments=2)
    kept = forgetful.intend(splitting(0)).operation.operation_id
    keep(forgetful)
    lost = forgetful.intend(splitting(1)).operation.operation_id
    ahead = [at]

    def checkpoint(name: str) -> None:
        if name in ahead:
            ahead.clear()
            server.kill()
            server.start()

    run_until_done(forgetful, forgetful.context(lease_seconds=HOUR, checkpoint=checkpoint), kept)

    with pytest.raises(OperationNotFound):
        forgetful.operation(lost)
    forgetful.check_laws()


def test_a_claim_whose_answer_was_lost_is_resumed(bench: Bench) -> None:
    """The row names the runner, and no thread of it knows."""
    bench.topic_with()
    operation_id = bench.intend(splitting(0)).operation.operation_id
    context = bench.context(lease_seconds=HOUR)
    claim = "UPDATE cleave.operation SET claimed_by = :who, claim_term = 1, claim_expires_at = clock_timestamp() + interval '1 hour'"
    bench.execute(claim, who=context.claimant)

    assert run_operation(context, operation_id) is Outcome.FINISHED
    assert bench.operation(operation_id).claim_term == 2


def test_a_restarted_process_waits_for_the_claim_of_the_one_before(bench: Bench) -> None:
    """It knows nothing of the calls that were made under its name."""
    bench.topic_with()
    operation_id = bench.intend(splitting(0)).operation.operation_id

    def lose(_name: str) -> None:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        bench.run_once(operation_id, lease_seconds=HOUR, checkpoint=lose)

    assert bench.run_once(operation_id, lease_seconds=HOUR) is Outcome.NOT_CLAIMED


def test_another_runners_claim_is_left_alone(bench: Bench) -> None:
    """Even one of an older term than that which was lost: it may be a claim made since the fail-over."""
    bench.topic_with()
    operation_id = bench.intend(splitting(0)).operation.operation_id
    take = "UPDATE cleave.operation SET claimed_by = 'another/1', claim_term = 1, claim_expires_at = clock_timestamp() + interval '1 hour'"
    taken: list[str] = []

    def pass_on(name: str) -> None:
        if not taken:
            taken.append(name)
            bench.execute(take)

    context = bench.context(lease_seconds=HOUR, checkpoint=pass_on)

    assert run_operation(context, operation_id) is Outcome.FENCED_OUT
    assert run_due(context) == 0
    assert bench.operation(operation_id).state is OperationState.INTENDED


def test_no_thread_takes_what_another_thread_of_the_runner_has_in_hand(bench: Bench) -> None:
    """The record of its claim is lost while it waits for a broker, so that the row names nobody."""
    bench.topic_with()
    bench.intend(splitting(0))
    plane, beside = FaultyDataPlane(bench.runner_plane), list[int]()
    forget = "UPDATE cleave.operation SET claimed_by = NULL, claim_expires_at = NULL, claim_term = 0 WHERE finished_at IS NULL"
    context = bench.context(planes={"embedded": plane.as_data_plane()}, lease_seconds=HOUR)

    def beside_the_call(call: str, _number: int) -> None:
        if call == "create_successors" and not beside:
            bench.execute(forget)
            beside.append(run_due(context))

    plane.before_call = beside_the_call
    assert run_due(context) >= 1

    assert beside == [0]


def test_a_call_that_may_be_under_way_is_waited_for_though_its_record_is_lost(bench: Bench) -> None:
    bench.topic_with()
    operation_id = bench.intend(splitting(0)).operation.operation_id
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.LOST_ANSWER, "create_successors"))
    context = bench.context(planes={"embedded": plane.as_data_plane()}, lease_seconds=HOUR)
    assert run_operation(context, operation_id) is Outcome.DEFERRED
    claim = """UPDATE cleave.operation SET claimed_by = :who, claim_expires_at = clock_timestamp() + interval '1 hour',
                      not_before = '-infinity', attempts = 0, last_error = NULL"""
    bench.execute(claim, who=context.claimant)

    assert run_operation(context, operation_id) is Outcome.DEFERRED

    assert [name for name, _ in plane.log] == ["create_successors"]
    left = "SELECT extract(epoch FROM not_before - clock_timestamp()) FROM cleave.operation WHERE operation_id = :id"
    assert 0 < bench.scalar(left, id=operation_id) <= CALL_TIMEOUT_SECONDS


def test_a_late_call_is_known_though_the_error_of_another_call_is_raised(bench: Bench) -> None:
    """Calls are made side by side, and one error is raised of several."""
    bench.topic_with(segments=2, subscriptions=())
    plane = FaultyDataPlane(
        bench.runner_plane,
        PlannedFault(Fault.REFUSED, "create_subscription"),
        PlannedFault(Fault.LOST_ANSWER, "create_subscription"),
    )
    both = threading.Barrier(2)

    def meet(_call: str, _number: int) -> None:
        both.wait(10)

    plane.before_call = meet
    intent = subscription_admin.create_subscription(bench.store, bench.topic_name, "billing", bench.request())
    operation_id = intent.operation.operation_id
    context = bench.context(planes={"embedded": plane.as_data_plane()}, parallel_calls=2)

    assert run_operation(context, operation_id) is Outcome.DEFERRED

    assert {fault for _, fault in plane.injected} == {Fault.REFUSED, Fault.LOST_ANSWER}
    left = "SELECT extract(epoch FROM not_before - clock_timestamp()) FROM cleave.operation WHERE operation_id = :id"
    assert bench.scalar(left, id=operation_id) > CALL_TIMEOUT_SECONDS / 2


def test_a_step_that_loses_a_lock_for_good_leaves_nothing_in_hand(bench: Bench) -> None:
    """Whatever error of the store ends a run, the next claim resumes the operation."""
    bench.topic_with()
    operation_id = bench.intend(splitting(0)).operation.operation_id
    errors: list[Exception] = [LostRace("locked"), StoreUnavailable("away")]

    def lose(_name: str) -> None:
        if errors:
            raise errors.pop()

    context = bench.context(lease_seconds=HOUR, checkpoint=lose)

    run_until_done(bench, context, operation_id)
