"""Running operations: what a runner does when all goes well, when it may not go on, and when it must give up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import pytest

from controller.dataplane.base import LogState
from controller.domain.errors import Conflict, DataPlaneUnavailable, InvalidInput, SegmentBusy, Terminal
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step
from controller.services import subscription_admin, topic_admin
from controller.services.operation_runner import Outcome, backoff, run_due, run_operation
from controller.services.segment_admin import merging, rebucketing, splitting
from controller.store.shards import Shards
from tests.support.bench import CALL_TIMEOUT_SECONDS, TOPIC, Bench
from tests.support.bench_planes import UNHURRIED_LEASE_SECONDS
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.manual_clock import ManualClock


def claim_expiry(bench: Bench, operation_id: int) -> datetime:
    """When the present claim runs out."""
    statement = "SELECT claim_expires_at FROM cleave.operation WHERE operation_id = :operation_id"
    found: datetime = bench.scalar(statement, operation_id=operation_id)
    return found


def journal(bench: Bench, operation_id: int) -> list[str]:
    """Steps recorded for the operation, in order."""
    statement = "SELECT array_agg(step ORDER BY sequence) FROM cleave.operation_step WHERE operation_id = :operation_id"
    return list(bench.scalar(statement, operation_id=operation_id))


def faulty(bench: Bench, *faults: PlannedFault) -> FaultyDataPlane:
    """The bench's data plane with faults."""
    return FaultyDataPlane(bench.runner_plane, *faults)


def run_on_raising_plane(
    bench: Bench, operation: Operation, error: Exception
) -> tuple[Outcome, OperationState]:
    """Run the operation on a data plane of which each call raises the error; return the outcome and the operation's
    state. A call may take longer than the longest delay after an error.
    """
    plane = FaultyDataPlane(bench.plane)

    def fail(_call: str, _number: int) -> None:
        raise error

    plane.before_call = fail
    context = bench.context(planes={"embedded": plane.as_data_plane()}, lease_seconds=UNHURRIED_LEASE_SECONDS)
    outcome = run_operation(context, operation.operation_id)
    return outcome, bench.operation(operation.operation_id).state


def test_a_topic_is_created_split_merged_and_rebucketed(bench: Bench) -> None:
    bench.topic_with(segments=2, subscriptions=("billing", "audit"))

    bench.reshape(splitting(0, parts=3))
    bench.reshape(merging(3, 2))
    bench.reshape(rebucketing(1, 8))

    bench.check_laws()
    assert [segment.segment_id for segment in bench.layout.active] == [5, 4, 6]
    assert bench.layout.segment(5).parent_ids == (3, 2)


def test_the_journal_holds_every_step_in_the_order_taken(bench: Bench) -> None:
    bench.topic_with()

    operation = bench.reshape(splitting(0))

    steps = [
        Step.CREATE_CHILDREN,
        Step.SET_FENCING,
        Step.TERMINATE_PARENTS,
        Step.COMMIT,
        Step.FINISH,
    ]
    assert journal(bench, operation.operation_id) == [str(step) for step in steps]


def test_how_long_the_range_took_no_writes_counts_from_before_the_parents_were_closed(bench: Bench) -> None:
    """Though the fence and the commit share a record."""
    bench.topic_with()
    plane, closing_at = faulty(bench), []

    def note(call: str, _number: int) -> None:
        if call == "terminate_segments":
            closing_at.append(bench.scalar("SELECT clock_timestamp()"))

    plane.before_call = note
    operation = bench.intend(splitting(0)).operation
    bench.drive(operation.operation_id, bench.context(planes={"embedded": plane.as_data_plane()}))

    fenced_at, committed_at = (
        bench.scalar(
            f"SELECT {one} FROM cleave.operation WHERE operation_id = :id", id=operation.operation_id
        )
        for one in ("fenced_at", "committed_at")
    )
    assert fenced_at <= closing_at[0] < committed_at


