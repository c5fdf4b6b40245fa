"""Creating and deleting subscriptions: intents, refusals, and the cursors that are there when they are done."""

from __future__ import annotations

import itertools

import pytest
from structlog.testing import capture_logs

from controller.dataplane.registry import PLANE_NAMES
from controller.domain.errors import (
    AccessDenied,
    CleaveError,
    DataPlaneUnavailable,
    InvalidInput,
    SubscriptionNotFound,
)
from controller.domain.operation import OperationKind, OperationState
from controller.domain.seek_target import EARLIEST
from controller.services import subscription_admin, topic_admin
from controller.services.garbage_collector import collect
from controller.services.operation_runner import Outcome, RunnerContext, run_due, run_operation
from controller.services.segment_admin import splitting
from controller.store.topics import drains, readable_segments
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault

EXPIRED = AccessDenied("the token has expired")


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


def refusing(bench: Bench, call: str, from_number: int, error: CleaveError) -> RunnerContext:
    """A runner to whom a call is refused from the `from_number`th on."""
    plane, called = FaultyDataPlane(bench.runner_plane), itertools.count(1)

    def refuse(name: str, _number: int) -> None:
        if name == call and next(called) >= from_number:
            raise error

    plane.before_call = refuse
    return bench.context("refused", planes={"embedded": plane.as_data_plane()}, parallel_calls=1)


@pytest.mark.parametrize("found_on", [(0,), (1,), (0, 1)], ids=str)
def test_a_creation_that_is_given_up_keeps_the_cursors_of_an_application(
    bench: Bench, found_on: tuple[int, ...]
) -> None:
    bench.topic_with(2)
    for segment_id in found_on:
        bench.plane.create_subscription(bench.log_of(segment_id), "reports")
        bench.publish(segment_id, count=5)
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "reports", bench.request())

    assert (
        run_operation(refusing(bench, "create_subscription", 2, EXPIRED), intent.operation.operation_id)
        is Outcome.FINISHED
    )
    run_due(bench.context())

    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    assert bench.live_operations() == []
    assert bench.rows("SELECT name FROM cleave.subscription") == [("billing",)]
    unread = [bench.plane.backlog(bench.log_of(segment_id), "reports") for segment_id in found_on]
    assert unread == [5] * len(found_on)


def test_a_creation_that_is_given_up_deletes_the_cursors_that_a_reshape_beside_it_has_made(
    bench: Bench,
) -> None:
    bench.topic_with()
    reshape = bench.intend(splitting(0)).operation
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "audit", bench.request())
    bench.drive(reshape.operation_id)
    assert bench.plane.list_subscriptions(bench.log_of(1)) == ["audit", "billing"]

    context = refusing(bench, "create_subscription", 1, EXPIRED)
    assert run_operation(context, intent.operation.operation_id) is Outcome.FINISHED
    run_due(bench.context())

    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    logs = bench.plane.list_segments(TOPIC)
    assert [bench.plane.list_subscriptions(log) for log in logs] == [["billing"]] * 3


@pytest.mark.parametrize("is_collected", [False, True], ids=["parent left", "parent collected"])
def test_a_creation_that_is_given_up_keeps_what_a_reshape_beside_it_has_copied_for_an_application(
    bench: Bench, is_collected: bool
) -> None:
    bench.topic_with(subscriptions=())
    bench.plane.create_subscription(bench.log_of(0), "reports")
    reshape = bench.intend(splitting(0)).operation
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "reports", bench.request())
    bench.drive(reshape.operation_id)
    bench.publish(1, count=5)
    if is_collected:
        assert collect(bench.store, bench.planes, retention_minutes=0.0).segments == {TOPIC: (0,)}
        [prune] = [one for one in bench.live_operations() if one.kind is OperationKind.PRUNE]
        bench.drive(prune.operation_id)

    context = refusing(bench, "create_subscription", 1, EXPIRED)
    assert run_operation(context, intent.operation.operation_id) is Outcome.FINISHED
    run_due(bench.context())

    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    assert bench.rows("SELECT name FROM cleave.subscription") == []
    assert bench.plane.backlog(bench.log_of(1), "reports") == 5


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
    bench.make_due()

    assert (
        run_operation(refusing(bench, "create_subscription", 1, EXPIRED), intent.operation.operation_id)
        is Outcome.FINISHED
    )
    run_due(bench.context())

    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    assert [bench.plane.list_subscriptions(bench.log_of(one)) for one in (0, 1)] == [["billing"]] * 2


def test_a_creation_that_could_not_look_for_cursors_deletes_none(bench: Bench) -> None:
    bench.topic_with(1)
    bench.plane.create_subscription(bench.log_of(0), "reports")
    intent = subscription_admin.create_subscription(bench.store, TOPIC, "reports", bench.request())
    context = refusing(bench, "list_subscriptions", 1, EXPIRED)
    assert run_operation(context, intent.operation.operation_id) is Outcome.FINISHED
    run_due(bench.context())

    assert bench.plane.list_subscriptions(bench.log_of(0)) == ["billing", "reports"]
    assert bench.rows("SELECT name FROM cleave.subscription") == [("billing",)]


REFUSALS = pytest.mark.parametrize(
    "error",
    [EXPIRED, DataPlaneUnavailable("the broker is away", 0.0)],
    ids=["for good", "past the deadline"],
)


