"""What a consumer asks of the leader of its topic, and what it is told.

Each request waits in the leader's one mailbox and is answered through its `done`, after the transaction that it caused: None,
or the error that refused it. The web app makes them; the leader alone reads them.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from controller.store.topics.bucket_owners import SaidOfBucket, SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

NO_SESSION = "consumer {} has no session under this incarnation; register again"


@dataclass(frozen=True, slots=True)
class GrantedBucket:
    """A bucket, or a run of them, as its owner is told of it. `generation` is that at which it last changed owner; `release`: let go
    of it.
    """

    segment_id: int
    bucket_start: int
    bucket_end: int
    buckets: int
    """How many the segment has."""
    sealed: bool
    backing_topic: str
    generation: int
    release: bool


@dataclass(frozen=True, slots=True)
class PushedAssignment:
    """All that one consumer owns. Of two the one with the higher (generation, term, epoch) is the later."""

    term: int
    generation: int
    epoch: int
    origin: int
    data_plane: str
    buckets: tuple[GrantedBucket, ...]


class Stream(Protocol):
    """What the leader pushes into; safe to call from its thread, and never blocks."""

    def push(self, assignment: PushedAssignment) -> None:
        """Say this next. An assignment that was not sent yet is superseded by it."""

    def end(self, reason: str) -> None:
        """Say why, and close."""


@dataclass(slots=True, kw_only=True)
class Request:
    """Of one consumer's life (`incarnation`) in one subscription."""

    key: SubscriptionKey
    consumer: str
    incarnation: str
    subject: str | None = None
    """Subject of the token that asks; None where the leader itself does."""
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True, kw_only=True)
class Register(Request):
    """Begin a session, or go on with it. It must be followed by `Attach` within the grace period."""

    reads: SubscriptionKind = SubscriptionKind.STREAM


@dataclass(slots=True, kw_only=True)
class Attach(Request):
    """Be told of assignments. Holding the stream open is being connected."""

    stream: Stream


@dataclass(slots=True, kw_only=True)
class Detach(Request):
    """The stream has ended. A stream that was replaced meanwhile changes nothing."""

    stream: Stream


@dataclass(slots=True, kw_only=True)
class Pulse(Request):
    """The consumer is alive and hears."""


@dataclass(frozen=True, slots=True)
class ReleasedBucket:
    """A bucket that its owner has let go of, as of the generation at which it got it."""

    segment_id: int
    bucket_start: int
    generation: int


@dataclass(slots=True, kw_only=True)
class Release(Request):
    """These buckets are settled, and their readers closed."""

    buckets: tuple[ReleasedBucket, ...]


@dataclass(frozen=True, slots=True)
class ReadSegment:
    """A sealed segment that was read to its end by who owned a bucket of it since that generation."""

    segment_id: int
    generation: int


@dataclass(slots=True, kw_only=True)
class Drained(Request):
    """These sealed segments are read and acknowledged to their end."""

    segments: tuple[ReadSegment, ...]


@dataclass(slots=True, kw_only=True)
class Say(Request):
    """Why nothing comes of these buckets of the consumer's; of its others there is nothing to say."""

    buckets: tuple[SaidOfBucket, ...]


@dataclass(slots=True, kw_only=True)
class Goodbye(Request):
    """The session is over: the consumer leaves, or (`has_expired`) its grace period has passed."""

    has_expired: bool = False
