"""From who should own which bucket to who may own it now: grants, releases to ask for, and ends.

`assignment` says what is fair; this says which steps lead there. A bucket has one owner at a time, so it changes hands in an
order: its owner is asked to release it, stops handing out, lets the application finish, lets go of the log and says so; only
then the next one is told. A consumer that is gone is not asked (trap 22). The leader of a topic calls this and writes what it
says; nothing here knows of connections or of time.

A bucket is a unit of ownership here, which may be a run of entry buckets. Owners may have a segment in other pieces than are wanted,
since a leader of another version may have dealt it out: no unit is granted while somebody owns a piece of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.domain.assignment import Assignment, SegmentBucket
from controller.domain.hash_range import HashRange


@dataclass(frozen=True, slots=True)
class BucketOwner:
    """Who owns a bucket, since which generation of the subscription; `is_asked`: to release it, for `successor` if known, since
    `asked_seconds`.
    """

    bucket: SegmentBucket
    consumer: str
    generation: int
    is_asked: bool = False
    successor: str | None = None
    asked_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnerChanges:
    """What to write. No bucket is in two of these."""

    granted: Mapping[SegmentBucket, str]
    """New owners, each at a new generation."""
    asked: Mapping[SegmentBucket, str | None]
    """Buckets whose owner is to release them now, with the consumer that waits for each, if one does."""
    kept: frozenset[SegmentBucket]
    """Buckets whose owner was asked to release them and may keep them after all."""
    ended: frozenset[SegmentBucket]
    """Buckets that nobody owns any more."""

    def __bool__(self) -> bool:
        return bool(self.granted or self.asked or self.kept or self.ended)


def owner_changes(
    target: Assignment,
    owners: Iterable[BucketOwner],
    *,
    consumers: Collection[str],
    released: Collection[SegmentBucket] = (),
    finished: Collection[int] = (),
) -> OwnerChanges:
    """The steps that are possible now.

    `consumers` are those with a session, connected or within grace; `released` the buckets their owners have let go of;
    `finished` the segments in which nothing is left to read (drained or pruned), which nobody need release.
    """
    wanted = {bucket: name for name, share in target.items() for bucket in share}
    granted: dict[SegmentBucket, str] = {}
    asked: dict[SegmentBucket, str | None] = {}
    kept: set[SegmentBucket] = set()
    ended: set[SegmentBucket] = set()
    owned: defaultdict[int, list[HashRange]] = defaultdict(list)
    for owner in owners:
        bucket = owner.bucket
        successor = wanted.pop(bucket, None)
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
            asked[bucket] = successor
        owned[bucket.segment_id].append(bucket.bucket)
    granted.update(
        (unit, name)
        for unit, name in wanted.items()
        if not any(unit.bucket.overlaps(piece) for piece in owned[unit.segment_id])
    )
    return OwnerChanges(granted, asked, frozenset(kept), frozenset(ended))
