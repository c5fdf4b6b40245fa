"""The consumers of one subscription in the leader's memory: which are connected, and until when the others
may reconnect.

In memory only, and used by the leader's thread only. The rows say which consumers have a session; this module
keeps which are connected. After a change of the leader, every consumer counts as just disconnected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.domain.assignment import SegmentBucket
from controller.domain.errors import LostRace
from controller.services.consumer_sessions.grace_period import (
    end_of_grace,
    end_of_grace_after_silence,
    has_ended,
)
from controller.services.consumer_sessions.requests import (
    NO_SESSION,
    GrantedBucket,
    PushedAssignment,
    Request,
    Stream,
)
from controller.services.consumer_sessions.settlement import AWAY_SECONDS, ConnectionState, Settlement
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.topics.consumers import ConsumerRow, not_yours


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
        """Monotonic time from which the connection state in the rows is outdated: infinite if it stays right or nothing
        was settled yet, minus infinity if a recorded disconnection has ended.
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
        """Return the connected consumers, and those that have been disconnected for at least `AWAY_SECONDS`."""
        return ConnectionState(
            {name for name, session in self.sessions.items() if session.stream is not None},
            {
                name: now - session.away_since
                for name, session in self.sessions.items()
                if session.stream is None and now >= session.away_since + AWAY_SECONDS
            },
        )

    def restore(self, consumer: str, incarnation: str, now: float, subject: str | None = None) -> None:
        """Add a session that another leader or process began, as disconnected at `now`. Its grace period
        begins. Replaces a session of the same consumer without ending its stream.
        """
        expires_at = end_of_grace(self.timing, now)
        self.sessions[consumer] = Session(incarnation, expires_at, now, now, subject=subject)

    def begin(self, consumer: str, incarnation: str, now: float, subject: str | None = None) -> bool:
        """Begin the session of a consumer that was just registered with a token of `subject` (None: without a token),
        as disconnected at `now`, and return True. If this incarnation has a session, keep it and return False: its
        grace period, if it runs, begins again, and `subject` is adopted if the session has none. The session of another
        incarnation of the consumer name is replaced, and its stream is ended as replaced.
        """
        previous = self.sessions.get(consumer)
        if previous is not None and previous.incarnation == incarnation:
            previous.heard_at, previous.expires_at = (
                now,
                max(previous.expires_at, end_of_grace(self.timing, now)),
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
        """Set the consumer's stream; the consumer is connected. An older stream is ended as superseded. The
        next `push` sends the assignment in any case. Raises LostRace if this incarnation has no session.
        """
        session = self.demand(consumer, incarnation)
        if session.stream is not None:
            session.stream.end("superseded")
        session.stream, session.last_push = stream, None
        session.expires_at, session.heard_at = math.inf, now

    def detach(self, consumer: str, stream: Stream, now: float) -> None:
        """Remove the ended stream, and begin the grace period in which the consumer may reconnect. Does nothing unless
        `stream` is the consumer's present stream.
        """
        session = self.sessions.get(consumer)
        if session is not None and session.stream is stream:
            session.stream, session.expires_at = None, end_of_grace(self.timing, now)
            session.away_since = now

    def end_after_grace(self, consumer: str, incarnation: str, now: float) -> None:
        """Make the session of this incarnation end after the grace period at the latest, even if the consumer
        stays connected. Does nothing without such a session.
        """
        session = self.sessions.get(consumer)
        if session is not None and session.incarnation == incarnation:
            session.expires_at = min(session.expires_at, end_of_grace(self.timing, now))

    def end(self, consumer: str, incarnation: str, reason: str) -> None:
        """Remove the session of this incarnation and end its stream with the reason. Does nothing without
        such a session.
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
        session = self.sessions.get(request.consumer)
        if (
            request.subject is not None
            and session is not None
            and session.subject not in (None, request.subject)
        ):
            raise not_yours(request.consumer, subscription)

    def follow_rows(self, rows: Mapping[str, ConsumerRow], now: float) -> None:
        """Synchronize sessions with the consumer rows: create missing sessions, as disconnected, and end
        sessions without a row. Another process may have registered or removed consumers. A session whose row
        has another incarnation does not change.
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
        """End the streams of consumers that sent nothing for more than `silent_seconds`, as silent: their connections
        may have broken unnoticed. The consumers count as disconnected since their last message, but their grace period,
        shortened by `silent_seconds`, begins at `now`.
        """
        for consumer, session in self.sessions.items():
            if session.stream is not None and now - session.heard_at > self.timing.silent_seconds:
                stream = session.stream
                self.detach(consumer, stream, now)
                # The time does not count from `heard_at`, because a leader that was late itself has kept the
                # consumers' messages waiting.
                session.expires_at = end_of_grace_after_silence(self.timing, now)
                session.away_since = session.heard_at
                stream.end("silent")

    def expired(self, now: float) -> list[tuple[str, str]]:
        """Return the names and incarnations of consumers whose grace period has passed."""
        return [
            (name, session.incarnation)
            for name, session in self.sessions.items()
            if has_ended(session.expires_at, now)
        ]

    def push(self, term: int) -> None:
        """Push to every connected consumer its assignment under the lease `term`, unless the last push to its
        stream had the same buckets. Does nothing before the first settlement.
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
    """Return the assignment of each consumer that owns buckets: all of its buckets in segments of the layout, including
    buckets that it must release.
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
