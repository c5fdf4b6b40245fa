"""How far behind a subscription is: unacknowledged messages for each bucket of what it has to read, attached to or not.

The rows say what there is to read and who owns it; the counts come from the data plane, a few calls at a time. A plane that counts
whole segments only says so by leaving `bucket` out, and so is a queue counted. A segment whose count cannot be had is shown with
the reason, and keeps none of the others from being shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from controller.dataplane.base import BucketCountingDataPlane, DataPlane
from controller.dataplane.registry import configured
from controller.domain.bucket_ownership import BucketOwner
from controller.domain.entry_buckets import bucket_ranges
from controller.domain.errors import CleaveError
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment
from controller.store.postgres.engine import Store
from controller.store.topics import bucket_owners, readable_segments, subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

PARALLEL_CALLS = 8
UNREAD_SECONDS = 2.0
"""Whoever asks why nothing comes is answered while a data plane is away, too."""


@dataclass(frozen=True, slots=True)
class BucketLag:
    """Of one bucket, or of a whole segment where `bucket` is None. Nobody may own it."""

    segment_id: int
    hash_range: str
    state: str
    bucket: str | None
    owners: tuple[str, ...]
    messages: int | None
    """None where it could not be counted; `error` says why."""
    error: str | None = None


Unread = Callable[[str, str, Collection[int]], dict[int, int]]
"""`unread` of segments of a topic's subscription."""


def lag(store: Store, planes: Mapping[str, DataPlane], topic: str, subscription: str) -> list[BucketLag]:
    """By range and bucket. Raises TopicNotFound, SubscriptionNotFound, Unsupported."""
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        found = readable_segments.to_read(tx, row.topic_id, subscription)
        kind = subscriptions.get_subscription(tx, row.topic_id, subscription).kind
        owned = bucket_owners.owners(tx, SubscriptionKey(row.topic_id, subscription))
    plane = configured(planes, row.data_plane, topic)
    owners: dict[int, list[BucketOwner]] = {}
    for one in owned:
        owners.setdefault(one.bucket.segment_id, []).append(one)
    segments = [
        segment
        for segment in sorted(
            found.layout.segments.values(), key=lambda one: (one.hash_range.start, one.segment_id)
        )
        if segment.segment_id not in found.drained
    ]

    # What a queue's consumers have settled lies anywhere, and belongs to no bucket.
    counts_buckets = isinstance(plane, BucketCountingDataPlane) and kind is not SubscriptionKind.QUEUE

    def counted(segment: Segment) -> list[BucketLag]:
        log, owned_by = found.backing_topics[segment.segment_id], owners.get(segment.segment_id, ())
        return _of_segment(plane, log, subscription, segment, owned_by, counts_buckets=counts_buckets)

    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="cleave-lag") as calls:
        return [one for those in calls.map(counted, segments) for one in those]


def unread(
    store: Store, planes: Mapping[str, DataPlane], topic: str, subscription: str, segment_ids: Collection[int]
) -> dict[int, int]:
    """Unacknowledged messages of these segments. What cannot be counted within `UNREAD_SECONDS` is left out. Raises TopicNotFound."""
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        logs = readable_segments.to_read(tx, row.topic_id, subscription).backing_topics
    plane = configured(planes, row.data_plane, topic)
    calls = ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="cleave-unread")
    asked = {i: calls.submit(plane.backlog, logs[i], subscription) for i in segment_ids if i in logs}
    wait(asked.values(), timeout=UNREAD_SECONDS)
    calls.shutdown(wait=False, cancel_futures=True)
    ended = {i: call for i, call in asked.items() if call.done() and not call.cancelled()}
    counts = {i: call.result() for i, call in ended.items() if call.exception() is None}
    return {i: count for i, count in counts.items() if count is not None}


def _of_segment(
    plane: DataPlane,
    log: str,
    subscription: str,
    segment: Segment,
    owners: Sequence[BucketOwner],
    *,
    counts_buckets: bool,
) -> list[BucketLag]:
    where = (segment.segment_id, str(segment.hash_range), segment.state.value)
    everybody = tuple(sorted({one.consumer for one in owners}))
    ranges = bucket_ranges(segment.bucket_splits)
    try:
        if counts_buckets and isinstance(plane, BucketCountingDataPlane):
            counts: Sequence[int | None] | None = plane.backlog_of_buckets(
                log, subscription, [one.start for one in ranges]
            )
            return [
                BucketLag(*where, str(one), _owners_of(one, owners), count)
                for one, count in zip(ranges, counts or [None] * len(ranges), strict=True)
            ]
        return [BucketLag(*where, None, everybody, plane.backlog(log, subscription))]
    except CleaveError as error:
        return [BucketLag(*where, None, everybody, None, error.message)]


def _owners_of(bucket: HashRange, owners: Sequence[BucketOwner]) -> tuple[str, ...]:
    """Whoever owns it, alone or in a run."""
    return tuple(one.consumer for one in owners if one.bucket.bucket.contains(bucket.start))
