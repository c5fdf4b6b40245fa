"""Owners of entry buckets, and the segments whose buckets should keep their owners because a reshape may come. The
leader of the topic writes the owners' rows, under the lease of its shard. Only the runner of a seek deletes rows, too
(`journal.seeks`).

Each transaction that writes these rows calls `lock` first. The lock serializes the leaders of one subscription, and
returns the generation that the next change raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.assignment import SegmentBucket
from controller.domain.bucket_ownership import BucketOwner, OwnershipChanges
from controller.domain.hash_range import HashRange
from controller.store.topics import subscriptions

_LOCK = """
    SELECT u.generation, u.origin FROM cleave.subscription u
     WHERE u.topic_id = :topic_id AND u.name = :subscription AND u.state = 'live' FOR NO KEY UPDATE
"""
_OWNERS = """
    SELECT segment_id, bucket_start, bucket_end, consumer, generation, release_asked_at IS NOT NULL AS is_asked, successor,
           CAST(coalesce(extract(epoch FROM clock_timestamp() - release_asked_at), 0) AS float8) AS asked_seconds
      FROM cleave.bucket_owner WHERE topic_id = :topic_id AND subscription = :subscription
     ORDER BY segment_id, bucket_start
"""
_RAISE = """
    UPDATE cleave.subscription SET generation = :generation WHERE topic_id = :topic_id AND name = :subscription
"""
_GRANT = """
    INSERT INTO cleave.bucket_owner AS b
           (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)
    VALUES (:topic_id, :subscription, :segment_id, :bucket_start, :bucket_end, :consumer, :generation)
    ON CONFLICT (topic_id, subscription, segment_id, bucket_start) DO UPDATE
       SET bucket_end = excluded.bucket_end, consumer = excluded.consumer, generation = excluded.generation, owned_since = clock_timestamp(),
           release_asked_at = NULL, successor = NULL, said = NULL, said_since = NULL
"""
_REPLACE_REPORTS = """
    UPDATE cleave.bucket_owner b SET said = n.reason, said_since = n.since
      FROM (SELECT o.segment_id, o.bucket_start, s.reason, clock_timestamp() - make_interval(secs => s.seconds) AS since
              FROM cleave.bucket_owner o
              LEFT JOIN unnest(CAST(:segment_ids AS bigint[]), CAST(:starts AS integer[]), CAST(:generations AS bigint[]),
                               CAST(:reasons AS text[]), CAST(:seconds AS float8[]))
                     AS s (segment_id, bucket_start, generation, reason, seconds) USING (segment_id, bucket_start, generation)
             WHERE o.topic_id = :topic_id AND o.subscription = :subscription AND o.consumer = :consumer) n
     WHERE b.topic_id = :topic_id AND b.subscription = :subscription AND b.segment_id = n.segment_id
       AND b.bucket_start = n.bucket_start
       AND (b.said IS DISTINCT FROM n.reason OR abs(extract(epoch FROM b.said_since - n.since)) > 1)
"""
_TALLY = """
    INSERT INTO cleave.topic_tally AS t (topic_id, tally, kind, because, total)
    VALUES (:topic_id, 'bucket', 'granted', :subscription, :granted)
    ON CONFLICT (topic_id, tally, kind, because) DO UPDATE SET total = t.total + excluded.total
"""
_ASK = """
    UPDATE cleave.bucket_owner
       SET release_asked_at = coalesce(release_asked_at, clock_timestamp()), successor = :consumer
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id
       AND bucket_start = :bucket_start
"""
_KEEP = """
    UPDATE cleave.bucket_owner SET release_asked_at = NULL, successor = NULL
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id
       AND bucket_start = :bucket_start
"""
_END = """
    DELETE FROM cleave.bucket_owner
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id
       AND bucket_start = :bucket_start
"""
# A registration makes the evaluation of its topic pending in the same transaction, so that a consumer's first settlement
# already waits for the decision. A paused topic (not_before) is not evaluated, so nothing waits for it.
_BEFORE_RESHAPE = """
    SELECT s.segment_id FROM cleave.segment s
     WHERE s.topic_id = :topic_id AND s.state = 'ACTIVE'
       AND (EXISTS (SELECT FROM cleave.evaluation e
                     WHERE e.topic_id = s.topic_id AND e.consumer_version < e.input_version
                       AND e.not_before <= clock_timestamp())
         OR EXISTS (SELECT FROM cleave.operation_parent p
                     WHERE p.topic_id = s.topic_id AND p.segment_id = s.segment_id AND p.live))
