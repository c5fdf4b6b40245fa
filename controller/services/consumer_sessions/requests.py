"""Requests of a consumer to the leader of its topic, and the assignments that the leader pushes.

Requests wait in the leader's mailbox. After the transaction that processed a request, the leader sets its
`done` to None or to an error. The web app creates requests; only the leader reads them.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from controller.store.topics.bucket_owners import BucketReport, SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind

NO_SESSION = "consumer {} has no session under this incarnation; register again"


@dataclass(frozen=True, slots=True)
class GrantedBucket:
    """A bucket, or a run of adjacent buckets, as reported to its owner. `bucket_start` and `bucket_end` are its
    first and last hash. `generation` is the generation at which the ownership began. `release` is True if the
    owner must release the bucket.
    """

    segment_id: int
    bucket_start: int
    bucket_end: int
    buckets: int
    """Number of buckets of the segment."""
    sealed: bool
    backing_topic: str
    generation: int
    release: bool


@dataclass(frozen=True, slots=True)
class PushedAssignment:
    """All buckets of one consumer. Of two assignments, that with the higher (generation, term, epoch) is the
    later: the generation of the subscription, the term of the shard's lease and the epoch of the layout.
    """

    term: int
    generation: int
    epoch: int
    origin: int
    data_plane: str
    buckets: tuple[GrantedBucket, ...]


class Stream(Protocol):
    """Destination of the leader's pushes. Called from the leader's thread; must never block."""

    def push(self, assignment: PushedAssignment) -> None:
        """Send the assignment. It supersedes an assignment that was not sent yet."""

    def end(self, reason: str) -> None:
        """Send the reason, and close the stream."""


@dataclass(slots=True, kw_only=True)
class Request:
    """A request of one incarnation of a consumer in one subscription. The leader sets `done` to None, or to the
    error with which it refuses the request.
    """

    key: SubscriptionKey
    consumer: str
    incarnation: str
    subject: str | None = None
    """Subject of the token that sent the request; None for a request of the leader itself."""
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True, kw_only=True)
class Register(Request):
    """Begin or resume a session. Refused if the subscription is not of the kind `reads`. `Attach` must follow
    within the grace period.
    """

    reads: SubscriptionKind = SubscriptionKind.STREAM


@dataclass(slots=True, kw_only=True)
class Attach(Request):
    """Open the stream for assignments. A consumer is connected while it holds the stream open."""

    stream: Stream


@dataclass(slots=True, kw_only=True)
class Detach(Request):
    """Report that the stream has ended. Ignored if the stream was already replaced."""

    stream: Stream


@dataclass(slots=True, kw_only=True)
class Heartbeat(Request):
    """Report that the consumer is alive and receives messages of the leader."""


@dataclass(slots=True, kw_only=True)
class Release(Request):
    """Report that the messages of these buckets are settled, and their readers closed."""

    buckets: tuple[tuple[int, int, int], ...]
    """Segment id and first hash of each bucket, and the generation at which the owner got the bucket."""


@dataclass(slots=True, kw_only=True)
class Drained(Request):
    """Report that these sealed segments are read and acknowledged to their end."""

    segments: tuple[tuple[int, int], ...]
    """Id of each segment, and the generation since which the consumer has owned a bucket of the segment."""


@dataclass(slots=True, kw_only=True)
class ReportReasons(Request):
    """Report why these buckets of the consumer deliver no messages. The consumer's other buckets have no such
    reason.
    """

    buckets: tuple[BucketReport, ...]


@dataclass(slots=True, kw_only=True)
class Deregister(Request):
    """End the session: the consumer leaves, or (`has_expired`) its grace period has passed."""

    has_expired: bool = False
