"""One transaction of one subscription: what its consumers asked for, and what follows from that for the owners of buckets.

Called by the leader, inside a transaction in which the shard's lease was checked. It changes rows only; what is in memory follows
after the commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection

from controller.domain.assignment import Assignment, SegmentBucket, assign
from controller.domain.bucket_ownership import BucketOwner, owner_changes
from controller.domain.errors import CleaveError, Conflict, LostRace
from controller.services.consumer_sessions.connection_state import Presence
from controller.services.consumer_sessions.requests import (
    NO_SESSION,
    Attach,
    Drained,
    Goodbye,
    Register,
    Release,
    Request,
    Say,
)
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.journal import seeks
from controller.store.journal.seeks import SeekUnderWay
from controller.store.topics import (
    bucket_owners,
    consumers,
    drains,
    holds,
    readable_segments,
    subscriptions,
    topics,
)
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.consumers import ConsumerRow
from controller.store.topics.readable_segments import Front, ToRead
from controller.store.topics.subscriptions import SubscriptionKind

STOPPING_LOOK_SECONDS = 0.5
"""A seek's readers are looked at so often: the time in which they have to let go may be over."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The subscription as it is after the commit. `refused` are requests by their place, each with its reason."""

    generation: int
    origin: int
    owners: tuple[BucketOwner, ...]
    found: ToRead
    rows: Mapping[str, ConsumerRow]
    topic: str
    data_plane: str
    refused: Mapping[int, CleaveError]
    granted: int
    """Buckets that got an owner, or another one."""
    seek: SeekUnderWay | None = None
    """While it is under way nobody gets a bucket."""

    def look_again_seconds(self, timing: ConsumerTiming) -> float:
        """When the time of who does not let go is over, or a gap becomes an alarm, if nothing happens before."""
        if self.seek is not None and self.owners:
            return STOPPING_LOOK_SECONDS
        away = [self.away_seconds(one) for one in self.owners]
        waits = [
            limit - one.asked_seconds
            for one in self.owners
            if one.is_asked
            for limit in (timing.release_seconds, timing.gap_seconds)
            if limit > one.asked_seconds
        ]
        waits += [timing.gap_seconds - one for one in away if one is not None and timing.gap_seconds > one]
        return min(waits, default=math.inf)

    @property
    def shared_segments(self) -> int:
        """Segments that several consumers read."""
        readers = Counter(
            segment_id for segment_id, _ in {(one.bucket.segment_id, one.consumer) for one in self.owners}
        )
        return sum(count > 1 for count in readers.values())

    @property
    def draining_segments(self) -> int:
        """Sealed segments that somebody reads."""
        segments = self.found.layout.segments
        owned = {one.bucket.segment_id for one in self.owners}
        return sum(i in segments and not segments[i].is_active for i in owned)

    def away_seconds(self, owner: BucketOwner) -> float | None:
        """For how long the bucket's owner has not been connected; None where it is, or was a moment ago."""
        row = self.rows.get(owner.consumer)
        return None if row is None else row.away_seconds

    @property
    def away(self) -> int:
        """Buckets whose owner is not connected."""
        return sum(self.away_seconds(one) is not None for one in self.owners)

    def overdue(self, timing: ConsumerTiming) -> list[BucketOwner]:
        """Buckets that nobody reads for too long: their owners do not let go of them, or are away."""
        return [
            one
            for one in self.owners
            if max(one.asked_seconds, self.away_seconds(one) or 0.0) > timing.gap_seconds
        ]


@dataclass(slots=True)
class _Asked:
    """The requests of one transaction, and what each may not have."""

    requests: Sequence[Request]
    refused: dict[int, CleaveError] = field(default_factory=dict)

    @contextmanager
    def each(self, index: int) -> Iterator[None]:
        """A refusal concerns this request alone. None is raised after a statement has failed."""
        try:
            yield
        except CleaveError as error:
            self.refused[index] = error


def settle(
    tx: Connection,
    key: SubscriptionKey,
    requests: Sequence[Request],
    timing: ConsumerTiming,
    presence: Presence,
) -> Settlement:
    """Write what is asked for and what follows. Raises SubscriptionNotFound, TopicNotFound."""
    asked = _Asked(requests)
    # Marking takes the topic's lock, which comes before the subscription's.
    topic = topics.get_topic(tx, key.topic_id, lock=any(isinstance(one, Drained) for one in requests))
    generation, origin = bucket_owners.lock(tx, key)
    kind = subscriptions.get_subscription(tx, key.topic_id, key.name).kind
    owners = bucket_owners.owners(tx, key)
    before = {row.name: row for row in consumers.list_consumers(tx, key.topic_id, key.name)}
    lives = {name: row.incarnation for name, row in before.items()}
    # First of what is written of consumers: their triggers take locks that come behind their rows'.
    consumers.note_away(tx, key.topic_id, key.name, presence.to_note(before, _attached(lives, requests)))
    _mark_drained(tx, key, owners, lives, asked)
    seek = seeks.under_way(tx, key)
    released = _released(owners, lives, asked) | {
        one.bucket
        for one in owners
        if (seek is not None and seek.is_release_over) or one.asked_seconds > timing.release_seconds
    }
    _begin_and_end(tx, key, asked)
    front = readable_segments.front(tx, key.topic_id, key.name)
    found = front.found
    rows = {row.name: row for row in consumers.list_consumers(tx, key.topic_id, key.name)}
    changes = owner_changes(
        {} if seek is not None else _target(front, rows, owners, kind),
        owners,
        consumers=rows,
        released=released,
        finished=_finished(owners, found),
    )
    if changes:
        generation = bucket_owners.write(tx, key, changes, generation)
        owners = bucket_owners.owners(tx, key)
    _keep_what_is_said(tx, key, lives, asked)
    return Settlement(
        generation,
        origin,
        owners,
        found,
        rows,
        topic.name,
        topic.data_plane,
        asked.refused,
        len(changes.granted),
        seek,
    )


