"""Defines the two protocols of a data plane: the actions of the controller, and the operations of an
application's client.

Operations, the reconciler and the collector call `DataPlane`. `controller.client` produces and consumes
through `LogClient` with its `LogReader`, and with a `PositionReader` or a `QueueReader` if it does not read
in order for a subscription. Both protocols know only logs: no layouts, epochs or operations. A segment is
identified by the name of its backing topic.

One test suite (tests/contract) checks the behaviour of every adapter. Each call is idempotent because it
checks the present state: creating what exists, terminating what is terminated and deleting what is gone
succeed. The adapter maps each foreign error once, to Retryable (with a delay) or Terminal (with a sentence).
No call exceeds `call_timeout_seconds`: if there is no response in time, the adapter raises DataPlaneTimeout,
and the action may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from controller.domain.evaluation_input import Capabilities
from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin


class LogState(StrEnum):
    """State of a backing log."""

    OPEN = "open"
    TERMINATED = "terminated"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one segment as its source reports them. They rise, and restart from 0 with the source or
    the log.

    *In* counts stored messages; a broker also counts messages that it refused because the log was being
    terminated. *Out* counts delivered messages, summed over subscriptions. `source` is the reporter: a broker
    since its start, or this server. `instant_ms` is the time at which this process read the counters, by its
    `STEADY_CLOCK`. `producers` is the number of producers connected to the log at that time, None if the
    reporter does not know it.
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
    """The operations of a broker, or of the embedded logs, for the controller."""

    @property
    def name(self) -> str:
        """Name of this adapter in the registry, stored with each topic."""

    @property
    def capabilities(self) -> Capabilities:
        """The reshapes that this data plane can perform."""

    @property
    def call_timeout_seconds(self) -> float:
        """Longest duration of one call. A takeover waits at least this long after a claim expires."""

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Return the name of the log behind segment `descriptor` (`0000-7fff-12`) of `topic`."""

    def create_segment(
        self, backing_topic: str, subscriptions: Sequence[str], origin: LogOrigin | None = None
    ) -> None:
        """Create the log with each subscription at the earliest position. Add missing subscriptions to an
        existing log.

        The call stores `origin` with the log that it creates. An existing log keeps its origin.
        """

    def terminate_segment(self, backing_topic: str) -> str:
        """Terminate the log, and return its last position. Raises SegmentNotFound for a missing log."""

    def delete_segment(self, backing_topic: str) -> None:
        """Delete the log with all its subscriptions, by force. A missing log is success."""

    def segment_state(self, backing_topic: str) -> LogState:
        """Return the present state of the log."""

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the subscription at the earliest position; an existing one keeps its position. Raises
        SegmentNotFound.
        """

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the subscription, even if it has consumers. A missing subscription or log is success."""

    def list_segments(self, topic: str) -> Sequence[str]:
        """Return the backing topics of every log of `topic`, orphaned logs included, sorted."""

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Return the subscriptions on the log, including those that applications created. Empty if the log is
        missing.
        """

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Return the exact number of unacknowledged messages. None if the log or the subscription is missing.

        A batch that the data plane stores as one entry counts whole until all of it is acknowledged.
        """

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the cursor to the first message published at or after the instant, backwards or forwards.

        Open readers are disconnected and start again from there. Raises SubscriptionNotFound if there is no
        cursor.
        """

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge all messages that are stored at the time of the call. Errors and readers as for
        `seek`.
        """

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of the logs that responded. A log that did not respond is absent."""

    def close(self) -> None:
        """Close the connections. The object must not be used afterwards."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A log to create, with these subscriptions and those of its predecessors, except the excepted ones."""

    backing_topic: str
    predecessors: tuple[str, ...]
    subscriptions: tuple[str, ...]
    excepted: tuple[str, ...] = ()
    origin: LogOrigin | None = None
    """Origin to store with the log if the call creates the log. An existing log keeps its origin."""


