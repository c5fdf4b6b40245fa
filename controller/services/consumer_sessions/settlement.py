"""One transaction of one subscription: applies the requests of its consumers, and the resulting changes of
bucket owners.

The leader calls `settle` inside a transaction that has checked the shard's lease. The module changes rows
only; the leader updates its memory after the commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection

from controller.domain.assignment import Assignment, SegmentBucket, assign
from controller.domain.bucket_ownership import BucketOwner, OwnershipChanges, owner_changes
from controller.domain.errors import CleaveError, Conflict, LostRace
from controller.services.consumer_sessions.requests import (
    NO_SESSION,
    Attach,
    Deregister,
    Drained,
    Register,
    Release,
    ReportReasons,
    Request,
)
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.journal import seeks
from controller.store.journal.seeks import SeekUnderWay
from controller.store.topics import (
    bucket_owners,
    consumers,
    drains,
    held_topics,
    readable_segments,
    subscriptions,
    topics,
)
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.consumers import ConsumerRow
from controller.store.topics.readable_segments import ReadableSegments, ToRead
from controller.store.topics.subscriptions import SubscriptionKind

SEEK_CHECK_SECONDS = 0.5
"""Seconds between two checks of the readers during a seek: their time to release buckets may be over."""
DEFERRED_MOVES_CHECK_SECONDS = 0.1
"""Seconds after which a subscription with deferred moves is settled again. The commit of a reshape settles it earlier."""


AWAY_SECONDS = 2.0
"""Seconds within which a reconnection is not recorded."""


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """Names of the consumers that hold their streams open, and by name the seconds for which others have been
    disconnected. A consumer that was disconnected for less than `AWAY_SECONDS`, or has no session, is in neither, so
    that its row stays unchanged.
    """

    connected: Collection[str]
    away_seconds: Mapping[str, float]

    def row_changes(
        self, rows: Mapping[str, ConsumerRow], attached: Collection[str]
    ) -> dict[str, float | None]:
        """Return the changes to store in the connection state of `rows`, the consumer rows by name: for a consumer
        that has been disconnected and whose row does not record this yet, the seconds since the disconnection; for a
        consumer that is connected again, None. Other consumers are absent: a disconnection that the row records is
        not updated while it lasts. The consumers in `attached` count as connected in any case.
        """
        present = {*self.connected, *attached}
        changes: dict[str, float | None] = {}
        for name, row in rows.items():
            if name in present:
                if row.away_seconds is not None:
                    changes[name] = None
            elif row.away_seconds is None and name in self.away_seconds:
                changes[name] = self.away_seconds[name]
        return changes


@dataclass(frozen=True, slots=True)
class Settlement:
    """The subscription after the commit. `rows` are its consumer rows, by consumer name. `refused` maps the index of
    each refused request to the reason.
    """

    generation: int
    origin: int
    owners: tuple[BucketOwner, ...]
    to_read: ToRead
    rows: Mapping[str, ConsumerRow]
    topic: str
    data_plane: str
    refused: Mapping[int, CleaveError]
    granted: int
    """Number of buckets that were granted: to a first or another owner, or again to an owner that had released its bucket."""
    seek: SeekUnderWay | None = None
    """A seek in progress. While a seek is in progress, no bucket is assigned."""
    defers_moves: bool = False
    """True if buckets stay with their owners for now, because a reshape may replace their segments."""

    def settle_again_seconds(self, timing: ConsumerTiming) -> float:
        """Return the seconds until the subscription must be settled again if nothing else happens. During a seek,
        while buckets have owners, these are `SEEK_CHECK_SECONDS`. Otherwise, while moves are deferred, these are
        `DEFERRED_MOVES_CHECK_SECONDS`.

        In all other cases, the result is the time until the first limit is reached: an owner has not released a
        bucket for `release_seconds` (the owner loses the bucket) or for `gap_seconds`, or an owner has been
        disconnected for `gap_seconds` (an alarm is raised). Limits that have passed do not count. The result is
        infinite if no limit is left.
        """
        if self.seek is not None and self.owners:
            return SEEK_CHECK_SECONDS
        if self.defers_moves:
            return DEFERRED_MOVES_CHECK_SECONDS
        away_times = [self.away_seconds(owner) for owner in self.owners]
        waits = [
            limit - owner.asked_seconds
            for owner in self.owners
            if owner.is_asked
            for limit in (timing.release_seconds, timing.gap_seconds)
            if limit > owner.asked_seconds
        ]
        waits += [
            timing.gap_seconds - away for away in away_times if away is not None and timing.gap_seconds > away
        ]
        return min(waits, default=math.inf)

    @property
    def shared_segments(self) -> int:
        """Number of segments that several consumers read."""
        readers = Counter(
            segment_id
            for segment_id, _ in {(owner.bucket.segment_id, owner.consumer) for owner in self.owners}
        )
        return sum(count > 1 for count in readers.values())

    @property
    def draining_segments(self) -> int:
        """Number of sealed segments that have an owner."""
        segments = self.to_read.layout.segments
        owned = {owner.bucket.segment_id for owner in self.owners}
        return sum(segment_id in segments and not segments[segment_id].is_active for segment_id in owned)

    def away_seconds(self, owner: BucketOwner) -> float | None:
        """Return the seconds for which the bucket's owner has been disconnected, as its row records them. None if the
        owner is connected, or its disconnection is not recorded yet.
        """
        row = self.rows.get(owner.consumer)
        return None if row is None else row.away_seconds

    @property
    def away(self) -> int:
        """Number of buckets whose owner is disconnected."""
        return sum(self.away_seconds(owner) is not None for owner in self.owners)

    def overdue(self, timing: ConsumerTiming) -> list[BucketOwner]:
        """Return the owners, one for each bucket, that have not released the bucket as requested, or have been
        disconnected, for more than `timing.gap_seconds`. No consumer reads these buckets.
        """
        return [
            owner
            for owner in self.owners
            if max(owner.asked_seconds, self.away_seconds(owner) or 0.0) > timing.gap_seconds
        ]


@dataclass(slots=True)
class _Batch:
    """The requests of one transaction, and the reason why each refused request was refused."""

    requests: Sequence[Request]
    refused: dict[int, CleaveError] = field(default_factory=dict)

    @contextmanager
    def each(self, index: int) -> Iterator[None]:
        """Record a CleaveError of the block as the refusal of the request at `index` only. Such an error is never
        raised after a failed statement, so the transaction can continue.
        """
        try:
            yield
        except CleaveError as error:
            self.refused[index] = error


def settle(
    tx: Connection,
    key: SubscriptionKey,
    requests: Sequence[Request],
    timing: ConsumerTiming,
    connection_state: ConnectionState,
    *,
    may_defer_moves: bool = False,
) -> Settlement:
    """Apply the requests and their consequences to the rows, and return the subscription after these changes. This includes the buckets
    that are released and assigned, the segments that are drained, and `connection_state`, which is stored in the consumer rows. An owner
    that has not released a bucket within `release_seconds` loses the bucket. While a seek is in progress, every owner must release its
    buckets, and no bucket is assigned.

    A request that cannot be applied is refused alone: its error is in the result's `refused`, by the index of the request, and the others
    are applied. An `Attach` only counts its consumer as connected. A `Heartbeat` and a `Detach` have no effect. With `may_defer_moves`,
    no owner is requested to release a bucket for another consumer if a reshape may soon replace the bucket's segment.

    The subscription stays locked until the transaction ends, and so does the topic if a request is a `Drained`. Raises TopicNotFound, and
    SubscriptionNotFound if the subscription does not exist or is being deleted.
    """
    batch = _Batch(requests)
    # Marking a segment as drained takes the topic's lock, which must be taken before the subscription's lock.
    topic = topics.get_topic(tx, key.topic_id, lock=any(isinstance(request, Drained) for request in requests))
    generation, origin = bucket_owners.lock(tx, key)
    kind = subscriptions.get_subscription(tx, key.topic_id, key.name).kind
    owners = bucket_owners.owners(tx, key)
    rows_before = {row.name: row for row in consumers.list_consumers(tx, key.topic_id, key.name)}
    # Disconnections are the first write to consumer rows: triggers of the other writes take locks that must
    # follow the locks of these rows.
    disconnections = connection_state.row_changes(rows_before, _attached(rows_before, requests))
    consumers.note_disconnected(tx, key.topic_id, key.name, disconnections)
    _mark_drained(tx, key, owners, rows_before, batch)
    seek = seeks.under_way(tx, key)
    released = _released(owners, rows_before, batch) | _overdue_buckets(owners, seek, timing)
    _begin_and_end(tx, key, batch)
    readable = readable_segments.front(tx, key.topic_id, key.name)
    rows = {row.name: row for row in consumers.list_consumers(tx, key.topic_id, key.name)}
    target = {} if seek is not None else _target(readable, rows, owners, kind)
    finished = _finished(owners, readable.found)
    wanted = owner_changes(target, owners, consumers=rows, released=released, finished=finished)
    changes = _without_deferred_moves(tx, key, wanted) if may_defer_moves else wanted
    if changes:
        generation = bucket_owners.write(tx, key, changes, generation)
        owners = bucket_owners.owners(tx, key)
    _store_reports(tx, key, rows_before, batch)
    return Settlement(
        generation,
        origin,
        owners,
        readable.found,
        rows,
        topic.name,
        topic.data_plane,
        batch.refused,
        len(changes.granted),
        seek,
        defers_moves=changes != wanted,
    )


def _without_deferred_moves(
    tx: Connection, key: SubscriptionKey, changes: OwnershipChanges
) -> OwnershipChanges:
    """Return `changes` without the requests to release a bucket for another consumer, if a reshape may soon replace
    the bucket's segment: such a bucket would move twice, and the moves would slow the reshape down. All other changes
    stay, such as grants of buckets without an owner, and the requests to release that a seek causes, which are for no
    other consumer.
    """
    if not changes.moves_buckets:
        return changes
    return changes.without_moves(bucket_owners.segments_before_reshape(tx, key.topic_id))


def _overdue_buckets(
    owners: Sequence[BucketOwner], seek: SeekUnderWay | None, timing: ConsumerTiming
) -> frozenset[SegmentBucket]:
    """Return the buckets whose owners lose them, because the owner has not released the bucket within
    `release_seconds` of the request. If the time for all releases of a seek is over, these are the buckets of all
    owners.
    """
    return frozenset(
        owner.bucket
        for owner in owners
        if (seek is not None and seek.is_release_over) or owner.asked_seconds > timing.release_seconds
    )


def _target(
    readable: ReadableSegments,
    consumers: Collection[str],
    owners: Sequence[BucketOwner],
    kind: SubscriptionKind,
) -> Assignment:
    """Return the buckets that each of `consumers` should own, for the segments that do not wait for an ancestor.
    `owners` are the present owners, which keep their buckets where possible. A subscription that is not a stream gets
    whole segments, because members of a checkpoint group store a position per segment, not per bucket.
    """
    is_stream = kind is SubscriptionKind.STREAM
    to_read, holders = readable.found, {owner.bucket: owner.consumer for owner in owners}
    return assign(
        readable.readable,
        to_read.drained,
        consumers,
        holders,
        share_buckets=is_stream,
        parents_block=to_read.parents_block,
        drain_consumers=to_read.drain_consumers if is_stream else 1,
    )


def _mark_drained(
    tx: Connection,
    key: SubscriptionKey,
    owners: Sequence[BucketOwner],
    rows_before: Mapping[str, ConsumerRow],
    batch: _Batch,
) -> None:
    """Mark the segments of each `Drained` request as drained for the subscription: the consumer has read these sealed
    segments to their end. `rows_before` are the consumer rows by name.

    The consumer must have owned a bucket of each segment since the generation that the request names, or earlier:
    after a seek, earlier reading does not count. If this does not hold, or if a segment is ACTIVE or unknown, no
    segment of the request is marked, and the request is refused with Conflict. Without a session of its incarnation,
    the request is refused with LostRace; for a session of another subject, with AccessForbidden. Raises no CleaveError.
    """
    for index, request in enumerate(batch.requests):
        if isinstance(request, Drained):
            with batch.each(index):
                _demand_session(rows_before, request)
                owned_since = {
                    owner.bucket.segment_id: owner.generation
                    for owner in sorted(owners, key=lambda owner: -owner.generation)
                    if owner.consumer == request.consumer
                }
                for segment_id, generation in request.segments:
                    if owned_since.get(segment_id, math.inf) > generation:
                        raise Conflict(
                            f"consumer {request.consumer} does not own segment {segment_id} since generation "
                            f"{generation}; read the segments that it owns in its assignment"
                        )
                drains.mark_drained(
                    tx, key.topic_id, key.name, [segment_id for segment_id, _ in request.segments]
                )


def _begin_and_end(tx: Connection, key: SubscriptionKey, batch: _Batch) -> None:
    """Apply the `Register` and `Deregister` requests to the consumer rows. A refusal is stored in `batch`, and does
    not affect other requests.

    A registration is refused with Conflict if the subscription is of another kind; with TopicHeld if the registration
    would begin a session while the topic is held or has to be verified first; and with the errors of
    `consumers.register_session`, such as SessionExpired. A deregistration is refused with AccessForbidden if the
    session belongs to another subject. A deregistration without a session is accepted, and its incarnation can no
    longer register.
    """
    for index, request in enumerate(batch.requests):
        with batch.each(index):
            if isinstance(request, Register):
                _demand_kind(tx, key, request.reads)
                if not consumers.has_session(
                    tx, key.topic_id, key.name, request.consumer, request.incarnation
                ):
                    held_topics.demand_topic_may_act(tx, key.topic_id)
                session_identity = request.consumer, request.incarnation, request.subject
                consumers.register_session(tx, key.topic_id, key.name, *session_identity)
            elif isinstance(request, Deregister):
                consumers.demand_owner(tx, key.topic_id, key.name, request.consumer, request.subject)
                reason = consumers.EXPIRED if request.has_expired else consumers.LEFT
                consumers.depart(tx, key.topic_id, key.name, request.consumer, request.incarnation, reason)


def _store_reports(
    tx: Connection, key: SubscriptionKey, rows_before: Mapping[str, ConsumerRow], batch: _Batch
) -> None:
    """Store for each `ReportReasons` request the reports of the consumer, which say why buckets deliver no messages,
    in place of all its earlier reports. Reports about buckets that the consumer does not own, or owns since another
    generation, are ignored. An accepted `Register` of another incarnation than before deletes the reports of the
    consumer.

    `rows_before` are the consumer rows before this transaction, by name. A report is refused with LostRace if its
    incarnation has no session there, and with AccessForbidden if the session belongs to another subject.
    """
    for index, request in enumerate(batch.requests):
        with batch.each(index):
            if isinstance(request, ReportReasons):
                _demand_session(rows_before, request)
                bucket_owners.replace_reports(tx, key, request.consumer, request.buckets)
            elif (
                isinstance(request, Register)
                and index not in batch.refused
                and request.consumer in rows_before
                and not _has_session(rows_before, request)
            ):
                bucket_owners.replace_reports(tx, key, request.consumer, ())


def _attached(rows_before: Mapping[str, ConsumerRow], requests: Sequence[Request]) -> set[str]:
    """Return the names of the consumers with an `Attach` request of their registered incarnation. `rows_before` are
    the consumer rows by name.
    """
    return {
        request.consumer
        for request in requests
        if isinstance(request, Attach) and _has_session(rows_before, request)
    }


def _demand_session(rows_before: Mapping[str, ConsumerRow], request: Request) -> None:
    """Raise LostRace unless the consumer has a session of this incarnation; the consumer must then register again.
    Raise AccessForbidden if the session belongs to another subject.
    """
    if not _has_session(rows_before, request):
        raise LostRace(NO_SESSION.format(request.consumer), 0.1)
    consumers.demand_subject(
        rows_before[request.consumer].subject, request.subject, request.consumer, request.key.name
    )


def _has_session(rows_before: Mapping[str, ConsumerRow], request: Request) -> bool:
    row = rows_before.get(request.consumer)
    return row is not None and row.incarnation == request.incarnation


def _demand_kind(tx: Connection, key: SubscriptionKey, reads: SubscriptionKind) -> None:
    """Do nothing if the subscription is of the kind `reads`, the kind as which the consumer wants to read the
    subscription. Otherwise raise Conflict. The buckets of a queue are not assigned, because its consumers read every
    segment. Raises SubscriptionNotFound.
    """
    kind = subscriptions.get_subscription(tx, key.topic_id, key.name).kind
    if kind is not reads:
        raise Conflict(
            f"subscription {key.name} is recorded as {kind.value}; a session that reads as {reads.value} needs a subscription of that kind"
        )


def _released(
    owners: Sequence[BucketOwner], rows_before: Mapping[str, ConsumerRow], batch: _Batch
) -> frozenset[SegmentBucket]:
    """Return the buckets that their owners release with the `Release` requests. A released bucket is ignored if the
    consumer does not own the bucket, or owns it since another generation than the request names. A request is refused
    with LostRace if its incarnation has no session, and with AccessForbidden if the session belongs to another subject.
    Nothing is written.
    """
    released: set[tuple[str, int, int, int]] = set()
    for index, request in enumerate(batch.requests):
        if isinstance(request, Release):
            with batch.each(index):
                _demand_session(rows_before, request)
                released |= {(request.consumer, *bucket) for bucket in request.buckets}
    return frozenset(
        owner.bucket
        for owner in owners
        if (owner.consumer, owner.bucket.segment_id, owner.bucket.bucket.start, owner.generation) in released
    )


def _finished(owners: Sequence[BucketOwner], to_read: ToRead) -> frozenset[int]:
    """Return the ids of the owned segments that have nothing left to read: they are drained or not in `to_read`."""
    segments = to_read.layout.segments
    owned = {owner.bucket.segment_id for owner in owners}
    return frozenset(
        segment_id for segment_id in owned if segment_id not in segments or segment_id in to_read.drained
    )
