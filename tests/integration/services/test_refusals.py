"""Every kind of operation ends, whatever the data plane answers at each of its calls.

Each scenario of the kill matrix is run once to learn its calls. Then each call is refused for ever: for good (Terminal),
or for now (Retryable) to an operation whose deadline is over. The operation completes or is given up with a reason, and
the topic takes the next request. What has closed a log, or waits for an outage to end with nothing to give back, goes on
when the calls are answered; `GOES_ON` is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from controller.devstack.postgres import PostgresServer
from controller.domain.errors import AccessDenied, CleaveError, DataPlaneUnavailable
from controller.domain.operation import OperationState
from controller.domain.operation_steps import MIRROR_MOVES, MOVES
from controller.services.operation_runner import RunnerContext, run_operation
from controller.services.segment_admin import splitting
from controller.store.topics.topics import TopicState
from tests.chaos import scalable_scene, scenarios
from tests.chaos.scenarios import Scenario
from tests.chaos.strikes import pass_deadline
from tests.support.bench import Bench
from tests.support.benches import benches
from tests.support.brokers import SharedBroker
from tests.support.faulty_data_plane import FaultyDataPlane

NewBench = Callable[[], Bench]
ATTEMPTS = 4
FOR_GOOD = AccessDenied("the broker knows no such credentials")
FOR_NOW = DataPlaneUnavailable("the broker is away", delay_seconds=0.0)
ANSWERS = {"for good": FOR_GOOD, "for now": FOR_NOW}
GOES_ON = {
    ("for good", "terminate_segments"),
    ("for good", "delete_subscription"),
    ("for now", "delete_subscription"),
    ("for now", "terminate_segments"),
    ("for now", "subscriptions_of"),
    ("for now", "backlog"),
    ("for now", "seek"),
    ("for now", "read_layout"),
    ("for now", "set_auto_scaler"),
}
"""A parent may be closed, or a cursor deleted; a reshape that is true waits to give late subscriptions to its children, or
to mirror what the broker did; a seek waits; an attachment that is given up waits to put the broker's own controller back.
"""
_DUE = "UPDATE cleave.operation SET not_before = '-infinity', row_version = row_version + 1 WHERE finished_at IS NULL"
_REASON = """
    SELECT string_agg(detail ->> 'reason', '; ') FROM inspect.operation_steps WHERE operation_id = :id AND step = 'abort'
"""


@pytest.fixture
def new_bench(postgres_server: PostgresServer, migrated_template: str) -> Iterator[NewBench]:
    """Any number of benches, each with a database of its own."""
    yield from benches(postgres_server, migrated_template, Bench)


@pytest.fixture
def new_scalable_bench(
    postgres_server: PostgresServer, migrated_template: str, pulsar5_broker: SharedBroker
) -> Iterator[NewBench]:
    """The same with topics whose layout a broker keeps."""
    yield from scalable_scene.scalable_benches(postgres_server, migrated_template, pulsar5_broker)


def begun(bench: Bench, scenario: Scenario) -> int:
    scenario.prepare(bench)
    return scenario.intend(bench, "asked")


def refusing(bench: Bench, call: str | None, error: CleaveError) -> tuple[FaultyDataPlane, RunnerContext]:
    """A runner to whom that call is refused each time."""
    plane = FaultyDataPlane(bench.runner_plane)

    def refuse(name: str, _number: int) -> None:
        if name == call:
            raise error

    plane.before_call = refuse
    return plane, bench.context("refused", planes={bench.plane.name: plane.as_data_plane()})


def calls_of(bench: Bench, scenario: Scenario) -> list[str]:
    plane, context = refusing(bench, None, FOR_GOOD)
    bench.drive(begun(bench, scenario), context)
    return sorted({name for name, _ in plane.log})


def run_refused(bench: Bench, context: RunnerContext) -> None:
    """Some attempts at everything that lives, also at what giving up leaves to do."""
    for _ in range(ATTEMPTS):
        for operation in bench.live_operations():
            bench.execute(_DUE)
            run_operation(context, operation.operation_id)


def check(bench: Bench, scenario: Scenario, call: str, answer: str) -> None:
    operation_id = begun(bench, scenario)
    _, context = refusing(bench, call, ANSWERS[answer])
    run_refused(bench, context)
    for _ in range(2 if answer == "for now" else 0):  # what undoes it has a deadline of its own
        for operation in bench.live_operations():
            pass_deadline(bench, operation.operation_id)
        run_refused(bench, context)
    where = (scenario.name, call, answer)
    if (answer, call) in GOES_ON:
        bench.execute(_DUE)
        bench.drive(operation_id)
    assert bench.live_operations() == [], where
    ended = bench.operation(operation_id)
    if ended.state is OperationState.ABORTED:
        reason = bench.scalar(_REASON, id=operation_id)
        assert answer == "for now" or (reason and str(FOR_GOOD) in reason), (where, reason)
    if bench.topic.state is TopicState.LIVE and scenario.kind in MOVES:
        bench.settle()
        bench.reshape(splitting(bench.layout.active[0].segment_id))
        bench.check_laws()


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda one: one.name)
def test_it_ends_whatever_the_logs_answer(scenario: Scenario, answer: str, new_bench: NewBench) -> None:
    for call in calls_of(new_bench(), scenario):
        check(new_bench(), scenario, call, answer)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("scenario", scalable_scene.SCENARIOS, ids=lambda one: one.name)
def test_it_ends_whatever_a_broker_that_keeps_the_layout_answers(
    scenario: Scenario, answer: str, new_scalable_bench: NewBench
) -> None:
    for call in calls_of(new_scalable_bench(), scenario):
        check(new_scalable_bench(), scenario, call, answer)


def test_every_kind_is_here() -> None:
    assert {one.kind for one in scenarios.SCENARIOS} == MOVES.keys()
    assert {one.kind for one in scalable_scene.SCENARIOS} == MIRROR_MOVES.keys()