@dataclass(frozen=True, slots=True)
class CreatedLog:
    """State of a successor after the call. It has at least the requested subscriptions."""

    state: LogState
    subscriptions: tuple[str, ...]
    origin: LogOrigin | None = None
    """Origin of the log after the call; another program may have created the log. None if the log has no
    origin.
    """


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
        return self.state is LogState.TERMINATED and not any(
            cursor.unread for cursor in self.cursors.values()
        )

    @property
    def most_unread(self) -> int:
        """Number of unread messages of the subscription that has most."""
        return max((cursor.unread for cursor in self.cursors.values()), default=0)

    @property
    def is_unused(self) -> bool:
        """True if the log exists and never held a message."""
        return self.state is not LogState.MISSING and not self.has_carried_messages


MISSING_LOG = LogReport(LogState.MISSING, None, False, {})
"""Report on a log that does not exist."""


@runtime_checkable
class SetWiseDataPlane(DataPlane, Protocol):
    """A data plane on which Cleave creates the logs. One call acts on many logs, and takes as long as for one
    log, or as for the slowest.

    The meaning of such a call for each log is that of `DataPlane`'s call for one log. After an error a part
    of the work may be done, and a repeated call finds that part, unless the adapter guarantees all or
    nothing.
    """

    @property
    def shares_calls(self) -> bool:
        """True if operations may share a call. False if one unresponsive log would delay the others."""

    @property
    def shares_journal_server(self) -> bool:
        """True if the journal is in the same server. In a crash the server then loses the latest commits of
        both, in order.
        """

    def create_successors(self, successors: Sequence[Successor]) -> Mapping[str, CreatedLog]:
        """Create each log with its subscriptions at the earliest position. Add missing subscriptions to
        existing logs.
        """

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Terminate the existing logs, and return their last positions.

        A missing log is absent from the result, and so is a log that another session has locked: no log waits
        for another.
        """

    def subscriptions_of(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the subscriptions on each log, sorted. A log that is missing or has none is absent."""

    def list_segments_of(self, topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the result of `list_segments` for each topic."""

    def describe_logs(self, backing_topics: Sequence[str]) -> Mapping[str, LogReport]:
        """Return a report on each log, MISSING logs included. A log that did not respond is absent."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Result of a call of `trim`."""

    messages: int
    is_complete: bool
    """False if the call ran out of time: call again."""


@runtime_checkable
class TrimmingDataPlane(DataPlane, Protocol):
    """A data plane whose messages Cleave deletes. A broker deletes messages itself."""

    def trim(self, retention_seconds: float) -> Trimmed:
        """Delete from the front of each log, open logs included, messages that are older than
        `retention_seconds` (at least 0) and that every subscription has acknowledged. Without a subscription,
        delete all older messages.
        """


@runtime_checkable
class NamespacedDataPlane(DataPlane, Protocol):
    """A data plane on which programs other than Cleave create namespaces."""

    def demand_namespace(self, topic: str) -> None:
        """Raise NotFound, with the next step, if the namespace of `topic` does not exist."""


@runtime_checkable
class LockableDataPlane(DataPlane, Protocol):
    """A data plane whose logs an application can keep locked, because the application logs in to the database
    that stores them.
    """

    def end_long_transactions(self) -> int:
        """End sessions of applications that have held locks for longer than a call may take. Return the
        number of sessions.
        """


@runtime_checkable
class BucketCountingDataPlane(DataPlane, Protocol):
    """A data plane that counts the backlog of each entry bucket. A released broker counts whole subscriptions
    only.
    """

    def backlog_of_buckets(
        self, backing_topic: str, subscription: str, bucket_starts: Sequence[int]
    ) -> Sequence[int] | None:
        """Return the number of unacknowledged messages of each bucket. None if the log or the subscription is
        missing.

        `bucket_starts` are the first hashes of the buckets, rising from 0.
        """


class Metadata(NamedTuple):
    """Data that an application sends in addition to key and payload. A message without such data has None
    instead.
    """

    properties: tuple[tuple[str, str], ...] = ()
    event_time_ms: int | None = None
    is_binary_key: bool = False
    """True if the application gave the key as bytes. A key given as text is stored in UTF-8."""

    @property
    def size(self) -> int:
        """Number of characters of the properties, approximately their number of bytes."""
        return sum(len(name) + len(value) for name, value in self.properties)


class OutgoingMessage(NamedTuple):
    """A message to store. A message without a key may go to any segment.

    `bucket_hash` determines the entry bucket. None stands for the low half of the key's hash, which is 0
    without a key. A producer that distributes messages without a key over the buckets sets it.
    """

    payload: bytes
    key: bytes | None = None
    bucket_hash: int | None = None
    metadata: Metadata | None = None


Position = tuple[int, ...]
"""Position of a message in its log: opaque but ordered. (timeline, offset) on embedded logs, (ledger, entry,
index) on Pulsar.
"""


class LogMessage(NamedTuple):
    """A message as read from a log.

    `published_at_ms` is the data plane's time and never decreases within a log. If producers stamp messages
    (`pulsar`), it is the time of the producers' clocks, and may decrease.
    `deliveries` is the number of times that a queue has delivered the message, or `KeyedWork` has begun it,
    including this time. On a broker only returned messages count: a reader counts its messages of a batch
    during its lifetime, and the broker counts the others since its last start.
    """

    position: Position
    published_at_ms: int
    key: bytes | None
    payload: bytes
    deliveries: int = 1
    metadata: Metadata | None = None


class Ownership(NamedTuple):
    """The assignment under which a consumer owns a bucket. The greater of two is the later.

    Each change of the owner has its own generation within one origin, and each origin of a subscription is
    greater than earlier ones.
    """

    origin: int
    generation: int


class MayWait(Protocol):
    """The common protocol of all readers."""

    def may_wait(self) -> bool:
        """Return True if the next `read` may query the data plane, and so block for as long as a call may
        take. A caller that reads several logs then runs the read in a background thread.
        """


class LogReader(MayWait, Protocol):
    """The only reader of a log for a subscription, from the first unacknowledged message on.

    Every call raises LostRace if this reader no longer has the cursor, because another reader took it or a
    seek moved it: open another reader. LogShortened means that the log lacks messages that this reader
    received, after a failover or a restore. FencedOut means that a later reader of the same owner exists, so
    this process is stale. A broker signals both by closing the connection. A call at that moment may still
    succeed, but its acknowledgement has no effect.
    """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages in order, at most `limit`. Empty if there are none at present. Does not
        wait.
        """

    def acknowledge(self, position: Position) -> None:
        """Acknowledge all messages up to and including `position`. An acknowledged position changes nothing.

        The acknowledgement may take some 100 ms after the call; `is_drained` and `close` wait for it.
        """

    def is_drained(self) -> bool:
        """Return True if the log is terminated and acknowledged to its end, so that no message can follow. If
        several readers share the subscription, all of them must have acknowledged.
        """

    def close(self) -> None:
        """Release the cursor for the next owner. Unacknowledged messages are read again. Raises nothing."""


class PositionReader(MayWait, Protocol):
    """Reads a log from a position, for an application that stores positions itself. Any number of readers may
    read a log at once.
    """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages in order, at most `limit`. Empty if there are none at present. Does not
        wait.

        Raises DataGone if the next messages, or the log, were deleted; DataPlaneUnavailable if the connection
        broke: open another reader after the last message that was read.
        """

    def is_at_end(self) -> bool:
        """Return True if the log is terminated and read to its end, so that no message can follow. Errors as
        for `read`.
        """

    def close(self) -> None:
        """Close the reader. Raises nothing."""


class QueueReader(MayWait, Protocol):
    """One of any number of readers that share the messages of a log for a subscription, in no order.

    A message belongs to one reader until the reader acknowledges it, returns it, closes or is disconnected.
    In all cases except the first the message is delivered again. Every call except `close` raises LostRace if
    this reader has lost its messages, because it was disconnected for too long or the cursor was moved: open
    another reader.
    """

    @property
    def is_current(self) -> bool:
        """True if the messages still belong to this reader, as far as known without a call. Check it before a
        message is delivered.
        """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Take at most `limit` messages. Empty if there are none at present. Does not wait."""

    def acknowledge(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Acknowledge the messages. Return the positions that are not settled: those messages are delivered
        again.
        """

    def give_back(
        self, positions: Sequence[Position], *, delay_seconds: float = 0.0, unseen: bool = False
    ) -> None:
        """Return the messages to the queue, to be delivered again after the delay, here or to another reader.

        If `unseen` is True, the application never received the messages, so this does not count as a delivery
        if the data plane can tell.
        """

    def is_drained(self) -> bool:
        """Return True if the log is terminated and all its messages are acknowledged, by any reader."""

    def close(self) -> None:
        """Leave the queue. Unacknowledged messages are delivered to other readers. Raises nothing."""


class LogClient(Protocol):
    """Produces to and consumes from single logs. Safe to share between threads; a reader is not."""

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        """Store a batch in order, and return the number of messages, from its front, that are stored.

        `bucket` is the entry bucket of all messages of the batch, by bucket hash; None if the segment has
        only one. A data plane that delivers whole entries needs it to deliver them to the bucket's reader
        (PIP-486). Raises InvalidInput for a message outside the bucket.

        A number lower than that of the batch means that the log was terminated meanwhile; a data plane that
        stores a batch atomically never returns it. If no message is stored, SegmentTerminated is raised.
        `sequence` rises with every batch that a producer sends to one log. A batch that is repeated under its
        number, for instance after DataPlaneTimeout, is stored once. Raises SegmentNotFound if there is no
        log.
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
        """Take the cursor and read from it. Raises LostRace while another of `live_owners` has it.

        With `bucket` (a range of bucket hashes) only that part of the cursor is taken, and only its messages
        are read and acknowledged; other parts may have other readers. Each part keeps its own position for
        its next reader, whichever range that reader takes. Raises LostRace if a live owner has a part of the
        range.

        With `ownership`, nothing is taken from an owner that has, or had, a part of the range under a later
        ownership: FencedOut is raised, because this process was stopped meanwhile. (A broker knows only
        connected owners.)

        An owner that is not among `live_owners` counts as gone and is disconnected. `on_arrival` is called
        from another thread whenever there may be news: messages, the end of the log, a released cursor, a
        lost connection. It may be called without a cause and must not block. Raises SegmentNotFound,
        SubscriptionNotFound.
        """

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """Return the position before the first stored message that was published at or after the instant.
        None as `instant_ms`: the position behind the last message. Raises SegmentNotFound.
        """

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> PositionReader:
        """Read the messages that follow a position; if it is None, from the first message that the log ever
        had.

        `on_arrival` as for `open_reader`. Raises DataGone if some of the messages were deleted and the data
        plane can tell; LogShortened if the log lacks the message at the position, with the position at which
        to open a reader instead; SegmentNotFound.
        """

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> QueueReader:
        """Share the subscription's messages with its other queue readers.

        `on_arrival` as for `open_reader`; it is also called for messages that other readers returned. Raises
        LostRace while a reader reads the subscription in order; SegmentNotFound, SubscriptionNotFound.
        """

    def close(self) -> None:
        """Close the readers and the connections."""


@runtime_checkable
class EagerLogClient(LogClient, Protocol):
    """A log client that can send a batch without waiting for the response."""

    def begin_append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> Callable[[], int] | None:
        """Send the batch, and return a function that waits for the response, with the result and the errors
        of `append`.

        The function must be called, in any thread, and until then the producer must send nothing else to this
        bucket. Return None if the batch cannot be sent at once, because nothing is open yet or a response is
        missing: call `append`. Raises InvalidInput.
        """

    def open_ahead(self, backing_topic: str, *, producer: str, bucket: HashRange | None = None) -> None:
        """Begin to open the connection that the first append needs. Does not wait; that append raises the
        errors.
        """
