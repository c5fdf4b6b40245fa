"""Holds the messages of one entry bucket, or of one segment, on their way from a producer to a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from controller.client.layout_source import TopicSnapshot
from controller.client.retry import Backoff
from controller.dataplane.log_client import Metadata, OutgoingMessage
from controller.domain.entry_buckets import bucket_ranges
from controller.domain.errors import DataPlaneUnavailable, StoreUnavailable
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment

_new = tuple.__new__  # takes a third of the time of the constructor of NamedTuple
WaitingMessage = tuple[bytes, bytes | None, int | None, Metadata | None]
"""The fields of an `OutgoingMessage` until the message is sent.

Thousands of messages wait at a time. The garbage collector visits instances of a class repeatedly, which took
a tenth of the time of sending, and does not track plain tuples.
"""


class SendLane:
    """The messages of one entry bucket of a segment, or of a whole segment, oldest first.

    `in_doubt` holds the number and the messages of the batch that is in flight or whose response was lost.
    `producer` is the name under which the batches are numbered. A log compares the numbers of one name, so
    each bucket has its own name.
    """

    __slots__ = (
        "_backoff",
        "_failing_since",
        "backing_topic",
        "bucket",
        "error",
        "in_doubt",
        "is_sending",
        "next_try_at",
        "producer",
        "segment_id",
        "since",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, segment_id: int, backing_topic: str, bucket: HashRange | None, producer: str) -> None:
        """Create an empty lane. `bucket` is the range of the entry bucket, None for a whole segment.
        `producer` is the producer's id, to which the name of the lane adds the first hash of the bucket.
        """
        self.segment_id, self.backing_topic, self.bucket = segment_id, backing_topic, bucket
        self.producer = producer if bucket is None else f"{producer}-{bucket.start:04x}"
        self.waiting: deque[WaitingMessage] = deque()
        self.waiting_bytes = 0
        self.in_doubt: tuple[int, list[OutgoingMessage]] | None = None
        self.since = 0.0
        """Time of the last `put` into the lane without waiting messages, in `time.monotonic` seconds: about
        the time since which the oldest message waits.
        """
        self.is_sending = False
        self.error: Exception | None = None
        """The error that the application's next call raises."""
        self.next_try_at = 0.0
        self._failing_since: float | None = None
        self._backoff = Backoff()

    def put(self, payload: bytes, key: bytes | None, bucket_hash: int, metadata: Metadata | None) -> None:
        """Append a message. `bucket_hash` is a hash of the lane's entry bucket: the low half of the key's
        hash, or for a message without a key the first hash of the bucket.
        """
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting.append((payload, key, bucket_hash, metadata))
        self.waiting_bytes += message_bytes(payload, key, metadata)

    def put_back(self, messages: Sequence[OutgoingMessage]) -> None:
        """Insert messages before all others, in their order. `since` is not changed."""
        self.waiting.extendleft(reversed(messages))
        self.waiting_bytes += sum(
            message_bytes(message.payload, message.key, message.metadata) for message in messages
        )

    def take(self, max_messages: int, max_bytes: int) -> list[OutgoingMessage]:
        """Remove the next batch from the waiting messages, and return it, oldest message first. The batch has at most
        `max_messages` messages, and ends with the message with which it reaches `max_bytes`; it may therefore exceed
        `max_bytes` by a part of one message. The result is empty if no message waits. The caller sets `in_doubt`.
        """
        batch, size = self.waiting, self.waiting_bytes
        if len(batch) <= max_messages and size <= max_bytes:
            self.waiting = deque()
        else:
            batch, size = deque(), 0
            while self.waiting and len(batch) < max_messages and size < max_bytes:
                batch.append(self.waiting.popleft())
                payload, key, _, metadata = batch[-1]
                size += message_bytes(payload, key, metadata)
        self.waiting_bytes -= size
        return [_new(OutgoingMessage, message) for message in batch]

    def fail(self, error: Exception, patience_seconds: float) -> None:
        """Record that the batch in doubt could not be sent, or that its result is unknown. `next_try_at` becomes the
        time of the next attempt, after a delay that doubles with each failure.

        Also set `error`, which the application's next call raises, if failures have lasted for `patience_seconds`,
        counted from the first failure after `forget_failures`. An error that is neither DataPlaneUnavailable nor
        StoreUnavailable is set at once. The batch stays in doubt.
        """
        now = time.monotonic()
        self.next_try_at = now + self._backoff.next_seconds()
        if self._failing_since is None:
            self._failing_since = now
        is_retried = isinstance(error, DataPlaneUnavailable | StoreUnavailable)
        if not is_retried or now - self._failing_since >= patience_seconds:
            self.error = error

    def forget_failures(self) -> None:
        """Clear the error, the time since which the lane fails, and the delay. The lane may then be tried at once,
        and later failures are retried for the full `patience_seconds` of `fail`.
        """
        self.error = self._failing_since = None
        self.next_try_at = 0.0
        self._backoff.reset()

    @property
    def is_empty(self) -> bool:
        """True if no message waits and no batch is in doubt."""
        return not self.waiting and self.in_doubt is None


def lane_of(snapshot: TopicSnapshot, segment: Segment, bucket: int | None, producer: str) -> SendLane:
    """Return an empty lane for an entry bucket of a segment in the snapshot. `bucket` is the number of the
    bucket in the segment, from 0; None stands for the whole segment. `producer` is the producer's id.
    """
    bounds = (
        bucket_ranges(segment.bucket_splits)[bucket] if bucket is not None and segment.bucket_splits else None
    )
    return SendLane(segment.segment_id, snapshot.backing_topics[segment.segment_id], bounds, producer)


def message_bytes(payload: bytes, key: bytes | None, metadata: Metadata | None) -> int:
    """Return the number of bytes that a message counts in a batch: payload, key and properties. Raises InvalidInput
    for a property without a UTF-8 form.
    """
    size = len(payload) if key is None else len(payload) + len(key)
    return size if metadata is None else size + metadata.size
