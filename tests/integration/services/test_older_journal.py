"""A journal that is older than its logs, on both data planes: nothing unread is deleted, and the layout comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.dataplane.log_client import LogReader, Ownership
from controller.domain.errors import FencedOut, TopicHeld
from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from controller.domain.operation import OperationState
from controller.domain.seek_target import EARLIEST
from controller.domain.segment import segment_descriptor
from controller.services import subscription_admin, topic_admin
from controller.services.garbage_collector import collect_segment
from controller.services.reconciler import FindingKind, reconcile, recover, verify_topics
from controller.services.segment_admin import merging, splitting
from controller.store.topics import drains, held_topics, readable_segments
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.older_journal import Backups, maintain, open_logs, unread_by_log

ON_BOTH_PLANES = [pytest.param("embedded"), pytest.param("pulsar", marks=pytest.mark.pulsar)]


@pytest.fixture
def bench(request: pytest.FixtureRequest, database: str) -> Iterator[Bench]:
    """On the plane that the test names; embedded logs otherwise."""
    pulsar = None
    if getattr(request, "param", "embedded") == "pulsar":
        broker = request.getfixturevalue("pulsar_broker")
        pulsar = PulsarTopic.fresh(broker.admin_url, broker.service_url, "restored")
    bench = Bench(database, pulsar)
    yield bench
    if pulsar is not None:
        pulsar.remove(bench.plane)
    bench.close()


def shape(bench: Bench) -> list[tuple[int, str, tuple[int, ...]]]:
    """Active segments with their parents."""
    return [(one.segment_id, str(one.hash_range), one.parent_ids) for one in bench.layout.active]


def grow(bench: Bench) -> None:
    """Reshape the topic several times, with unread messages in every log."""
    bench.publish(0, 4)
    bench.reshape(splitting(0))
    for segment_id in (1, 2):
        bench.publish(segment_id, 5)
    bench.reshape(splitting(1))
    for segment_id in (3, 4):
        bench.publish(segment_id, 3)
    bench.reshape(merging(4, 2))
    bench.publish(5, 2)


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_a_restore_loses_no_unread_message_and_brings_the_layout_back(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    bench.publish(0, 2)
    backup = backups.take()
    grow(bench)
    present, unread, epoch = shape(bench), unread_by_log(bench), bench.layout.epoch
    assert sum(unread.values()) == 24

    backups.restore(backup)
    maintain(bench)

    assert unread_by_log(bench) == unread
    assert shape(bench) == present
    assert bench.layout.epoch > epoch
    assert bench.layout.next_segment_id == 6
    bench.check_laws()
    bench.reshape(splitting(5))  # goes on as if nothing had been


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
@pytest.mark.parametrize("state", [OperationState.INTENDED, OperationState.PREPARED, OperationState.FENCING])
def test_an_operation_in_the_backup_is_not_given_up_when_it_took_effect_later(
    bench: Bench, backups: Backups, state: OperationState
) -> None:
    """Its deadline has passed by the time of the restore. Its children are full of messages that nobody has read."""
    bench.topic_with()
    bench.publish(0)
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, state)
    backup = backups.take()
    bench.drive(operation.operation_id)
    bench.publish(1, 5)
    bench.publish(2, 5)
    present, unread = shape(bench), unread_by_log(bench)

    backups.restore(backup)
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    maintain(bench)
    bench.settle()

    assert unread_by_log(bench) == unread
    assert shape(bench) == present
    assert bench.operation(operation.operation_id).state is OperationState.DONE
    bench.check_laws()


@pytest.mark.parametrize("state", [OperationState.PREPARED, OperationState.ABORTED])
def test_a_client_that_appends_to_a_child_after_logs_and_journal_went_back_completes_the_split(
    bench: Bench, state: OperationState
) -> None:
    """The client has the layout of the lost time. Embedded logs are restored together with the journal."""
    bench.topic_with()
    bench.publish(0)
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    bench.store.in_transaction(held_topics.doubt, [bench.topic_id])
    if state is OperationState.ABORTED:
        assert verify_topics(bench.store, bench.planes) == (1, 1)
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    if state is OperationState.ABORTED:
        assert bench.drive(operation.operation_id).state is state
    upper = bench.plane.backing_topic(bench.topic_name, segment_descriptor(HashRange(0x8000, 0xFFFF), 2))
    bench.append(upper, 5)
    unread = unread_by_log(bench)

    bench.execute("UPDATE cleave.deletion_entry SET not_before = '-infinity' WHERE closed_at IS NULL")
    maintain(bench)
    bench.settle()

    assert unread_by_log(bench) == unread
    assert [str(one.hash_range) for one in bench.layout.active] == ["0000-7fff", "8000-ffff"]
    assert bench.layout.active[1].segment_id == 2
    assert bench.topic.epoch > 1
    bench.check_laws()


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_the_same_split_again_on_a_database_that_looks_the_same_deletes_nothing(
    bench: Bench, backups: Backups
) -> None:
    """A copy of the disk has the identity of the original: what is found then is that another operation created the log."""
    bench.topic_with()
    bench.publish(0)
    backup = backups.take()
    bench.reshape(splitting(0))
    bench.publish(1, 9)
    bench.publish(2, 8)
    present, unread = shape(bench), unread_by_log(bench)

    backups.restore(backup)
    bench.execute(
        "UPDATE cleave.topic SET verified_under = cleave.database_identity(), row_version = row_version + 1"
    )
    again = bench.reshape(splitting(0))
    assert again.state is OperationState.ABORTED
    with pytest.raises(TopicHeld, match="being compared"):
        bench.intend(splitting(0))
    maintain(bench)

    assert unread_by_log(bench) == unread
    assert shape(bench) == present
    bench.check_laws()


def test_nothing_acts_on_a_topic_before_its_logs_were_compared(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    backups.restore(backups.take())

    for act in (
        lambda: bench.intend(splitting(0)),
        lambda: topic_admin.delete_topic(bench.store, bench.topic_name, bench.request()),
    ):
        with pytest.raises(TopicHeld, match="being compared"):
            act()
    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert verify_topics(bench.store, bench.planes) == (0, 0)
    bench.reshape(splitting(0))


def lost_log(bench: Bench, segment_id: int, hash_range: HashRange, *, messages: int) -> str:
    """A log of an operation that the journal does not have."""
    log = bench.plane.backing_topic(bench.topic_name, segment_descriptor(hash_range, segment_id))
    bench.plane.create_segment(log, ["billing"], LogOrigin("lost", 1, (0,), ()))
    for _ in range(messages):
        bench.append(log)
    return log


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_a_topic_whose_logs_contradict_each_other_is_held_until_a_person_decides(bench: Bench) -> None:
    """A child holds messages while the parent, which it replaces, takes appends."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    log = lost_log(bench, 7, HashRange(0, 0x7FFF), messages=3)

    [found] = reconcile(bench.store, bench.planes, bench.topic_id)

    assert found.kind is FindingKind.LOGS_AHEAD
    assert "still accepts appends" in (found.error or "")
    with pytest.raises(TopicHeld, match="still accepts appends"):
        bench.intend(splitting(0))
    assert bench.run_once(operation.operation_id).value == "not-claimed"
    maintain(bench)
    assert unread_by_log(bench) == {log: 3}
    found_again = recover(bench.store, bench.planes, bench.topic_name, actor="ann", dry_run=True)
    assert found_again.held_reason is not None

    bench.plane.delete_segment(log)  # the person decides
    recovered = recover(bench.store, bench.planes, bench.topic_name, actor="ann")

    assert (recovered.held_reason, recovered.findings) == (None, ())
    bench.drive(operation.operation_id)
    bench.check_laws()


