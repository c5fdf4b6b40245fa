"""Defines the protocol of an application's client on a data plane: append messages to logs, and read them.

`controller.client` produces and consumes through `LogClient` with its `LogReader`, and with a
`PositionReader` or a `QueueReader` if it does not read in order for a subscription. `base` defines the
guarantees that hold for every call and error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from controller.domain.hash_range import HashRange
from controller.domain.utf8 import utf8


class Metadata(NamedTuple):
    """Data that an application sends in addition to key and payload. The metadata of a message without such
    data is None.
    """

    properties: tuple[tuple[str, str], ...] = ()
    event_time_ms: int | None = None
    is_binary_key: bool = False
    """True if the application gave the key as bytes. A key given as text is stored in UTF-8."""

    @property
    def size(self) -> int:
        """Number of bytes of the properties in UTF-8. Raises InvalidInput for a property without a UTF-8 form."""
        return sum(len(utf8(name + value, "property")) for name, value in self.properties)


class OutgoingMessage(NamedTuple):
    """A message to store. A message without a key may go to any segment.

    `bucket_hash` determines the entry bucket. None stands for the low half of the key's hash, which is 0
    without a key. A producer sets `bucket_hash` to distribute messages without a key over the buckets.
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


class Closable(Protocol):
    """An object with a method `close`, such as a reader or a client."""

    def close(self) -> None: ...


class MayWait(Protocol):
    """The common protocol of all readers."""

    def may_wait(self) -> bool:
        """Return True if the next `read` may query the data plane, and so block for as long as a call may
        take. A caller that reads several logs then runs the read in a background thread.

        False for every read of an embedded log: each is a call to the server that has all logs, so a thread
        would not help.
        """


class LogReader(MayWait, Protocol):
    """The only reader of a log for a subscription, from the first unacknowledged message on.

    Every call except `may_wait` and `close` raises LostRace if this reader no longer has the cursor, because
    another reader took it or a seek moved it: open another reader. LogShortened means that the log lacks
    messages that this reader received, after a failover or a restore; a broker does not report that. FencedOut
    means that a later reader of the same owner exists, so this process is stale. A broker signals the loss of a
    cursor by closing the connection. A call at that moment may still succeed, but its acknowledgement has no
    effect.
    """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages in order, at most `limit` (1 or more). Empty if there are none at present.
        Does not wait for messages to arrive.
        """

    def acknowledge(self, position: Position) -> None:
        """Acknowledge all messages up to and including `position`. Does nothing for a position that is
        already acknowledged. Raises InvalidInput for a position that was not read.

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
        """Return the next messages in order, at most `limit` (1 or more). Empty if there are none at present.
        Does not wait for messages to arrive.

        Raises DataGone if the log was deleted, or if the next messages were deleted and the data plane can
        tell: a broker continues with the messages behind them. Raises DataPlaneUnavailable if the connection
        broke or the log became shorter: open another reader after the last message that was read.
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
    In all cases except the first the message is delivered again. `read`, `acknowledge` and `give_back` raise
    LostRace if it is known that this reader has lost its messages, because it was disconnected for too long
    or the cursor was moved: open another reader.
    """

    @property
    def is_current(self) -> bool:
        """True if the messages still belong to this reader, as far as known without a call. Check it before a
        message is delivered.
        """

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Take at most `limit` messages (1 or more). Empty if there are none at present. Does not wait for
        messages to arrive.
        """

    def acknowledge(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Acknowledge the messages at these positions. Return the positions of messages that stay
        unacknowledged, because they are not this reader's; they are delivered again, to any reader. Empty if
        all are acknowledged.
        """

    def give_back(
        self, positions: Sequence[Position], *, delay_seconds: float = 0.0, unseen: bool = False
    ) -> None:
        """Return the messages to the queue, to be delivered again after `delay_seconds`, here or to another
        reader. Messages that are not this reader's are ignored.

        If `unseen` is True, the application never received the messages, so this does not count as a delivery
        if the data plane can tell.
        """

    def is_drained(self) -> bool:
        """Return True if the log is terminated and all its messages are acknowledged, by any reader."""

    def close(self) -> None:
        """Leave the queue. Unacknowledged messages are delivered to other readers. Raises nothing."""


