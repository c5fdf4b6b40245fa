"""What keeps an intent from being written, each guard alone, and whoever comes second with the same request key."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from controller.domain.errors import Conflict, InvalidLayoutChange, TopicNotLive
from controller.domain.reshape import plan_split
from controller.store.journal import (
    adoptions,
    mirror_intents,
    reshape_intents,
    subscription_intents,
    topic_intents,
)
from controller.store.journal.adoptions import Adoption
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.topics import drains
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.store_driver import SOMEBODY_WAITS, StoreDriver, backing_topic, request
from tests.support.waiting import wait_until

Act = Callable[[Connection, Request], Intent]


def draft(tx: Connection, topic_id: int, wanted: Request, *, on_broker: bool = False) -> ReshapeDraft:
    """A split of segment 0, planned on what there is to see now."""
    view = reshape_intents.look(tx, topic_id, wanted.request_key)
    return ReshapeDraft(view, plan_split(view.layout, 0), wanted, None if on_broker else backing_topic)


# The statement that writes, by itself.


def test_a_topic_that_is_not_live_takes_no_draft_made_on_its_very_row(driver: StoreDriver) -> None:
    """Whoever looks is told so as well (`demand_current`); a draft that did not ask is left out here."""
    topic_id = driver.create().topic_id
    driver.do(topic_intents.intend_delete, topic_id, request())
    unasked = driver.do(draft, topic_id, request())

    assert driver.do(reshape_intents.write, [unasked]) == {}
    with pytest.raises(TopicNotLive):
        unasked.view.demand_current()


def test_what_a_broker_will_number_reserves_nothing_here(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    wanted = driver.do(draft, topic_id, request(), on_broker=True)

    written = driver.do(reshape_intents.write, [wanted])[topic_id]

    assert (written.children, written.is_mirrored) == ((), True)
    assert driver.layout(topic_id).next_segment_id == 2


def test_topics_are_locked_in_the_order_of_their_ids_before_any_is_written(driver: StoreDriver) -> None:
    """So that whoever waits for one holds none of a higher id, which somebody else may want first."""
    low, high = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")
    drafts = [driver.do(draft, topic_id, request()) for topic_id in (high, low)]
    lock = "SELECT topic_id FROM cleave.topic WHERE topic_id = :id FOR NO KEY UPDATE"

    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as holder:
            holder.execute(text(lock), {"id": low})
            writing = pool.submit(driver.do, reshape_intents.write, drafts)
            wait_until(lambda: driver.sql(SOMEBODY_WAITS), message="the writer waits for the lower one")
            assert driver.sql(f"{lock} NOWAIT", id=high) == [(high,)]
        assert set(writing.result()) == {low, high}


def test_a_plan_that_does_not_fit_is_refused_whoever_made_it(driver: StoreDriver) -> None:
    """Half of the parent's range would have no segment; the journal would learn of it behind the fence."""
    topic_id = driver.create().topic_id
    half = driver.do(draft, topic_id, request())
    half = replace(half, planned=replace(half.planned, children=half.planned.children[:1]))

    with pytest.raises(InvalidLayoutChange, match="do not tile"):
        driver.do(reshape_intents.intend, half)

    assert driver.sql("SELECT count(*) FROM cleave.operation WHERE finished_at IS NULL") == [(0,)]


# One request key, one operation.


def drained(driver: StoreDriver, topic_id: int) -> None:
    driver.subscribe(topic_id, "s")
    driver.split(topic_id, 0)
    driver.do(drains.mark_drained, topic_id, "s", [0])


def acts(topic_id: int, new: str = "topic://t/n/new") -> dict[str, Act]:
    """One of each, on a topic with a subscription `s` and a sealed segment 0, or making one of the name `new`."""

    def create(tx: Connection, wanted: Request) -> Intent:
        return topic_intents.intend_create(
            tx,
            new,
            segments=1,
            data_plane="embedded",
            backing_topic=backing_topic,
            bucket_budget=4,
            max_buckets=64,
            request=wanted,
        )

    def split(tx: Connection, wanted: Request) -> Intent:
        view = reshape_intents.look(tx, topic_id, wanted.request_key)
        planned = plan_split(view.layout, 1)
        return reshape_intents.intend(tx, ReshapeDraft(view, planned, wanted, backing_topic))

    def subscribe(tx: Connection, wanted: Request) -> Intent:
        return subscription_intents.intend_subscription_create(
            tx, topic_id, "new", SubscriptionKind.STREAM, wanted
        )

    def adopt(tx: Connection, wanted: Request) -> Intent:
        adoption = Adoption(
            name=new,
            data_plane="embedded",
            old_topics=("persistent://t/n/old",),
            subscriptions={},
            segments=1,
            bucket_budget=4,
            max_buckets=64,
        )
        return adoptions.intend_adopt(tx, adoption, backing_topic=backing_topic, request=wanted)

    return {
        "create": create,
        "adopt": adopt,
        "split": split,
        "delete": lambda tx, wanted: topic_intents.intend_delete(tx, topic_id, wanted),
        "subscribe": subscribe,
        "unsubscribe": lambda tx, wanted: subscription_intents.intend_subscription_delete(
            tx, topic_id, "s", wanted
        ),
        "prune": lambda tx, wanted: topic_intents.intend_prune(tx, topic_id, [0], wanted),
        "attach": lambda tx, wanted: mirror_intents.intend_attach(
            tx, new, data_plane="pulsar_scalable", request=wanted
        ),
        "detach": lambda tx, wanted: mirror_intents.intend_detach(tx, topic_id, wanted),
    }


