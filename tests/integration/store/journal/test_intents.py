"""Intents: what they reserve, what it refuses, and that a request key is used once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Connection, text

from controller.domain.errors import (
    CleaveError,
    Conflict,
    InvalidInput,
    InvalidLayoutChange,
    LostRace,
    SegmentBusy,
    SubscriptionNotFound,
    TopicExists,
    TopicNotLive,
)
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationKind, OperationState
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import Reshape, plan_merge, plan_split
from controller.store.journal import reshape_intents, subscription_intents, topic_intents
from controller.store.journal.operations import get_operation
from controller.store.journal.request_keys import Intent
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.topics import drains, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionState
from controller.store.topics.topics import TopicState
from tests.support.store_driver import StoreDriver, backing_topic, request


def _split(segment_id: int) -> Callable[[SegmentLayout], Reshape]:
    return lambda layout: plan_split(layout, segment_id)


def test_creating_reserves_ids_ranges_and_logs(driver: StoreDriver) -> None:
    with driver.store.transaction() as tx:
        intent = topic_intents.intend_create(
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
        {"segments": 2, "policy": {"max_segments": 8}, "properties": {"owner": "x"}},
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
    ("name", "advice"),
    [
        *((name, "topic://tenant/namespace/name") for name in ("a", "topic://t/n", "topic://t/n/")),
        ("persistent://t/n/a", "topic://tenant/namespace/name"),
        ("topic://t/n/a b", "use printable characters"),
        ("", "the topic is empty"),
    ],
)
def test_a_name_of_another_form_is_refused(driver: StoreDriver, name: str, advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice):
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
    operation = driver.intend_reshape(topic_id, _split(0), request(deadline_seconds=0.0)).operation
    assert driver.run(operation).state is OperationState.ABORTED

    assert [child.plan.segment_id for child in driver.intend(topic_id, _split(0)).children] == [3, 4]


def test_what_a_decision_was_made_on_must_still_hold(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2, splits=[0]).topic_id
    [(version,)] = driver.sql("SELECT input_version FROM cleave.evaluation WHERE topic_id = :id", id=topic_id)

    def intend(*, epoch: int, input_version: int) -> object:
        return driver.intend_reshape(topic_id, _split(1), request(), epoch=epoch, input_version=input_version)

    with pytest.raises(LostRace, match=r"epoch of topic .* is 1 by now, not 0"):
        intend(epoch=0, input_version=version)
    with pytest.raises(LostRace, match="decide again"):
        intend(epoch=1, input_version=version - 1)
    assert intend(epoch=1, input_version=version)


def _drafts(driver: StoreDriver, wanted: dict[int, int], key: str | None = None) -> list[ReshapeDraft]:
    """Splits of those segments by topic, planned on what there is to see now."""
    requests = [request(key) for _ in wanted]
    views = driver.do(reshape_intents.look_at_many, list(wanted), [one.request_key for one in requests])
    return [
        ReshapeDraft(view, _split(wanted[view.topic_id])(view.layout), one, backing_topic)
        for view, one in zip(views, requests, strict=True)
        if view is not None
    ]


def test_reshapes_of_many_topics_are_written_at_once_as_each_would_be(driver: StoreDriver) -> None:
    topic_ids = [driver.create(f"topic://t/n/{name}", segments=2).topic_id for name in "abc"]
    drafts = _drafts(driver, dict.fromkeys(reversed(topic_ids), 1))

    written = driver.do(reshape_intents.write, drafts)

    assert set(written) == {*topic_ids}
    for draft in drafts:
        operation = written[draft.view.topic_id]
        assert operation == driver.do(get_operation, operation.operation_id)
        assert operation.request_key == draft.request.request_key
        assert [str(child.plan.hash_range) for child in operation.children] == ["8000-bfff", "c000-ffff"]
        assert driver.layout(operation.topic_id).next_segment_id == 4


def test_a_topic_that_moved_since_it_was_looked_at_is_left_out_and_the_others_are_written(
    driver: StoreDriver,
) -> None:
    moved, free, gone = (driver.create(f"topic://t/n/{name}", segments=2).topic_id for name in "abc")
    drafts = _drafts(driver, {moved: 0, free: 0, gone: 0})
    driver.split(moved, 1)
    driver.do(topic_intents.intend_delete, gone, request())

    written = driver.do(reshape_intents.write, drafts)

    assert set(written) == {free}
    assert driver.layout(moved).next_segment_id == 4
    with pytest.raises(LostRace, match="changed meanwhile"):
        driver.do(reshape_intents.intend, drafts[0])


def test_an_input_that_changed_since_it_was_decided_on_writes_nothing(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    [draft] = _drafts(driver, {topic_id: 0})
    [(version,)] = driver.sql("SELECT input_version FROM cleave.evaluation")
    driver.sql("UPDATE cleave.evaluation SET input_version = input_version + 1")

    assert driver.do(reshape_intents.write, [replace(draft, input_version=version)]) == {}
    assert driver.do(reshape_intents.write, [replace(draft, input_version=version + 1)])


def test_a_segment_that_is_busy_fails_the_whole_write(driver: StoreDriver) -> None:
    """The draft asks first; the constraint is the second line, and is tried alone here."""
    busy, other = (driver.create(f"topic://t/n/{name}", segments=2).topic_id for name in "ab")
    driver.intend(busy, _split(0))
    drafts = _drafts(driver, {busy: 0, other: 0})

    with pytest.raises(Conflict, match="one live operation at a time"):
        driver.do(reshape_intents.write, drafts)

    assert driver.sql("SELECT count(*) FROM cleave.operation WHERE topic_id = :id", id=other) == [(1,)]


def test_two_of_many_reshapes_with_one_request_key_fail_together(driver: StoreDriver) -> None:
    one, other = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")
    drafts = _drafts(driver, {one: 0, other: 0}, "k")

    with pytest.raises(Conflict):
        driver.do(reshape_intents.write, drafts)
    first = driver.do(reshape_intents.intend, drafts[0])

    assert not first.repeated
    with pytest.raises(Conflict, match="k was used for split"):
        driver.do(reshape_intents.intend, drafts[1])
    assert driver.layout(other).next_segment_id == 1


def test_a_busy_segment_is_refused_by_name(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    first = driver.intend(topic_id, _split(0))

    with pytest.raises(SegmentBusy, match=rf"segment 0 .* live operation {first.operation_id}"):
        driver.intend(topic_id, _split(0))


def test_writers_of_the_same_topics_wait_for_one_another_and_never_crosswise(driver: StoreDriver) -> None:
    """Two batches at the same time, in opposite orders: each topic is written by one of them, whoever came first."""
    topic_ids = [driver.create(f"topic://t/n/{number}", segments=2).topic_id for number in range(20)]
    together = threading.Barrier(2, timeout=20)

    def ask(segment_id: int, order: list[int]) -> list[int]:
        drafts = _drafts(driver, dict.fromkeys(order, segment_id))
        together.wait()
        return list(driver.do(reshape_intents.write, drafts))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, (0, 1), (topic_ids, topic_ids[::-1]))

    assert sorted(first + second) == topic_ids


def test_the_depth_of_merges_is_what_the_whole_layout_says(driver: StoreDriver) -> None:
    """Of parents that share merges among their ancestors each is counted once, as Pulsar does."""
    rng = random.Random(7)
    topic_id = driver.create(segments=3).topic_id
    for _ in range(60):
        layout = driver.layout(topic_id)
        active = layout.active
        index = rng.randrange(len(active))
        if len(active) > 2 and rng.random() < 0.55:
            index = min(index, len(active) - 2)
            parents = (active[index].segment_id, active[index + 1].segment_id)
            expected = {layout.next_segment_id: layout.child_merge_depth(parents)}
            driver.reshape(topic_id, partial(plan_merge, a=parents[0], b=parents[1]))
        else:
            expected = dict.fromkeys(
                (layout.next_segment_id, layout.next_segment_id + 1),
                layout.child_merge_depth((active[index].segment_id,)),
            )
            driver.split(topic_id, active[index].segment_id)
        after = driver.layout(topic_id)
        assert {i: after.segment(i).merge_depth for i in expected} == expected
        if rng.random() < 0.2:
            sealed = [i for i, one in after.segments.items() if not one.is_active]
            driver.run(
                driver.do(topic_intents.intend_prune, topic_id, [rng.choice(sealed)], request()).operation
            )


def test_a_plan_the_layout_refuses_leaves_no_trace(driver: StoreDriver) -> None:
    before = driver.create(segments=3)

    with pytest.raises(InvalidLayoutChange, match="not adjacent"):
        driver.intend(before.topic_id, lambda layout: plan_merge(layout, 0, 2))

    assert driver.do(topics.get_topic, before.topic_id) == before


def test_a_topic_being_deleted_takes_no_more_requests(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    driver.do(topic_intents.intend_delete, topic_id, request())

    attempts: list[Callable[[], object]] = [
        lambda: driver.intend(topic_id, _split(0)),
        lambda: driver.do(topic_intents.intend_delete, topic_id, request()),
        lambda: driver.do(
            subscription_intents.intend_subscription_create, topic_id, "x", SubscriptionKind.STREAM, request()
        ),
        lambda: driver.do(subscription_intents.intend_subscription_delete, topic_id, "s", request()),
        lambda: driver.do(topic_intents.intend_prune, topic_id, [0], request()),
    ]
    for attempt in attempts:
        with pytest.raises(TopicNotLive, match="is deleting"):
            attempt()


def test_subscriptions_are_recorded_at_the_intent_and_raise_the_version(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.do(
        subscription_intents.intend_subscription_create, topic_id, "s", SubscriptionKind.QUEUE, request()
    )

    [row] = driver.do(subscriptions.list_subscriptions, topic_id)
    assert (row.name, row.kind, row.state, row.created_epoch) == (
        "s",
        SubscriptionKind.QUEUE,
        SubscriptionState.LIVE,
        0,
    )
    assert driver.do(topics.get_topic, topic_id).subscription_version == 1
    with pytest.raises(Conflict, match="QUEUE subscription s"):
        driver.do(
            subscription_intents.intend_subscription_create, topic_id, "s", SubscriptionKind.STREAM, request()
        )

    driver.do(subscription_intents.intend_subscription_delete, topic_id, "s", request())
    [row] = driver.do(subscriptions.list_subscriptions, topic_id)
    assert row.state is SubscriptionState.DELETING
    assert driver.do(topics.get_topic, topic_id).subscription_version == 2
    with pytest.raises(Conflict, match="being deleted already"):
        driver.do(subscription_intents.intend_subscription_delete, topic_id, "s", request())
    with pytest.raises(SubscriptionNotFound, match="no subscription x"):
        driver.do(subscription_intents.intend_subscription_delete, topic_id, "x", request())


def test_only_sealed_and_drained_segments_are_pruned(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2, subscriptions=["s"], splits=[0]).topic_id

    def prune(*segment_ids: int) -> Intent:
        return driver.do(topic_intents.intend_prune, topic_id, segment_ids, request())

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
        driver.do(topic_intents.intend_delete, topic_id, request("k"))
    with pytest.raises(Conflict, match="take a fresh key"):
        driver.intend_create("topic://t/n/b", key="k")


@pytest.mark.parametrize("kind", ["create", "split", "delete", "subscribe"])
def test_the_same_request_made_at_the_same_time_is_one_operation(driver: StoreDriver, kind: str) -> None:
    """Whoever comes second waits for the first one's commit and then finds its operation."""
    topic_id = driver.create("topic://t/n/other").topic_id
    acts: dict[str, Callable[[], Intent]] = {
        "create": lambda: driver.intend_create("topic://t/n/a", key="k"),
        "split": lambda: driver.intend_reshape(topic_id, _split(0), request("k")),
        "delete": lambda: driver.do(topic_intents.intend_delete, topic_id, request("k")),
        "subscribe": lambda: driver.do(
            subscription_intents.intend_subscription_create,
            topic_id,
            "s",
            SubscriptionKind.STREAM,
            request("k"),
        ),
    }
    together = threading.Barrier(4, timeout=20)

    def act(_number: int) -> Intent | CleaveError:
        together.wait()
        try:
            return acts[kind]()
        except CleaveError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(act, range(4)))

    made = [outcome for outcome in outcomes if isinstance(outcome, Intent)]
    assert len(made) == len(outcomes), outcomes
    assert len({intent.operation.operation_id for intent in made}) == 1
    assert sorted(intent.repeated for intent in made) == [False, True, True, True]


def test_of_two_who_create_a_name_one_is_told_that_it_exists(driver: StoreDriver) -> None:
    together = threading.Barrier(2, timeout=20)

    def create(key: str) -> str:
        together.wait()
        try:
            driver.intend_create("topic://t/n/a", key=key)
        except TopicExists:
            return "exists"
        return "created"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(create, "ab")) == ["created", "exists"]


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

    with pytest.raises(LostRace, match="by an earlier topic of that name"):
        driver.do(look_delete_and_create)
    assert set(driver.layout(driver.create("topic://t/n/a").topic_id).segments) == {3}
