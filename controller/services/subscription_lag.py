"""Lag of a subscription: unacknowledged messages of each bucket that it has to read, whether or not a
consumer is attached.

The rows say which buckets there are and which consumers own them. The counts come from the data plane, a few
calls at a time. If a data plane counts whole segments only, `bucket` is None; so it is for a queue. A segment
that cannot be counted is returned with the reason, and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
"""Seconds after which `unread` stops waiting. A client that asks why it receives nothing gets an answer even
while a data plane is unavailable.
"""


@dataclass(frozen=True, slots=True)
class BucketLag:
    """Lag of one bucket, or of a whole segment if `bucket` is None. `hash_range` and `bucket` are hash ranges as text.
    `owners` are the names of the consumers that own the bucket, or buckets of the segment; possibly none.
    """

    segment_id: int
    hash_range: str
    state: str
    bucket: str | None
    owners: tuple[str, ...]
    messages: int | None
    """Number of unacknowledged messages. None if the data plane raised an error, which is then in `error`, or
    has no such log or subscription.
    """
    error: str | None = None


def lag(store: Store, planes: Mapping[str, DataPlane], topic: str, subscription: str) -> list[BucketLag]:
    """Return the lag of each bucket of the segments that the subscription has to read and has not drained, ordered by
    hash range and bucket. Empty if there is no such segment. A segment has one entry with `bucket` None if the data
    plane cannot count buckets, if the subscription is a queue, or if the count failed. Changes nothing. Data-plane
    calls run `PARALLEL_CALLS` at a time, and the function waits for all of them.

    If the data plane raises a CleaveError for a segment, the entry has the `error` and no number. If the log or the
    cursor is missing, the entries have no number and no error. Raises TopicNotFound, SubscriptionNotFound,
    Unsupported if the data plane is not configured here, and the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        to_read = readable_segments.to_read(tx, row.topic_id, subscription)
        kind = subscriptions.get_subscription(tx, row.topic_id, subscription).kind
        owner_rows = bucket_owners.owners(tx, SubscriptionKey(row.topic_id, subscription))
    plane = configured(planes, row.data_plane, topic)
    owners: dict[int, list[BucketOwner]] = {}
    for owner in owner_rows:
        owners.setdefault(owner.bucket.segment_id, []).append(owner)
    segments = [
        segment
        for segment in sorted(
            to_read.layout.segments.values(),
            key=lambda segment: (segment.hash_range.start, segment.segment_id),
        )
        if segment.segment_id not in to_read.drained
    ]

    # The messages that a queue's consumers have settled can lie anywhere in a segment, so buckets cannot be
    # counted.
    counts_buckets = isinstance(plane, BucketCountingDataPlane) and kind is not SubscriptionKind.QUEUE

    def lag_of_segment(segment: Segment) -> list[BucketLag]:
        log, owned_by = to_read.backing_topics[segment.segment_id], owners.get(segment.segment_id, ())
        return _of_segment(plane, log, subscription, segment, owned_by, counts_buckets=counts_buckets)

    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="cleave-lag") as calls:
        return [bucket_lag for lags in calls.map(lag_of_segment, segments) for bucket_lag in lags]


def unread(
    store: Store, planes: Mapping[str, DataPlane], topic: str, subscription: str, segment_ids: Collection[int]
) -> dict[int, int]:
    """Return the number of unacknowledged messages of each of these segments, by id. A segment is absent if the
    subscription does not have to read it, if its log or cursor is missing, if the data plane raises an error, or if
    the count takes longer than `UNREAD_SECONDS`. The function returns after this time at the latest: calls that have
    begun continue in the background, and the other calls are cancelled. Raises TopicNotFound, SubscriptionNotFound,
    Unsupported if the data plane is not configured here, and the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        logs = readable_segments.to_read(tx, row.topic_id, subscription).backing_topics
    plane = configured(planes, row.data_plane, topic)
    calls = ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="cleave-unread")
    futures = {
        segment_id: calls.submit(plane.backlog, logs[segment_id], subscription)
        for segment_id in segment_ids
        if segment_id in logs
    }
    wait(futures.values(), timeout=UNREAD_SECONDS)
    calls.shutdown(wait=False, cancel_futures=True)
    completed = {
        segment_id: call for segment_id, call in futures.items() if call.done() and not call.cancelled()
    }
    counts = {segment_id: call.result() for segment_id, call in completed.items() if call.exception() is None}
    return {segment_id: count for segment_id, count in counts.items() if count is not None}


def _of_segment(
    plane: DataPlane,
    log: str,
    subscription: str,
    segment: Segment,
    owners: Sequence[BucketOwner],
    *,
    counts_buckets: bool,
) -> list[BucketLag]:
    """Return the lag of each bucket of the segment in ring order if `counts_buckets` is True and the data plane
    counts buckets; otherwise one entry for the whole segment. `log` is the backing topic. `owners` are the owners of
    buckets of this segment. If the log or the subscription is missing, the entries have no number. If the data plane
    raises a CleaveError, return one entry for the segment with the error's message; the error is not raised.
    """
    segment_fields = (segment.segment_id, str(segment.hash_range), segment.state.value)
    segment_owners = tuple(sorted({owner.consumer for owner in owners}))
    ranges = bucket_ranges(segment.bucket_splits)
    try:
        if counts_buckets and isinstance(plane, BucketCountingDataPlane):
            counts: Sequence[int | None] | None = plane.backlog_of_buckets(
                log, subscription, [bucket.start for bucket in ranges]
            )
            return [
                BucketLag(*segment_fields, str(bucket), _owners_of(bucket, owners), count)
                for bucket, count in zip(ranges, counts or [None] * len(ranges), strict=True)
            ]
        return [BucketLag(*segment_fields, None, segment_owners, plane.backlog(log, subscription))]
    except CleaveError as error:
        return [BucketLag(*segment_fields, None, segment_owners, None, error.message)]


def _owners_of(bucket: HashRange, owners: Sequence[BucketOwner]) -> tuple[str, ...]:
    """Return the consumers that own the bucket, alone or as a part of a run."""
    return tuple(owner.consumer for owner in owners if owner.bucket.bucket.contains(bucket.start))