"""


@dataclass(frozen=True, slots=True)
class SubscriptionKey:
    """Key of a subscription: topic id and name."""

    topic_id: int
    name: str

    @property
    def parameters(self) -> Mapping[str, object]:
        """Parameters of statements about the subscription."""
        return {"topic_id": self.topic_id, "subscription": self.name}


def lock(tx: Connection, key: SubscriptionKey) -> tuple[int, int]:
    """Lock the row of the subscription until the end of the transaction. Return its generation and the origin of its positions. Raises
    SubscriptionNotFound if the subscription does not exist or is being deleted.
    """
    row = tx.execute(text(_LOCK), key.parameters).one_or_none()
    if row is None:
        raise subscriptions.missing(tx, key.topic_id, key.name, kind="live subscription")
    return row.generation, row.origin


def owners(tx: Connection, key: SubscriptionKey) -> tuple[BucketOwner, ...]:
    """Return the owners of the subscription's buckets, by segment and bucket, with the seconds since a release was requested. A bucket
    without an owner is absent.
    """
    return tuple(
        BucketOwner(
            SegmentBucket(row.segment_id, HashRange(row.bucket_start, row.bucket_end)),
            row.consumer,
            row.generation,
            row.is_asked,
            row.successor,
            row.asked_seconds,
        )
        for row in tx.execute(text(_OWNERS), key.parameters)
    )


def segments_before_reshape(tx: Connection, topic_id: int) -> frozenset[int]:
    """Return the ids of the ACTIVE segments that a live operation will replace; all ACTIVE segments while the topic
    waits to be evaluated for its consumers (and its evaluation is not deferred), because the decision may replace any
    of them. Their buckets should not be moved between consumers just before. Empty for an unknown topic.
    """
    return frozenset(tx.execute(text(_BEFORE_RESHAPE), {"topic_id": topic_id}).scalars())


@dataclass(frozen=True, slots=True)
class BucketReport:
    """Reason that the owner since `generation` reports for not reading the bucket, and the seconds for which the reason has held."""

    segment_id: int
    bucket_start: int
    generation: int
    reason: str
    seconds: float


def replace_reports(
    tx: Connection, key: SubscriptionKey, consumer: str, reports: Sequence[BucketReport]
) -> None:
    """Replace all reasons of the consumer by these reports about its buckets.

    A bucket without a report has no reason afterwards. Reports about buckets of other owners or generations are ignored.
    """
    columns = {
        "segment_ids": [report.segment_id for report in reports],
        "starts": [report.bucket_start for report in reports],
        "generations": [report.generation for report in reports],
        "reasons": [report.reason for report in reports],
        "seconds": [report.seconds for report in reports],
    }
    tx.execute(text(_REPLACE_REPORTS), {**key.parameters, "consumer": consumer, **columns})


def write(tx: Connection, key: SubscriptionKey, changes: OwnershipChanges, generation: int) -> int:
    """Write the changes of the subscription's bucket owners: delete the ended owners, withdraw the release requests
    of kept buckets, insert the granted owners, add the number of granted buckets to the topic's tally, and request
    releases. A release that was requested before keeps the time of the first request and gets the present successor.

    `generation` is the value that `lock` returned in the same transaction. Return the generation of the subscription
    afterwards: `generation` + 1, stored with the subscription, if a bucket got an owner; otherwise `generation`.
    """
    # Ended rows are deleted first, because a granted bucket may begin at the same hash as an ended one.
    for statement, buckets in ((_END, changes.ended), (_KEEP, changes.withdrawn_requests)):
        if buckets:
            tx.execute(text(statement), [_row(key, bucket) for bucket in sorted(buckets)])
    if changes.granted:
        generation += 1
        tx.execute(text(_RAISE), {**key.parameters, "generation": generation})
        tx.execute(
            text(_GRANT),
            [
                {
                    **_row(key, bucket),
                    "bucket_end": bucket.bucket.end,
                    "consumer": name,
                    "generation": generation,
                }
                for bucket, name in sorted(changes.granted.items())
            ],
        )
        tx.execute(text(_TALLY), {**key.parameters, "granted": len(changes.granted)})
    if changes.release_requests:
        tx.execute(
            text(_ASK),
            [
                {**_row(key, bucket), "consumer": name}
                for bucket, name in sorted(changes.release_requests.items())
            ],
        )
    return generation


def _row(key: SubscriptionKey, bucket: SegmentBucket) -> dict[str, object]:
    return {**key.parameters, "segment_id": bucket.segment_id, "bucket_start": bucket.bucket.start}