@REFUSALS
def test_a_deletion_that_has_deleted_a_cursor_is_not_given_up(bench: Bench, error: CleaveError) -> None:
    bench.topic_with(subscriptions=("audit",))
    bench.publish(0)
    bench.reshape(splitting(0))
    intent = subscription_admin.delete_subscription(
        bench.store, TOPIC, "audit", bench.request(deadline_seconds=0.0)
    )
    operation_id = intent.operation.operation_id

    outcome = run_operation(refusing(bench, "delete_subscription", 2, error), operation_id)

    carrying = [log for log in bench.plane.list_segments(TOPIC) if bench.plane.list_subscriptions(log)]
    assert len(carrying) == 2
    assert (outcome, bench.operation(operation_id).state) == (Outcome.DEFERRED, OperationState.PREPARED)
    assert bench.rows("SELECT state FROM cleave.subscription") == [("deleting",)]
    assert bench.drive(operation_id).state is OperationState.DONE
    assert [log for log in carrying if bench.plane.list_subscriptions(log)] == []


@REFUSALS
def test_a_deletion_is_given_up_while_every_cursor_exists(bench: Bench, error: CleaveError) -> None:
    bench.topic_with(2, subscriptions=("audit",))
    bench.publish(0)
    intent = subscription_admin.delete_subscription(
        bench.store, TOPIC, "audit", bench.request(deadline_seconds=0.0)
    )

    outcome = run_operation(refusing(bench, "list_subscriptions", 2, error), intent.operation.operation_id)

    assert outcome is Outcome.FINISHED
    assert bench.operation(intent.operation.operation_id).state is OperationState.ABORTED
    assert bench.rows("SELECT state FROM cleave.subscription") == [("live",)]
    assert [bench.plane.list_subscriptions(bench.log_of(one)) for one in (0, 1)] == [["audit"]] * 2


def test_a_deletion_that_is_given_up_leaves_what_others_have_read_meanwhile_to_read(bench: Bench) -> None:
    bench.topic_with(subscriptions=("audit", "billing"))
    bench.publish(0)
    bench.reshape(splitting(0))
    intent = subscription_admin.delete_subscription(
        bench.store, TOPIC, "audit", bench.request(deadline_seconds=0.0)
    )
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0])

    run_operation(refusing(bench, "list_subscriptions", 2, EXPIRED), intent.operation.operation_id)

    assert bench.rows("SELECT name, state FROM cleave.subscription ORDER BY 1") == [
        ("audit", "live"),
        ("billing", "live"),
    ]
    left = bench.store.in_transaction(readable_segments.to_read, bench.topic_id, "audit")
    assert sorted(left.layout.segments) == [0, 1, 2]
    assert left.drained == set()


def test_a_deletion_that_has_deleted_a_cursor_does_not_keep_its_topic(bench: Bench) -> None:
    bench.topic_with(2, subscriptions=("audit",))
    intent = subscription_admin.delete_subscription(bench.store, TOPIC, "audit", bench.request())
    operation_id = intent.operation.operation_id
    context = refusing(bench, "delete_subscription", 2, EXPIRED)
    assert run_operation(context, operation_id) is Outcome.DEFERRED
    deletion = topic_admin.delete_topic(bench.store, TOPIC, bench.request()).operation
    bench.make_due()

    assert run_operation(context, operation_id) is Outcome.FINISHED
    assert bench.operation(operation_id).state is OperationState.ABORTED
    assert bench.rows("SELECT name FROM cleave.subscription") == []
    assert bench.drive(deletion.operation_id).state is OperationState.DONE


def test_a_deletion_that_undoes_a_creation_ends_though_its_cursors_cannot_be_deleted(bench: Bench) -> None:
    bench.topic_with(2)
    creation = subscription_admin.create_subscription(bench.store, TOPIC, "audit", bench.request()).operation
    assert (
        run_operation(refusing(bench, "create_subscription", 2, EXPIRED), creation.operation_id)
        is Outcome.FINISHED
    )
    [deletion] = bench.live_operations()

    outcome = run_operation(refusing(bench, "delete_subscription", 1, EXPIRED), deletion.operation_id)

    assert (outcome, bench.operation(deletion.operation_id).state) == (
        Outcome.FINISHED,
        OperationState.ABORTED,
    )
    assert bench.rows("SELECT name FROM cleave.subscription") == [("billing",)]


def test_a_process_without_the_data_plane_gives_nothing_up(bench: Bench) -> None:
    bench.topic_with(1)
    intent = subscription_admin.create_subscription(
        bench.store, TOPIC, "audit", bench.request(deadline_seconds=0.0)
    )
    operation_id = intent.operation.operation_id

    assert run_operation(bench.context("elsewhere", planes={}), operation_id) is Outcome.DEFERRED
    assert bench.drive(operation_id).state is OperationState.DONE


def test_a_seek_that_waits_for_consumers_does_not_fail_repeatedly(bench: Bench) -> None:
    bench.topic_with(1)
    bench.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)"
        " VALUES (:id, 'billing', 0, 0, 65535, 'till-1', 1)",
        id=bench.topic_id,
    )
    seek = subscription_admin.seek_subscription(
        bench.store, TOPIC, "billing", EARLIEST, bench.request(), release_seconds=600.0
    ).operation

    with capture_logs() as lines:
        for _ in range(4):
            assert run_operation(bench.context("r"), seek.operation_id) is Outcome.DEFERRED
            bench.make_due()

    waits = bench.operation(seek.operation_id)
    assert (waits.attempts, waits.last_error) == (
        0,
        "waits until 1 bucket(s) are released; `cleave consumers why` says by whom",
    )
    assert bench.rows("SELECT * FROM inspect.stuck_operations") == []
    assert [line["event"] for line in lines].count("operation deferred") == 1
