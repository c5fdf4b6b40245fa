"""Several reshapes run side by side: what it costs, what is journalled, and that none waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from controller import metrics
from controller.clock import SystemClock
from controller.domain.errors import SegmentNotFound, Terminal
from controller.domain.operation import OperationState
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.services.operation_runner import log_steps, run_due
from controller.store.journal import steps
from controller.store.journal.steps import StepRecord
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.waiting import wait_until


class LateClock(SystemClock):
    """Right until it is read for the first time, when the claim is asked for; late by so much ever after."""

    def __init__(self, at_first: float, then: Callable[[], object] = lambda: None) -> None:
        self._late_by, self._then, self._readings = at_first, then, 0

    def monotonic_seconds(self) -> float:
        """Seconds."""
        self._readings += 1
        if self._readings == 1:
            return super().monotonic_seconds()
        if self._readings == 2:
            self._then()
        return super().monotonic_seconds() + self._late_by


STEPS = ["create-children", "set-fencing", "terminate-parents", "commit", "finish"]


def two_splits(bench: Bench) -> list[int]:
    """Asked for and not begun; their ids."""
    bench.topic_with(segments=2)
    return [bench.intend(segment_admin.splitting(number)).operation.operation_id for number in (0, 1)]


def steps_of(bench: Bench, operation_id: int) -> list[str]:
    found = "SELECT array_agg(step ORDER BY sequence) FROM cleave.operation_step WHERE operation_id = :id"
    return list(bench.scalar(found, id=operation_id) or [])


def run_with(bench: Bench, at: str, act: Callable[[], object], **changes: object) -> None:
    """Run what is due, and do `act` once when the runner comes by."""
    waiting = [act]

    def checkpoint(name: str) -> None:
        if name == at and waiting:
            waiting.pop()()

    def came_by() -> bool:
        run_due(bench.context(checkpoint=checkpoint, **changes), limit=8)
        return not waiting

    wait_until(came_by, message="the runner came by")  # a call that got no answer in its time is made again


def finish(bench: Bench, operation_ids: list[int]) -> list[OperationState]:
    states = [bench.drive(operation_id).state for operation_id in operation_ids]
    bench.settle()
    bench.check_laws()
    return states


def test_any_number_costs_three_calls_and_each_keeps_its_journal(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    plane = FaultyDataPlane(bench.runner_plane)

    assert run_due(bench.context(planes={"embedded": plane.as_data_plane()}), limit=8) == 2

    assert [name for name, _ in plane.log] == ["create_successors", "terminate_segments", "subscriptions_of"]
    assert [steps_of(bench, one) for one in operation_ids] == [STEPS, STEPS]
    assert [bench.operation(one).epoch for one in operation_ids] == [1, 2]
    noted = "SELECT detail -> 'subscriptions' FROM cleave.operation_step WHERE step = 'create-children' AND operation_id = :id"
    assert bench.scalar(noted, id=operation_ids[0]) == ["billing"]
    positions = (
        "SELECT jsonb_object_agg(key, value) FROM cleave.operation_step, jsonb_each(detail -> 'positions')"
    )
    assert [*bench.scalar(positions).values()] == ["-1", "-1"]
    assert bench.topic.last_split_at is not None
    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_merge_depths_are_those_of_the_whole_layout(bench: Bench) -> None:
    """Parents of one split are known to share their past; of others the ancestors have to be read."""
    bench.topic_with(segments=2)
    for planner in (
        segment_admin.splitting(0),
        segment_admin.merging(2, 3),
        segment_admin.merging(4, 1),
        segment_admin.splitting(5),
        segment_admin.merging(6, 7),
    ):
        bench.intend(planner)
        while run_due(bench.context(), limit=8):
            pass

    layout = bench.layout
    assert {i: layout.segments[i].merge_depth for i in (4, 5, 6, 8)} == {4: 1, 5: 2, 6: 2, 8: 3}
    layout.check_invariants()
    bench.check_laws()


@pytest.mark.parametrize("at", ["create-children:before", "terminate-parents:before"])
def test_a_subscription_made_meanwhile_is_on_every_child(bench: Bench, at: str) -> None:
    operation_ids = two_splits(bench)

    run_with(
        bench, at, lambda: subscription_admin.create_subscription(bench.store, TOPIC, "late", bench.request())
    )

    assert finish(bench, operation_ids) == [OperationState.DONE] * 2
    for segment in bench.layout.active:
        assert list(bench.plane.list_subscriptions(bench.log_of(segment.segment_id))) == ["billing", "late"]


def test_what_an_application_subscribed_at_the_last_moment_is_on_the_children(bench: Bench) -> None:
    operation_ids = two_splits(bench)

    run_with(bench, "commit:after", lambda: bench.plane.create_subscription(bench.log_of(0), "own"))

    assert finish(bench, operation_ids) == [OperationState.DONE] * 2
    assert "own" in bench.plane.list_subscriptions(bench.log_of(2))


def test_a_child_terminated_by_hand_ends_its_own_operation_only(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    log = bench.operation(operation_ids[0]).children[0].backing_topic
    bench.create_again(log)
    bench.plane.terminate_segment(log)

    run_due(bench.context(), limit=8)

    assert finish(bench, operation_ids) == [OperationState.ABORTED, OperationState.DONE]


def test_a_parent_deleted_by_hand_is_put_back_and_closed(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    bench.plane.delete_segment(bench.log_of(0))

    run_due(bench.context(), limit=8)

    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_until_the_fence_is_announced_giving_up_is_free(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    deleting = "UPDATE cleave.topic SET state = 'deleting', row_version = row_version + 1"

    run_with(bench, "set-fencing:before", lambda: bench.execute(deleting))

    assert [bench.drive(one).state for one in operation_ids] == [OperationState.ABORTED] * 2
    assert len(bench.layout.active) == 2


def test_one_whose_deadline_has_passed_is_aborted_beside_the_others(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    bench.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1"
        " WHERE operation_id = :id",
        id=operation_ids[0],
    )

    assert run_due(bench.context(), limit=8) == 2

    assert finish(bench, operation_ids) == [OperationState.ABORTED, OperationState.DONE]


@pytest.mark.parametrize("at", ["create-children:before", "commit:before", "finish:before"])
def test_who_lost_the_claim_records_nothing_more(bench: Bench, at: str) -> None:
    operation_ids = two_splits(bench)
    expire = "UPDATE cleave.operation SET claim_expires_at = clock_timestamp() - interval '1 hour' WHERE claimed_by LIKE 'runner/%'"
    states: list[OperationState] = []

    def take_over() -> None:
        bench.execute(expire)
        states.extend(bench.drive(one).state for one in operation_ids)

    run_with(bench, at, take_over, runner_id="runner")

    assert states == [OperationState.DONE] * 2
    wrote = "SELECT count(*) FROM cleave.operation_step WHERE operation_id = ANY (:ids) AND claim_term = 1 AND step = :step"
    assert bench.scalar(wrote, ids=operation_ids, step=at.split(":", maxsplit=1)[0]) == 0
    assert finish(bench, operation_ids) == states


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("call", ["create_successors", "terminate_segments", "subscriptions_of"])
def test_a_call_that_fails_is_repeated_for_each(bench: Bench, call: str, fault: Fault) -> None:
    operation_ids = two_splits(bench)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(fault, call=call))
    context = bench.context(planes={"embedded": plane.as_data_plane()})

    run_due(context, limit=8)

    assert len(plane.injected) == 1
    assert all(bench.operation(one).attempts == 1 for one in operation_ids)
    wait_until(lambda: run_due(context, limit=8) == 0 and not bench.live_operations())
    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_claims_that_run_short_are_renewed_for_all_before_a_call(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    plane, lasting = FaultyDataPlane(bench.runner_plane), list[bool]()
    plane.before_call = lambda _call, _number: lasting.append(
        bench.scalar(
            "SELECT bool_and(claim_expires_at > clock_timestamp() + make_interval(secs => :call))"
            "  FROM cleave.operation WHERE operation_id = ANY (:ids)",
            ids=operation_ids,
            call=bench.call_timeout_seconds * 0.9,
        )
    )
    clock = LateClock(at_first=bench.lease_seconds - bench.call_timeout_seconds / 2)

    run_due(bench.context(planes={"embedded": plane.as_data_plane()}, clock=clock), limit=8)

    assert lasting
    assert all(lasting)
    renewed = "SELECT min(row_version) FROM cleave.operation WHERE operation_id = ANY (:ids)"
    assert bench.scalar(renewed, ids=operation_ids) > 5  # intent, claim, three records, and the renewal
    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_one_whose_claim_is_lost_at_the_renewal_leaves_and_the_others_go_on(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    take = """UPDATE cleave.operation SET claimed_by = 'another', claim_term = claim_term + 1, claim_expires_at = clock_timestamp()
               WHERE operation_id = :id"""
    clock = LateClock(at_first=bench.lease_seconds, then=lambda: bench.execute(take, id=operation_ids[0]))
    plane = FaultyDataPlane(bench.runner_plane)

    run_due(bench.context(planes={"embedded": plane.as_data_plane()}, clock=clock), limit=8)

    assert bench.operation(operation_ids[0]).state is OperationState.INTENDED
    assert bench.operation(operation_ids[1]).state is OperationState.DONE
    [(_, (made,)), *_] = plane.log
    assert len(made) == 2  # the children of one operation
    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_a_portion_of_cursors_has_a_call_of_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    operation_ids = two_splits(bench)
    plane = FaultyDataPlane(bench.runner_plane)
    monkeypatch.setattr(log_steps, "MOST_CURSORS", 1)  # each has two children with one subscription

    run_due(bench.context(planes={"embedded": plane.as_data_plane()}), limit=8)

    assert [name for name, _ in plane.log].count("create_successors") == 4
    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_a_stop_gives_the_claims_back(bench: Bench) -> None:
    operation_ids = two_splits(bench)
    stopping: list[bool] = []

    run_with(bench, "set-fencing:after", lambda: stopping.append(True), should_stop=lambda: bool(stopping))

    assert {bench.operation(one).state for one in operation_ids} == {OperationState.FENCING}
    assert bench.scalar("SELECT count(*) FROM cleave.operation WHERE claimed_by IS NOT NULL") == 0
    assert finish(bench, operation_ids) == [OperationState.DONE] * 2


def test_set_wise_calls_mean_what_single_ones_do(bench: Bench) -> None:
    bench.topic_with()
    log = bench.log_of(0)
    bench.publish(0, 3)

    assert bench.plane.terminate_segments([log, "segment://none"]) == {
        log: bench.plane.terminate_segment(log)
    }
    assert bench.plane.subscriptions_of([log, "segment://none"]) == {log: ["billing"]}
    with pytest.raises(SegmentNotFound):
        bench.plane.terminate_segment("segment://none")


HELD = {
    "topic": "SELECT FROM cleave.topic WHERE name = :name FOR UPDATE",
    "evaluation": "SELECT FROM cleave.evaluation e JOIN cleave.topic t USING (topic_id) WHERE t.name = :name FOR UPDATE OF e",
    "log": "SELECT FROM embedded.log WHERE topic_path = replace(:name, 'topic://', 'segment://') FOR UPDATE",
}


@pytest.mark.parametrize("held", HELD)
def test_none_waits_for_one_whose_rows_somebody_holds(bench: Bench, held: str) -> None:
    """Their parents are terminated: until they commit, their ranges have no log that takes writes."""
    ids = splits_of(bench, 4)
    holder = bench.store.transaction()
    tx = holder.__enter__()
    tx.execute(text(HELD[held]), {"name": topic_name(0)})

    run_due(bench.context(), limit=8)  # ends although the rows are held still

    assert [bench.operation(one).state for one in ids[1:]] == [OperationState.DONE] * 3
    waiting = bench.operation(ids[0])
    assert waiting.state is OperationState.FENCING
    assert (waiting.attempts, bench.scalar(NOT_CLAIMED, id=ids[0])) == (1, True)
    holder.__exit__(None, None, None)
    assert bench.drive(ids[0]).state is OperationState.DONE


NOT_CLAIMED = "SELECT claimed_by IS NULL FROM cleave.operation WHERE operation_id = :id"


def test_one_whose_commit_breaks_a_law_holds_up_no_other(bench: Bench) -> None:
    """The statement fails as a whole; halves of it are tried until the one that breaks the law is alone."""
    ids = splits_of(bench, 5)
    bench.execute(
        "UPDATE cleave.operation_child SET range_end = range_end - 1 WHERE operation_id = :id AND ordinal = 1",
        id=ids[1],
    )

    run_due(bench.context(), limit=8)

    assert [bench.operation(one).state for one in ids if one != ids[1]] == [OperationState.DONE] * 4
    broken = bench.operation(ids[1])
    assert (broken.state, broken.attempts) == (OperationState.FENCING, 1)
    assert "of 65536 hashes" in bench.scalar(
        "SELECT last_error FROM cleave.operation WHERE operation_id = :id", id=ids[1]
    )


def lost_races() -> float:
    """Of any kind."""
    samples = [one for family in metrics.LOST_RACES.collect() for one in family.samples]
    return sum(one.value for one in samples if one.name.endswith("_total"))


def test_an_operation_left_out_says_which_row_it_waited_for(bench: Bench) -> None:
    ids = splits_of(bench, 2)
    races = lost_races()
    with bench.store.transaction() as tx:
        tx.execute(text(HELD["topic"]), {"name": topic_name(1)})
        run_due(bench.context(), limit=8)

    assert lost_races() == races, "who waits has lost nothing"

    error = bench.scalar("SELECT last_error FROM cleave.operation WHERE operation_id = :id", id=ids[1])
    assert error == f"another transaction has locked the rows of topic {topic_name(1)}; retry"


def test_a_record_that_fails_for_some_is_not_made_again_for_those_that_have_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may commit at once, the other has to apply a change of subscriptions first: they are recorded apart."""
    moved, failing = ids = splits_of(bench, 2)
    for one in ids:
        bench.run_until(one, OperationState.FENCING)
    subscription_admin.create_subscription(bench.store, topic_name(1), "late", bench.request())
    record, failures = steps.record, [1]

    def fail_once(tx: Connection, records: list[StepRecord], *rest: Any, **named: Any) -> dict[int, int]:
        if failures and any(one.operation.operation_id == failing for one in records):
            failures.pop()
            raise Terminal("injected")
        return record(tx, records, *rest, **named)

    monkeypatch.setattr(steps, "record", fail_once)

    run_due(bench.context(), limit=8)

    assert not failures
    assert bench.operation(moved).state is OperationState.DONE
    assert steps_of(bench, moved) == STEPS
    assert bench.operation(failing).attempts == 1
    assert bench.drive(failing).state is OperationState.DONE


def topic_name(number: int) -> str:
    return f"topic://acme/shop/orders-{number}"


def splits_of(bench: Bench, count: int) -> list[int]:
    """A split of each of so many topics, asked for and not begun; their ids."""
    ids = []
    for number in range(count):
        options = {"segments": 1, "data_plane": bench.plane.name}
        bench.finish(
            topic_admin.create_topic(
                bench.store, bench.planes, topic_name(number), bench.request(), **options
            )
        )
        planner = segment_admin.splitting(0)
        intent = segment_admin.submit(bench.store, bench.planes, topic_name(number), planner, bench.request())
        ids.append(intent.operation.operation_id)
    return ids
