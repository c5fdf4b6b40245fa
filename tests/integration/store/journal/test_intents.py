"""The one door: what it reserves, what it refuses, and that a request key opens it once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from controller.domain.errors import (
    CleaveError,
    Conflict,
    InvalidInput,
    InvalidLayoutChange,
    LostRace,
    SegmentBusy,
    SegmentNotFound,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
    TopicNotLive,
)
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationKind, OperationState
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import Reshape, plan_merge, plan_split
from controller.store.journal import intents
from controller.store.journal.intents import Wanted
from controller.store.journal.rows import get_operation
from controller.store.topics import drains, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionState
from controller.store.topics.topics import TopicState
from tests.support.store_driver import StoreDriver, backing_topic, request


def _split(segment_id: int) -> Callable[[SegmentLayout], Reshape]:
    return lambda layout: plan_split(layout, segment_id)


def test_creating_reserves_ids_ranges_and_logs(driver: StoreDriver) -> None:
    with driver.store.transaction() as tx:
        intent = intents.intend_create(
            tx,
            "topic://t/n/a",
            segments=2,
            data_plane="embedded",
            backing_topic=backing_topic,
            bucket_budget=4,
            max_buckets=64,
            request=request(),
            policy=PolicyOverride(max_segments=8),
            properties={"owner": "x"},
        )
    topic = driver.do(topics.find_topic, "topic://t/n/a")
    operation = intent.operation

    assert (topic.state, topic.next_segment_id, topic.namespace) == (TopicState.CREATING, 2, "t/n")
    assert (topic.policy, topic.properties) == ({"max_segments": 8}, {"owner": "x"})
    assert (operation.kind, operation.state, operation.parameters) == (
        OperationKind.CREATE,
        OperationState.INTENDED,
        {"segments": 2},
    )
    assert [str(child.plan.hash_range) for child in operation.children] == ["0000-7fff", "8000-ffff"]
    assert [child.backing_topic for child in operation.children] == [
        "persistent://t/n/a-segment-0000-7fff-0",
        "persistent://t/n/a-segment-8000-ffff-1",
    ]
    assert driver.layout(topic.topic_id).segments == {}


def test_a_name_in_use_is_refused_and_a_deleted_one_goes_on_counting(driver: StoreDriver) -> None:
    old = driver.create("topic://t/n/a", segments=3)
    with pytest.raises(TopicExists, match="delete it first"):
        driver.intend_create("topic://t/n/a")
    driver.split(old.topic_id, 1)
    driver.delete(old.topic_id)

    new = driver.create("topic://t/n/a", segments=2)

    assert new.topic_id != old.topic_id
    assert set(driver.layout(new.topic_id).segments) == {5, 6}


@pytest.mark.parametrize(
    "name", ["a", "topic://t/n", "topic://t/n/", "persistent://t/n/a", "topic://t/n/a b", ""]
)
def test_a_name_of_another_form_is_refused(driver: StoreDriver, name: str) -> None:
    with pytest.raises(InvalidInput, match="topic://tenant/namespace/name"):
        driver.intend_create(name)


def test_a_reshape_reserves_fresh_ids_and_leaves_the_layout_alone(driver: StoreDriver) -> None:
    topic = driver.create(segments=2)
    first = driver.intend(topic.topic_id, _split(0))
    second = driver.intend(topic.topic_id, _split(1))

    assert [child.plan.segment_id for child in (*first.children, *second.children)] == [2, 3, 4, 5]
    assert first.parent_topics == ("persistent://t/n/a-segment-0000-7fff-0",)
    layout = driver.layout(topic.topic_id)
    assert (layout.epoch, layout.next_segment_id, len(layout.active)) == (0, 6, 2)


def test_ids_reserved_by_an_aborted_operation_are_gone_for_good(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = driver.do(
        intents.intend_reshape, Wanted(topic_id, _split(0), backing_topic, request(deadline_seconds=0.0))
    ).operation
    assert driver.run(operation).state is OperationState.ABORTED

    assert [child.plan.segment_id for child in driver.intend(topic_id, _split(0)).children] == [3, 4]


def test_what_a_decision_was_made_on_must_still_hold(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    driver.split(topic_id, 0)
    [(version,)] = driver.sql("SELECT input_version FROM cleave.evaluation WHERE topic_id = :id", id=topic_id)

    def intend(*, epoch: int, input_version: int) -> object:
        return driver.do(
            intents.intend_reshape,
            Wanted(topic_id, _split(1), backing_topic, request(), epoch, input_version),
        )

    with pytest.raises(LostRace, match="at epoch 1, not 0"):
        intend(epoch=0, input_version=version)
    with pytest.raises(LostRace, match="decide again"):
        intend(epoch=1, input_version=version - 1)
    assert intend(epoch=1, input_version=version)


def _outcome(found: intents.Intent | CleaveError | IntegrityError) -> object:
    """What came of one of several: its operation's parents, or the class of what stood in its way."""
    return found.operation.parent_ids if isinstance(found, intents.Intent) else type(found)