class LogClient(Protocol):
    """Produces to and consumes from single logs. Safe to share between threads; a reader is not. Calls raise
    DataPlaneUnavailable if the data plane cannot serve them at present, and DataPlaneTimeout without a
    response in time, after which the action may or may not have happened.
    """

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        """Store a batch in order, and return the number of messages, from its front, that are stored. Return
        0 for an empty batch.

        `bucket` is the entry bucket of all messages of the batch, by bucket hash; None if the segment has
        only one. A data plane that delivers whole entries needs it to deliver them to the bucket's reader
        (PIP-486). Raises InvalidInput for a message outside the bucket, and for a producer name or a batch
        that the data plane refuses.

        A result lower than the number of messages means that the log was terminated meanwhile; a data plane
        that stores a batch atomically never returns such a result. If no message is stored, SegmentTerminated
        is raised. Raises SegmentNotFound if there is no log.

        `producer` is a name that no other process uses. `sequence` rises with every batch that the producer
        sends to one log. A batch that is repeated under its number, for instance after DataPlaneTimeout, is
        stored once; a broker without deduplication may store it twice.
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
        """Take the cursor, and return a reader that begins with the first unacknowledged message. Raises
        LostRace while another of `live_owners`, or a consumer that is not Cleave's, has the cursor. An owner
        that is not among `live_owners`, or an earlier reader of `owner`, counts as gone and is disconnected.

        With `bucket` (a range of bucket hashes) only that part of the cursor is taken, and only its messages
        are read and acknowledged; other parts may have other readers. Each part keeps its own position for
        its next reader, whichever range that reader takes. Raises LostRace if a live owner has a part of the
        range.

        With `ownership`, nothing is taken from an owner that has, or had, a part of the range under a later
        ownership: FencedOut is raised, because this process is stale. (A broker knows only connected owners.)

        `on_arrival` is called from another thread whenever there may be news: messages, the end of the log, a
        released cursor, a lost connection. `on_arrival` may be called without a cause and must not block.
        Raises SegmentNotFound, SubscriptionNotFound.
        """

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """Return the position after which `open_reader_at` begins with the first stored message that was
        published at or after the instant (milliseconds since the Unix epoch). Return the position of the last
        message if there is no such message, or `instant_ms` is None. Raises SegmentNotFound.
        """

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> PositionReader:
        """Return a reader of the messages that follow the position `after`; None: from the first message that
        the log ever had.

        `on_arrival` is called from another thread whenever there may be news; it must not block. Raises
        DataGone if some of the messages were deleted and the data plane can tell; LogShortened if the log
        lacks the message at the position, with the position at which to open a reader instead;
        SegmentNotFound.
        """

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> QueueReader:
        """Return a reader that shares the subscription's messages with the subscription's other queue
        readers. `owner` is the name of the consumer.

        `on_arrival` is called from another thread whenever there may be news, also for messages that other
        readers returned; it must not block. Raises LostRace while a reader reads the subscription in order,
        unless the data plane disconnects that reader; SegmentNotFound, SubscriptionNotFound.
        """

    def close(self) -> None:
        """Close the readers and the connections."""


@runtime_checkable
class MessageLogClient(LogClient, Protocol):
    """A log client whose readers receive single messages, not whole entries. A batch without `bucket` may
    therefore contain messages of all entry buckets of a segment, and is stored in one call.
    """

    delivers_single_messages: Literal[True]


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
        bucket. Return None, and send nothing, if the batch is empty, is known to be stored, or cannot be sent at
        once, because no connection for the batch is open or an earlier batch is unanswered: call `append`.
        Raises InvalidInput for a batch that `append` refuses.
        """

    def open_ahead(self, backing_topic: str, *, producer: str, bucket: HashRange | None = None) -> None:
        """Begin to open the connection that the first append needs. Does not wait; that append raises the
        errors.
        """