KINDS = ("create", "adopt", "split", "delete", "subscribe", "unsubscribe", "prune", "attach", "detach")


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_waited_for_the_first_of_a_key_gets_its_operation(driver: StoreDriver, kind: str) -> None:
    """Both looked for the key before either had written."""
    topic_id = driver.create().topic_id
    drained(driver, topic_id)
    act = acts(topic_id)[kind]

    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as tx:
            first = act(tx, request("k"))
            second = pool.submit(driver.do, act, request("k"))
            wait_until(lambda: second.done() or driver.sql(SOMEBODY_WAITS), message="the second waits")
            assert not second.done()
        again = second.result()

    assert (again.repeated, again.operation.operation_id) == (True, first.operation.operation_id)


ANOTHER_KIND = dict.fromkeys(KINDS, "prune") | {
    "prune": "delete",
    "create": "attach",
    "attach": "create",
    "adopt": "create",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("used_for", ["another topic", "another act"])
def test_a_key_used_for_something_else_is_refused(driver: StoreDriver, kind: str, used_for: str) -> None:
    topic_id, other = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")
    for one in (topic_id, other):
        drained(driver, one)
    act = (
        acts(other, "topic://t/n/x")[kind]
        if used_for == "another topic"
        else acts(topic_id)[ANOTHER_KIND[kind]]
    )
    used = driver.do(act, request("k")).operation

    with pytest.raises(Conflict, match=f"k was used for {used.kind} of .*take a fresh key"):
        driver.do(acts(topic_id)[kind], request("k"))


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_a_key_used_for_another_subscription_is_refused(driver: StoreDriver, kind: str) -> None:
    topic_id = driver.create().topic_id
    for name in ("s", "t"):
        driver.subscribe(topic_id, name)
    if kind == "subscribe":
        driver.do(
            subscription_intents.intend_subscription_create,
            topic_id,
            "x",
            SubscriptionKind.STREAM,
            request("k"),
        )
    else:
        driver.do(subscription_intents.intend_subscription_delete, topic_id, "t", request("k"))

    with pytest.raises(Conflict, match="take a fresh key"):
        driver.do(acts(topic_id)[kind], request("k"))


@pytest.mark.parametrize(
    ("kind", "from_latest", "wanted"),
    [
        (SubscriptionKind.STREAM, False, None),
        (SubscriptionKind.QUEUE, False, "kind QUEUE"),
        (SubscriptionKind.STREAM, True, "from latest True"),
    ],
)
def test_a_key_used_for_a_subscription_with_other_parameters_is_refused(
    driver: StoreDriver, kind: SubscriptionKind, from_latest: bool, wanted: str | None
) -> None:
    topic_id = driver.create().topic_id
    create = subscription_intents.intend_subscription_create
    first = driver.do(create, topic_id, "s", SubscriptionKind.STREAM, request("k"))

    if wanted is None:
        repeated = driver.do(create, topic_id, "s", kind, request("k"), from_latest=from_latest)
        assert repeated.operation.operation_id == first.operation.operation_id
    else:
        with pytest.raises(Conflict, match=f"not for {wanted}; take a fresh key"):
            driver.do(create, topic_id, "s", kind, request("k"), from_latest=from_latest)


# Pruning.


def test_a_prune_waits_for_a_seek_that_is_under_way_and_then_sees_it(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    drained(driver, topic_id)

    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as seeking:
            drains.undrain(seeking, topic_id, "s", [0])
            prune = pool.submit(driver.do, topic_intents.intend_prune, topic_id, [0], request())
            wait_until(lambda: prune.done() or driver.sql(SOMEBODY_WAITS), message="the prune waits")
        with pytest.raises(Conflict, match="not drained by s"):
            prune.result()


def test_what_is_pruned_is_not_pruned_again(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    drained(driver, topic_id)
    driver.run(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)

    with pytest.raises(Conflict, match=r"segment 0 .* pruned"):
        driver.do(topic_intents.intend_prune, topic_id, [0], request())