def test_a_log_without_a_record_of_its_creation_is_listed_and_kept(bench: Bench) -> None:
    bench.topic_with()
    log = bench.plane.backing_topic(bench.topic_name, "0000-ffff-0")
    stranger = log.replace("0000-ffff-0", "0000-7fff-44")
    bench.plane.create_segment(stranger, ["billing"])
    bench.append(stranger)

    maintain(bench)

    assert bench.rows("SELECT backing_topic, segment_id, unread, token FROM inspect.unmanaged_logs") == [
        (stranger, 44, 1, None)
    ]
    assert unread_by_log(bench) == {stranger: 1}
    bench.plane.delete_segment(stranger)
    maintain(bench, 1)
    assert bench.rows("SELECT * FROM inspect.unmanaged_logs") == []


def test_a_topic_that_the_backup_does_not_have_is_recovered_from_its_logs(
    bench: Bench, backups: Backups
) -> None:
    backup = backups.take()
    bench.topic_with()
    grow(bench)
    present, unread = shape(bench), unread_by_log(bench)

    backups.restore(backup)
    recovered = recover(bench.store, bench.planes, bench.topic_name, actor="ann", data_plane=bench.plane.name)

    assert recovered.held_reason is None
    assert [(i, where) for i, where, _ in shape(bench)] == [(i, where) for i, where, _ in present]
    maintain(bench)
    assert unread_by_log(bench) == unread
    assert bench.rows("SELECT name, kind FROM cleave.subscription") == [("billing", "STREAM")]
    bench.finish(topic_admin.delete_topic(bench.store, bench.topic_name, bench.request()))
    maintain(bench, 1)
    assert bench.plane.list_segments(bench.topic_name) == []


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_a_log_that_is_a_segment_again_is_deleted_with_its_topic(bench: Bench, backups: Backups) -> None:
    """Also a log that Cleave had to create once more."""
    bench.topic_with()
    backup = backups.take()
    bench.reshape(splitting(0))
    bench.publish(1, 5)
    backups.restore(backup)
    maintain(bench)
    bench.plane.delete_segment(bench.log_of(2))
    maintain(bench)
    assert len(bench.plane.list_segments(bench.topic_name)) == 2

    bench.finish(topic_admin.delete_topic(bench.store, bench.topic_name, bench.request()))
    maintain(bench, 1)

    assert bench.plane.list_segments(bench.topic_name) == []
    assert bench.rows("SELECT * FROM inspect.unmanaged_logs") == []


