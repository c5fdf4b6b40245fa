"""One segment of a topic: its record, its states and the name of its log.

A segment is an immutable value. `layout` defines its transitions and their epochs; the data plane knows whether its
log exists. The fields are those of PIP-468, those that Pulsar 5 added, and `merge_depth`, which Pulsar recomputes and
therefore loses to garbage collection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.hash_range import HashRange

_TOPIC = re.compile(r"topic://([^/]+/[^/]+/.+)")
_DESCRIPTOR = re.compile(r"([0-9a-f]{4}-[0-9a-f]{4})-(0|[1-9][0-9]{0,18})")
_DESCRIPTOR_AT_END = re.compile(_DESCRIPTOR.pattern + "$")


class SegmentState(StrEnum):
    """State of a segment. An ACTIVE segment accepts writes; a SEALED segment is read until it is drained. A sealed
    segment never accepts writes again, and there is no state in between.
    """

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Segment:
    """A node of the layout. The constructor checks nothing, so that loading rows is cheap.

    `created_epoch` and `sealed_epoch` are layout epochs, `*_at_ms` milliseconds since the Unix epoch, 0 if unknown (a
    migrated segment). The sealed pair is None exactly while the segment is ACTIVE. `bucket_splits` are the ascending
    first hashes of entry buckets 1..N-1 (PIP-486) and never change. `merge_depth` is the number of merges in the
    segment's ancestry and never falls (see `child_merge_depth` in `segment_graph`). `legacy_topic_name`: the plain topic
    that serves as the log of an adopted segment; None for other segments.
    """

    segment_id: int
    hash_range: HashRange
    state: SegmentState = SegmentState.ACTIVE
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    created_epoch: int = 0
    sealed_epoch: int | None = None
    created_at_ms: int = 0
    sealed_at_ms: int | None = None
    bucket_splits: tuple[int, ...] = ()
    merge_depth: int = 0
    legacy_topic_name: str | None = None

    @property
    def is_active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    @property
    def bucket_count(self) -> int:
        """Number of entry buckets of this segment, at least 1."""
        return len(self.bucket_splits) + 1

    def __str__(self) -> str:
        return f"{shown(self.segment_id)} ({self.hash_range})"


def segment_descriptor(hash_range: HashRange, segment_id: int) -> str:
    """Return the descriptor, `0000-7fff-12`: the range in hex, the id in decimal, as in Pulsar's segment topic names."""
    return f"{hash_range}-{segment_id}"


def parse_segment_descriptor(text: str) -> tuple[HashRange, int]:
    """Return the range and the segment id in a text of `segment_descriptor`. Raises InvalidInput for other texts, also
    for a range whose start is above its end (InvalidRange).
    """
    match = _DESCRIPTOR.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{shown(text)} is not a segment descriptor; write range and id as 0000-7fff-12")
    return HashRange.parse(match[1]), int(match[2])


def segment_of_log(name: str) -> tuple[HashRange, int] | None:
    """Return the range and the id at the end of a log's name; None if the name does not end in a segment
    descriptor. Raises InvalidRange for a descriptor whose range is not valid.
    """
    match = _DESCRIPTOR_AT_END.search(name)
    return None if match is None else (HashRange.parse(match[1]), int(match[2]))


def is_segment_descriptor(text: str) -> bool:
    """Return True if `parse_segment_descriptor` accepts the text."""
    try:
        parse_segment_descriptor(text)
    except InvalidInput:
        return False
    return True


def backing_topic_name(topic: str, segment: Segment) -> str:
    """Return Pulsar 5's name for the log of a segment of `topic` (`topic://tenant/namespace/name`).

    For an adopted segment, return the name of its plain topic, which is its log (PIP-475). Raises InvalidInput for any
    other segment if `topic` does not have this form.
    """
    if segment.legacy_topic_name:
        return segment.legacy_topic_name
    match = _TOPIC.fullmatch(topic)
    if match is None:
        raise InvalidInput(
            f"{shown(topic)} is not a scalable topic; name it as topic://tenant/namespace/name"
        )
    return f"segment://{match[1]}/{segment_descriptor(segment.hash_range, segment.segment_id)}"
