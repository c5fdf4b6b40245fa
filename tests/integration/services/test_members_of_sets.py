"""Each member of a set fares as if it were alone: left out, late, spoilt or held up, it takes nobody with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from controller.dataplane.base import LogState
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.errors import Conflict, DataPlaneUnavailable, LostRace, Terminal
from controller.domain.operation import OperationState
from controller.domain.seek_target import EARLIEST
from controller.services import subscription_admin
from controller.services.operation_runner import Outcome, backoff, log_steps, run_due, run_operation
from controller.services.segment_admin import splitting
from controller.store.journal import claims, steps
from tests.integration.services.test_operation_sets import run_with, splits_of, two_splits
from tests.support.bench import CALL_TIMEOUT_SECONDS, TOPIC, Bench
from tests.support.bench_planes import UNHURRIED_LEASE_SECONDS
from tests.support.faulty_data_plane import FaultyDataPlane
from tests.support.manual_clock import ManualClock

_S = OperationState
PASS_DEADLINE = """
    UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1 WHERE operation_id = :id
"""
DELETE = """
    UPDATE cleave.topic SET state = 'deleting', row_version = row_version + 1
     WHERE topic_id = (SELECT topic_id FROM cleave.operation WHERE operation_id = :id)
"""
LONG_LEASE_SECONDS = 30.0
"""Of tests that set the clock: for them the database's must not run out."""


def parents_of(bench: Bench, operation_id: int) -> tuple[str, ...]:
    return bench.operation(operation_id).parent_topics


def states(bench: Bench, operation_ids: list[int]) -> list[OperationState]:
    return [bench.operation(one).state for one in operation_ids]


# Left out by a record.


@pytest.mark.parametrize("meanwhile", [PASS_DEADLINE, DELETE], ids=["deadline", "deletion"])
def test_one_that_has_to_give_up_before_its_announcement_keeps_its_parent_open(
    bench: Bench, meanwhile: str
) -> None:
    late, other = splits_of(bench, 2)
    plane = FaultyDataPlane(bench.runner_plane)
    planes = {"embedded": plane.as_data_plane()}

    run_with(bench, "set-fencing:before", lambda: bench.execute(meanwhile, id=late), planes=planes)

    closed = [log for name, arguments in plane.log if name == "terminate_segments" for log in arguments[0]]
    assert closed == list(parents_of(bench, other))
    assert bench.scalar("SELECT count(*) FROM cleave.operation WHERE claimed_by IS NOT NULL") == 0
    assert [bench.drive(one).state for one in (late, other)] == [_S.ABORTED, _S.DONE]
    assert bench.plane.segment_state(*parents_of(bench, late)) is LogState.OPEN


def test_one_whose_claim_is_lost_at_its_announcement_closes_nothing(bench: Bench) -> None:
    """Whoever took over is asleep: what is done to the logs would be done by the one that lost the claim."""
    lost, other = splits_of(bench, 2)
    plane = FaultyDataPlane(bench.runner_plane)
    planes = {"embedded": plane.as_data_plane()}
    take_over = "UPDATE cleave.operation SET claimed_by = 'another', claim_term = claim_term + 1 WHERE operation_id = :id"

    run_with(bench, "set-fencing:before", lambda: bench.execute(take_over, id=lost), planes=planes)

    assert states(bench, [lost, other]) == [_S.INTENDED, _S.DONE]
    assert bench.plane.segment_state(*parents_of(bench, lost)) is LogState.OPEN
    assert bench.scalar("SELECT attempts FROM cleave.operation WHERE operation_id = :id", id=lost) == 0


