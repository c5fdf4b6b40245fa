"""Sends keyed messages to the segment that owns them, in order for each key across splits and merges.

Messages wait in one queue for each entry bucket of a segment and go out in batches, so that a batch holds one bucket's messages
and its reader gets it whole (PIP-486). When a segment turns out to be fenced, its queues wait until the layout with the segment's
successors is published; the other queues go on. Its messages are then routed anew, in order and before anything newer. Nothing is sent twice: a batch whose answer was lost is repeated under its own number
first, and the log knows whether it has it.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

from controller import telemetry
from controller.client.layout_source import LayoutSource
from controller.client.layout_watch import LayoutWatch
from controller.client.patience import Result, patiently
from controller.dataplane.base import LogClient, OutgoingMessage
from controller.domain.entry_buckets import bucket_of, bucket_ranges
from controller.domain.errors import CleaveError, InvalidInput, SegmentNotFound, SegmentTerminated
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_bytes, key_hash
from controller.domain.segment import Segment

_log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 5 * 1024 * 1024 - 64 * 1024
"""What every data plane takes as it is set by itself; keys are short beside it."""
RETRY_SECONDS = 0.1
"""What could not be sent after its delay is tried again; a layout that is awaited is looked for as often."""
LOOK_SECONDS = 1.0
"""While a fence is waited out, the layout is read this often even if no notification came."""


class _BucketQueue:
    """Messages for one bucket of a segment, oldest first. `in_doubt` is the batch whose answer is missing, under its number.

    `producer` is the name its batches are numbered under: a log compares the numbers of one name only, and those of two buckets
    would cross.
    """

    __slots__ = (
        "backing_topic",
        "bucket",
        "in_doubt",
        "producer",
        "segment_id",
        "since",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, segment_id: int, backing_topic: str, bucket: HashRange | None, producer: str) -> None:
        self.segment_id, self.backing_topic, self.bucket = segment_id, backing_topic, bucket
        self.producer = producer if bucket is None else f"{producer}-{bucket.start:04x}"
        self.waiting: deque[OutgoingMessage] = deque()
        self.waiting_bytes = 0
        self.in_doubt: tuple[int, list[OutgoingMessage]] | None = None
        self.since = 0.0
        """Since when its oldest message waits, `time.monotonic` seconds."""

    def put(self, message: OutgoingMessage) -> None:
        """Behind all others."""
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting.append(message)
        self.waiting_bytes += len(message.payload)

    @property
    def empty(self) -> bool:
        return not self.waiting and self.in_doubt is None


class Producer:
    """One producer of one topic. Leaving the `with` block flushes. For one thread, but that a second one of its own may send what has
    waited for long enough.
    """

    def __init__(
        self,
        source: LayoutSource,
        logs: LogClient,
        topic: str,
        *,
        name: str = "producer",
        batch_messages: int = 500,
        batch_bytes: int = 512 * 1024,
        batch_delay_seconds: float | None = None,
        max_pending_messages: int = 20_000,
        send_timeout_seconds: float = 30.0,
        on_stored: Callable[[Sequence[OutgoingMessage]], None] = lambda _messages: None,
    ) -> None:
        """`batch_*` say when a queue is sent without `flush`: without `batch_delay_seconds` only when it is full.
        `max_pending_messages` says when `send` blocks.

        `send_timeout_seconds` bounds how long `send` and `flush` retry and wait for a layout before they raise.
        `on_stored` is told, in order, what the data plane has acknowledged; with a delay also in a thread of the producer's.
        """
        if batch_delay_seconds is not None and not 0 < batch_delay_seconds < math.inf:
            raise InvalidInput(f"a batch delay of {batch_delay_seconds} s; give more than 0, or None")
        self._logs = logs
        # Batches are numbered from 1 in each process, so each needs a name that nobody used before.
        self.producer_id = f"{name}-{uuid.uuid4().hex[:12]}"
        self._batch_messages, self._batch_bytes = batch_messages, batch_bytes
        self._max_pending = max_pending_messages
        self._send_timeout_seconds = send_timeout_seconds
        self._on_stored = on_stored
        self._numbers = itertools.count(1)
        self._turn = itertools.count()
        self._unrouted: deque[OutgoingMessage] = deque()
        self._queues: dict[tuple[int, int], _BucketQueue] = {}
        self._fenced: set[int] = set()
        self._pending = 0
        self._watch = LayoutWatch(source, topic)
        self._lock = threading.RLock()
        self._delay_seconds = batch_delay_seconds
        self._closing, self._waits = threading.Event(), threading.Event()
        self._sender = threading.Thread(target=self._send_what_waited, name="cleave-sender", daemon=True)
        if batch_delay_seconds is not None:
            self._sender.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    @property
    def pending(self) -> int:
        """Messages sent by the application and not known to be stored."""
        return self._pending

    def send(self, payload: bytes, key: str | bytes | None = None) -> None:
        """Queue a message and send what makes a full batch; errors and waiting as for `flush`.

        Without a key the active segments take turns. An error leaves everything queued, this message included; only
        InvalidInput, for a key that has no UTF-8 form, leaves this message out.
        """
        if len(payload) > MAX_MESSAGE_BYTES:
            raise InvalidInput(
                f"a message of {len(payload)} bytes; send at most {MAX_MESSAGE_BYTES}, or a reference to where the rest is"
            )
        message = OutgoingMessage(payload, None if key is None else key_bytes(key))
        with self._lock:
            self._unrouted.append(message)
            self._pending += 1
            self._follow_layout()
            for queue in self._route_all():
                self._send_queue(queue, whole_batches=True)
            if self._pending >= self._max_pending:
                self.flush()
        self._waits.set()

    def flush(self) -> None:
        """Return when everything is stored.

        Raises what stood in the way after `send_timeout_seconds`: SegmentTerminated when no successor of a fenced
        segment was published, DataPlaneUnavailable, StoreUnavailable. Call it again to go on where it stopped.
        """
        deadline = time.monotonic() + self._send_timeout_seconds
        while True:
            with self._lock:
                self._follow_layout()
                self._route_all()
                for queue in self._queues.values():
                    self._send_queue(queue)
                fenced = [queue for queue in self._queues.values() if not queue.empty]
            if not fenced:
                return
            if time.monotonic() >= deadline:
                raise SegmentTerminated(
                    f"{fenced[0].backing_topic} is terminated and {self._watch.snapshot.name} has no successor "
                    f"for it after {self._send_timeout_seconds:g} s; look at the topic's operations, then flush again"
                )
            self._watch.wait_for_change(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

    def close(self) -> None:
        """Stop following the layout; what is pending is dropped."""
        self._closing.set()
        self._waits.set()
        if self._sender.is_alive():
            self._sender.join()
        self._watch.close()

    def _send_what_waited(self) -> None:
        """Send each queue whose oldest message has waited for the delay. What stands in the way is the next call's to tell."""
        while not self._closing.is_set():
            self._waits.wait()
            self._waits.clear()  # before looking: what is sent from here on is seen or rings again
            due = self._send_due()
            while due is not None and not self._closing.wait(max(0.0, due - time.monotonic())):
                due = self._send_due()

    def _send_due(self) -> float | None:
        """Send what is due; when the next will be, None where nothing waits."""
        delay_seconds = self._delay_seconds or 0.0
        with self._lock:
            try:
                self._follow_layout()
                self._route_all()
                for queue in self._queues.values():
                    has_waited = queue.waiting and queue.since + delay_seconds <= time.monotonic()
                    if has_waited or queue.in_doubt is not None:
                        self._send_queue(queue)
            except CleaveError:
                return time.monotonic() + RETRY_SECONDS
            except Exception:  # noqa: BLE001 - of `on_stored`; the thread would end, and nothing would be sent any more
                _log.exception("what has waited was not sent; trying again")
                return time.monotonic() + RETRY_SECONDS
            waiting = [queue for queue in self._queues.values() if not queue.empty]
            if any(queue.segment_id in self._fenced or queue.in_doubt is not None for queue in waiting):
                return time.monotonic() + RETRY_SECONDS
            return min((queue.since + delay_seconds for queue in waiting), default=None)

    def _follow_layout(self) -> None:
        """Adopt a new layout. Messages that wait for segments that are gone are routed anew, before anything newer."""
        if not self._watch.changed:
            return
        self._patiently(self._watch.refresh_if_changed)
        active = {segment.segment_id for segment in self._watch.snapshot.layout.active}
        gone = [lane for lane in self._queues if lane[0] not in active]
        for queue in (self._queues[lane] for lane in gone):
            if queue.in_doubt is not None:  # its log still knows whether it is stored
                self._settle(queue)
        homeless = [message for lane in gone for message in self._queues.pop(lane).waiting]
        self._unrouted.extendleft(reversed(homeless))
        self._fenced &= active

    def _settle(self, queue: _BucketQueue) -> None:
        try:
            self._send_batch(queue)
        except BaseException:
            self._watch.look_again()  # the layout is not adopted yet
            raise

    def _route_all(self) -> Collection[_BucketQueue]:
        """Move what is not routed yet into its queues, in order; returns the queues that got something."""
        queues: dict[tuple[int, int], _BucketQueue] = {}
        while self._unrouted:
            message = self._unrouted[0]
            segment, bucket_hash = self._place_of(message.key)
            bucket = bucket_of(segment.bucket_splits, bucket_hash)
            lane = (segment.segment_id, bucket)
            queue = self._queues.get(lane)
            if queue is None:
                queue = self._queues[lane] = self._queue(segment, bucket)
            self._unrouted.popleft()
            queue.put(message._replace(bucket_hash=bucket_hash))
            queues[lane] = queue
        return queues.values()

    def _queue(self, segment: Segment, bucket: int) -> _BucketQueue:
        """A segment with one bucket takes batches of any."""
        bounds = bucket_ranges(segment.bucket_splits)[bucket] if segment.bucket_splits else None
        backing_topic = self._watch.snapshot.backing_topics[segment.segment_id]
        return _BucketQueue(segment.segment_id, backing_topic, bounds, self.producer_id)

    def _place_of(self, key: bytes | None) -> tuple[Segment, int]:
        """The segment and the bucket hash of a key. Without one segments take turns, and their buckets do."""
        layout = self._watch.snapshot.layout
        if key is None:
            turn = next(self._turn)
            segment = layout.active[turn % len(layout.active)]
            starts = (0, *segment.bucket_splits)
            return segment, starts[turn // len(layout.active) % len(starts)]
        hashes = key_hash(key)
        return layout.segment_for(hashes.segment_hash), hashes.bucket_hash

    def _send_queue(self, queue: _BucketQueue, *, whole_batches: bool = False) -> None:
        """Send all that waits, or what makes whole batches, until the queue turns out to be fenced."""
        while queue.segment_id not in self._fenced and not queue.empty:
            full = len(queue.waiting) >= self._batch_messages or queue.waiting_bytes >= self._batch_bytes
            if whole_batches and not full and queue.in_doubt is None:
                return
            self._send_batch(queue)

    def _send_batch(self, queue: _BucketQueue) -> None:
        if queue.in_doubt is None:
            queue.in_doubt = (next(self._numbers), self._take_batch(queue))
        number, batch = queue.in_doubt
        try:
            stored = self._patiently(
                lambda: self._logs.append(
                    queue.backing_topic,
                    batch,
                    producer=queue.producer,
                    sequence=number,
                    bucket=queue.bucket,
                )
            )
        except (SegmentTerminated, SegmentNotFound):  # not found: fenced so long ago that it is deleted
            stored = 0
        queue.in_doubt = None
        self._pending -= stored
        if stored:
            telemetry.PRODUCER_BATCHES.inc()
            telemetry.PRODUCER_MESSAGES.inc(stored)
            self._on_stored(batch[:stored])
        if stored < len(batch):
            self._fenced.add(queue.segment_id)  # for all its buckets: a fenced log is not asked again
            queue.waiting.extendleft(reversed(batch[stored:]))
            queue.waiting_bytes += sum(len(m.payload) for m in batch[stored:])
            self._watch.look_again()

    def _take_batch(self, queue: _BucketQueue) -> list[OutgoingMessage]:
        batch: list[OutgoingMessage] = []
        size = 0
        while queue.waiting and len(batch) < self._batch_messages and size < self._batch_bytes:
            batch.append(queue.waiting.popleft())
            size += len(batch[-1].payload)
        queue.waiting_bytes -= size
        return batch

    def _patiently(self, act: Callable[[], Result]) -> Result:
        return patiently(act, seconds=self._send_timeout_seconds)
