"""The consumers of one subscription in the leader's memory: which are connected, and until when the others
may reconnect.

In memory only, and used by the leader's thread only. The rows say which consumers have a session; this module
keeps which are connected. Times are monotonic seconds.

A disconnected consumer keeps its session and its buckets until the end of the grace period (`Session.expires_at`).
Then the leader ends the session, and the settlement that removes the consumer's row assigns its buckets to others. The
period of a connected consumer does not run: its end is infinite. A session that another leader or process began has the
whole period from the moment at which this leader adds it (`SubscriptionSessions.restore`), because this leader does not
know since when the consumer has been disconnected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.domain.assignment import SegmentBucket
from controller.domain.errors import LostRace
from controller.services.consumer_sessions.requests import (
    NO_SESSION,
    GrantedBucket,
    PushedAssignment,
    Request,
    Stream,
)
from controller.services.consumer_sessions.settlement import AWAY_SECONDS, ConnectionState, Settlement
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.topics.consumers import ConsumerRow, demand_subject


@dataclass(slots=True)
class Session:
    """One incarnation of a consumer. Times are monotonic seconds. `expires_at` is infinite while the consumer is
    connected; `away_since` is valid while it is not. `heard_at` is the time of its last message. `stream` is None
    while the consumer is disconnected; `last_push` is None until an assignment is pushed to the stream.
    """

    incarnation: str
    expires_at: float
    heard_at: float
    away_since: float
    stream: Stream | None = None
    last_push: PushedAssignment | None = None
    subject: str | None = None
    """Subject of the token that began the session; None for a session without a token."""


@dataclass(slots=True)
class SubscriptionSessions:
    """The sessions of one subscription, by consumer name. `settled` is the result of the last transaction, None
    before the first; `is_settled` is False if something changed since. After a failed transaction, none begins
    before `retry_at` (monotonic seconds), except for requests of consumers.
    """

    timing: ConsumerTiming
    sessions: dict[str, Session] = field(default_factory=dict)
    settled: Settlement | None = None
    is_settled: bool = False
    retry_at: float = -math.inf
    settle_at: float = math.inf
    """Monotonic time at which the subscription is settled again, even if nothing has changed."""
    moves_deferred_since: float = math.inf
    """Monotonic time since which settlements have deferred moves of buckets; infinite if the last one deferred none."""
    alarmed: frozenset[tuple[SegmentBucket, int]] = frozenset()
    """Buckets, with the generations of their owners, for which an alarm was raised."""

    @property
    def connected(self) -> int:
        """Number of consumers that hold a stream open."""
        return sum(session.stream is not None for session in self.sessions.values())

    @property
    def note_at(self) -> float:
        """Monotonic time in seconds at which the connection states in the consumer rows become outdated, so that they
        must be stored. This is `AWAY_SECONDS` after the earliest disconnection that the rows do not record. Minus
        infinity if the rows record a disconnection of a consumer that is connected again. Infinite if the rows are
        right, or nothing was settled yet.
        """
        outdated_at = math.inf
        for name, row in (self.settled.rows if self.settled is not None else {}).items():
            session = self.sessions.get(name)
            if session is not None and row.away_seconds is None and session.stream is None:
                outdated_at = min(outdated_at, session.away_since + AWAY_SECONDS)
            elif session is not None and row.away_seconds is not None and session.stream is not None:
                return -math.inf
        return outdated_at

    def connection_state(self, now: float) -> ConnectionState:
        """Return the names of the connected consumers, and, for the consumers that have been disconnected for at
        least `AWAY_SECONDS`, the seconds since their disconnection. A consumer that was disconnected later is in
        neither. `now` is the monotonic time in seconds.
        """
        return ConnectionState(
            {name for name, session in self.sessions.items() if session.stream is not None},
            {
                name: now - session.away_since
                for name, session in self.sessions.items()
                if session.stream is None and now >= session.away_since + AWAY_SECONDS
            },
        )

    def restore(self, consumer: str, incarnation: str, now: float, subject: str | None = None) -> None:
        """Add a session of this incarnation of the consumer, as disconnected at `now` (monotonic seconds), with a
        whole grace period. `subject` is the subject of the token that began the session; None for a session without a
        token. A session that the consumer has already is replaced, and its stream is not ended.
        """
        expires_at = self.timing.end_of_grace(now)
        self.sessions[consumer] = Session(incarnation, expires_at, now, now, subject=subject)

    def begin(self, consumer: str, incarnation: str, now: float, subject: str | None = None) -> bool:
        """Begin the session of a consumer that was just registered, as disconnected at `now` (monotonic seconds), and
        return True. `subject` is the subject of the token; None without a token. A session of another incarnation of
        the consumer is replaced, and its stream is ended with the reason `replaced`.

        If this incarnation has a session already, keep the session and its stream, and return False. The consumer
        counts as heard at `now`. If the consumer is disconnected, its grace period begins again. A session without a
        subject takes `subject`.
        """
        previous = self.sessions.get(consumer)
        if previous is not None and previous.incarnation == incarnation:
            previous.heard_at, previous.expires_at = (
                now,
                max(previous.expires_at, self.timing.end_of_grace(now)),
            )
            previous.subject = previous.subject or subject
            return False
        if previous is not None and previous.stream is not None:
            previous.stream.end("replaced")
        self.restore(consumer, incarnation, now, subject)
        return True

    def demand(self, consumer: str, incarnation: str) -> Session:
        """Return the session of this incarnation. Raises LostRace if there is none: the consumer must
        register again, which may be refused for good.
        """
        session = self.sessions.get(consumer)
        if session is None or session.incarnation != incarnation:
            raise LostRace(NO_SESSION.format(consumer), 0.1)
        return session

    def attach(self, consumer: str, incarnation: str, stream: Stream, now: float) -> None:
        """Set the stream of the consumer, which thereby counts as connected and as heard at `now` (monotonic
        seconds). An older stream of the session is ended with the reason `superseded`. Nothing is pushed here, but
        the next `push` sends the assignment to the stream in any case. Raises LostRace if this incarnation has no
        session.
        """
        session = self.demand(consumer, incarnation)
        if session.stream is not None:
            session.stream.end("superseded")
        session.stream, session.last_push = stream, None
        session.expires_at, session.heard_at = math.inf, now

    def detach(self, consumer: str, stream: Stream, now: float) -> None:
        """Disconnect the consumer whose stream has ended, and begin the grace period, in which the consumer may
        reconnect, at `now` (monotonic seconds). Does nothing if `stream` is not the consumer's present stream, or if
        the consumer has no session. The stream is not ended here.
        """
        session = self.sessions.get(consumer)
        if session is not None and session.stream is stream:
            session.stream, session.expires_at = None, self.timing.end_of_grace(now)
            session.away_since = now

    def end_after_grace(self, consumer: str, incarnation: str, now: float) -> None:
        """Make the session of this incarnation expire one grace period after `now` (monotonic seconds) at the latest,
        even if the consumer is connected. Attaching a stream removes this limit. Does nothing if this incarnation has
        no session.
        """
        session = self.sessions.get(consumer)
        if session is not None and session.incarnation == incarnation:
            session.expires_at = min(session.expires_at, self.timing.end_of_grace(now))

    def end(self, consumer: str, incarnation: str, reason: str) -> None:
        """Remove the session of this incarnation from memory. If the consumer is connected, its stream is ended with
        the reason. The consumer's row and buckets are not changed. Does nothing if this incarnation has no session.
        """
        session = self.sessions.get(consumer)
        if session is not None and session.incarnation == incarnation:
            del self.sessions[consumer]
            if session.stream is not None:
                session.stream.end(reason)

    def demand_owner(self, request: Request, subscription: str) -> None:
        """Raise AccessForbidden if the token of the request belongs to another subject than the token that
        began the session. Nothing is checked without a session, or if either has no token.
        """
        if session := self.sessions.get(request.consumer):
            demand_subject(session.subject, request.subject, request.consumer, subscription)

    def follow_rows(self, rows: Mapping[str, ConsumerRow], now: float) -> None:
        """Make exactly the consumers in `rows`, the consumer rows by name, have a session, because another process
        may have registered or removed consumers. A consumer without a session gets one, as disconnected at `now`
        (monotonic seconds). The session of a consumer without a row is removed, and its stream is ended with the
        reason `removed`. A session whose row has another incarnation is not changed.
        """
        for name in [name for name in self.sessions if name not in rows]:
            self.end(name, self.sessions[name].incarnation, "removed")
        for name, row in rows.items():
            if name not in self.sessions:
                self.restore(name, row.incarnation, now, row.subject)

    def end_all(self, reason: str) -> None:
        """Remove all sessions of the subscription and end their streams with the reason. The consumer rows stay, so
        after a change of the leader the consumers can resume their sessions.
        """
        for session in self.sessions.values():
            if session.stream is not None:
                session.stream.end(reason)
        self.sessions.clear()

    def disconnect_silent(self, now: float) -> None:
        """Disconnect the consumers that sent nothing for more than `silent_seconds` before `now` (monotonic seconds),
        because their connections may have broken unnoticed. Their streams are ended with the reason `silent`. Such a
        consumer counts as disconnected since its last message. Its grace period begins at `now` and is shorter by
        `silent_seconds`.
        """
        for consumer, session in self.sessions.items():
            if session.stream is not None and now - session.heard_at > self.timing.silent_seconds:
                stream = session.stream
                self.detach(consumer, stream, now)
                # The time does not count from `heard_at`, because a leader that was late itself has kept the
                # consumers' messages waiting.
                session.expires_at = self.timing.end_of_grace(now) - self.timing.silent_seconds
                session.away_since = session.heard_at
                stream.end("silent")

    def expired(self, now: float) -> list[tuple[str, str]]:
        """Return the names and incarnations of consumers whose grace period has passed."""
        return [
            (name, session.incarnation)
            for name, session in self.sessions.items()
            if session.expires_at <= now
        ]

    def push(self, term: int) -> None:
        """Push to the stream of every connected consumer the assignment that the last settlement gives the consumer,
        under the lease term `term`. A consumer without buckets gets an empty assignment. A stream whose last pushed
        assignment had the same buckets gets nothing. Does nothing before the first settlement.
        """
        settlement = self.settled
        if settlement is None:
            return
        buckets = _granted_buckets(settlement)
        for consumer, session in self.sessions.items():
            if session.stream is not None:
                assignment = PushedAssignment(
                    term,
                    settlement.generation,
                    settlement.to_read.layout.epoch,
                    settlement.origin,
                    settlement.data_plane,
                    tuple(buckets.get(consumer, ())),
                )
                if session.last_push is None or session.last_push.buckets != assignment.buckets:
                    session.stream.push(assignment)
                    session.last_push = assignment


def _granted_buckets(settlement: Settlement) -> dict[str, list[GrantedBucket]]:
    """Return, by consumer name, all buckets that the consumer owns in segments of the settlement's layout, including
    the buckets that it must release, which are marked. A consumer that owns no such bucket is absent.
    """
    layout, topics = settlement.to_read.layout, settlement.to_read.backing_topics
    by_consumer: dict[str, list[GrantedBucket]] = {}
    for owner in settlement.owners:
        segment = layout.segments.get(owner.bucket.segment_id)
        if segment is not None:
            granted = GrantedBucket(
                segment_id=segment.segment_id,
                bucket_start=owner.bucket.bucket.start,
                bucket_end=owner.bucket.bucket.end,
                buckets=segment.bucket_count,
                sealed=not segment.is_active,
                backing_topic=topics[segment.segment_id],
                generation=owner.generation,
                release=owner.is_asked,
            )
            by_consumer.setdefault(owner.consumer, []).append(granted)
    return by_consumer