def test_how_long_the_range_took_no_writes_counts_from_the_first_attempt(bench: Bench) -> None:
    bench.topic_with()
    plane = faulty(bench, PlannedFault(Fault.LOST_ANSWER, "terminate_segments", times=1))
    operation = bench.intend(splitting(0)).operation
    run_operation(bench.context(planes={"embedded": plane.as_data_plane()}), operation.operation_id)
    after_first = bench.scalar("SELECT clock_timestamp()")
    assert bench.plane.segment_state(bench.log_of(0)) is LogState.TERMINATED

    bench.drive(operation.operation_id)

    statement = "SELECT fenced_at FROM cleave.operation WHERE operation_id = :id"
    assert bench.scalar(statement, id=operation.operation_id) < after_first


def test_operations_on_disjoint_segments_run_at_once_and_commit_an_epoch_each(bench: Bench) -> None:
    bench.topic_with(segments=4)
    first_epoch = bench.layout.epoch
    operations = [bench.intend(splitting(segment_id)).operation.operation_id for segment_id in range(4)]

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run_due, bench.context(f"runner-{n}"), limit=2) for n in range(4)]
    assert sum(run.result() for run in runs) >= len(operations)

    ended = [bench.drive(operation_id) for operation_id in operations]
    assert sorted(one.epoch or 0 for one in ended) == [first_epoch + n for n in range(1, 5)]
    bench.check_laws()


def test_a_segment_in_a_live_operation_is_refused_by_name(bench: Bench) -> None:
    bench.topic_with()
    first = bench.intend(splitting(0)).operation

    with pytest.raises(SegmentBusy, match=f"segment 0 .* operation {first.operation_id}"):
        bench.intend(rebucketing(0, 8))


def test_the_claim_is_renewed_before_a_call_that_it_might_not_outlive(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0, parts=3)).operation
    plane, expiries = faulty(bench), []
    plane.before_call = lambda _call, _number: expiries.append(claim_expiry(bench, operation.operation_id))

    outcome = bench.run_once(
        operation.operation_id,
        planes={"embedded": plane.as_data_plane()},
        clock=ManualClock(step=CALL_TIMEOUT_SECONDS / 2),
    )

    assert outcome is Outcome.FINISHED
    assert len(expiries) == 3
    assert len(set(expiries)) > 1
    assert expiries == sorted(expiries)


def test_claims_shorter_than_a_call_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="operation_claim_seconds"):
        bench.context(lease_seconds=CALL_TIMEOUT_SECONDS)


