"""The transaction that makes an operation true: what it writes, and when it asks the runner to look again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.domain.decision import CONSUMER_COUNT
from controller.domain.errors import FencedOut, LostRace, TopicNotFound
from controller.domain.layout import SegmentLayout
from controller.domain.next_step import next_step
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step
from controller.domain.reshape import Reshape, plan_merge, plan_rebucket, plan_recut, plan_split
from controller.store.journal import deletion_entries, operations, subscription_intents, topic_intents
from controller.store.journal.steps import StepRecord
from controller.store.topics import consumers, drains, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicState
from tests.support.store_driver import RUNNER, StoreDriver, request

COMMIT = (Step.COMMIT, OperationState.COMMITTED)


def _commit(driver: StoreDriver, operation: Operation, runner: str = RUNNER) -> Operation:
    return driver.record(StepRecord(operation, (COMMIT,)), runner)


def _fenced_split(driver: StoreDriver, topic_id: int, segment_id: int = 0) -> Operation:
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, segment_id))
    return driver.run(operation, until=OperationState.FENCED)


def _open_logs(driver: StoreDriver) -> set[str]:
    return {deletion_entry.backing_topic for deletion_entry in driver.do(deletion_entries.list_open)}


def test_a_reshape_seals_parents_and_activates_children_in_one_epoch(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    done = driver.split(topic_id, 0)
    layout = driver.layout(topic_id)

    assert (done.state, done.epoch, layout.epoch) == (OperationState.DONE, 1, 1)
    assert layout.segment(0).child_ids == (1, 2)
    assert [(s.segment_id, s.parent_ids, s.created_epoch) for s in layout.active] == [
        (1, (0,), 1),
        (2, (0,), 1),
    ]
    assert driver.sql(
        "SELECT epoch, kind, operation_id, origin, actor, reason FROM cleave.layout_change OFFSET 1"
    ) == [(1, "split", done.operation_id, "manual", "tester", "test")]


@pytest.mark.parametrize(
    ("plan", "reason", "stamped"),
    [
        (lambda layout: plan_split(layout, 0), "test", {"last_split_at"}),
        (lambda layout: plan_split(layout, 0), CONSUMER_COUNT, {"last_split_at", "last_consumer_act_at"}),
        (lambda layout: plan_merge(layout, 0, 1), "test", {"last_merge_at"}),
        (lambda layout: plan_rebucket(layout, 0, 8), "test", {"last_rebucket_at", "last_consumer_act_at"}),
        (lambda layout: plan_recut(layout, (0, 1), (100,)), "test", {"last_split_at", "last_merge_at"}),
    ],
)
def test_the_cooldown_starts_when_the_operation_was_wanted(
    driver: StoreDriver, plan: Callable[[SegmentLayout], Reshape], reason: str, stamped: set[str]
) -> None:
    topic_id = driver.create(segments=2).topic_id
    intent = driver.intend_reshape(topic_id, plan, replace(request(), reason=reason))
    operation = driver.run(intent.operation)
    [(intended_at,)] = driver.sql(
        "SELECT intended_at FROM cleave.operation WHERE operation_id = :id", id=operation.operation_id
    )
    topic = driver.do(topics.get_topic, topic_id)

    names = ("last_split_at", "last_merge_at", "last_rebucket_at", "last_consumer_act_at")
    stamps = {name: getattr(topic, name) for name in names}
    assert {name: at for name, at in stamps.items() if at} == dict.fromkeys(stamped, intended_at)


def test_operations_on_disjoint_segments_commit_in_either_order(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    first, second = _fenced_split(driver, topic_id, 0), _fenced_split(driver, topic_id, 1)

    assert _commit(driver, second).epoch == 1
    assert _commit(driver, first).epoch == 2
    assert {s.segment_id: s.created_epoch for s in driver.layout(topic_id).active} == {2: 2, 3: 2, 4: 1, 5: 1}


def test_subscriptions_that_changed_send_the_runner_back(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = _fenced_split(driver, topic_id)
    driver.do(
        subscription_intents.intend_subscription_create, topic_id, "s", SubscriptionKind.STREAM, request()
    )

    with pytest.raises(LostRace, match=r"subscriptions .* at version 1, those of the children at 0"):
        _commit(driver, operation)

    assert driver.do(operations.get_operation, operation.operation_id) == operation
    step, _ = next_step(operation, driver.observe(operation))
    assert step is Step.SYNC_SUBSCRIPTIONS
    assert driver.step(driver.step(operation)).state is OperationState.COMMITTED


def test_a_stale_runner_cannot_commit_and_leaves_the_layout_alone(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = _fenced_split(driver, topic_id)
    before = driver.layout(topic_id)
    driver.sql(
        "UPDATE cleave.operation SET claim_expires_at = clock_timestamp() - interval '1 hour' WHERE claimed_by IS NOT NULL"
    )
    driver.claim(operation, "other")

    with pytest.raises(FencedOut):
        _commit(driver, operation)

    assert driver.layout(topic_id) == before


def test_a_commit_whose_answer_was_lost_happened_once(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = _fenced_split(driver, topic_id)
    _commit(driver, operation)

    with pytest.raises(FencedOut):
        _commit(driver, operation)

    assert driver.layout(topic_id).epoch == 1


def test_parents_are_free_again_from_the_commit_on(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    _commit(driver, _fenced_split(driver, topic_id))

    assert driver.intend(topic_id, lambda layout: plan_merge(layout, 1, 2)).state is OperationState.INTENDED
    assert driver.sql("SELECT count(*) FROM cleave.operation_parent WHERE segment_id = 0 AND live") == [(0,)]


def test_an_aborted_reshape_gives_its_logs_to_tombstones_and_pauses_decisions(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = driver.intend_reshape(
        topic_id, lambda layout: plan_split(layout, 0), request(deadline_seconds=0.0)
    ).operation
    [(version,)] = driver.sql("SELECT input_version FROM cleave.evaluation")

    assert driver.run(operation).state is OperationState.ABORTED

    assert _open_logs(driver) == {child.backing_topic for child in operation.children}
    assert driver.layout(topic_id).epoch == 0
    assert driver.intend(topic_id, lambda layout: plan_split(layout, 0)).parent_ids == (0,)
    assert driver.sql(
        "SELECT not_before > clock_timestamp(), input_version > :v FROM cleave.evaluation", v=version
    ) == [(True, True)]


def test_an_aborted_creation_frees_the_name_and_not_the_ids(driver: StoreDriver) -> None:
    operation = driver.intend_create("topic://t/n/a", segments=2).operation
    driver.sql("UPDATE cleave.operation SET deadline = clock_timestamp()")
    driver.run(operation)

    assert driver.do(topics.get_topic, operation.topic_id).state is TopicState.DELETED
    assert len(_open_logs(driver)) == 2
    assert set(driver.layout(driver.create("topic://t/n/a").topic_id).segments) == {2}


def test_deleting_waits_for_what_is_past_the_fence(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    past_the_fence = _fenced_split(driver, topic_id)
    deletion = driver.claim(driver.do(topic_intents.intend_delete, topic_id, request()).operation)

    assert next_step(deletion, driver.observe(deletion))[0] is Step.WAIT
    with pytest.raises(LostRace, match="1 older operation"):
        _commit(driver, deletion)

    while past_the_fence.state.is_live:
        past_the_fence = driver.step(past_the_fence)
    assert past_the_fence.state is OperationState.DONE
    assert _commit(driver, deletion).epoch == 2


def test_deleting_aborts_what_is_before_the_fence(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.do(topic_intents.intend_delete, topic_id, request())

    assert driver.run(operation).state is OperationState.ABORTED


def test_a_deletion_takes_everything_but_history_and_names_every_log(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2, splits=[0]).topic_id
    driver.subscribe(topic_id, "s")
    driver.do(consumers.register, topic_id, "s", "c")
    driver.do(drains.mark_drained, topic_id, "s", [0])
    logs = {log for (log,) in driver.sql("SELECT backing_topic FROM cleave.segment")}

    driver.delete(topic_id)

    assert _open_logs(driver) == logs
    assert len(logs) == 4
    for table in ("subscription", "consumer", "segment_drain", "segment_load", "evaluation"):
        assert driver.sql(f"SELECT count(*) FROM cleave.{table}") == [(0,)], table
    assert driver.sql("SELECT kind FROM cleave.layout_change ORDER BY epoch") == [
        ("create",),
        ("split",),
        ("delete",),
    ]
    topic = driver.do(topics.get_topic, topic_id)
    assert (topic.state, topic.deleted_at is not None) == (TopicState.DELETED, True)
    with pytest.raises(TopicNotFound):
        driver.do(topics.find_topic, "topic://t/n/a")


def test_a_creation_that_hangs_can_be_deleted(driver: StoreDriver) -> None:
    creation = driver.intend_create("topic://t/n/a").operation
    deletion = driver.do(topic_intents.intend_delete, creation.topic_id, request()).operation

    assert driver.run(creation).state is OperationState.ABORTED
    assert driver.do(topics.get_topic, creation.topic_id).state is TopicState.DELETING
    assert driver.run(deletion).state is OperationState.DONE
    assert driver.do(topics.get_topic, creation.topic_id).state is TopicState.DELETED
    assert driver.sql("SELECT epoch, kind FROM cleave.layout_change") == [(0, "delete")]


def test_a_creation_that_races_with_its_deletion_looks_again(driver: StoreDriver) -> None:
    """Observed while the topic was being created, committed when it is being deleted."""
    creation = driver.run(driver.intend_create("topic://t/n/a").operation, until=OperationState.PREPARED)
    driver.do(topic_intents.intend_delete, creation.topic_id, request())

    with pytest.raises(LostRace, match="is deleting by now"):
        _commit(driver, creation)


def test_a_prune_forgets_segments_logs_and_loads_but_not_history(driver: StoreDriver) -> None:
    topic_id = driver.create(splits=[0]).topic_id
    driver.sql(
        """INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,
                                            source, modified_at) VALUES (:id, 0, 1, 1, 1, 1, 's', now())""",
        id=topic_id,
    )
    intent = driver.do(topic_intents.intend_prune, topic_id, [0], request())

    done = driver.run(intent.operation)

    assert done.epoch == 2
    assert set(driver.layout(topic_id).segments) == {1, 2}
    assert driver.sql("SELECT count(*) FROM cleave.segment_load") == [(0,)]
    assert _open_logs(driver) == {"persistent://t/n/a-segment-0000-ffff-0"}


def test_what_a_seek_took_back_is_not_pruned(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2, subscriptions=["s"], splits=[0, 1]).topic_id
    driver.do(drains.mark_drained, topic_id, "s", [0, 1])
    both = driver.do(topic_intents.intend_prune, topic_id, [0, 1], request()).operation
    driver.do(drains.undrain, topic_id, "s", [0])

    driver.run(both)
    assert 0 in driver.layout(topic_id).segments
    assert 1 not in driver.layout(topic_id).segments

    driver.do(drains.mark_drained, topic_id, "s", [0])
    nothing = driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation
    driver.do(drains.undrain, topic_id, "s", [0])
    before: SegmentLayout = driver.layout(topic_id)
    done = driver.run(nothing)

    assert (done.state, done.epoch) == (OperationState.DONE, None)
    assert driver.layout(topic_id) == before


def test_a_deleted_subscription_is_gone_with_its_consumers_and_its_name_is_free(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    driver.do(consumers.register, topic_id, "s", "c")
    version = driver.do(topics.get_topic, topic_id).subscription_version

    driver.run(driver.do(subscription_intents.intend_subscription_delete, topic_id, "s", request()).operation)

    assert driver.do(subscriptions.list_subscriptions, topic_id) == []
    assert driver.do(consumers.list_consumers, topic_id) == []
    assert driver.do(topics.get_topic, topic_id).subscription_version == version + 2
    driver.subscribe(topic_id, "s")
