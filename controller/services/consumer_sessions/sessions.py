"""One subscription's consumers as its leader knows them: who is connected, who has until when to come back.

In memory only, and for the leader's thread alone. The rows say who has a session; this says who is there. After a change of
leader everybody counts as just disconnected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.domain.assignment import SegmentBucket
from controller.domain.errors import LostRace
from controller.services.consumer_sessions.connection_state import AWAY_SECONDS, Presence
from controller.services.consumer_sessions.requests import (
    NO_SESSION,
    GrantedBucket,
    PushedAssignment,
    Request,
    Stream,
)
from controller.services.consumer_sessions.settlement import Settlement
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.topics.consumers import ConsumerRow, not_yours


@dataclass(slots=True)
class Session:
    """One life of a consumer. `expires_at` (monotonic seconds) is infinite while it is connected; `away_since` counts while it is not."""

    incarnation: str
    expires_at: float
    heard_at: float
    away_since: float
    stream: Stream | None = None
    told: PushedAssignment | None = None
    subject: str | None = None
    """Subject of the token that began the session; None for a session without a token."""


@dataclass(slots=True)
class SubscriptionSessions:
    """`settled` is what the last transaction left, `is_settled` says that nothing has changed since."""

    timing: ConsumerTiming
    sessions: dict[str, Session] = field(default_factory=dict)
    settled: Settlement | None = None
    is_settled: bool = False
    retry_at: float = -math.inf
    look_at: float = math.inf
    """To be settled then, whether something has changed or not (monotonic seconds)."""
    alarmed: frozenset[tuple[SegmentBucket, int]] = frozenset()
    """Buckets, by the generation of their owners, of which an alarm was given."""

    @property
    def connected(self) -> int:
        """Consumers that hold a stream open."""
        return sum(session.stream is not None for session in self.sessions.values())

    @property
    def note_at(self) -> float:
        """When the rows begin to say something else than what is known here of who is connected (monotonic seconds)."""
        due = math.inf
        for name, row in (self.settled.rows if self.settled is not None else {}).items():
            session = self.sessions.get(name)
            if session is not None and row.away_seconds is None and session.stream is None:
                due = min(due, session.away_since + AWAY_SECONDS)
            elif session is not None and row.away_seconds is not None and session.stream is not None:
                return -math.inf
        return due

    def presence(self, now: float) -> Presence:
        """Who is connected, and who has not been for longer than a moment."""
        return Presence(
            {name for name, one in self.sessions.items() if one.stream is not None},
            {
                name: now - one.away_since
                for name, one in self.sessions.items()
                if one.stream is None and now >= one.away_since + AWAY_SECONDS
            },
        )

    def restore(self, consumer: str, incarnation: str, now: float, subject: str | None = None) -> None:
        """A session from before: disconnected just now."""
        expires_at = now + self.timing.grace_seconds
        self.sessions[consumer] = Session(incarnation, expires_at, now, now, subject=subject)

    def begin(self, consumer: str, incarnation: str, now: float, subject: str | None = None) -> bool:
        """A session that was just registered; False for one that goes on. Another life of that name is told that it was replaced."""
        before = self.sessions.get(consumer)
        if before is not None and before.incarnation == incarnation:
            before.heard_at, before.expires_at = now, max(before.expires_at, now + self.timing.grace_seconds)
            before.subject = before.subject or subject
            return False
        if before is not None and before.stream is not None:
            before.stream.end("replaced")
        self.restore(consumer, incarnation, now, subject)
        return True

    def demand(self, consumer: str, incarnation: str) -> Session:
        """The session of this life. Raises LostRace where there is none: it is to register again, which may be refused for good."""
        session = self.sessions.get(consumer)
        if session is None or session.incarnation != incarnation:
            raise LostRace(NO_SESSION.format(consumer), 0.1)
        return session

    def attach(self, consumer: str, incarnation: str, stream: Stream, now: float) -> None:
        """It is connected."""
        session = self.demand(consumer, incarnation)
        if session.stream is not None:
            session.stream.end("superseded")
        session.stream, session.told = stream, None
        session.expires_at, session.heard_at = math.inf, now

    def detach(self, consumer: str, stream: Stream, now: float) -> None:
        """Its stream has ended: it has the grace period to come back."""
        session = self.sessions.get(consumer)
        if session is not None and session.stream is stream:
            session.stream, session.expires_at = None, now + self.timing.grace_seconds
            session.away_since = now

    def arm(self, consumer: str, incarnation: str, now: float) -> None:
        """Have the session end by itself, whatever becomes of what is tried now."""
        session = self.sessions.get(consumer)
        if session is not None and session.incarnation == incarnation:
            session.expires_at = min(session.expires_at, now + self.timing.grace_seconds)

    def end(self, consumer: str, incarnation: str, reason: str) -> None:
        """The session is over."""
        session = self.sessions.get(consumer)
        if session is not None and session.incarnation == incarnation:
            del self.sessions[consumer]
            if session.stream is not None:
                session.stream.end(reason)

    def demand_owner(self, request: Request, subscription: str) -> None:
        """Raises AccessForbidden for the token of another subject than the one that began the consumer's session."""
        session = self.sessions.get(request.consumer)
        if (
            request.subject is not None
            and session is not None
            and session.subject not in (None, request.subject)
        ):
            raise not_yours(request.consumer, subscription)

    def follow_rows(self, rows: Mapping[str, ConsumerRow], now: float) -> None:
        """Somebody else may have registered or removed a consumer: who has a row has a session, and nobody else."""
        for name in [name for name in self.sessions if name not in rows]:
            self.end(name, self.sessions[name].incarnation, "removed")
        for name, row in rows.items():
            if name not in self.sessions:
                self.restore(name, row.incarnation, now, row.subject)

    def end_all(self, reason: str) -> None:
        """Nobody is served here any more; whoever is somewhere else will be."""
        for session in self.sessions.values():
            if session.stream is not None:
                session.stream.end(reason)
        self.sessions.clear()

    def hang_up_silent(self, now: float) -> None:
        """Close the streams of those who have not been heard for `silent_seconds`: the other end may be gone unnoticed. Those seconds are
        part of the grace period.
        """
        for consumer, session in self.sessions.items():
            if session.stream is not None and now - session.heard_at > self.timing.silent_seconds:
                stream = session.stream
                self.detach(consumer, stream, now)
                # Not counted from `heard_at`: a leader that was late itself has kept others from being heard.
                session.expires_at = now + self.timing.grace_seconds - self.timing.silent_seconds
                session.away_since = session.heard_at
                stream.end("silent")

    def expired(self, now: float) -> list[tuple[str, str]]:
        """Names and incarnations of those whose grace period has passed."""
        return [(name, one.incarnation) for name, one in self.sessions.items() if one.expires_at <= now]

    def push(self, term: int) -> None:
        """Tell every connected consumer what it owns, unless it was told so already."""
        settled = self.settled
        for consumer, session in self.sessions.items():
            if session.stream is not None and settled is not None:
                assignment = _assignment(settled, consumer, term)
                if session.told is None or session.told.buckets != assignment.buckets:
                    session.stream.push(assignment)
                    session.told = assignment


def _assignment(settled: Settlement, consumer: str, term: int) -> PushedAssignment:
    """All that the consumer owns."""
    layout, topics = settled.found.layout, settled.found.backing_topics
    granted = []
    for owner in settled.owners:
        segment = layout.segments.get(owner.bucket.segment_id)
        if owner.consumer == consumer and segment is not None:
            granted.append(
                GrantedBucket(
                    segment_id=segment.segment_id,
                    bucket_start=owner.bucket.bucket.start,
                    bucket_end=owner.bucket.bucket.end,
                    buckets=segment.bucket_count,
                    sealed=not segment.is_active,
                    backing_topic=topics[segment.segment_id],
                    generation=owner.generation,
                    release=owner.is_asked,
                )
            )
    return PushedAssignment(
        term, settled.generation, layout.epoch, settled.origin, settled.data_plane, tuple(granted)
    )