def test_a_runner_told_to_stop_finishes_its_step_and_gives_the_claim_back(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    taken: list[str] = []

    outcome = bench.run_once(
        operation.operation_id,
        checkpoint=taken.append,
        should_stop=lambda: bool(taken),
        lease_seconds=UNHURRIED_LEASE_SECONDS,
    )

    assert outcome is Outcome.STOPPED
    assert bench.operation(operation.operation_id).state is OperationState.FENCING
    outcome = bench.run_once(operation.operation_id, runner_id="next", lease_seconds=UNHURRIED_LEASE_SECONDS)
    assert outcome is Outcome.FINISHED


def test_only_due_operations_of_the_shards_held_are_run(bench: Bench) -> None:
    topic_id = bench.topic_with()
    bench.intend(splitting(0))

    assert run_due(bench.context(), shards=Shards.of(2, [(topic_id + 1) % 2])) == 0
    assert run_due(bench.context(), shards=Shards.of(2, [topic_id % 2])) == 1
    assert run_due(bench.context()) == 0


def test_a_failing_call_defers_the_operation_with_its_error(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = faulty(bench, PlannedFault(Fault.REFUSED, "terminate_segments"))

    outcome = bench.run_once(operation.operation_id, planes={"embedded": plane.as_data_plane()})

    assert outcome is Outcome.DEFERRED
    deferred = bench.operation(operation.operation_id)
    assert (deferred.state, deferred.attempts) == (OperationState.FENCING, 1)
    statement = "SELECT last_error FROM cleave.operation WHERE operation_id = :operation_id"
    assert "injected" in bench.scalar(statement, operation_id=operation.operation_id)
    assert bench.drive(operation.operation_id).state is OperationState.DONE


def test_nobody_calls_again_while_a_call_that_timed_out_may_be_under_way(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = faulty(bench, PlannedFault(Fault.LOST_ANSWER, "create_successors"))

    bench.run_once(operation.operation_id, planes={"embedded": plane.as_data_plane()})

    statement = (
        "SELECT extract(epoch FROM not_before - (SELECT max(finished_at) FROM cleave.operation_step)) "
        "FROM cleave.operation WHERE operation_id = :operation_id"
    )
    assert bench.scalar(statement, operation_id=operation.operation_id) >= CALL_TIMEOUT_SECONDS


@pytest.mark.parametrize(
    "error", [Terminal("not allowed"), None], ids=["refused beside it", "past the deadline"]
)
def test_an_abort_ends_when_a_call_that_timed_out_cannot_take_effect_any_more(
    bench: Bench, error: Terminal | None
) -> None:
    """Two calls look for cursors; of two that create cursors, the second times out. The data plane may perform the call later."""
    bench.topic_with(2)
    deadline_seconds = 60.0 if error else 0.0
    operation = subscription_admin.create_subscription(
        bench.store, TOPIC, "audit", bench.request(deadline_seconds=deadline_seconds)
    ).operation
    plane = faulty(bench, PlannedFault(Fault.LOST_REQUEST, "create_subscription", number=4))

    both_called = threading.Barrier(2)

    def refuse(call: str, number: int) -> None:
        if call == "create_subscription":
            both_called.wait(CALL_TIMEOUT_SECONDS)
        if error and number == 3:
            raise error

    plane.before_call = refuse
    outcome = bench.run_once(
        operation.operation_id, planes={"embedded": plane.as_data_plane()}, parallel_calls=2
    )

    assert (outcome, journal(bench, operation.operation_id)) == (
        Outcome.DEFERRED,
        ["find-cursors", "abort"],
    )
    statement = (
        "SELECT extract(epoch FROM not_before - (SELECT max(finished_at) FROM cleave.operation_step)) "
        "FROM cleave.operation WHERE operation_id = :operation_id"
    )
    assert bench.scalar(statement, operation_id=operation.operation_id) > CALL_TIMEOUT_SECONDS * 0.9
    assert bench.drive(operation.operation_id).state is OperationState.ABORTED


@pytest.mark.parametrize("failing", ["create_successors"])
def test_an_error_for_good_before_the_fence_aborts_and_says_why(bench: Bench, failing: str) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = faulty(bench)

    def refuse(call: str, _number: int) -> None:
        if call == failing:
            raise Conflict("quota of this namespace is used up")

    plane.before_call = refuse
    outcome = bench.run_once(operation.operation_id, planes={"embedded": plane.as_data_plane()})

    assert outcome is Outcome.FINISHED
    assert bench.operation(operation.operation_id).state is OperationState.ABORTED
    statement = "SELECT detail ->> 'reason' FROM cleave.operation_step WHERE step = 'abort'"
    assert bench.scalar(statement) == "quota of this namespace is used up"
    assert bench.operation(operation.operation_id).last_error == "quota of this namespace is used up"
    assert bench.scalar("SELECT last_error FROM inspect.operations WHERE state = 'aborted'") == (
        "quota of this namespace is used up"
    )
    bench.settle()
    bench.check_laws()
    assert [segment.segment_id for segment in bench.layout.active] == [0]


def test_an_error_for_good_behind_the_fence_is_waited_out(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = faulty(bench)

    def refuse(call: str, _number: int) -> None:
        if call == "terminate_segments":
            raise Terminal("not allowed any more")

    plane.before_call = refuse
    outcome = bench.run_once(operation.operation_id, planes={"embedded": plane.as_data_plane()})

    assert outcome is Outcome.DEFERRED
    assert bench.operation(operation.operation_id).state is OperationState.FENCING


def test_an_operation_of_a_data_plane_that_is_not_here_is_left_for_whoever_has_it(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation

    assert bench.run_once(operation.operation_id, planes={}) is Outcome.DEFERRED
    assert bench.operation(operation.operation_id).state is OperationState.INTENDED


def test_a_child_terminated_before_the_fence_ends_the_operation_while_that_is_free(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    bench.plane.terminate_segment(operation.children[0].backing_topic)

    assert bench.drive(operation.operation_id).state is OperationState.ABORTED
    assert bench.plane.segment_state(bench.log_of(0)) is LogState.OPEN


def test_a_parent_deleted_by_hand_is_put_back_and_closed_so_that_nobody_can_write_it(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.FENCING)
    log = bench.log_of(0)
    before = bench.plane.describe_logs([log])[log].origin
    bench.plane.delete_segment(log)

    assert bench.drive(operation.operation_id).state is OperationState.DONE
    assert bench.plane.segment_state(log) is LogState.TERMINATED
    after = bench.plane.describe_logs([log])[log].origin
    assert before is not None  # without the record the log is never deleted
    assert after is not None
    assert before.token == after.token
    statement = (
        "SELECT detail -> 'found missing' ->> 0 FROM cleave.operation_step WHERE step = 'terminate-parents'"
    )
    assert bench.scalar(statement) == bench.log_of(0)


def test_subscriptions_that_change_during_a_reshape_are_on_the_children(bench: Bench) -> None:
    bench.topic_with(subscriptions=("billing", "old"))
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    created = subscription_admin.create_subscription(bench.store, TOPIC, "new", bench.request())
    deleted = subscription_admin.delete_subscription(bench.store, TOPIC, "old", bench.request())
    bench.plane.create_subscription(bench.log_of(0), "application-own")

    assert bench.run_once(deleted.operation.operation_id) is Outcome.DEFERRED  # it waits for the reshape
    bench.drive(operation.operation_id)
    bench.finish(created)
    bench.finish(deleted)

    for child in operation.children:
        assert bench.plane.list_subscriptions(child.backing_topic) == ["application-own", "billing", "new"]


def test_deleting_a_topic_aborts_what_can_and_lets_the_rest_finish_first(bench: Bench) -> None:
    bench.topic_with(segments=2)
    early = bench.intend(splitting(0)).operation
    late = bench.intend(splitting(1)).operation
    bench.run_until(early.operation_id, OperationState.PREPARED)
    bench.run_until(late.operation_id, OperationState.FENCING)
    deletion = topic_admin.delete_topic(bench.store, TOPIC, bench.request())

    assert bench.run_once(deletion.operation.operation_id) is Outcome.DEFERRED
    aborted = bench.drive(early.operation_id)
    assert (aborted.state, aborted.last_error) == (OperationState.ABORTED, "its topic is being deleted")
    assert bench.drive(late.operation_id).state is OperationState.DONE
    bench.finish(deletion)

    bench.settle()
    bench.check_laws()
    assert bench.plane.list_segments(TOPIC) == []


def test_the_first_error_of_several_parallel_calls_is_raised_after_all_have_ended(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0, parts=8)).operation
    plane = faulty(bench, PlannedFault(Fault.REFUSED, "create_successors", times=1))
    context = replace(bench.context(), planes={"embedded": plane.as_data_plane()}, parallel_calls=4)

    ended = bench.drive(operation.operation_id, context)

    assert ended.state is OperationState.DONE
    assert [fault for _call, fault in plane.injected] == [Fault.REFUSED]
    bench.check_laws()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")], ids=repr)
@pytest.mark.parametrize("started", [0, 1, 2])
def test_calls_for_which_no_thread_can_be_started_are_made_one_after_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, started: int, error: Exception
) -> None:
    """Each call lasts as long as a claim, which is therefore renewed before the next call."""
    bench.topic_with(4)
    operation = subscription_admin.create_subscription(bench.store, TOPIC, "audit", bench.request()).operation
    start, allowed = threading.Thread.start, iter(range(started))
    plane, clock = faulty(bench), ManualClock()
    expiries: dict[str, list[datetime]] = {"list_subscriptions": [], "create_subscription": []}

    def start_few(thread: threading.Thread) -> None:
        if next(allowed, None) is None:
            raise error
        start(thread)

    def let_time_pass(call: str, _number: int) -> None:
        expiries[call].append(claim_expiry(bench, operation.operation_id))
        clock.seconds += UNHURRIED_LEASE_SECONDS

    plane.before_call = let_time_pass
    monkeypatch.setattr(threading.Thread, "start", start_few)
    outcome = bench.run_once(
        operation.operation_id,
        planes={"embedded": plane.as_data_plane()},
        parallel_calls=4,
        lease_seconds=UNHURRIED_LEASE_SECONDS,
        clock=clock,
    )

    assert (outcome, bench.operation(operation.operation_id).state) == (
        Outcome.FINISHED,
        OperationState.DONE,
    )
    assert sorted(log for call, (log, *_) in plane.log if call == "create_subscription") == sorted(
        bench.plane.list_segments(TOPIC)
    )
    assert [len(times) for times in expiries.values()] == [4, 4]
    assert len({*expiries["list_subscriptions"]}) == min(started, 1) + 4 - started
    assert len({*expiries["create_subscription"]}) == 4


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")], ids=repr)
def test_a_shortage_of_the_process_is_no_refusal_of_the_data_plane(bench: Bench, error: Exception) -> None:
    """The call may be in progress in another thread: the next attempt comes after the longest time of a call."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation

    assert run_on_raising_plane(bench, operation, error) == (Outcome.DEFERRED, OperationState.INTENDED)
    left = "SELECT extract(epoch FROM not_before - clock_timestamp()) FROM cleave.operation WHERE operation_id = :id"
    assert bench.scalar(left, id=operation.operation_id) > backoff.LONGEST_DELAY_SECONDS
    bench.make_due()
    assert bench.drive(operation.operation_id).state is OperationState.DONE


@pytest.mark.parametrize("error", [RuntimeError("wrong"), RecursionError(), NotImplementedError()], ids=repr)
def test_an_error_of_the_program_leaves_no_call_in_progress(bench: Bench, error: Exception) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation

    assert run_on_raising_plane(bench, operation, error) == (Outcome.FINISHED, OperationState.ABORTED)


def test_a_shortage_of_the_process_does_not_abort_what_is_late(bench: Bench) -> None:
    bench.topic_with()
    operation = subscription_admin.create_subscription(
        bench.store, TOPIC, "audit", bench.request(deadline_seconds=0.0)
    ).operation

    assert run_on_raising_plane(bench, operation, MemoryError()) == (
        Outcome.DEFERRED,
        OperationState.INTENDED,
    )
    bench.make_due()
    assert bench.drive(operation.operation_id).state is OperationState.DONE


def test_a_data_plane_away_is_a_reason_to_come_back_never_to_raise(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = faulty(bench)

    def away(_call: str, _number: int) -> None:
        raise DataPlaneUnavailable("away", delay_seconds=3600.0)

    plane.before_call = away
    assert run_due(bench.context(planes={"embedded": plane.as_data_plane()})) == 1

    statement = (
        "SELECT not_before < clock_timestamp() + interval '1 minute' FROM cleave.operation"
        " WHERE operation_id = :operation_id"
    )
    assert bench.scalar(statement, operation_id=operation.operation_id)
