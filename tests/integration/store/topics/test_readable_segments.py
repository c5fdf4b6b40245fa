"""What a subscription has to read, against the whole layout: the leader is given little of it, and nothing may be missing.

Random histories of reshapes, marks, marks taken back, prunes and subscriptions that come and go; after each act the
answers of `to_read`, `front` and the view `inspect.assignments` are compared with the one that the rule
`domain.assignment.candidates` gives for all segments and all marks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial

import pytest

from controller.domain.assignment import SegmentBucket
from controller.domain.bucket_ownership import OwnershipChanges
from controller.domain.drain_barrier import candidates
from controller.domain.hash_range import FULL_RANGE
from controller.domain.reshape import plan_merge, plan_rebucket
from controller.store.journal import subscription_intents, topic_intents
from controller.store.topics import bucket_owners, drains, subscriptions
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.readable_segments import front, to_read
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.drawn import cases
from tests.support.store_driver import StoreDriver, request

LATE = "late"


class History:
    """One topic and its random acts."""

    def __init__(self, driver: StoreDriver, rng: random.Random) -> None:
        self.driver, self.rng = driver, rng
        self.topic_id = driver.create(segments=2).topic_id
        self.subscriptions = ["a", "b"]
        for name in self.subscriptions:
            driver.subscribe(self.topic_id, name)

    def act(self) -> None:
        """One of all that may happen."""
        acts: list[Callable[[], None]] = [
            *[self.reshape] * 4,
            *[self.mark] * 5,
            self.take_back,
            self.prune,
            self.come_or_go,
        ]
        self.rng.choice(acts)()

    def reshape(self) -> None:
        """A split, a merge or a rebucket."""
        active = self.driver.layout(self.topic_id).active
        index = self.rng.randrange(len(active))
        chosen = active[index]
        if len(active) > 6 and index + 1 < len(active):
            self.driver.reshape(
                self.topic_id, partial(plan_merge, a=chosen.segment_id, b=active[index + 1].segment_id)
            )
        elif self.rng.random() < 0.2:
            count = chosen.bucket_count % 8 + 1
            self.driver.reshape(
                self.topic_id, partial(plan_rebucket, segment_id=chosen.segment_id, bucket_count=count)
            )
        else:
            self.driver.split(self.topic_id, chosen.segment_id)

    def mark(self) -> None:
        """Some subscription has read some of its sealed segments; as a rule those that it may."""
        name = self.rng.choice(self.subscriptions)
        sealed = [i for i, one in self.driver.layout(self.topic_id).segments.items() if not one.is_active]
        if sealed:
            some = self.rng.sample(sealed, min(len(sealed), self.rng.randint(1, 4)))
            self.driver.do(drains.mark_drained, self.topic_id, name, some)

    def take_back(self) -> None:
        """A seek has gone back to before a segment's end, read or not."""
        name = self.rng.choice(self.subscriptions)
        sealed = [i for i, one in self.driver.layout(self.topic_id).segments.items() if not one.is_active]
        if sealed:
            self.driver.do(drains.undrain, self.topic_id, name, [self.rng.choice(sealed)])

    def prune(self) -> None:
        """A segment that everybody has read."""
        layout = self.driver.layout(self.topic_id)
        sealed = [i for i, one in layout.segments.items() if not one.is_active]
        waiting = self.driver.do(drains.undrained_subscriptions, self.topic_id, sealed)
        ready = [i for i in sealed if i not in waiting]
        if ready:
            intent = self.driver.do(
                topic_intents.intend_prune, self.topic_id, [self.rng.choice(ready)], request()
            )
            self.driver.run(intent.operation)

    def heirs_of(self, segment_ids: Collection[int]) -> set[int]:
        """All that descends from these, through pruned segments too: a late subscription finds such gaps."""
        links = self.driver.sql("SELECT parent_id, child_id FROM cleave.segment_parent")
        heirs: set[int] = set()
        while found := {child for parent, child in links if parent in {*segment_ids, *heirs}} - heirs:
            heirs |= found
        return heirs

    def come_or_go(self) -> None:
        """A subscription that is there for a part of the history only."""
        if LATE in self.subscriptions:
            self.subscriptions.remove(LATE)
            intent = self.driver.do(
                subscription_intents.intend_subscription_delete, self.topic_id, LATE, request()
            )
            self.driver.run(intent.operation)
        else:
            self.driver.subscribe(self.topic_id, LATE, from_latest=self.rng.random() < 0.5)
            self.subscriptions.append(LATE)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(cases(2, 40)))