def _wanted(topic_id: int, segment_id: int, key: str | None = None, *, epoch: int | None = None) -> Wanted:
    return Wanted(topic_id, _split(segment_id), backing_topic, request(key), epoch)


def test_reshapes_of_many_topics_are_written_at_once_as_each_would_be(driver: StoreDriver) -> None:
    topic_ids = [driver.create(f"topic://t/n/{name}", segments=2).topic_id for name in "abc"]

    found = driver.do(
        intents.intend_reshapes, [_wanted(topic_id, 1, f"k{topic_id}") for topic_id in reversed(topic_ids)]
    )

    assert [_outcome(one) for one in found] == [(1,)] * 3
    for topic_id in topic_ids:
        [written] = [
            one.operation
            for one in found
            if isinstance(one, intents.Intent) and one.operation.topic_id == topic_id
        ]
        assert written == driver.do(get_operation, written.operation_id)
        assert written.request_key == f"k{topic_id}"
        assert [str(child.plan.hash_range) for child in written.children] == ["8000-bfff", "c000-ffff"]
        assert driver.layout(topic_id).next_segment_id == 4


def test_what_stands_in_the_way_of_one_reshape_leaves_the_others_alone(driver: StoreDriver) -> None:
    free, busy, moved, again, mistaken = (
        driver.create(f"topic://t/n/{name}", segments=2).topic_id for name in "abcde"
    )
    driver.intend(busy, _split(0))
    driver.split(moved, 1)
    first = driver.intend(again, _split(0), key="again")

    found = driver.do(
        intents.intend_reshapes,
        [
            _wanted(busy, 0),
            _wanted(moved, 0, epoch=0),
            _wanted(again, 0, "again"),
            _wanted(mistaken, 7),
            _wanted(10**9, 0),
            _wanted(free, 0),
        ],
    )

    assert [_outcome(one) for one in found] == [
        SegmentBusy, LostRace, (0,), SegmentNotFound, TopicNotFound, (0,)
    ]  # fmt: skip
    assert isinstance(found[2], intents.Intent)
    assert (found[2].repeated, found[2].operation.operation_id) == (True, first.operation_id)


def test_two_of_many_reshapes_with_one_request_key_are_told_apart(driver: StoreDriver) -> None:
    one, other = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")

    found = driver.do(intents.intend_reshapes, [_wanted(one, 0, "k"), _wanted(other, 0, "k")])

    assert [_outcome(each) for each in found] == [(0,), Conflict]
    assert driver.layout(other).next_segment_id == 1


