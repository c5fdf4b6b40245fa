"""Layouts: read set-wise and consistently, and as they were at any epoch and instant."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from controller.domain.errors import InvalidInput, InvalidLayoutChange, NotFound, SegmentBusy, TopicNotFound
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import Reshape, plan_heal, plan_merge, plan_rebucket, plan_split
from controller.store.journal import topic_intents
from controller.store.topics import layouts
from tests.support.store_driver import StoreDriver, request


def test_a_new_topic_has_the_layout_the_domain_gives_it(driver: StoreDriver) -> None:
    topic = driver.create(segments=3)
    layout = driver.layout(topic.topic_id)
    expected = SegmentLayout.initial(3, bucket_budget=4, max_buckets=64, now=layout.segment(0).created_at_ms)

    assert layout == expected


def test_a_layout_read_is_what_the_domains_own_changes_give(driver: StoreDriver) -> None:
    """Split, merge in the order named, rebucket, heal: rows and domain agree field by field."""
    topic_id = driver.create(segments=2).topic_id
    expected = driver.layout(topic_id)
    plans: list[Callable[[SegmentLayout], Reshape]] = [
        lambda layout: plan_split(layout, 1, (40000, 50000)),
        lambda layout: plan_merge(layout, 3, 2),
        lambda layout: plan_rebucket(layout, 0, 8),
        lambda layout: plan_heal(layout, 4),
    ]
    for plan in plans:
        driver.reshape(topic_id, plan)
        stored = driver.layout(topic_id)
        now = max(segment.created_at_ms for segment in stored.segments.values())
        expected = expected.apply(plan(expected), now)

        assert stored == expected


def test_many_layouts_come_in_one_statement_and_unknown_ids_are_absent(driver: StoreDriver) -> None:
    ids = [driver.create(f"topic://t/n/{n}", segments=n).topic_id for n in (1, 2, 3)]

    loaded = driver.do(layouts.load_layouts, [*ids, 404])

    assert {topic_id: len(layout.active) for topic_id, layout in loaded.items()} == dict(
        zip(ids, (1, 2, 3), strict=True)
    )
    with pytest.raises(TopicNotFound, match="topic 404"):
        driver.do(layouts.load_layout, 404)


def test_reserved_ids_show_in_the_present_layout(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.intend(topic_id, lambda layout: plan_split(layout, 0))

    assert driver.layout(topic_id).next_segment_id == 3


def _random_plan(rng: random.Random, layout: SegmentLayout) -> Reshape:
    active = layout.active
    match rng.choice(["split", "split", "merge", "rebucket"]):
        case "split":
            return plan_split(layout, rng.choice(active).segment_id)
        case "merge":
            left = rng.randrange(max(1, len(active) - 1))
            return (
                plan_merge(layout, active[left].segment_id, active[left + 1].segment_id)
                if active[1:]
                else plan_split(layout, active[0].segment_id)
            )
        case _:
            return plan_rebucket(layout, rng.choice(active).segment_id, rng.randint(1, 9))


def _without_reservations(layout: SegmentLayout) -> tuple[object, ...]:
    return layout.epoch, dict(layout.segments)


@pytest.mark.parametrize("seed", range(3))
def test_history_answers_every_epoch_and_instant_prunes_included(driver: StoreDriver, seed: int) -> None:
    """Every layout ever read is found again by its epoch and by any instant of its reign."""
    rng = random.Random(seed)
    topic_id = driver.create(segments=2).topic_id
    seen = {0: driver.layout(topic_id)}
    while len(seen) < 14:
        layout = seen[max(seen)]
        sealed = [s.segment_id for s in layout.segments.values() if not s.is_active]
        if sealed and rng.random() < 0.3:
            intent = driver.do(topic_intents.intend_prune, topic_id, rng.sample(sealed, 1), request())
            driver.run(intent.operation)
        else:
            try:
                driver.reshape(topic_id, lambda now: _random_plan(rng, now))
            except InvalidLayoutChange:
                continue
        latest = driver.layout(topic_id)
        seen[latest.epoch] = latest

    changes = driver.sql(
        "SELECT epoch, committed_at FROM cleave.layout_change WHERE topic_id = :id", id=topic_id
    )
    times: dict[int, datetime] = {epoch: committed_at for epoch, committed_at in changes}  # noqa: C416 - rows are not pairs to mypy
    assert sorted(times) == sorted(seen)
    for epoch, layout in seen.items():
        began = times[epoch]
        ended = times.get(epoch + 1, began + timedelta(days=1))
        for at in (epoch, began, began + (ended - began) / 2, ended - timedelta(microseconds=1)):
            past = driver.layout_at(topic_id, at)
            past.check_invariants()
            assert _without_reservations(past) == _without_reservations(layout)


def test_a_deleted_topic_has_no_segments_now_and_all_of_them_before(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2, splits=[0]).topic_id
    before = driver.layout(topic_id)
    driver.delete(topic_id)

    assert driver.layout(topic_id).segments == {}
    assert driver.layout_at(topic_id, before.epoch) == before
    assert driver.layout_at(topic_id, before.epoch + 1).segments == {}


def test_there_is_no_layout_before_the_first_nor_in_epochs_to_come(driver: StoreDriver) -> None:
    topic = driver.create()

    with pytest.raises(NotFound, match="no layout before"):
        driver.layout_at(topic.topic_id, topic.created_at - timedelta(seconds=1))
    with pytest.raises(NotFound, match="no epoch 1"):
        driver.layout_at(topic.topic_id, 1)
    with pytest.raises(InvalidInput, match="time zone"):
        driver.layout_at(topic.topic_id, datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    far_future = datetime(2999, 1, 1, tzinfo=UTC)
    assert driver.layout_at(topic.topic_id, far_future) == driver.layout(topic.topic_id)


def test_a_layout_read_while_others_commit_is_never_a_mixture(driver: StoreDriver, database: str) -> None:
    """One statement reads epoch and segments, so that a commit cannot come between them."""
    topic_id = driver.create().topic_id
    reader = StoreDriver(database)

    def split_and_merge() -> None:
        for _ in range(10):
            driver.split(topic_id, driver.layout(topic_id).active[0].segment_id)
            driver.reshape(topic_id, lambda now: plan_merge(now, *(s.segment_id for s in now.active)))

    writer = threading.Thread(target=split_and_merge)
    writer.start()
    epochs = set()
    while writer.is_alive():
        layout = reader.layout(topic_id)  # checks the laws
        assert len(layout.active) == 1 + layout.epoch % 2
        epochs.add(layout.epoch)
    writer.join()
    reader.store.dispose()

    assert len(epochs) > 1


def test_a_busy_segment_is_named_with_the_operation_in_the_way(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    first = driver.intend(topic_id, lambda layout: plan_split(layout, 0))

    with pytest.raises(SegmentBusy, match=f"segment 0 .* live operation {first.operation_id}"):
        driver.intend(topic_id, lambda layout: plan_rebucket(layout, 0, 2))