def test_a_log_that_is_a_segment_again_is_deleted_once_it_is_read(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    backup = backups.take()
    bench.reshape(splitting(0))
    bench.publish(1, 2)
    bench.reshape(splitting(1))
    backups.restore(backup)
    maintain(bench)
    assert sorted(bench.layout.segments) == [1, 2, 3, 4]

    drain(bench, 1)
    maintain(bench)

    assert sorted(bench.layout.segments) == [2, 3, 4]
    bench.check_laws()


def test_a_name_that_only_logs_have_is_not_created_over_them(bench: Bench, backups: Backups) -> None:
    backup = backups.take()
    bench.topic_with()
    bench.publish(0, 3)
    unread = unread_by_log(bench)

    backups.restore(backup)
    assert bench.create().state is OperationState.ABORTED
    maintain(bench)

    assert unread_by_log(bench) == unread


def drain(bench: Bench, segment_id: int, subscription: str = "billing") -> None:
    bench.plane.skip_all(bench.log_of(segment_id), subscription)


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_subscriptions_and_positions_are_those_of_the_data_plane(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    backup = backups.take()
    bench.finish(
        subscription_admin.create_subscription(bench.store, bench.topic_name, "audit", bench.request())
    )
    bench.publish(0, 4)
    bench.reshape(splitting(0))
    bench.publish(1, 2)
    bench.reshape(splitting(1))
    drain(bench, 0)
    drain(bench, 0, "audit")
    drain(bench, 1)

    backups.restore(backup)
    verify_topics(bench.store, bench.planes)

    with bench.store.transaction() as tx:
        read = {name: drains.drained(tx, bench.topic_id, name) for name in ("billing", "audit")}
    assert read == {"billing": {0, 1}, "audit": {0}}
    assert bench.plane.backlog(bench.log_of(1), "audit") == 2


def readable(bench: Bench, subscription: str) -> list[int]:
    """Segments that the subscription may read at present."""
    with bench.store.transaction() as tx:
        return sorted(readable_segments.front(tx, bench.topic_id, subscription).readable.segments)


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_a_subscription_from_latest_of_the_lost_time_waits_for_no_log_without_its_cursor(
    bench: Bench, backups: Backups
) -> None:
    bench.topic_with()
    bench.publish(0, 2)
    backup = backups.take()
    bench.reshape(splitting(0))
    bench.subscribe("late", from_latest=True)
    bench.publish(1, 3)
    bench.reshape(splitting(1))

    backups.restore(backup)
    verify_topics(bench.store, bench.planes)

    assert readable(bench, "late") == [1, 2]
    assert unread_by_log(bench, "late") == {bench.log_of(1): 3}
    assert readable(bench, "billing") == [0]
    drain(bench, 0)
    bench.settle(collects=True)
    assert sorted(bench.layout.segments) == [1, 2, 3, 4]
    bench.check_laws()


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_a_recorded_subscription_gets_the_cursor_back_that_it_lacks_on_a_sealed_log(
    bench: Bench, backups: Backups
) -> None:
    """It was deleted and created again from latest. A cursor may be missing for another reason, so nothing counts as read."""
    bench.topic_with(subscriptions=("billing", "audit"))
    bench.publish(0, 2)
    backup = backups.take()
    bench.finish(
        subscription_admin.delete_subscription(bench.store, bench.topic_name, "billing", bench.request())
    )
    bench.reshape(splitting(0))
    bench.subscribe("billing", from_latest=True)
    bench.publish(1, 3)

    backups.restore(backup)
    verify_topics(bench.store, bench.planes)

    assert unread_by_log(bench) == {bench.log_of(0): 2, bench.log_of(1): 3}
    assert readable(bench, "billing") == [0]
    bench.check_laws()


def test_a_subscription_of_the_lost_time_reads_what_was_sealed_before_the_backup(
    bench: Bench, backups: Backups
) -> None:
    bench.topic_with()
    bench.publish(0, 4)
    bench.reshape(splitting(0))
    backup = backups.take()
    bench.subscribe("audit")
    bench.reshape(splitting(1))

    backups.restore(backup)
    verify_topics(bench.store, bench.planes)

    assert readable(bench, "audit") == [0]


@pytest.mark.parametrize("name", ["my reports", "tab\there"])
def test_a_subscription_that_no_journal_can_record_does_not_keep_a_topic_from_being_recovered(
    bench: Bench, backups: Backups, name: str
) -> None:
    bench.topic_with(1)
    backup = backups.take()
    bench.plane.create_subscription(bench.log_of(0), name)
    bench.reshape(splitting(0))
    for child in (1, 2):
        bench.publish(child)
    backups.restore(backup)

    recover(bench.store, bench.looking, bench.topic_name, actor="ann")

    assert [one.segment_id for one in bench.layout.active] == [1, 2]
    assert name in bench.plane.list_subscriptions(bench.log_of(1))


def test_what_was_moved_back_in_the_lost_time_is_unread_again(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    bench.publish(0, 4)
    bench.reshape(splitting(0))
    drain(bench, 0)
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0])
    backup = backups.take()
    bench.finish(
        subscription_admin.seek_subscription(
            bench.store, bench.topic_name, "billing", EARLIEST, bench.request(), release_seconds=1.0
        )
    )

    backups.restore(backup)
    maintain(bench)

    assert unread_by_log(bench) == {bench.log_of(0): 4}
    assert bench.store.in_transaction(drains.drained, bench.topic_id, "billing") == set()


def test_what_was_pruned_in_the_lost_time_is_not_missed(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    bench.publish(0, 2)
    bench.reshape(splitting(0))
    backup = backups.take()
    bench.reshape(splitting(1))
    drain(bench, 0)
    drain(bench, 1)
    maintain(bench)
    assert bench.undeleted_logs() == []
    present, epoch = shape(bench), bench.layout.epoch

    backups.restore(backup)
    maintain(bench)

    assert [(i, where) for i, where, _ in shape(bench)] == [(i, where) for i, where, _ in present]
    assert bench.layout.epoch > epoch
    bench.check_laws()


@pytest.mark.parametrize("bench", ON_BOTH_PLANES, indirect=True)
def test_prunes_of_the_lost_time_are_repeated_in_an_epoch_above_theirs(
    bench: Bench, backups: Backups
) -> None:
    """Consumers that keep their own positions ignore a list of segments of an earlier epoch."""
    bench.topic_with()
    bench.reshape(splitting(0))
    bench.reshape(splitting(1))
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0, 1])
    backup = backups.take()
    for segment_id in (0, 1):
        bench.finish(
            collect_segment(bench.store, bench.looking, bench.topic_name, segment_id, bench.request())
        )
    maintain(bench)
    assert bench.undeleted_logs() == []
    epoch = bench.layout.epoch

    backups.restore(backup)
    assert verify_topics(bench.store, bench.planes) == (1, 1)

    recovered = bench.layout.epoch
    assert recovered > epoch
    assert sorted(bench.layout.segments) == [2, 3, 4]
    bench.check_laws()
    bench.store.in_transaction(held_topics.doubt, [bench.topic_id])
    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert bench.layout.epoch == recovered