def test_a_subscription_is_shown_all_that_it_has_to_read(driver: StoreDriver, seed: int) -> None:
    history = History(driver, random.Random(seed))
    for _ in range(60):
        history.act()
        whole = driver.layout(history.topic_id)
        for name in history.subscriptions:
            found = driver.do(to_read, history.topic_id, name)
            drained = driver.do(drains.drained, history.topic_id, name)
            expected = [s.segment_id for s in candidates(whole, drained)]
            assert [s.segment_id for s in candidates(found.layout, found.drained)] == expected
            assert found.backing_topics.keys() == found.layout.segments.keys()
            assert found.layout.epoch == whole.epoch
            assert [s.segment_id for s in found.layout.active] == [s.segment_id for s in whole.active]
            now = driver.do(front, history.topic_id, name)
            unread = {i for i, one in whole.segments.items() if not one.is_active} - drained
            assert sorted(now.found.layout.segments) == sorted(set(expected) - history.heirs_of(unread))
            assert not now.waiting
            assert sorted(shown_readable(driver, history.topic_id, name)) == sorted(expected)


def shown_readable(driver: StoreDriver, topic_id: int, subscription: str) -> list[int]:
    """What people see of the drain barrier."""
    statement = """SELECT segment_id FROM inspect.assignments
                    WHERE topic_id = :topic_id AND subscription = :subscription AND barrier = 'readable'"""
    return [
        segment_id for (segment_id,) in driver.sql(statement, topic_id=topic_id, subscription=subscription)
    ]


def test_what_everybody_has_read_is_shown_to_nobody(driver: StoreDriver) -> None:
    """However many segments there were: only the active ones and their readers' backlog are read."""
    topic_id = driver.create(segments=1).topic_id
    for name in ("a", "b"):
        driver.subscribe(topic_id, name)
    for _ in range(10):
        parent = driver.layout(topic_id).active[0].segment_id
        driver.split(topic_id, parent)
        driver.do(drains.mark_drained, topic_id, "a", [parent])

    assert all(s.is_active for s in driver.do(to_read, topic_id, "a").layout.segments.values())
    assert len(driver.do(to_read, topic_id, "b").layout.segments) == 21
    unread = "SELECT count(*) FROM cleave.segment WHERE state = 'SEALED' AND drained_at IS NULL"
    assert driver.sql(unread) == [(10,)]

    sealed = [i for i, one in driver.layout(topic_id).segments.items() if not one.is_active]
    driver.do(drains.mark_drained, topic_id, "b", sealed)

    assert all(s.is_active for s in driver.do(to_read, topic_id, "b").layout.segments.values())
    assert driver.sql(unread) == [(0,)]


def test_a_subscription_that_begins_in_the_past_is_shown_what_others_had_read(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=1, subscriptions=["a"], splits=[0]).topic_id
    driver.do(drains.mark_drained, topic_id, "a", [0])

    driver.do(subscriptions.insert_subscription, topic_id, "from-the-start", SubscriptionKind.STREAM, 0)

    assert [s.segment_id for s in candidates(driver.do(to_read, topic_id, "from-the-start").layout, ())] == [
        0
    ]


def test_a_mark_that_is_taken_back_shows_the_segment_again(driver: StoreDriver) -> None:
    """To its subscription alone, and what descends from it waits for it once more."""
    topic_id = driver.create(segments=1).topic_id
    for name in ("a", "b"):
        driver.subscribe(topic_id, name)
    for parent in (0, 1):
        driver.split(topic_id, parent)
    for name in ("a", "b"):
        driver.do(drains.mark_drained, topic_id, name, [0, 1])

    driver.do(drains.undrain, topic_id, "b", [0])

    assert all(s.is_active for s in driver.do(to_read, topic_id, "a").layout.segments.values())
    found = driver.do(to_read, topic_id, "b")
    assert [s.segment_id for s in candidates(found.layout, found.drained)] == [0]


def test_what_is_owned_is_shown_though_it_may_not_be_read(driver: StoreDriver) -> None:
    """Its owner is asked to let go of it; what is not there any more is taken away without being asked for."""
    topic_id = driver.create(segments=1, subscriptions=["a"]).topic_id
    for parent in (0, 1):
        driver.split(topic_id, parent)
    driver.do(drains.mark_drained, topic_id, "a", [0, 1])
    owned = {SegmentBucket(segment_id, FULL_RANGE): "c" for segment_id in (1, 3)}
    changes = OwnershipChanges(owned, {}, frozenset(), frozenset())
    driver.do(bucket_owners.write, SubscriptionKey(topic_id, "a"), changes, 0)
    driver.do(drains.undrain, topic_id, "a", [0])

    found = driver.do(front, topic_id, "a")

    assert set(found.found.layout.segments) == {0, 1, 3}
    assert found.waiting == {1, 3}
    assert set(found.readable.segments) == {0}


def test_a_subscription_without_order_over_splits_may_read_everything(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=1, subscriptions=["a"], splits=[0]).topic_id
    driver.do(subscriptions.set_sharing, topic_id, "a", parents_block=False, drain_consumers=None)

    assert set(driver.do(front, topic_id, "a").readable.segments) == {0, 1, 2}
