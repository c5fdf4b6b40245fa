"""The two protocols of a data plane: the acts the controller needs, and what an application's client needs.

`DataPlane` is what operations, the reconciler and the collector call; `LogClient` with its `LogReader` is what
`controller.client` produces and consumes through, with a `PositionReader` or a `QueueReader` where it does not read in order
for a subscription. Both see logs only: nothing here knows layouts, epochs or
operations, and a segment is the name of its backing topic.

One behavioural suite (tests/contract) runs on every adapter. Each call is idempotent by looking at what is
there: creating what exists, terminating what is terminated and deleting what is gone succeed. Each foreign
error is mapped once, in the adapter, to Retryable (with a delay) or Terminal (with a sentence). No call
outlives `call_timeout_seconds`: when the answer does not come in time the adapter raises DataPlaneTimeout, and
the act may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from controller.domain.situation import Capabilities


class LogState(StrEnum):
    """State of a backing log."""

    OPEN = "open"
    TERMINATED = "terminated"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one segment as its source reports them: they rise, and restart from 0 with the source or the log.

    *In* counts what was stored (a broker also counts what it refused because the log was being terminated), *out* what
    was delivered, summed over subscriptions. `source` names the reporter (a broker since its start, or this server);
    `instant_ms` is when this process read them, by its `STEADY_CLOCK`. `producers` are those connected to the log just then, None where the reporter cannot tell.
    """

    backing_topic: str
    source: str
    instant_ms: int
    msg_in: int
    byte_in: int
    msg_out: int
    byte_out: int
    producers: int | None = None


class DataPlane(Protocol):
    """What a broker, or the embedded logs, can do for the controller."""

    @property
    def name(self) -> str:
        """The registry's name for this adapter, stored with each topic."""

    @property
    def capabilities(self) -> Capabilities:
        """Which reshapes this plane can do."""

    @property
    def call_timeout_seconds(self) -> float:
        """The longest any one call may take; a takeover waits at least this long after a claim expires."""

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Name of the log behind segment `descriptor` (`0000-7fff-12`) of `topic`."""

    def create_segment(
        self, backing_topic: str, subscriptions: Sequence[str], origin: LogOrigin | None = None
    ) -> None:
        """Create the log with each subscription at the earliest position; fills in those an existing log lacks.

        The call stores `origin` with the log that it creates. An existing log keeps the origin it has.
        """

    def terminate_segment(self, backing_topic: str) -> str:
        """Close the log for appends and return its last position. A missing log is SegmentNotFound."""

    def delete_segment(self, backing_topic: str) -> None:
        """Delete the log with all its subscriptions, by force. A missing log is success."""

    def segment_state(self, backing_topic: str) -> LogState:
        """What the log is now."""

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the subscription at earliest; an existing one keeps its position. No log is SegmentNotFound."""

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete it, consumers or not; a missing subscription or log is success."""

    def list_segments(self, topic: str) -> Sequence[str]:
        """Backing topics of every log that belongs to `topic`, orphans included, sorted."""

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Subscriptions on the log, those applications made themselves included; empty if it is missing."""

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Unacknowledged messages, precisely; None where the log or the subscription is missing.

        A batch that the plane stores as one counts whole until all of it is acknowledged.
        """

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the cursor to the first message published at or after the instant, back or forth.

        Open readers are cut off and start again from there. SubscriptionNotFound where there is no cursor.
        """

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge everything up to now; errors and readers as for `seek`."""

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Counters of those logs that answered; one that is absent was silent."""

    def close(self) -> None:
        """Give back connections; the object is not used afterwards."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A log to make, with these subscriptions and those found on its predecessors, without the excepted ones."""

    backing_topic: str
    predecessors: tuple[str, ...]
    subscriptions: tuple[str, ...]
    excepted: tuple[str, ...] = ()
    origin: LogOrigin | None = None
    """Origin to store with the log if the call creates the log. An existing log keeps the origin it has."""


@dataclass(frozen=True, slots=True)
class Born:
    """A successor as it is after the call; at least the subscriptions it was to have."""

    state: LogState
    subscriptions: tuple[str, ...]
    origin: LogOrigin | None = None
    """Origin that the log has after the call; another program may have created the log. None if the log has no origin."""


