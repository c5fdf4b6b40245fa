"""What a record and a commit demand besides the claim, each alone; and which of them wait for the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text

from controller.domain.errors import CleaveError, FencedOut, InvariantViolated, LostRace
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step
from controller.domain.reshape import plan_split
from controller.store.journal import (
    adoptions,
    claim_check,
    commits,
    operations,
    steps,
    subscription_intents,
    topic_intents,
)
from controller.store.journal.adoptions import Adoption
from controller.store.journal.steps import StepRecord
from controller.store.topics import drains, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicState
from tests.support.store_driver import RUNNER, SOMEBODY_WAITS, StoreDriver, backing_topic, request
from tests.support.waiting import wait_until

_S = OperationState
COMMIT = (Step.COMMIT, _S.COMMITTED)
ANNOUNCE = ((Step.CREATE_CHILDREN, _S.PREPARED), (Step.SET_FENCING, _S.FENCING))


def split(driver: StoreDriver, until: OperationState, name: str = "topic://t/n/a") -> Operation:
    """A claimed split of a topic of its own that got that far."""
    topic_id = driver.create(name).topic_id
    return driver.run(driver.intend(topic_id, lambda layout: plan_split(layout, 0)), until=until)


def now_ms() -> int:
    return int(time.time() * 1000)


# The announcement: the parents are closed as soon as it is recorded.


@pytest.mark.parametrize(
    "meanwhile",
    [
        "UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1",
        "UPDATE cleave.topic SET state = 'deleting', row_version = row_version + 1",
    ],
    ids=["deadline", "deletion"],
)
def test_no_fence_is_announced_once_giving_up_is_due(driver: StoreDriver, meanwhile: str) -> None:
    claimed = split(driver, _S.INTENDED)
    driver.sql(meanwhile)

    moved = driver.do(steps.record, [StepRecord(claimed, ANNOUNCE, {}, 0)], RUNNER, started_at_ms=now_ms())

    assert moved == {}
    assert driver.do(operations.get_operation, claimed.operation_id).state is _S.INTENDED
    assert driver.do(claim_check.still_held, [claimed], RUNNER) == {claimed.operation_id}


def test_what_needs_no_announcement_is_recorded_past_the_deadline(driver: StoreDriver) -> None:
    """Behind the fence there is only the way forward."""
    claimed = split(driver, _S.FENCING)
    driver.sql("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")

    while claimed.state.is_live:
        claimed = driver.step(claimed)
    assert claimed.state is _S.DONE


# The commit of a reshape.


def test_a_commit_demands_the_state_in_which_the_operation_was_seen(driver: StoreDriver) -> None:
    """An operation that moved on under the same claim, its parents active still."""
    seen = split(driver, _S.INTENDED)
    driver.step(seen)

    with pytest.raises(FencedOut, match="in state intended"):
        driver.record(StepRecord(seen, (COMMIT,), {}, 0))

    assert driver.layout(seen.topic_id).epoch == 0


def test_a_commit_demands_a_topic_that_is_live_or_being_deleted(driver: StoreDriver) -> None:
    fenced = split(driver, _S.FENCED)
    driver.sql("UPDATE cleave.topic SET state = 'creating', row_version = row_version + 1")

    with pytest.raises(InvariantViolated, match="is creating under split"):
        driver.record(StepRecord(fenced, (COMMIT,)))

    assert driver.do(operations.get_operation, fenced.operation_id).state is _S.FENCED


def test_a_commit_demands_parents_that_are_active(driver: StoreDriver) -> None:
    """Only by hand: a segment in two operations, of which the other one commits first."""
    fenced = split(driver, _S.FENCED)
    driver.sql("UPDATE cleave.operation_parent SET live = false")
    driver.split(fenced.topic_id, 0)

    with pytest.raises(InvariantViolated, match="are not all active"):
        driver.record(StepRecord(fenced, (COMMIT,)))

    assert driver.layout(fenced.topic_id).epoch == 1


HOLDING = {
    "topic": "SELECT FROM cleave.topic WHERE topic_id = :id FOR UPDATE",
    "evaluation": "SELECT FROM cleave.evaluation WHERE topic_id = :id FOR UPDATE",
    "operation": "SELECT FROM cleave.operation WHERE topic_id = :id AND finished_at IS NULL FOR UPDATE",
}


@pytest.mark.parametrize("held", HOLDING)
def test_a_commit_waits_for_no_row_and_leaves_out_whose_it_is(driver: StoreDriver, held: str) -> None:
    waiting, free = (split(driver, _S.FENCED, f"topic://t/n/{name}") for name in "ab")
    records = [StepRecord(one, (COMMIT,)) for one in (waiting, free)]

    with driver.store.transaction() as holder, driver.store.transaction() as tx:
        holder.execute(text(HOLDING[held]), {"id": waiting.topic_id})
        tx.execute(text("SET LOCAL lock_timeout = '500ms'"))
        done = commits.commit_reshapes(tx, records, RUNNER, started_at_ms=now_ms())
        why = commits.why_skipped(tx, records[:1], RUNNER)[waiting.operation_id]

    assert set(done) == {free.operation_id}
    assert isinstance(why, LostRace)
    assert "has locked the rows" in str(why)


# Commits of one operation.


def adoption(driver: StoreDriver) -> Operation:
    """Of two plain logs with one subscription, into one segment."""
    wanted = Adoption(
        name="topic://t/n/a",
        data_plane="embedded",
        old_topics=("persistent://t/n/a-partition-0", "persistent://t/n/a-partition-1"),
        subscriptions={"s": SubscriptionKind.STREAM},
        segments=1,
        bucket_budget=4,
        max_buckets=64,
    )
    intent = driver.do(adoptions.intend_adopt, wanted, backing_topic=backing_topic, request=request())
    return intent.operation


def creation(driver: StoreDriver) -> Operation:
    return driver.intend_create("topic://t/n/a").operation


def test_an_adopted_topic_is_live_behind_its_old_logs(driver: StoreDriver) -> None:
    """It announces its fence while it is being created."""
    done = driver.run(adoption(driver))

    layout = driver.layout(done.topic_id)
    assert driver.do(topics.get_topic, done.topic_id).state is TopicState.LIVE
    assert [(one.segment_id, one.parent_ids) for one in layout.active] == [(2, (0, 1))]
    assert (
        layout.epoch,
        [row.name for row in driver.do(subscriptions.list_subscriptions, done.topic_id)],
    ) == (
        1,
        ["s"],
    )


def test_an_adoption_under_a_deletion_ends_what_it_began_and_leaves_the_topic_going(
    driver: StoreDriver,
) -> None:
    """Behind the fence there is only the way forward; the deletion takes all of it afterwards."""
    fenced = driver.run(adoption(driver), until=_S.FENCED)
    driver.do(topic_intents.intend_delete, fenced.topic_id, request())

    driver.record(StepRecord(fenced, (COMMIT,)))

    assert driver.do(topics.get_topic, fenced.topic_id).state is TopicState.DELETING


def test_an_adoption_of_a_topic_in_use_is_refused(driver: StoreDriver) -> None:
    fenced = driver.run(adoption(driver), until=_S.FENCED)
    driver.sql("UPDATE cleave.topic SET state = 'live', row_version = row_version + 1")

    with pytest.raises(InvariantViolated, match="is live under its adoption"):
        driver.record(StepRecord(fenced, (COMMIT,)))


@pytest.mark.parametrize("wanted", [creation, adoption])
def test_first_logs_without_a_subscription_are_not_committed(
    driver: StoreDriver, wanted: Callable[[StoreDriver], Operation]
) -> None:
    operation = wanted(driver)
    until = _S.PREPARED if wanted is creation else _S.FENCED
    ready = driver.run(operation, until=until)
    driver.sql(
        "UPDATE cleave.topic SET subscription_version = subscription_version + 1, row_version = row_version + 1"
    )

    with pytest.raises(LostRace, match="version 1, those of the children at 0"):
        driver.record(StepRecord(ready, (COMMIT,)))

    assert driver.layout(ready.topic_id).segments == {}


def test_a_prune_waits_for_a_seek_that_is_under_way_and_leaves_what_it_takes_back(
    driver: StoreDriver,
) -> None:
    topic_id = driver.create(subscriptions=["s"], splits=[0]).topic_id
    driver.do(drains.mark_drained, topic_id, "s", [0])
    prune = driver.claim(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)

    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as seeking:
            drains.undrain(seeking, topic_id, "s", [0])
            committing = pool.submit(driver.record, StepRecord(prune, (COMMIT,)))
            wait_until(lambda: committing.done() or driver.sql(SOMEBODY_WAITS), message="the prune waits")
        assert committing.result().epoch is None

    assert 0 in driver.layout(topic_id).segments


def test_a_deletion_leaves_what_was_sealed_and_pruned_before_as_it_was(driver: StoreDriver) -> None:
    topic_id = driver.create(splits=[0, 1]).topic_id
    driver.run(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)
    found = "SELECT sealed_epoch, pruned_epoch FROM cleave.segment WHERE segment_id < 2 ORDER BY segment_id"
    assert driver.sql(found) == [(1, 3), (2, None)]

    driver.delete(topic_id)

    assert driver.sql(found) == [(1, 3), (2, 4)]


def test_a_segment_that_somebody_pruned_is_not_pruned_again(driver: StoreDriver) -> None:
    topic_id = driver.create(splits=[0]).topic_id
    claimed = driver.claim(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)
    driver.sql("UPDATE cleave.segment SET pruned_epoch = 1, pruned_at = now() WHERE segment_id = 0")

    with pytest.raises(InvariantViolated, match="not all sealed and unpruned"):
        driver.record(StepRecord(claimed, (COMMIT,)))


def test_an_operation_that_leaves_segments_as_they_were_frees_them_at_its_commit(driver: StoreDriver) -> None:
    """What a seek took back can be asked for again, whenever the runner gets to the end of the first one."""
    topic_id = driver.create(subscriptions=["s"], splits=[0]).topic_id
    driver.do(drains.mark_drained, topic_id, "s", [0])
    prune = driver.claim(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)
    driver.do(drains.undrain, topic_id, "s", [0])

    committed = driver.record(StepRecord(prune, (COMMIT,)))
    driver.do(drains.mark_drained, topic_id, "s", [0])

    assert (committed.state, committed.epoch) == (_S.COMMITTED, None)
    assert driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation.parent_ids == (0,)


def test_a_commit_of_one_is_told_by_its_epoch(driver: StoreDriver) -> None:
    topic_id = driver.create(splits=[0]).topic_id
    prune = driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation
    driver.run(prune)

    assert driver.do(operations.get_operation, prune.operation_id).epoch == 2


# What may be forgotten when the server crashes.


def waits_for_disk(tx: Connection) -> bool:
    """Whether the end of this transaction does."""
    return bool(tx.execute(text("SELECT current_setting('synchronous_commit') = 'on'")).scalar_one())


@pytest.mark.parametrize("asked", [True, False])
def test_a_record_waits_for_the_disk_as_it_is_told_to(driver: StoreDriver, asked: bool) -> None:
    claimed = split(driver, _S.INTENDED)

    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL synchronous_commit = 'on'"))
        records = [StepRecord(claimed, ANNOUNCE, {}, 0)]
        assert steps.record(tx, records, RUNNER, started_at_ms=now_ms(), waits_for_disk=asked)

        assert waits_for_disk(tx) is asked


def test_a_commit_waits_for_the_disk(driver: StoreDriver) -> None:
    """People are told of it."""
    fenced = split(driver, _S.FENCED)

    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL synchronous_commit = 'on'"))
        assert commits.commit_reshapes(tx, [StepRecord(fenced, (COMMIT,))], RUNNER, started_at_ms=now_ms())

        assert waits_for_disk(tx)


def test_why_one_was_left_out_is_told_in_the_order_of_what_the_runner_can_do(driver: StoreDriver) -> None:
    """A claim that is lost comes before all else; rows that somebody holds are what is left."""
    fenced = split(driver, _S.FENCED)
    record = StepRecord(fenced, (COMMIT,))

    def why(runner: str) -> CleaveError:
        return driver.do(commits.why_skipped, [record], runner)[fenced.operation_id]

    assert isinstance(why("another"), FencedOut)
    assert isinstance(why(RUNNER), LostRace)
    driver.do(
        subscription_intents.intend_subscription_create,
        fenced.topic_id,
        "s",
        SubscriptionKind.STREAM,
        request(),
    )
    assert "the children at 0" in str(why(RUNNER))
    assert isinstance(why("another"), FencedOut)
