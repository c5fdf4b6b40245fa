"""Creating and deleting subscriptions: intents, refusals, and the cursors that are there when they are done."""

from __future__ import annotations

import itertools

import pytest

from controller.dataplane.registry import PLANE_NAMES
from controller.domain.errors import AccessDenied, InvalidInput, SubscriptionNotFound
from controller.domain.operation import OperationState
from controller.services import subscription_admin
from controller.services.operation_runner import Outcome, RunnerContext, run_due, run_operation
from controller.services.segment_admin import splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault


def test_a_subscription_that_does_not_exist_is_not_found(bench: Bench) -> None:
    bench.create()
    with pytest.raises(SubscriptionNotFound):
        subscription_admin.delete_subscription(bench.store, TOPIC, "nobody", bench.request())


def test_a_subscription_starts_at_earliest_on_every_segment_that_exists(bench: Bench) -> None:
    bench.create()
    bench.publish(0, count=4)
    bench.reshape(splitting(0))
    bench.publish(1, count=2)

    intent = subscription_admin.create_subscription(
        bench.store, TOPIC, "audit", bench.request(), kind=SubscriptionKind.QUEUE
    )
    bench.finish(intent)

    assert bench.unread("audit") == 4 + 2
    bench.check_laws()


def test_a_subscription_made_while_a_reshape_commits_also_reads_the_parent(bench: Bench) -> None:
    bench.create()
    bench.publish(0, count=4)
    reshape = bench.intend(splitting(0)).operation
    bench.run_until(reshape.operation_id, OperationState.FENCED)
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "audit", bench.request())

    bench.drive(reshape.operation_id)
    bench.finish(intent)

    assert bench.unread("audit") == 4
    bench.check_laws()


def test_a_deleted_subscription_is_gone_from_sealed_segments_too(bench: Bench) -> None:
    bench.topic_with(subscriptions=("billing", "audit"))
    bench.reshape(splitting(0))

    bench.finish(subscription_admin.delete_subscription(bench.store, TOPIC, "audit", bench.request()))

    for log in bench.plane.list_segments(TOPIC):
        assert bench.plane.list_subscriptions(log) == ["billing"]


@pytest.mark.parametrize("data_plane", PLANE_NAMES)
def test_a_name_with_too_many_bytes_for_the_plane_is_refused_before_anything_is_written(
    bench: Bench, data_plane: str
) -> None:
    """None has more characters than a name may have. On the embedded plane the name of the dead-letter log has fewer left."""
    longest = 166 if data_plane.startswith("pulsar") else 322
    bench.create()
    bench.execute("UPDATE cleave.topic SET data_plane = :p, row_version = row_version + 1", p=data_plane)

    for characters in (340, longest + 1):
        with pytest.raises(InvalidInput, match="bytes"):
            subscription_admin.create_subscription(bench.store, TOPIC, "語" * characters, bench.request())

    assert bench.rows("SELECT FROM cleave.subscription") == []
    assert bench.live_operations() == []
    assert subscription_admin.create_subscription(bench.store, TOPIC, "語" * longest, bench.request())


def test_a_subscription_without_dead_letters_needs_no_room_for_their_name(bench: Bench) -> None:
    bench.create()

    assert subscription_admin.create_subscription(
        bench.store, TOPIC, "語" * 333, bench.request(), kind=SubscriptionKind.QUEUE
    )


def expired(bench: Bench, from_call: int) -> RunnerContext:
    """A runner whose token expires at the `from_call`th creation of a cursor."""
    plane, created = FaultyDataPlane(bench.runner_plane), itertools.count(1)

    def refuse(call: str, _number: int) -> None:
        if call == "create_subscription" and next(created) >= from_call:
            raise AccessDenied("the token has expired")

    plane.before_call = refuse
    return bench.context("expired", planes={"embedded": plane.as_data_plane()}, parallel_calls=1)


@pytest.mark.parametrize("found_on", [(0,), (1,), (0, 1)], ids=str)
def test_a_creation_that_is_given_up_keeps_the_cursors_of_an_application(
    bench: Bench, found_on: tuple[int, ...]
) -> None:
    bench.topic_with(2)
    for segment_id in found_on:
        bench.plane.create_subscription(bench.log_of(segment_id), "reports")
        bench.publish(segment_id, count=5)
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "reports", bench.request())

    assert run_operation(expired(bench, 2), intent.operation.operation_id) is Outcome.FINISHED
    run_due(bench.context())

    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    assert bench.live_operations() == []
    assert bench.rows("SELECT name FROM cleave.subscription") == [("billing",)]
    unread = [bench.plane.backlog(bench.log_of(segment_id), "reports") for segment_id in found_on]
    assert unread == [5] * len(found_on)


def test_a_runner_that_repeats_a_creation_does_not_take_its_own_cursors_for_those_of_an_application(
    bench: Bench,
) -> None:
    bench.topic_with(2)
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "audit", bench.request())
    gone = FaultyDataPlane(
        bench.runner_plane, PlannedFault(Fault.REFUSED, "create_subscription", number=4, times=1)
    )
    one_at_a_time = bench.context("gone", planes={"embedded": gone.as_data_plane()}, parallel_calls=1)
    assert run_operation(one_at_a_time, intent.operation.operation_id) is Outcome.DEFERRED
    assert bench.plane.list_subscriptions(bench.log_of(0)) == ["audit", "billing"]
    bench.execute("UPDATE cleave.operation SET not_before = '-infinity', row_version = row_version + 1")

    assert run_operation(expired(bench, 1), intent.operation.operation_id) is Outcome.FINISHED
    run_due(bench.context())

    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    assert [bench.plane.list_subscriptions(bench.log_of(one)) for one in (0, 1)] == [["billing"]] * 2


def test_a_creation_that_could_not_look_for_cursors_deletes_none(bench: Bench) -> None:
    bench.topic_with(1)
    bench.plane.create_subscription(bench.log_of(0), "reports")
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "reports", bench.request())
    plane = FaultyDataPlane(bench.runner_plane)

    def refuse(_call: str, _number: int) -> None:
        raise AccessDenied("the token has expired")

    plane.before_call = refuse
    context = bench.context("expired", planes={"embedded": plane.as_data_plane()})
    assert run_operation(context, intent.operation.operation_id) is Outcome.FINISHED
    run_due(bench.context())

    assert bench.plane.list_subscriptions(bench.log_of(0)) == ["billing", "reports"]
    assert bench.rows("SELECT name FROM cleave.subscription") == [("billing",)]