def test_a_segment_that_was_replaced_and_pruned_in_the_lost_time_is_left_out_at_once(
    bench: Bench, backups: Backups
) -> None:
    """No list of segments has it: a consumer that keeps its own positions would wait for its log."""
    bench.topic_with()
    backup = backups.take()
    bench.reshape(splitting(0))
    maintain(bench)
    assert bench.undeleted_logs() == []

    backups.restore(backup)
    assert verify_topics(bench.store, bench.planes) == (1, 1)

    assert sorted(bench.layout.segments) == [1, 2]
    assert bench.scalar("SELECT count(*) FROM cleave.layout_change WHERE kind = 'recover'") == 1


def test_an_owner_of_the_lost_time_reads_no_log_that_was_created_after_the_restore(
    bench: Bench, backups: Backups
) -> None:
    """The log has the name of a log of the lost time, and its parent is unread."""
    bench.topic_with()
    bench.publish(0, 2)
    subscription = "SELECT origin, generation FROM cleave.subscription WHERE name = 'billing'"
    [(origin, generation)] = bench.rows(subscription)
    lost = Ownership(origin, generation + 7)

    bench.store.in_transaction(held_topics.doubt, [bench.topic_id])
    maintain(bench, 1)
    bench.reshape(splitting(0))

    def open_reader(ownership: Ownership) -> LogReader:
        return bench.logs.open_reader(
            bench.log_of(1),
            "billing",
            owner="ada",
            live_owners=["ada"],
            on_arrival=lambda: None,
            ownership=ownership,
        )

    with pytest.raises(FencedOut):
        open_reader(lost)
    [(origin, generation)] = bench.rows(subscription)
    open_reader(Ownership(origin, generation)).close()