def test_a_reshape_among_many_waits_for_whoever_holds_its_topic_and_then_looks_again(
    driver: StoreDriver,
) -> None:
    """Two batches of the same topics at the same time: every topic gets both its reshapes, in either order."""
    topic_ids = [driver.create(f"topic://t/n/{number}", segments=2).topic_id for number in range(20)]
    together, outcomes = threading.Barrier(2, timeout=20), list[object]()

    def ask(segment_id: int, order: list[int]) -> None:
        together.wait()
        found = driver.do(intents.intend_reshapes, [_wanted(topic_id, segment_id) for topic_id in order])
        outcomes.extend(_outcome(one) for one in found)

    threads = [
        threading.Thread(target=ask, args=(0, topic_ids)),
        threading.Thread(target=ask, args=(1, topic_ids[::-1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(str, outcomes)) == ["(0,)"] * 20 + ["(1,)"] * 20
    assert {driver.layout(topic_id).next_segment_id for topic_id in topic_ids} == {6}


def test_a_plan_the_layout_refuses_leaves_no_trace(driver: StoreDriver) -> None:
    before = driver.create(segments=3)

    with pytest.raises(InvalidLayoutChange, match="not adjacent"):
        driver.intend(before.topic_id, lambda layout: plan_merge(layout, 0, 2))

    assert driver.do(topics.get_topic, before.topic_id) == before


def test_a_topic_being_deleted_takes_no_more_requests(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "s")
    driver.do(intents.intend_delete, topic_id, request())

    attempts: list[Callable[[], object]] = [
        lambda: driver.intend(topic_id, _split(0)),
        lambda: driver.do(intents.intend_delete, topic_id, request()),
        lambda: driver.do(
            intents.intend_subscription_create, topic_id, "x", SubscriptionKind.STREAM, request()
        ),
        lambda: driver.do(intents.intend_subscription_delete, topic_id, "s", request()),
        lambda: driver.do(intents.intend_prune, topic_id, [0], request()),
    ]
    for attempt in attempts:
        with pytest.raises(TopicNotLive, match="is deleting"):
            attempt()


def test_subscriptions_are_recorded_at_the_intent_and_raise_the_version(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.do(intents.intend_subscription_create, topic_id, "s", SubscriptionKind.QUEUE, request())

    [row] = driver.do(subscriptions.list_subscriptions, topic_id)
    assert (row.name, row.kind, row.state, row.created_epoch) == (
        "s",
        SubscriptionKind.QUEUE,
        SubscriptionState.LIVE,
        0,
    )
    assert driver.do(topics.get_topic, topic_id).subscription_version == 1
    with pytest.raises(Conflict, match="QUEUE subscription s"):
        driver.do(intents.intend_subscription_create, topic_id, "s", SubscriptionKind.STREAM, request())

    driver.do(intents.intend_subscription_delete, topic_id, "s", request())
    [row] = driver.do(subscriptions.list_subscriptions, topic_id)
    assert row.state is SubscriptionState.DELETING
    assert driver.do(topics.get_topic, topic_id).subscription_version == 2
    with pytest.raises(Conflict, match="being deleted already"):
        driver.do(intents.intend_subscription_delete, topic_id, "s", request())
    with pytest.raises(SubscriptionNotFound, match="no subscription x"):
        driver.do(intents.intend_subscription_delete, topic_id, "x", request())


def test_only_sealed_and_drained_segments_are_pruned(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    driver.subscribe(topic_id, "s")
    driver.split(topic_id, 0)

    def prune(*segment_ids: int) -> intents.Intent:
        return driver.do(intents.intend_prune, topic_id, segment_ids, request())

    with pytest.raises(Conflict, match=r"segment 1 .* is active"):
        prune(0, 1)
    with pytest.raises(Conflict, match=r"segment 9 .* unknown"):
        prune(9)
    with pytest.raises(InvalidInput, match="give at least one"):
        prune()
    with pytest.raises(Conflict, match=r"segment 0 .* not drained by s"):
        prune(0)
    driver.do(drains.mark_drained, topic_id, "s", [0])
    intent = prune(0)
    assert intent.operation.parent_ids == (0,)
    with pytest.raises(SegmentBusy, match=f"live operation {intent.operation.operation_id}"):
        prune(0)


def test_a_repeated_request_key_gets_the_first_operation(driver: StoreDriver) -> None:
    created = driver.intend_create("topic://t/n/a", key="create")
    again = driver.intend_create("topic://t/n/a", key="create")
    assert (again.repeated, again.operation) == (True, created.operation)

    topic_id = driver.run(created.operation).topic_id
    split = driver.intend(topic_id, _split(0), key="split")
    driver.run(split)
    after = driver.intend(topic_id, _split(0), key="split")
    assert (after.operation_id, after.state) == (split.operation_id, OperationState.DONE)


def test_a_request_key_of_another_request_is_refused(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.intend(topic_id, _split(0), key="k")

    with pytest.raises(Conflict, match="k was used for split of topic://t/n/a"):
        driver.do(intents.intend_delete, topic_id, request("k"))
    with pytest.raises(Conflict, match="take a fresh key"):
        driver.intend_create("topic://t/n/b", key="k")


@pytest.mark.parametrize("kind", ["create", "split", "delete", "subscribe"])
def test_the_same_request_made_at_the_same_time_is_one_operation(driver: StoreDriver, kind: str) -> None:
    """Whoever comes second waits for the first one's commit and then finds its operation."""
    topic_id = driver.create("topic://t/n/other").topic_id
    acts: dict[str, Callable[[], intents.Intent]] = {
        "create": lambda: driver.intend_create("topic://t/n/a", key="k"),
        "split": lambda: driver.do(
            intents.intend_reshape, Wanted(topic_id, _split(0), backing_topic, request("k"))
        ),
        "delete": lambda: driver.do(intents.intend_delete, topic_id, request("k")),
        "subscribe": lambda: driver.do(
            intents.intend_subscription_create, topic_id, "s", SubscriptionKind.STREAM, request("k")
        ),
    }
    together = threading.Barrier(4, timeout=20)
    outcomes: list[intents.Intent | CleaveError] = []

    def act() -> None:
        together.wait()
        try:
            outcomes.append(acts[kind]())
        except CleaveError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    made = [outcome for outcome in outcomes if isinstance(outcome, intents.Intent)]
    assert len(made) == len(outcomes), outcomes
    assert len({intent.operation.operation_id for intent in made}) == 1
    assert sorted(intent.repeated for intent in made) == [False, True, True, True]


def test_of_two_who_create_a_name_one_is_told_that_it_exists(driver: StoreDriver) -> None:
    together = threading.Barrier(2, timeout=20)
    outcomes: list[str] = []

    def create(key: str) -> None:
        together.wait()
        try:
            driver.intend_create("topic://t/n/a", key=key)
            outcomes.append("created")
        except TopicExists:
            outcomes.append("exists")

    threads = [threading.Thread(target=create, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["created", "exists"]


def test_a_name_used_and_freed_while_its_ids_were_looked_up_is_a_lost_race(driver: StoreDriver) -> None:
    """Found by sixteen processes: the ids read from a live topic were stale when its deletion freed the name."""
    old = driver.create("topic://t/n/a")

    def look_delete_and_create(tx: Connection) -> None:
        [(reserved,)] = tx.execute(
            text("SELECT next_segment_id FROM cleave.topic WHERE topic_id = :id"), {"id": old.topic_id}
        )
        driver.split(old.topic_id, 0)
        driver.delete(old.topic_id)
        tx.execute(
            text(
                "INSERT INTO cleave.topic (name, namespace, next_segment_id) VALUES ('topic://t/n/a', 't/n', :next)"
            ),
            {"next": reserved + 1},
        )

    with pytest.raises(LostRace, match="goes on from there"):
        driver.do(look_delete_and_create)
    assert set(driver.layout(driver.create("topic://t/n/a").topic_id).segments) == {3}