def test_an_operation_whose_row_a_fail_over_lost_ends_as_taken_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at again after a lost race, and there is no other operation in the set."""
    bench.topic_with(segments=1)
    operation_id = bench.intend(splitting(0)).operation.operation_id

    def lose_the_row(*_: object) -> None:
        bench.execute(
            "SET LOCAL session_replication_role = replica; DELETE FROM cleave.operation WHERE operation_id = :id",
            id=operation_id,
        )
        raise LostRace("the topic changed", 0.0)

    monkeypatch.setattr(log_steps.LogSteps, "perform", lose_the_row)

    assert run_operation(bench.context(), operation_id) is Outcome.FENCED_OUT


# Spoilt, or held up.


def test_a_call_that_one_of_them_spoils_is_made_for_the_others(bench: Bench) -> None:
    ids = splits_of(bench, 4)
    spoilt = {child.backing_topic for child in bench.operation(ids[1]).children}
    plane = FaultyDataPlane(bench.runner_plane)

    def refuse(_call: str, number: int) -> None:
        name, arguments = plane.log[number - 1]
        if name == "create_successors" and any(one.backing_topic in spoilt for one in arguments[0]):
            raise Conflict("quota of this namespace is used up")

    plane.before_call = refuse
    run_due(bench.context(planes={"embedded": plane.as_data_plane()}), limit=8)

    assert states(bench, ids) == [_S.DONE, _S.ABORTED, _S.DONE, _S.DONE]


def test_parents_deleted_by_hand_are_put_back_one_after_the_other_in_one_run(bench: Bench) -> None:
    ids = splits_of(bench, 3)
    for operation_id in ids[:2]:
        bench.plane.delete_segment(*parents_of(bench, operation_id))

    run_due(bench.context(), limit=8)

    assert states(bench, ids) == [_S.DONE] * 3
    for operation_id in ids:
        assert bench.plane.segment_state(*parents_of(bench, operation_id)) is LogState.TERMINATED


def test_a_parent_that_goes_while_it_is_put_back_is_not_taken_for_closed(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane, seen = FaultyDataPlane(bench.runner_plane), list[str]()

    def delete(call: str, _number: int) -> None:
        if call == "terminate_segments" and len(seen) < 2:  # closed with the others, and by itself
            seen.append(call)
            bench.plane.delete_segment(bench.log_of(0))

    plane.before_call = delete
    bench.drive(operation.operation_id, bench.context(planes={"embedded": plane.as_data_plane()}))

    assert len(seen) == 2
    assert bench.plane.segment_state(bench.log_of(0)) is LogState.TERMINATED
    bench.check_laws()


def test_behind_the_fence_an_error_for_good_is_one_attempt_that_failed(bench: Bench) -> None:
    """There is nothing to give up, so it is not asked for."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = FaultyDataPlane(bench.runner_plane)

    def refuse(call: str, _number: int) -> None:
        if call == "terminate_segments":
            raise Terminal("not allowed any more")

    plane.before_call = refuse
    planes = {"embedded": plane.as_data_plane()}

    assert bench.run_once(operation.operation_id, planes=planes) is Outcome.DEFERRED
    assert [name for name, _ in plane.log].count("terminate_segments") == 1


def test_after_races_the_next_attempt_comes_soon_however_many_there_were() -> None:
    held, away = LostRace("somebody holds the rows"), DataPlaneUnavailable("away")

    assert backoff.delay_seconds(held, 9, CALL_TIMEOUT_SECONDS) == backoff.LONGEST_DELAY_AFTER_RACES_SECONDS
    assert backoff.delay_seconds(away, 9, CALL_TIMEOUT_SECONDS) == backoff.LONGEST_DELAY_SECONDS


# Subscriptions.


@pytest.mark.parametrize("at", ["create-children:before", "terminate-parents:before"])
def test_a_change_of_subscriptions_is_applied_in_the_same_run(bench: Bench, at: str) -> None:
    """Before a child is all that takes writes; the subscription's own operation comes behind them."""
    ids = two_splits(bench)
    on_children: list[list[str]] = []

    def checkpoint(name: str) -> None:
        if name == at and not on_children:
            subscription_admin.create_subscription(bench.store, TOPIC, "late", bench.request("late"))
        if name == "finish:before" and not on_children:
            children = [child for one in ids for child in bench.operation(one).children]
            on_children.extend(list(bench.plane.list_subscriptions(one.backing_topic)) for one in children)

    races = REGISTRY.get_sample_value("cleave_lost_races_total", {"what": "operation"}) or 0.0
    run_due(bench.context(checkpoint=checkpoint), limit=8)

    assert (REGISTRY.get_sample_value("cleave_lost_races_total", {"what": "operation"}) or 0.0) > races
    assert on_children == [["billing", "late"]] * 4
    assert states(bench, ids) == [_S.DONE] * 2
    assert bench.scalar("SELECT sum(attempts) FROM cleave.operation") == 0


def subscribed(bench: Bench) -> tuple[int, Callable[[], list[list[str]]]]:
    """A split not begun, and what is on its children: one subscription is on the parent alone, one recorded and on no
    log yet, one about to end, one as usual.
    """
    bench.topic_with(subscriptions=("billing", "ending"))
    bench.plane.create_subscription(bench.log_of(0), "own")
    split = bench.intend(splitting(0)).operation
    subscription_admin.create_subscription(bench.store, TOPIC, "asked", bench.request())
    subscription_admin.delete_subscription(bench.store, TOPIC, "ending", bench.request())

    def on_children() -> list[list[str]]:
        return [list(bench.plane.list_subscriptions(child.backing_topic)) for child in split.children]

    return split.operation_id, on_children


CARRIED = [["asked", "billing", "own"]] * 2


