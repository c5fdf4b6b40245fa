"""Sends keyed messages to the segment that owns them, in order for each key across splits and merges.

Messages wait in one queue a segment and go out in batches. When a segment turns out to be fenced, its queue waits until
the layout with the segment's successors is published; the other queues go on. Its messages are then routed anew, in
order and before anything newer. Nothing is sent twice: a batch whose answer was lost is repeated under its own number
first, and the log knows whether it has it.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

from controller.client.layout_source import LayoutSource
from controller.client.layout_watch import LayoutWatch
from controller.client.patience import Result, patiently
from controller.dataplane.base import LogClient, OutgoingMessage
from controller.domain.errors import SegmentNotFound, SegmentTerminated
from controller.domain.key_hash import key_bytes, key_hash
from controller.domain.segment import Segment

LOOK_SECONDS = 1.0
"""While a fence is waited out, the layout is read this often even if no notification came."""


class _SegmentQueue:
    """Messages for one segment, oldest first. `in_doubt` is the batch whose answer is missing, under its number."""

    __slots__ = ("backing_topic", "fenced", "in_doubt", "waiting", "waiting_bytes")

    def __init__(self, backing_topic: str) -> None:
        self.backing_topic = backing_topic
        self.waiting: deque[OutgoingMessage] = deque()
        self.waiting_bytes = 0
        self.in_doubt: tuple[int, list[OutgoingMessage]] | None = None
        self.fenced = False

    @property
    def empty(self) -> bool:
        return not self.waiting and self.in_doubt is None


class Producer:
    """One producer of one topic; for one thread. Leaving the `with` block flushes."""

    def __init__(
        self,
        source: LayoutSource,
        logs: LogClient,
        topic: str,
        *,
        name: str = "producer",
        batch_messages: int = 500,
        batch_bytes: int = 512 * 1024,
        max_pending_messages: int = 20_000,
        send_timeout_seconds: float = 30.0,
        on_stored: Callable[[Sequence[OutgoingMessage]], None] = lambda _messages: None,
    ) -> None:
        """`batch_*` say when a queue is sent without `flush`; `max_pending_messages` when `send` blocks.

        `send_timeout_seconds` bounds how long `send` and `flush` retry and wait for a layout before they raise.
        `on_stored` is told, in order, what the data plane has acknowledged.
        """
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
        self._queues: dict[int, _SegmentQueue] = {}
        self._pending = 0
        self._watch = LayoutWatch(source, topic)

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
        self._unrouted.append(OutgoingMessage(payload, None if key is None else key_bytes(key)))
        self._pending += 1
        self._follow_layout()
        for queue in self._route_all():
            self._send_queue(queue, whole_batches=True)
        if self._pending >= self._max_pending:
            self.flush()

    def flush(self) -> None:
        """Return when everything is stored.

        Raises what stood in the way after `send_timeout_seconds`: SegmentTerminated when no successor of a fenced
        segment was published, DataPlaneUnavailable, StoreUnavailable. Call it again to go on where it stopped.
        """
        deadline = time.monotonic() + self._send_timeout_seconds
        while True:
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
        self._watch.close()

    def _follow_layout(self) -> None:
        """Adopt a new layout. Messages that wait for segments that are gone are routed anew, before anything newer."""
        if not self._watch.changed:
            return
        self._patiently(self._watch.refresh_if_changed)
        active = {segment.segment_id for segment in self._watch.snapshot.layout.active}
        gone = [segment_id for segment_id in self._queues if segment_id not in active]
        for queue in (self._queues[segment_id] for segment_id in gone):
            if queue.in_doubt is not None:  # its log still knows whether it is stored
                self._settle(queue)
        homeless = [message for segment_id in gone for message in self._queues.pop(segment_id).waiting]
        self._unrouted.extendleft(reversed(homeless))

    def _settle(self, queue: _SegmentQueue) -> None:
        try:
            self._send_batch(queue)
        except BaseException:
            self._watch.look_again()  # the layout is not adopted yet
            raise

    def _route_all(self) -> Collection[_SegmentQueue]:
        """Move what is not routed yet into its queues, in order; returns the queues that got something."""
        queues: dict[int, _SegmentQueue] = {}
        while self._unrouted:
            message = self._unrouted[0]
            segment_id = self._segment_for(message.key).segment_id
            queue = self._queues.get(segment_id)
            if queue is None:
                queue = self._queues[segment_id] = _SegmentQueue(
                    self._watch.snapshot.backing_topics[segment_id]
                )
            queue.waiting.append(self._unrouted.popleft())
            queue.waiting_bytes += len(message.payload)
            queues[segment_id] = queue
        return queues.values()

    def _segment_for(self, key: bytes | None) -> Segment:
        layout = self._watch.snapshot.layout
        if key is None:
            return layout.active[next(self._turn) % len(layout.active)]
        return layout.segment_for(key_hash(key).segment_hash)

    def _send_queue(self, queue: _SegmentQueue, *, whole_batches: bool = False) -> None:
        """Send all that waits, or what makes whole batches, until the queue turns out to be fenced."""
        while not queue.fenced and not queue.empty:
            full = len(queue.waiting) >= self._batch_messages or queue.waiting_bytes >= self._batch_bytes
            if whole_batches and not full and queue.in_doubt is None:
                return
            self._send_batch(queue)

    def _send_batch(self, queue: _SegmentQueue) -> None:
        if queue.in_doubt is None:
            queue.in_doubt = (next(self._numbers), self._take_batch(queue))
        number, batch = queue.in_doubt
        try:
            stored = self._patiently(
                lambda: self._logs.append(
                    queue.backing_topic, batch, producer=self.producer_id, sequence=number
                )
            )
        except (SegmentTerminated, SegmentNotFound):  # not found: fenced so long ago that it is deleted
            stored = 0
        queue.in_doubt = None
        self._pending -= stored
        if stored:
            self._on_stored(batch[:stored])
        if stored < len(batch):
            queue.fenced = True
            queue.waiting.extendleft(reversed(batch[stored:]))
            queue.waiting_bytes += sum(len(m.payload) for m in batch[stored:])
            self._watch.look_again()

    def _take_batch(self, queue: _SegmentQueue) -> list[OutgoingMessage]:
        batch: list[OutgoingMessage] = []
        size = 0
        while queue.waiting and len(batch) < self._batch_messages and size < self._batch_bytes:
            batch.append(queue.waiting.popleft())
            size += len(batch[-1].payload)
        queue.waiting_bytes -= size
        return batch

    def _patiently(self, act: Callable[[], Result]) -> Result:
        return patiently(act, seconds=self._send_timeout_seconds)
