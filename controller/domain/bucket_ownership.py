"""Steps from the current owners of buckets to the target assignment: grants, requests to release, and ends of
ownership.

`assignment` computes the target; this module computes the steps that lead there. A bucket has one owner at a time,
so an owner changes in a fixed order. The leader requests the owner to release the bucket. The owner stops
delivering messages, waits until the application has finished, closes the log and reports the release. Only then is
the bucket granted to the next consumer. A consumer whose session has ended gets no request. The leader of a topic
calls this module and stores the result; the module knows neither connections nor time.

A bucket is a unit of ownership here, which may be a run of entry buckets. A leader of another version may have
assigned a segment in other pieces than the target has. Therefore a unit is granted only when no consumer owns a
piece of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from controller.domain.assignment import Assignment, SegmentBucket
from controller.domain.hash_range import HashRange


@dataclass(frozen=True, slots=True)
class BucketOwner:
    """The owner of a bucket: the name of a consumer, and the generation of the subscription at which the ownership began.

    `is_asked`: True if the leader has requested the owner, `asked_seconds` seconds ago, to release the bucket.
    `successor`: the consumer that waits for the bucket; None if no consumer waits.
    """

    bucket: SegmentBucket
    consumer: str
    generation: int
    is_asked: bool = False
    successor: str | None = None
    asked_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnershipChanges:
    """The changes to store. A bucket appears in at most one of the four fields."""

    granted: Mapping[SegmentBucket, str]
    """New owners, each at a new generation."""
    release_requests: Mapping[SegmentBucket, str | None]
    """Buckets whose owner is to release them, each with the consumer that waits for the bucket; None if no consumer
    waits. A request that stands already is not repeated.
    """
    withdrawn_requests: frozenset[SegmentBucket]
    """Buckets whose owner was requested to release them and may keep them: the request is withdrawn."""
    ended: frozenset[SegmentBucket]
    """Buckets that lose their owner and get no other."""

    def __bool__(self) -> bool:
        return bool(self.granted or self.release_requests or self.withdrawn_requests or self.ended)

    @property
    def moves_buckets(self) -> bool:
        """True if an owner is requested to release a bucket for another consumer."""
        return any(successor is not None for successor in self.release_requests.values())

    def without_moves(self, segment_ids: Collection[int]) -> OwnershipChanges:
        """Return the changes without the requests to release buckets of these segments for another consumer."""
        release_requests = {
            bucket: successor
            for bucket, successor in self.release_requests.items()
            if successor is None or bucket.segment_id not in segment_ids
        }
        return replace(self, release_requests=release_requests)


def owner_changes(
    target: Assignment,
    owners: Iterable[BucketOwner],
    *,
    consumers: Collection[str],
    released: Collection[SegmentBucket] = (),
    finished: Collection[int] = (),
) -> OwnershipChanges:
    """Return the steps towards `target` that are possible at this time. Nothing is stored or sent.

    If `target` names another consumer, or no consumer, for a bucket, the owner loses the bucket if the owner has
    released the bucket, if the owner has no session, or if the segment is finished. Otherwise the result has a
    request to the owner to release the bucket, unless a request with the same successor stands already.

    A bucket of `target` is granted to its consumer if no other owner then holds the bucket or a piece of the bucket.
    If `target` names the present owner, the owner keeps the bucket and a standing request is withdrawn. If this owner
    has released the bucket, the bucket is granted to the owner again, at a new generation.

    `consumers`: names of the consumers that have a session, connected or within the grace period. `released`: the
    buckets that their owners have released. `finished`: ids of the segments that have nothing left to read (drained
    or pruned); buckets of these segments need no release.
    """
    targets = {bucket: name for name, share in target.items() for bucket in share}
    granted: dict[SegmentBucket, str] = {}
    release_requests: dict[SegmentBucket, str | None] = {}
    kept: set[SegmentBucket] = set()
    ended: set[SegmentBucket] = set()
    owned: defaultdict[int, list[HashRange]] = defaultdict(list)
    for owner in owners:
        bucket = owner.bucket
        successor = targets.pop(bucket, None)
        is_free = bucket in released or owner.consumer not in consumers or bucket.segment_id in finished
        if successor == owner.consumer and bucket not in released:
            if owner.is_asked:
                kept.add(bucket)
        elif is_free and successor is not None:
            granted[bucket] = successor
        elif is_free:
            ended.add(bucket)
            continue
        elif not owner.is_asked or owner.successor != successor:
            release_requests[bucket] = successor
        owned[bucket.segment_id].append(bucket.bucket)
    granted.update(
        (unit, name)
        for unit, name in targets.items()
        if not any(unit.bucket.overlaps(piece) for piece in owned[unit.segment_id])
    )
    return OwnershipChanges(granted, release_requests, frozenset(kept), frozenset(ended))
