"""The work of a checkpoint consumer in a topic with a long history of segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from controller.client.checkpoint_consumer import CheckpointConsumer
from controller.client.segment_lists import ListedSegment, SegmentList
from controller.domain.hash_range import FULL_RANGE

SEGMENTS = 200


class Counted(Mapping[int, ListedSegment]):
    """A line of segments, each the child of the one before, which counts how often an id is iterated over."""

    def __init__(self) -> None:
        self.steps = 0

    def __getitem__(self, segment_id: int) -> ListedSegment:
        if not 0 <= segment_id < SEGMENTS:
            raise KeyError(segment_id)
        parent_ids = (segment_id - 1,) if segment_id else ()
        is_sealed = segment_id < SEGMENTS - 1
        return ListedSegment(segment_id, FULL_RANGE, is_sealed, parent_ids, segment_id, f"log-{segment_id}")

    def __iter__(self) -> Iterator[int]:
        for segment_id in range(SEGMENTS):
            self.steps += 1
            yield segment_id

    def __len__(self) -> int:
        return SEGMENTS


class Following(CheckpointConsumer):
    """A consumer that has read all segments but the last, and still reads a segment that left the layout. `followed`
    are the logs of the segments that it reads.
    """

    def __init__(self, segments: Mapping[int, ListedSegment]) -> None:
        departed = ListedSegment(SEGMENTS, FULL_RANGE, True, (SEGMENTS - 1,), SEGMENTS, "departed")
        self.followed: Mapping[Any, str] = {}
        self._positions = {SEGMENTS - 1: None, SEGMENTS: None}
        self._done = set(range(SEGMENTS - 1))
        self._segments = {**segments, SEGMENTS: departed}
        self._parents = {i: frozenset(segment.parent_ids) for i, segment in self._segments.items()}
        self._readers = cast(Any, SimpleNamespace(follow=self._note))

    def _note(self, followed: Mapping[Any, str]) -> None:
        self.followed = followed


def test_a_list_costs_a_time_proportional_to_the_number_of_its_segments() -> None:
    """A list comes every ten seconds, and `receive` delivers nothing while it is adopted."""
    segments = Counted()
    consumer = Following(segments)
    segments.steps = 0

    consumer._adopt(SegmentList(1, "topic://acme/shop/orders", SEGMENTS, segments, None))

    assert segments.steps <= 10 * SEGMENTS
    assert consumer._segments.keys() == {*range(SEGMENTS + 1)}, "the departed segment is still to be read"
    assert consumer.followed == {SEGMENTS - 1: f"log-{SEGMENTS - 1}"}
