"""Routes a producer's messages to the successors of a fenced segment, in order for each key.

Messages that a fenced log refused return to the front of their lane. The lane waits until the layout with the
segment's successors is published and the result of each batch for a removed segment is known: a batch in doubt is
repeated under its own number, and the log detects whether it has the batch. Then the messages of removed segments are
routed again, in order and before newer messages, and the newest layout is used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice

from controller.client.fenced_segments import FencedSegments
from controller.client.key_counts import KeyCounts
from controller.client.lane_table import LaneTable
from controller.client.layout_source import LayoutSource
from controller.client.layout_watch import LayoutWatch
from controller.client.retry import retry_for
from controller.client.send_lane import SendLane, WaitingMessage, lane_of
from controller.dataplane.log_client import EagerLogClient, LogClient, MessageLogClient, OutgoingMessage
from controller.domain.entry_buckets import bucket_of
from controller.domain.key_hash import key_hash

LOOK_SECONDS = 1.0
"""Time between two reads of the layout while a fenced segment has no successor, even without a
notification.
"""
MOST_OPENED_AHEAD = 1_000
"""Number of messages in doubt that decide which logs are opened ahead."""


class SuccessorRouting:
    """Follows the layout of one producer's topic, and moves messages from removed segments to their successors.
    For use under the producer's lock.
    """

    def __init__(
        self,
        source: LayoutSource,
        topic: str,
        producer_id: str,
        fenced: FencedSegments,
        *,
        logs: LogClient,
        key_counts: KeyCounts | None,
        timeout_seconds: float,
        send_again: Callable[[Sequence[SendLane]], None],
        on_change: Callable[[], None],
    ) -> None:
        """Read the topic, and start to follow its layout. `logs` is the producer's log client, whose kind decides if
        each entry bucket has a lane. `fenced` is the producer's set of fenced segments; this object adds segments,
        and removes segments that are no longer active. `key_counts` counts the messages by hash; None: messages are
        not counted. `timeout_seconds` bounds how long a failed read of the layout is retried.

        `send_again` is called with the lanes whose batches in doubt are to be sent again. `on_change` is called in
        the source's thread after each notification, and in the thread that calls `look_again`, and must not block.
        Raises the errors of `LayoutSource.topic`, without a retry.
        """
        self._producer_id, self._fenced = producer_id, fenced
        self._eager = logs if isinstance(logs, EagerLogClient) else None
        self._timeout_seconds, self._send_again, self._on_change = timeout_seconds, send_again, on_change
        self.unrouted: deque[WaitingMessage] = deque()
        """Messages without a lane, oldest first. While there are any, newer messages join them."""
        self.is_outdated = True
        """True if a layout may exist that is newer than the layout used for routing."""
        self.watch = LayoutWatch(source, topic, on_change=self._changed)
        self.lanes = LaneTable(
            self.watch.snapshot,
            producer_id,
            key_counts,
            has_lanes_of_buckets=not isinstance(logs, MessageLogClient),
        )
        """The lanes under the newest layout, once no batch for a removed segment is in doubt."""
        self._opened_ahead = self.watch.snapshot

    def route_all(self) -> bool:
        """Read the layout if it may have changed, move the unrouted messages into their lanes under the newest
        layout, in order, and return True. Return True also if there is no unrouted message. Return False, and move
        nothing, while a batch for a removed segment is in doubt; the batch is sent again.

        Raises the errors of `LayoutWatch.refresh_if_changed`; StoreUnavailable only after retries for
        `timeout_seconds`. Raises InvalidInput for a message whose key cannot be routed (`LaneTable.put`). After an
        error, the messages that were not moved stay unrouted, and another call continues.
        """
        if not self._follow_layout():
            return False
        while self.unrouted:
            payload, key, _, metadata = self.unrouted[0]
            self.lanes.put(payload, key, metadata)
            self.unrouted.popleft()
        return True

    def requeue(self, lane: SendLane, messages: Sequence[OutgoingMessage]) -> None:
        """Return `messages`, which the log did not store because it is terminated or was deleted, to the front of the
        lane, and count the segment as fenced, so that none of its lanes begins another batch. If the segment is still
        active in the newest known layout, make the next `route_all` read the layout, to find the successors, and call
        `on_change`.
        """
        # The segment counts as fenced for all its buckets, because a fenced log is not called again.
        self._fenced.add(lane.segment_id, is_missing=False)
        lane.put_back(messages)
        if self.is_active(lane.segment_id):
            self.look_again()

    def await_log(self, lane: SendLane) -> None:
        """Count the segment of the lane as fenced because its log is missing. The lane keeps its batch in doubt,
        which is sent again under the same number, not before LOOK_SECONDS from now; the batch can be stored once a
        worker has created the log again. The next `route_all` reads the layout, although a log that is created again
        makes no new layout. Calls `on_change`.
        """
        self._fenced.add(lane.segment_id, is_missing=True)
        lane.next_try_at = time.monotonic() + LOOK_SECONDS
        self.look_again()

    def waiting_for_successors(self) -> list[SendLane]:
        """Return the lanes with messages that wait until the successors of a fenced segment are known, or
        until its missing log is created again. Lanes that are sending are left out.
        """
        return [
            lane
            for lane in self.lanes
            if lane.segment_id in self._fenced and not lane.is_empty and not lane.is_sending
        ]

    def is_active(self, segment_id: int) -> bool:
        """Return True if the segment is active in the newest known layout."""
        return any(segment.segment_id == segment_id for segment in self.watch.snapshot.layout.active)

    def look_again(self) -> None:
        """Make `route_all` read the layout, even without a notification."""
        self.watch.look_again()
        self._changed()

    def _changed(self) -> None:
        """Note that a newer layout may exist, and call `on_change`."""
        self.is_outdated = True
        self._on_change()

    def _follow_layout(self) -> bool:
        """Use the newest layout for routing if a newer layout may exist (`is_outdated`), and return True. Return True
        at once if none may exist. The messages that wait for removed segments become unrouted, before newer messages.

        Return False, and keep the present layout, while a batch for a removed segment is in doubt. Raises the errors
        of `_adopt_newest`. After False or an error, the next call tries again.
        """
        if not self.is_outdated:
            return True
        self.is_outdated = False  # cleared before reading, so that a change during the read sets it again
        try:
            is_adopted = self._adopt_newest()
        except BaseException:
            self.is_outdated = True
            raise
        self.is_outdated = self.is_outdated or not is_adopted
        return is_adopted

    def _adopt_newest(self) -> bool:
        """Read the layout if a change was notified, use the newest layout for routing, and return True. The lanes of
        removed segments are removed, and their waiting messages are put in front of the other unrouted messages.
        Removed segments no longer count as fenced.

        If a batch for a removed segment is in doubt, send the batch again, keep the present layout for routing, and
        return False. Raises the errors of `LayoutWatch.refresh_if_changed`; StoreUnavailable only after retries for
        `timeout_seconds`.
        """
        if self.watch.changed:
            retry_for(self.watch.refresh_if_changed, seconds=self._timeout_seconds)
        active = {segment.segment_id for segment in self.watch.snapshot.layout.active}
        in_doubt = [lane for lane in self.lanes.lanes_outside(active) if lane.in_doubt is not None]
        if in_doubt:  # the log still knows if it has stored the batch
            self._open_ahead(in_doubt)
            self._send_again(in_doubt)
            return False
        unrouted = self.lanes.adopt(self.watch.snapshot, active)
        self.unrouted.extendleft(reversed(unrouted))
        self._fenced.retain(active)
        return True

    def _open_ahead(self, lanes: Sequence[SendLane]) -> None:
        """Begin to open, in the newest layout, the logs to which the messages of batches in doubt go if they turn out
        not to be stored. Each of `lanes` has a batch in doubt. The opening takes as long as the response to the
        batches, so both run at the same time.

        Does nothing if the log client is not eager, for the first layout, and for a layout whose logs were opened
        ahead before. Only the keys of the first MOST_OPENED_AHEAD messages count; messages without a key are ignored.
        """
        snapshot = self.watch.snapshot
        if self._eager is None or self._opened_ahead is snapshot:
            return
        self._opened_ahead = snapshot
        batches = [lane.in_doubt[1] for lane in lanes if lane.in_doubt is not None]
        keys = {
            message.key for message in islice(chain(*batches), MOST_OPENED_AHEAD) if message.key is not None
        }
        places = {}
        for hashes in map(key_hash, keys):
            segment = snapshot.layout.segment_for(hashes.segment_hash)
            places[segment.segment_id, bucket_of(segment.bucket_splits, hashes.bucket_hash)] = segment
        for (_, bucket), segment in places.items():
            lane = lane_of(snapshot, segment, bucket, self._producer_id)
            self._eager.open_ahead(lane.backing_topic, producer=lane.producer, bucket=lane.bucket)
