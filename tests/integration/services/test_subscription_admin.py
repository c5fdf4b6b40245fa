"""Creating and deleting subscriptions: intents, refusals, and the cursors that are there when they are done."""

from __future__ import annotations

import pytest

from controller.dataplane.registry import PLANE_NAMES
from controller.domain.errors import InvalidInput, SubscriptionNotFound
from controller.domain.operation import OperationState
from controller.services import subscription_admin
from controller.services.segment_admin import splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench


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