def test_generations_go_on_above_those_of_the_lost_time(bench: Bench, backups: Backups) -> None:
    bench.topic_with()
    backup = backups.take()
    bench.execute("UPDATE cleave.subscription SET generation = generation + 50")
    generation = bench.scalar("SELECT generation FROM cleave.subscription")

    backups.restore(backup)
    assert verify_topics(bench.store, bench.planes) == (1, 1)

    assert bench.scalar("SELECT generation FROM cleave.subscription") > generation


def test_a_merge_whose_fence_stopped_half_way_in_the_lost_time_is_completed(
    bench: Bench, backups: Backups
) -> None:
    bench.topic_with(segments=2)
    bench.publish(0)
    bench.publish(1)
    backup = backups.take()
    operation = bench.intend(merging(0, 1)).operation
    bench.run_until(operation.operation_id, OperationState.FENCING)
    bench.plane.terminate_segment(bench.log_of(0))

    backups.restore(backup)
    verify_topics(bench.store, bench.planes)

    assert shape(bench) == [(2, "0000-ffff", (0, 1))]
    assert open_logs(bench) == [bench.log_of(2)]


def test_a_restored_journal_that_is_pointed_to_another_cluster_acts_on_nothing(
    bench: Bench, backups: Backups
) -> None:
    bench.topic_with()
    bench.publish(0)
    bench.reshape(splitting(0))
    logs = bench.plane.list_segments(bench.topic_name)
    backups.restore(backups.take())
    for log in logs:
        bench.plane.delete_segment(log)

    verify_topics(bench.store, bench.planes)

    with pytest.raises(TopicHeld, match="check that the address names the cluster"):
        bench.intend(splitting(1))
    assert bench.plane.list_segments(bench.topic_name) == []


def test_a_deferral_by_a_clock_that_was_ahead_is_over_when_the_topic_is_verified(
    bench: Bench, backups: Backups
) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.execute(
        "UPDATE cleave.operation SET not_before = clock_timestamp() + interval '300 s', row_version = row_version + 1"
        " WHERE finished_at IS NULL"
    )
    backups.restore(backups.take())
    assert bench.run_once(operation.operation_id).value == "not-claimed"

    verify_topics(bench.store, bench.planes)

    assert bench.run_once(operation.operation_id).value == "finished"