def test_children_take_over_with_what_is_recorded_and_what_parents_have_but_nothing_that_ends(
    bench: Bench,
) -> None:
    operation_id, on_children = subscribed(bench)
    found: dict[str, list[list[str]]] = {}

    def look(name: str) -> None:
        if name == "commit:before":
            found[name] = on_children()

    outcome = bench.run_once(operation_id, checkpoint=look, lease_seconds=UNHURRIED_LEASE_SECONDS)

    assert outcome is Outcome.FINISHED

    assert found == {"commit:before": CARRIED}
    assert on_children() == CARRIED


def test_whoever_finishes_for_another_runner_brings_nothing_back_that_ends(bench: Bench) -> None:
    operation_id, on_children = subscribed(bench)
    bench.run_until(operation_id, _S.COMMITTED)

    outcome = bench.run_once(operation_id, runner_id="next", lease_seconds=UNHURRIED_LEASE_SECONDS)

    assert outcome is Outcome.FINISHED

    assert on_children() == CARRIED


def test_a_subscription_is_made_on_a_segment_that_was_sealed_behind_its_request(bench: Bench) -> None:
    """It begins at the earliest message since, and some of those are in the parent."""
    bench.topic_with()
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "asked", bench.request())
    bench.reshape(splitting(0))

    bench.finish(intent)

    for segment_id in (0, 1, 2):
        assert "asked" in bench.plane.list_subscriptions(bench.log_of(segment_id))


def test_a_deleted_subscription_goes_from_sealed_segments_too(bench: Bench) -> None:
    bench.topic_with(subscriptions=("billing", "ending"))
    bench.reshape(splitting(0))

    bench.finish(subscription_admin.delete_subscription(bench.store, TOPIC, "ending", bench.request()))

    for segment_id in (0, 1, 2):
        assert list(bench.plane.list_subscriptions(bench.log_of(segment_id))) == ["billing"]