@dataclass(frozen=True, slots=True)
class CursorReport:
    """The position of one durable subscription on a log."""

    unread: int
    """Unacknowledged messages; 0 only if no message is unread. A broker counts a batch as one."""
    is_queue: bool | None = None
    """True if unordered readers share the subscription, False if the subscription is read in order. None if unknown."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """Everything about one log that a decision to delete the log needs."""

    state: LogState
    origin: LogOrigin | None
    """Origin stored with the log. None if the log has no readable origin, or is MISSING."""
    has_carried_messages: bool
    """False only if the data plane shows that the log never held a message. A MISSING log has the value False."""
    cursors: Mapping[str, CursorReport]
    """Durable subscriptions by name, subscriptions that applications created included."""

    @property
    def is_read_to_end(self) -> bool:
        """True if the log is terminated and no subscription has unread messages."""
        return self.state is LogState.TERMINATED and not any(one.unread for one in self.cursors.values())

    @property
    def most_unread(self) -> int:
        """Unread messages of the subscription that has most of them."""
        return max((one.unread for one in self.cursors.values()), default=0)

    @property
    def is_unused(self) -> bool:
        """True if the log exists and never held a message."""
        return self.state is not LogState.MISSING and not self.has_carried_messages


MISSING_LOG = LogReport(LogState.MISSING, None, False, {})
"""Report on a log that does not exist."""


@runtime_checkable
class SetWiseDataPlane(DataPlane, Protocol):
    """A data plane on which Cleave makes the logs. One call acts on many of them, and takes as long as for one or as
    for the slowest.

    What such a call means for each log is what `DataPlane` says of the call for one. After an error a part of it may be
    done, and a repeat finds that part, unless the adapter says that all is done or nothing.
    """

    @property
    def shares_calls(self) -> bool:
        """Whether operations may share a call. They may not where a log that does not answer would hold
        up the others.
        """

    @property
    def shares_journal_server(self) -> bool:
        """Whether the journal is in the same server. In a crash the server then loses the latest commits of both, in
        order.
        """

    def create_successors(self, successors: Sequence[Successor]) -> Mapping[str, Born]:
        """Create each log with its subscriptions at earliest; fills in those an existing log lacks."""

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Close those that exist for appends; their last positions.

        A log that is missing is absent from the answer, and so is one that somebody holds: no log waits for another.
        """

    def subscriptions_of(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Subscriptions on each log, sorted; a log that is missing or has none is absent."""

    def list_segments_of(self, topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """For each topic what `list_segments` says."""

    def describe_logs(self, backing_topics: Sequence[str]) -> Mapping[str, LogReport]:
        """Report on each log, MISSING logs included. A log that did not answer is absent."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a call of `trim` did."""

    messages: int
    is_complete: bool
    """False when its time was over first: call again."""


@runtime_checkable
class TrimmingDataPlane(DataPlane, Protocol):
    """A data plane whose messages Cleave deletes. A broker does so by itself."""

    def trim(self, retention_seconds: float) -> Trimmed:
        """Delete from the front of each log, open ones included, what is older than that (>= 0) and what every
        subscription has acknowledged; without a subscription, what is older.
        """


@runtime_checkable
class NamespacedDataPlane(DataPlane, Protocol):
    """A data plane on which namespaces are made by others than Cleave."""

    def demand_namespace(self, topic: str) -> None:
        """Raise NotFound, with what to do, if the namespace of `topic` does not exist."""


@runtime_checkable
class LockableDataPlane(DataPlane, Protocol):
    """A data plane whose logs an application can keep locked, since it stores them in a database that the application logs in to."""

    def end_long_transactions(self) -> int:
        """End the sessions of applications that have held locks for longer than a call may take. Return their number."""


@runtime_checkable
class BucketCountingDataPlane(DataPlane, Protocol):
    """A data plane that counts the backlog of each entry bucket. A released broker counts whole subscriptions."""

    def backlog_of_buckets(
        self, backing_topic: str, subscription: str, bucket_starts: Sequence[int]
    ) -> Sequence[int] | None:
        """Unacknowledged messages of each bucket, by their first hashes (rising from 0); None where the log or the
        subscription is missing.
        """


class Metadata(NamedTuple):
    """What an application sends in addition to key and payload. A message without any has None in place of this."""

    properties: tuple[tuple[str, str], ...] = ()
    event_time_ms: int | None = None
    is_binary_key: bool = False
    """True if the application gave the key as bytes. A key that it gave as text is stored in UTF-8."""

    @property
    def size(self) -> int:
        """Characters of the properties, about their bytes."""
        return sum(len(name) + len(value) for name, value in self.properties)


class OutgoingMessage(NamedTuple):
    """A message to store. Without a key it may go to any segment.

    `bucket_hash` says which entry bucket it belongs to: None for the low half of its key's hash, which is 0 without a
    key. Who deals messages without a key over the buckets gives one.
    """

    payload: bytes
    key: bytes | None = None
    bucket_hash: int | None = None
    metadata: Metadata | None = None


Position = tuple[int, ...]
"""Where a message lies in its log: opaque but ordered; (timeline, offset) here, (ledger, entry, index) in Pulsar."""


class LogMessage(NamedTuple):
    """A message as read. `published_at_ms` is the data plane's time and never falls within a log. Where producers stamp
    messages (`pulsar`) it is the time of their clocks, and may fall.

    `deliveries` says how often a queue has given it out, or `KeyedWork` has begun it, this time included. On a broker only what was given back counts: a reader
    counts its messages of a batch, for as long as it lives, and the broker counts others from the broker's last start on.
    """

    position: Position
    published_at_ms: int
    key: bytes | None
    payload: bytes
    deliveries: int = 1
    metadata: Metadata | None = None


class Ownership(NamedTuple):
    """Under which assignment a bucket is somebody's: of two the greater is the newer. Each change of hands has a generation of its own
    within one origin, and each origin of a subscription is greater than those before it.
    """

    origin: int
    generation: int


class MayWait(Protocol):
    """What readers of all kinds say before they are read."""

    def may_wait(self) -> bool:
        """Whether the next `read` may have to ask the data plane, and wait as long as a call may take, before it answers. Who reads several
        logs has that done aside.
        """


class LogReader(MayWait, Protocol):
    """The one reader of a log for a subscription, from the first unacknowledged message on.

    Every call raises LostRace when the cursor is no longer this reader's (taken over, or moved by a seek): open a new
    one. LogShortened means that the log lacks messages that this reader was given, after a fail-over or a restore. FencedOut means that a newer reader of the same owner exists, so this process is the stale one. A broker
    signals both by breaking the connection. A call made at that moment may still succeed, but what it acknowledges has
    no effect.
    """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit`; empty when there is none now. Does not wait."""

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to and including `position`. A position that is acknowledged already changes
        nothing.

        It may take some 100 ms after the call; `is_drained` and `close` wait for it.
        """

    def is_drained(self) -> bool:
        """Whether the log is terminated and acknowledged to its end, by all its readers of the subscription where several
        share it, so that nothing can ever follow.
        """

    def close(self) -> None:
        """Let go of the cursor for the next owner; what is unacknowledged is read again. Raises nothing."""


class PositionReader(MayWait, Protocol):
    """Reads a log from a position on, for an application that keeps positions itself. Any number may read a log at once."""

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit`; empty when there is none now. Does not wait.

        DataGone when what comes next was deleted, or the log was. DataPlaneUnavailable when the connection broke: open a new
        reader after the last message that was read.
        """

    def is_at_end(self) -> bool:
        """Whether the log is terminated and read to its end, so that nothing can ever follow. Errors as for `read`."""

    def close(self) -> None:
        """Read no further. Raises nothing."""


class QueueReader(MayWait, Protocol):
    """One of any number of readers that share the messages of a log for a subscription, in no order.

    A message is with one reader until that acknowledges it, gives it back, closes, or is not heard of any more; but for the
    first it is then given out again. Every call but `close` raises LostRace when nothing here is this reader's any more (it was
    not heard for too long, or the cursor was moved): open a new one.
    """

    @property
    def is_current(self) -> bool:
        """Whether what it holds is its own still, as far as can be known here without asking. To be looked at before a
        message is handed out.
        """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Take at most `limit` messages; empty when there is none now. Does not wait."""

    def acknowledge(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Done with these messages. Those are given back that are not settled: they are or will be given out again."""

    def give_back(
        self, positions: Sequence[Position], *, delay_seconds: float = 0.0, unseen: bool = False
    ) -> None:
        """Have these given out again after the delay, here or elsewhere. `unseen`: the application never had them, so it
        does not count as a delivery where that can be told.
        """

    def is_drained(self) -> bool:
        """Whether the log is terminated and all of it acknowledged, whoever read it."""

    def close(self) -> None:
        """Leave; what it holds is given out to others. Raises nothing."""


class LogClient(Protocol):
    """Produce to and consume from single logs; safe to share between threads, a reader is not."""

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        """Store a batch in order and return how many, from its front, are stored.

        `bucket` is the entry bucket that every message of the batch belongs to, by bucket hash; None where the segment
        has one only. A plane that hands out whole entries needs it to give them to the bucket's reader (PIP-486).
        InvalidInput for a message that lies outside.

        Fewer than all means the log was terminated in between (a plane that stores a batch in one act never answers
        that); none raises SegmentTerminated. `sequence` rises with every batch that a producer sends to one log. A
        batch that is repeated under its number, for instance after DataPlaneTimeout, is stored once. SegmentNotFound
        where there is no log.
        """

    def open_reader(
        self,
        backing_topic: str,
        subscription: str,
        *,
        owner: str,
        live_owners: Collection[str],
        on_arrival: Callable[[], None],
        bucket: HashRange | None = None,
        ownership: Ownership | None = None,
    ) -> LogReader:
        """Take the cursor and read from it. Raises LostRace while another of `live_owners` holds it.

        With `bucket` (bucket hashes) only that part of the cursor is taken, and only messages that belong there are read
        and acknowledged; the other parts may have readers of their own. Each part keeps its own position, whoever reads it
        next, with other bounds or the whole. A range that somebody live holds a part of is LostRace.

        With an `ownership` nothing is taken from whoever has, or had, a part of it under a newer one: FencedOut, since this process was
        stopped on its way. (A broker knows of those only that are connected.)

        A holder that is not among them counts as gone and is cut off. `on_arrival` is called from another thread
        whenever there may be something new (messages, the end of the log, a cursor let go, a lost connection); it may
        be called for nothing and must not block. SegmentNotFound, SubscriptionNotFound.
        """

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """The position that lies before the first message published at or after the instant, of those that are there; None:
        behind the last one. SegmentNotFound.
        """

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> PositionReader:
        """Read what follows upon a position, None: from the very first message that the log ever had.

        `on_arrival` as for `open_reader`. DataGone where some of that was deleted and a data plane can tell; LogShortened where the
        log does not have the message at that position, with the position to open a reader at instead; SegmentNotFound.
        """

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> QueueReader:
        """Share the subscription's messages with its other readers of this kind. `on_arrival` as for `open_reader`; it tells
        too of what others gave back. LostRace while somebody reads the subscription in order. SegmentNotFound,
        SubscriptionNotFound.
        """

    def close(self) -> None:
        """Close the readers and give back connections."""


@runtime_checkable
class EagerLogClient(LogClient, Protocol):
    """A log client that can send a batch without waiting for its answer."""

    def begin_append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> Callable[[], int] | None:
        """Send the batch now, and return what waits for its answer and says or raises what `append` would. It must be called, in
        any thread, and until then the producer sends nothing else to this bucket.

        None where that cannot be done at once (nothing is open yet, an answer is missing): call `append`. Raises InvalidInput.
        """

    def open_ahead(self, backing_topic: str, *, producer: str, bucket: HashRange | None = None) -> None:
        """Begin to open what the first append needs. Does not wait; an error is left for that append to meet."""
