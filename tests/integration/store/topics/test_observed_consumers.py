"""Observed consumers: written when something changed, an input of decisions, and never in the way of registered ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.domain.evaluation_input import Capabilities
from controller.domain.observed_consumers import SubscriptionUse
from controller.postgres.listener import Listener
from controller.store.decisions.evaluation_inputs import load_evaluation_inputs
from controller.store.journal import subscription_intents
from controller.store.topics import consumers, observed_consumers
from controller.store.topics.observed_consumers import NAMES_KEPT, Observation
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.store_driver import StoreDriver, request

LONG = 60.0


@pytest.fixture
def listener(database: str) -> Iterator[Listener]:
    """Hears what the worker would."""
    with Listener(database, ["cleave_consumers"]) as listener:
        listener.wait(LONG)
        yield listener


def use(consumers: int, kind: str = "Failover", *names: str) -> SubscriptionUse:
    """So many consumers, named by number unless named."""
    return SubscriptionUse(kind, consumers, names or tuple(str(n) for n in range(consumers)))


def see(driver: StoreDriver, topic_id: int, *, is_whole: bool = True, **uses: SubscriptionUse) -> list[int]:
    """One topic is observed."""
    return driver.do(observed_consumers.record, [Observation(topic_id, uses, is_whole)])


def counted(driver: StoreDriver, topic_id: int) -> dict[str, int]:
    """What a decision would read."""
    planes = {"embedded": Capabilities()}
    return dict(driver.do(load_evaluation_inputs, [topic_id], planes)[topic_id].stream_consumers)


def test_a_changed_count_wakes_the_worker_and_an_unchanged_one_writes_nothing(
    driver: StoreDriver, listener: Listener
) -> None:
    topic_id = driver.create().topic_id
    before = driver.input_version()

    assert see(driver, topic_id, s=use(2)) == [topic_id]
    assert see(driver, topic_id, s=use(2)) == []
    assert [one.payload for one in listener.wait(LONG)] == [str(topic_id)]
    assert (driver.input_version(), counted(driver, topic_id)) == (before + 1, {"s": 2})

    assert see(driver, topic_id, s=use(3)) == [topic_id]
    assert [one.payload for one in listener.wait(LONG)] == [str(topic_id)]
    assert see(driver, topic_id) == [topic_id]
    assert [one.payload for one in listener.wait(LONG)] == [str(topic_id)]
    assert (driver.input_version(), counted(driver, topic_id)) == (before + 3, {})


def test_other_names_are_kept_for_people_and_wake_nobody(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    see(driver, topic_id, s=use(1, "Failover", "a"))
    before = driver.input_version()

    assert see(driver, topic_id, s=use(1, "Failover", "b")) == [topic_id]
    assert driver.input_version() == before
    assert driver.sql("SELECT consumer_names, in_decisions FROM inspect.observed_consumers") == [
        (["b"], "counts")
    ]


def test_silence_adds_and_raises_but_takes_nothing_away(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    see(driver, topic_id, s=use(3), t=use(1))

    assert see(driver, topic_id, s=use(1), is_whole=False) == []
    assert see(driver, topic_id, is_whole=False) == []
    assert counted(driver, topic_id) == {"s": 3, "t": 1}
    assert see(driver, topic_id, s=use(4), u=use(2), is_whole=False) == [topic_id]
    assert counted(driver, topic_id) == {"s": 4, "t": 1, "u": 2}


def test_a_queue_never_counts_whatever_it_is_recorded_as(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["recorded"]).topic_id
    see(driver, topic_id, s=use(5, "Shared"), recorded=use(5, "Shared"))

    assert counted(driver, topic_id) == {"recorded": 0}

    see(driver, topic_id, s=use(5, "Key_Shared"), recorded=use(4, "Exclusive"))
    assert counted(driver, topic_id) == {"recorded": 4, "s": 5}


def test_registered_consumers_count_alone_and_stay_as_they_are(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    driver.do(consumers.register, topic_id, "s", "session")
    see(driver, topic_id, s=use(4))

    assert counted(driver, topic_id) == {"s": 1}
    see(driver, topic_id)
    assert [row.name for row in driver.do(consumers.list_consumers, topic_id)] == ["session"]

    see(driver, topic_id, s=use(4))
    assert driver.sql("SELECT in_decisions FROM inspect.observed_consumers") == [
        ("registered consumers count instead",)
    ]
    driver.do(consumers.unregister, topic_id, "s", "session")
    assert counted(driver, topic_id) == {"s": 4}


@pytest.mark.parametrize("kind", [SubscriptionKind.QUEUE, SubscriptionKind.CHECKPOINT])
def test_a_subscription_recorded_as_no_stream_counts_nobody(
    driver: StoreDriver, kind: SubscriptionKind
) -> None:
    topic_id = driver.create().topic_id
    driver.subscribe(topic_id, "s", kind)
    see(driver, topic_id, s=use(4))

    assert counted(driver, topic_id) == {}
    assert driver.sql("SELECT in_decisions FROM inspect.observed_consumers") == [
        (f"recorded as {kind.lower()}",)
    ]


def test_a_subscription_being_deleted_counts_nobody(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["s"]).topic_id
    see(driver, topic_id, s=use(4))
    driver.do(subscription_intents.intend_subscription_delete, topic_id, "s", request())

    assert counted(driver, topic_id) == {}


def test_names_come_from_clients_and_are_kept_whatever_they_are(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    names = ("a\0b", "\ud800", 'it\'s "quoted"', *(f"n{n}" for n in range(200)))
    driver.do(observed_consumers.record, [Observation(topic_id, {"s\0": use(203, "Failover", *names)})])

    [(subscription, kept, count)] = driver.sql(
        "SELECT name, consumer_names, consumers FROM cleave.observed_subscription"
    )
    assert (subscription, kept[:3], len(kept), count) == (
        "s\N{REPLACEMENT CHARACTER}",
        ["a\N{REPLACEMENT CHARACTER}b", "?", 'it\'s "quoted"'],
        NAMES_KEPT,
        203,
    )


def test_a_deleted_topic_takes_its_rows_along_and_gets_no_new_ones(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    see(driver, topic_id, s=use(1))
    driver.delete(topic_id)

    assert driver.sql("SELECT * FROM cleave.observed_subscription") == []
    assert see(driver, topic_id, s=use(1)) == []
    assert driver.sql("SELECT * FROM cleave.observed_subscription") == []


def test_two_watchers_of_the_same_topics_do_not_wait_for_each_other_crosswise(driver: StoreDriver) -> None:
    ids = [driver.create(f"topic://t/n/{n}").topic_id for n in range(8)]

    def watch(order: list[int], first: int) -> None:
        for turn in range(20):
            seen = [
                Observation(one, {"s": use(1 + (first + turn) % 3)} if (one + turn) % 3 else {})
                for one in order
            ]
            driver.do(observed_consumers.record, seen)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(watch, (ids, ids[::-1]), (0, 1))) == [None, None]