def _target(
    front: Front, consumers: Collection[str], owners: Sequence[BucketOwner], kind: SubscriptionKind
) -> Assignment:
    """Who should own what. Members of a checkpoint group have a place in each segment, not in its buckets, so they get whole ones."""
    is_stream = kind is SubscriptionKind.STREAM
    found, holders = front.found, {one.bucket: one.consumer for one in owners}
    return assign(
        front.readable,
        found.drained,
        consumers,
        holders,
        share_buckets=is_stream,
        parents_block=found.parents_block,
        drain_consumers=found.drain_consumers if is_stream else 1,
    )


def _mark_drained(
    tx: Connection,
    key: SubscriptionKey,
    owners: Sequence[BucketOwner],
    lives: Mapping[str, str],
    asked: _Asked,
) -> None:
    """Segments that an owner has read to their end. What it read before a seek is to be read again, so it counts only of what it
    has owned since the generation that it names.
    """
    for index, request in enumerate(asked.requests):
        if isinstance(request, Drained):
            with asked.each(index):
                _demand_session(lives, request)
                first = {
                    one.bucket.segment_id: one.generation
                    for one in sorted(owners, key=lambda one: -one.generation)
                    if one.consumer == request.consumer
                }
                for read in request.segments:
                    if first.get(read.segment_id, math.inf) > read.generation:
                        raise Conflict(
                            f"consumer {request.consumer} does not own segment {read.segment_id} since generation "
                            f"{read.generation}; what it owns now is in its assignment"
                        )
                drains.mark_drained(tx, key.topic_id, key.name, [one.segment_id for one in request.segments])


def _begin_and_end(tx: Connection, key: SubscriptionKey, asked: _Asked) -> None:
    for index, request in enumerate(asked.requests):
        with asked.each(index):
            if isinstance(request, Register):
                _demand_kind(tx, key, request.reads)
                if not consumers.has_session(
                    tx, key.topic_id, key.name, request.consumer, request.incarnation
                ):
                    holds.demand_topic_may_act(tx, key.topic_id)
                life = request.consumer, request.incarnation, request.subject
                consumers.register_session(tx, key.topic_id, key.name, *life)
            elif isinstance(request, Goodbye):
                consumers.demand_owner(tx, key.topic_id, key.name, request.consumer, request.subject)
                reason = consumers.EXPIRED if request.has_expired else consumers.LEFT
                consumers.depart(tx, key.topic_id, key.name, request.consumer, request.incarnation, reason)


def _keep_what_is_said(tx: Connection, key: SubscriptionKey, lives: Mapping[str, str], asked: _Asked) -> None:
    """What owners say of their buckets. A new life of a consumer has said nothing yet."""
    for index, request in enumerate(asked.requests):
        with asked.each(index):
            if isinstance(request, Say):
                _demand_session(lives, request)
                bucket_owners.say(tx, key, request.consumer, request.buckets)
            elif isinstance(request, Register) and lives.get(request.consumer) not in (
                None,
                request.incarnation,
            ):
                bucket_owners.say(tx, key, request.consumer, ())


def _attached(lives: Mapping[str, str], requests: Sequence[Request]) -> set[str]:
    """Consumers that are connected from now on."""
    return {
        one.consumer
        for one in requests
        if isinstance(one, Attach) and lives.get(one.consumer) == one.incarnation
    }


def _demand_session(lives: Mapping[str, str], request: Request) -> None:
    """Raises LostRace for a consumer whose life this is not, or that has none: it is to register again."""
    if lives.get(request.consumer) != request.incarnation:
        raise LostRace(NO_SESSION.format(request.consumer), 0.1)


def _demand_kind(tx: Connection, key: SubscriptionKey, reads: SubscriptionKind) -> None:
    """Only what is read in order is shared out: the consumers of a queue read every segment."""
    kind = subscriptions.get_subscription(tx, key.topic_id, key.name).kind
    if kind is not reads:
        raise Conflict(
            f"subscription {key.name} is recorded as {kind.value}; a session that reads as {reads.value} needs one of that kind"
        )


def _released(
    owners: Sequence[BucketOwner], lives: Mapping[str, str], asked: _Asked
) -> frozenset[SegmentBucket]:
    """Buckets that their owners have let go of. What was released at an older generation is somebody else's by now."""
    let_go: set[tuple[str, int, int, int]] = set()
    for index, request in enumerate(asked.requests):
        if isinstance(request, Release):
            with asked.each(index):
                _demand_session(lives, request)
                let_go |= {
                    (request.consumer, one.segment_id, one.bucket_start, one.generation)
                    for one in request.buckets
                }
    return frozenset(
        one.bucket
        for one in owners
        if (one.consumer, one.bucket.segment_id, one.bucket.bucket.start, one.generation) in let_go
    )


def _finished(owners: Sequence[BucketOwner], found: ToRead) -> frozenset[int]:
    """Segments in which nothing is left to read."""
    segments = found.layout.segments
    owned = {one.bucket.segment_id for one in owners}
    return frozenset(i for i in owned if i not in segments or i in found.drained)