def test_a_child_terminated_behind_the_fence_stands_in_nobodys_way(bench: Bench) -> None:
    """There is only the way forward; a segment whose log is closed is healed once it is one."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, _S.FENCED)
    subscription_admin.create_subscription(bench.store, TOPIC, "late", bench.request())
    bench.plane.terminate_segment(operation.children[0].backing_topic)

    outcome = bench.run_once(operation.operation_id, lease_seconds=UNHURRIED_LEASE_SECONDS)

    assert outcome is Outcome.FINISHED

    assert bench.operation(operation.operation_id).state is _S.DONE


# Claims.


def test_claims_count_from_before_the_question_and_a_slow_renewal_is_made_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    clock, renewals, at_calls = ManualClock(), list[int](), list[int]()
    claiming, renewing = claims.claim, claims.renew

    def claim_slowly(*arguments: Any, **named: Any) -> Any:
        clock.seconds += LONG_LEASE_SECONDS - CALL_TIMEOUT_SECONDS / 2
        return claiming(*arguments, **named)

    def renew_slowly_at_first(*arguments: Any, **named: Any) -> Any:
        renewals.append(1)
        clock.seconds += LONG_LEASE_SECONDS if len(renewals) == 1 else 0.0
        return renewing(*arguments, **named)

    monkeypatch.setattr(claims, "claim", claim_slowly)
    monkeypatch.setattr(claims, "renew", renew_slowly_at_first)
    plane = FaultyDataPlane(bench.runner_plane)
    plane.before_call = lambda _call, _number: at_calls.append(len(renewals))

    outcome = bench.run_once(
        operation.operation_id,
        planes={"embedded": plane.as_data_plane()},
        clock=clock,
        lease_seconds=LONG_LEASE_SECONDS,
    )

    assert outcome is Outcome.FINISHED
    assert at_calls == [2, 2, 2]


def test_each_of_many_calls_is_made_under_claims_that_outlive_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_splits(bench)
    monkeypatch.setattr(log_steps, "MOST_CURSORS", 1)  # a call for each child
    clock, renewing, outlived = ManualClock(), claims.renew, list[bool]()
    until = [clock.seconds + LONG_LEASE_SECONDS]

    def renew(*arguments: Any, **named: Any) -> Any:
        until.append(clock.seconds + LONG_LEASE_SECONDS)
        return renewing(*arguments, **named)

    def call_slowly(_call: str, _number: int) -> None:
        outlived.append(until[-1] - clock.seconds > CALL_TIMEOUT_SECONDS)
        clock.seconds += LONG_LEASE_SECONDS / 2 - CALL_TIMEOUT_SECONDS / 4

    monkeypatch.setattr(claims, "renew", renew)
    plane = FaultyDataPlane(bench.runner_plane)
    plane.before_call = call_slowly
    context = bench.context(
        planes={"embedded": plane.as_data_plane()}, clock=clock, lease_seconds=LONG_LEASE_SECONDS
    )

    assert run_due(context, limit=8) == 2

    assert outlived == [True] * 6
    assert bench.live_operations() == []


def test_a_renewal_between_two_calls_that_was_slow_keeps_the_second_from_being_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_splits(bench)
    monkeypatch.setattr(log_steps, "MOST_CURSORS", 1)  # a call for each child
    clock, renewing, outlived = ManualClock(), claims.renew, list[bool]()
    until = [clock.seconds + LONG_LEASE_SECONDS]

    def renew_slowly_at_first(*arguments: Any, **named: Any) -> Any:
        until.append(clock.seconds + LONG_LEASE_SECONDS)
        clock.seconds += LONG_LEASE_SECONDS if len(until) == 2 else 0.0
        return renewing(*arguments, **named)

    def call_slowly(_call: str, number: int) -> None:
        outlived.append(until[-1] - clock.seconds > CALL_TIMEOUT_SECONDS)
        clock.seconds += LONG_LEASE_SECONDS - CALL_TIMEOUT_SECONDS / 2 if number == 1 else 0.0

    monkeypatch.setattr(claims, "renew", renew_slowly_at_first)
    plane = FaultyDataPlane(bench.runner_plane)
    plane.before_call = call_slowly
    context = bench.context(
        planes={"embedded": plane.as_data_plane()}, clock=clock, lease_seconds=LONG_LEASE_SECONDS
    )

    assert run_due(context, limit=8) == 2

    assert all(outlived)
    assert len(until) > 2
    assert bench.live_operations() == []


def test_the_longest_call_of_any_plane_counts(bench: Bench) -> None:
    slow = EmbeddedDataPlane(bench.url, call_timeout_seconds=CALL_TIMEOUT_SECONDS * 1.5)

    assert (
        bench.context(planes={"a": bench.runner_plane, "b": slow}).call_timeout_seconds
        == slow.call_timeout_seconds
    )
    assert (
        bench.context(planes={"b": slow, "a": bench.runner_plane}).call_timeout_seconds
        == slow.call_timeout_seconds
    )
    slow.close()


# The disk.


def watch_records(monkeypatch: pytest.MonkeyPatch) -> dict[_S, set[bool]]:
    """By the state recorded from now on, whether its record waited."""
    recording, waited = steps.record, dict[_S, set[bool]]()

    def record(*arguments: Any, waits_for_disk: bool = True, **named: Any) -> Any:
        waited.setdefault(arguments[1][0].leads_to, set()).add(waits_for_disk)
        return recording(*arguments, waits_for_disk=waits_for_disk, **named)

    monkeypatch.setattr(steps, "record", record)
    return waited


def waiting_for_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch, **changes: object) -> dict[_S, set[bool]]:
    """By the state recorded, whether its record waited: of a split, the creation and deletion of a subscription, and
    a split that is given up.
    """
    bench.topic_with(segments=2, subscriptions=("billing", "retired"))
    waited = watch_records(monkeypatch)
    bench.intend(splitting(0))
    subscription_admin.create_subscription(bench.store, TOPIC, "asked", bench.request())
    subscription_admin.delete_subscription(bench.store, TOPIC, "retired", bench.request())
    bench.intend(splitting(1), bench.request(deadline_seconds=0.0))
    while run_due(bench.context(**changes)):
        pass
    return waited


def test_what_people_are_told_and_what_leads_to_deletions_waits_for_the_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a split is another statement; see the store's tests. If a crash lost the record of the cursors
    that were found, a repeated search would find cursors that the operation itself has made or deleted.
    """
    assert waiting_for_disk(bench, monkeypatch) == {
        _S.PREPARED: {True},
        _S.FENCING: {True},
        _S.COMMITTED: {True},
        _S.ABORTING: {True},
        _S.ABORTED: {True},
        _S.DONE: {False},
    }


def test_that_a_seek_has_stopped_its_readers_waits_for_the_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a crash lost this record, the seek could be cancelled after it has moved cursors."""
    bench.topic_with()
    waited = watch_records(monkeypatch)

    bench.finish(
        subscription_admin.seek_subscription(
            bench.store, TOPIC, "billing", EARLIEST, bench.request(), release_seconds=0.0
        )
    )

    assert waited[_S.PREPARED] == {True}


def test_an_announcement_need_not_wait_where_the_logs_are_in_the_journals_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = EmbeddedDataPlane(
        bench.url, call_timeout_seconds=CALL_TIMEOUT_SECONDS, shares_journal_server=True
    )

    waited = waiting_for_disk(bench, monkeypatch, planes={"embedded": plane})

    assert waited[_S.FENCING] == {False}
    assert waited[_S.COMMITTED] == waited[_S.ABORTING] == {True}
    plane.close()
