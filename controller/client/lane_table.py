"""Assigns each message of a producer to the lane of its entry bucket, or of its segment, under one layout, and chooses
the segment of a message without a key.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from controller.client.key_counts import KeyCounts
from controller.client.layout_source import TopicSnapshot
from controller.client.send_lane import SendLane, WaitingMessage, lane_of
from controller.dataplane.log_client import Metadata
from controller.domain.entry_buckets import bucket_of
from controller.domain.key_hash import key_bytes, key_hash
from controller.domain.segment import Segment

MOST_ROUTES = 65_536
"""Number of keys whose lane is cached. The cache is cleared when it is full."""


class LaneTable:
    """The lanes of one producer, created when a message needs them. For use under the producer's lock."""

    def __init__(
        self,
        snapshot: TopicSnapshot,
        producer_id: str,
        key_counts: KeyCounts | None,
        *,
        has_lanes_of_buckets: bool,
    ) -> None:
        """Create an empty table. `producer_id` is the beginning of the names under which lanes number their
        batches. `key_counts` counts the hash of each message; None counts nothing. `has_lanes_of_buckets` is
        True if each entry bucket needs a lane of its own, False for one lane for each segment.
        """
        self.snapshot = snapshot
        """Layout used for routing."""
        self._producer_id, self._key_counts = producer_id, key_counts
        self._has_lanes_of_buckets = has_lanes_of_buckets
        self._lanes: dict[tuple[int, int | None], SendLane] = {}
        """Lanes by segment id and number of the entry bucket, None for the lane of a segment."""
        self._routes: dict[str | bytes, tuple[SendLane, bytes, int, int]] = {}
        self._turn = itertools.count()

    def __iter__(self) -> Iterator[SendLane]:
        return iter(self._lanes.values())

    def put(self, payload: bytes, key: str | bytes | None, metadata: Metadata | None) -> SendLane:
        """Append the message to a lane under the layout of `snapshot`, and return the lane, which is created if
        necessary. A message with a key goes to the lane of the key; a message without a key goes to the next lane in
        rotation. If key counts are on, the hash of the key, or a message without a key, is counted; a message that is
        routed again is counted again.

        Raises InvalidInput, and appends nothing, for a key without a UTF-8 form.
        """
        if key is None:
            segment, bucket_hash = self._next_place()
            lane = self._lane(segment, bucket_hash)
            lane.put(payload, None, bucket_hash, metadata)
            if self._key_counts is not None:
                self._key_counts.count(None)
            return lane
        route = self._routes.get(key)
        if route is None:
            route = self._route(key)
        lane, coded, bucket_hash, segment_hash = route
        lane.put(payload, coded, bucket_hash, metadata)
        if self._key_counts is not None:
            self._key_counts.count(segment_hash)
        return lane

    def lanes_outside(self, active: Collection[int]) -> list[SendLane]:
        """Return the lanes of segments that are not in `active`."""
        return [lane for lane in self if lane.segment_id not in active]

    def adopt(self, snapshot: TopicSnapshot, active: Collection[int]) -> list[WaitingMessage]:
        """Use the newer layout `snapshot`, whose active segments have the ids `active`. Remove the lanes of all other
        segments, and return the messages that wait in the removed lanes, which the caller must route again. The
        messages are in the order of the lanes, and within each lane from the oldest on, so messages of one key keep
        their order.

        No removed lane may have a batch in doubt (`SendLane.in_doubt`), because the batch would be lost.
        """
        removed = [place for place in self._lanes if place[0] not in active]
        unrouted = [message for place in removed for message in self._lanes.pop(place).waiting]
        self._routes.clear()
        self.snapshot = snapshot
        return unrouted

    def _route(self, key: str | bytes) -> tuple[SendLane, bytes, int, int]:
        """Return the lane of a key, the key as bytes, its bucket hash and its segment hash, and store them in the
        cache for later calls of `put`. The lane is created if necessary. A cache with MOST_ROUTES keys is cleared
        first. Raises InvalidInput for a key without a UTF-8 form.
        """
        coded = key_bytes(key)
        hashes = key_hash(coded)
        segment = self.snapshot.layout.segment_for(hashes.segment_hash)
        if len(self._routes) >= MOST_ROUTES:
            self._routes.clear()
        lane = self._lane(segment, hashes.bucket_hash)
        route = self._routes[key] = (lane, coded, hashes.bucket_hash, hashes.segment_hash)
        return route

    def _next_place(self) -> tuple[Segment, int]:
        """Return the segment and the bucket hash for the next message without a key: the active segments in
        rotation, and for each segment the first hashes of its buckets in rotation.
        """
        turn, active = next(self._turn), self.snapshot.layout.active
        segment = active[turn % len(active)]
        starts = (0, *segment.bucket_splits)
        return segment, starts[turn // len(active) % len(starts)]

    def _lane(self, segment: Segment, bucket_hash: int) -> SendLane:
        """Return the lane of the segment's bucket that contains `bucket_hash`, or of the whole segment, created
        if necessary. A segment with one bucket accepts batches with any bucket hash.
        """
        bucket = bucket_of(segment.bucket_splits, bucket_hash) if self._has_lanes_of_buckets else None
        lane = self._lanes.get((segment.segment_id, bucket))
        if lane is None:
            lane = lane_of(self.snapshot, segment, bucket, self._producer_id)
            self._lanes[segment.segment_id, bucket] = lane
        return lane
