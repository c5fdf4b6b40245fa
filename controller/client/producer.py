"""Sends keyed messages to the segment that owns them, in order for each key across splits and merges.

Messages wait in one lane a segment and go out in batches. When a segment turns out to be fenced, its lane is held
back (the others flow on) until the layout with its successors is published, and is then routed anew, in order and
before anything newer. Nothing is sent twice: a batch whose answer was lost is settled under its number first.
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
from controller.domain.key_hash import key_hash
from controller.domain.segment import Segment

LOOK_SECONDS = 1.0
"""While a fence is waited out, the layout is read this often even if no notification came."""


class _Lane:
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
        """`batch_*` say when a lane is sent without `flush`; `max_pending_messages` when `send` blocks.

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
        self._lanes: dict[int, _Lane] = {}
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

        Without a key the active segments take turns. An error leaves everything queued, this message included.
        """
        self._unrouted.append(OutgoingMessage(payload, key.encode() if isinstance(key, str) else key))
        self._pending += 1
        self._follow_layout()
        for lane in self._route_all():
            self._send_lane(lane, whole_batches=True)
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
            for lane in self._lanes.values():
                self._send_lane(lane)
            fenced = [lane for lane in self._lanes.values() if not lane.empty]
            if not fenced:
                return
            if time.monotonic() >= deadline:
                raise SegmentTerminated(
                    f"{fenced[0].backing_topic} is terminated and {self._watch.snapshot.name} has no successor for it after "
                    f"{self._send_timeout_seconds:g} s; look at the topic's operations, then flush again"
                )
            self._watch.wait_for_change(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

    def close(self) -> None:
        """Stop following the layout; what is pending is dropped."""
        self._watch.close()

    def _follow_layout(self) -> None:
        """Adopt a new layout: what waits for segments that are gone is routed anew before anything newer is."""
        if not self._watch.changed:
            return
        self._patiently(self._watch.refresh_if_changed)
        active = {segment.segment_id for segment in self._watch.snapshot.layout.active}
        gone = [segment_id for segment_id in self._lanes if segment_id not in active]
        for lane in (self._lanes[segment_id] for segment_id in gone):
            if lane.in_doubt is not None:  # its log still knows whether it is stored
                self._settle(lane)
        homeless = [message for segment_id in gone for message in self._lanes.pop(segment_id).waiting]
        self._unrouted.extendleft(reversed(homeless))

    def _settle(self, lane: _Lane) -> None:
        try:
            self._send_batch(lane)
        except BaseException:
            self._watch.look_again()  # the layout is not adopted yet
            raise

    def _route_all(self) -> Collection[_Lane]:
        """Move what is not routed yet into its lanes, in order; the lanes that got something."""
        lanes: dict[int, _Lane] = {}
        while self._unrouted:
            message = self._unrouted[0]
            segment_id = self._segment_for(message.key).segment_id
            lane = self._lanes.get(segment_id)
            if lane is None:
                lane = self._lanes[segment_id] = _Lane(self._watch.snapshot.backing_topics[segment_id])
            lane.waiting.append(self._unrouted.popleft())
            lane.waiting_bytes += len(message.payload)
            lanes[segment_id] = lane
        return lanes.values()

    def _segment_for(self, key: bytes | None) -> Segment:
        layout = self._watch.snapshot.layout
        if key is None:
            return layout.active[next(self._turn) % len(layout.active)]
        return layout.segment_for(key_hash(key).segment_hash)

    def _send_lane(self, lane: _Lane, *, whole_batches: bool = False) -> None:
        """Send all that waits, or what makes whole batches, until the lane turns out to be fenced."""
        while not lane.fenced and not lane.empty:
            full = len(lane.waiting) >= self._batch_messages or lane.waiting_bytes >= self._batch_bytes
            if whole_batches and not full and lane.in_doubt is None:
                return
            self._send_batch(lane)

    def _send_batch(self, lane: _Lane) -> None:
        if lane.in_doubt is None:
            lane.in_doubt = (next(self._numbers), self._take_batch(lane))
        number, batch = lane.in_doubt
        try:
            stored = self._patiently(
                lambda: self._logs.append(
                    lane.backing_topic, batch, producer=self.producer_id, sequence=number
                )
            )
        except (SegmentTerminated, SegmentNotFound):  # not found: fenced so long ago that it is deleted
            stored = 0
        lane.in_doubt = None
        self._pending -= stored
        if stored:
            self._on_stored(batch[:stored])
        if stored < len(batch):
            lane.fenced = True
            lane.waiting.extendleft(reversed(batch[stored:]))
            lane.waiting_bytes += sum(len(m.payload) for m in batch[stored:])
            self._watch.look_again()

    def _take_batch(self, lane: _Lane) -> list[OutgoingMessage]:
        batch: list[OutgoingMessage] = []
        size = 0
        while lane.waiting and len(batch) < self._batch_messages and size < self._batch_bytes:
            batch.append(lane.waiting.popleft())
            size += len(batch[-1].payload)
        lane.waiting_bytes -= size
        return batch

    def _patiently(self, act: Callable[[], Result]) -> Result:
        return patiently(act, seconds=self._send_timeout_seconds)
