"""Rows of who owns what."""

from __future__ import annotations

from controller.domain.assignment import SegmentBucket
from controller.domain.bucket_ownership import OwnershipChanges
from controller.domain.hash_range import FULL_RANGE
from controller.store.topics import bucket_owners
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.store_driver import StoreDriver


def test_a_run_takes_the_place_of_the_bucket_that_it_begins_with(driver: StoreDriver) -> None:
    """And a bucket that of the run: leaders of two versions may follow upon each other."""
    topic_id = driver.create(segments=1, subscriptions=["billing"]).topic_id
    key = SubscriptionKey(topic_id, "billing")
    run, pieces = SegmentBucket(0, FULL_RANGE), [SegmentBucket(0, half) for half in FULL_RANGE.halves()]

    def written(generation: int, *units: SegmentBucket, ended: tuple[SegmentBucket, ...] = ()) -> list[str]:
        changes = OwnershipChanges(dict.fromkeys(units, "a"), {}, frozenset(), frozenset(ended))
        driver.do(bucket_owners.write, key, changes, generation)
        return [f"{one.bucket.bucket} {one.generation}" for one in driver.do(bucket_owners.owners, key)]

    assert written(0, *pieces) == ["0000-7fff 1", "8000-ffff 1"]
    assert written(1, run, ended=tuple(pieces)) == ["0000-ffff 2"]
    assert written(2, *pieces, ended=(run,)) == ["0000-7fff 3", "8000-ffff 3"]
