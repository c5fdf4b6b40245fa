"""The topic metadata record of PIP-468 as JSON values, with the fields Pulsar 5 added.

Serves `SegmentLayout.to_metadata` and `from_metadata`. A layout is only part of the record:
properties, the auto-scale policy and whatever else is in it pass through `metadata_extras` untouched.
`mergeDepth` is ours; Pulsar ignores it, and it is counted anew where absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment, SegmentState
from controller.domain.segment_graph import SegmentGraph

_LAYOUT_KEYS = frozenset({"epoch", "nextSegmentId", "segments"})
_ABSENT = -1


def metadata_extras(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything in a metadata record that is not the layout: properties, policy, unknown fields."""
    return {key: value for key, value in document.items() if key not in _LAYOUT_KEYS}


def write(layout: SegmentGraph, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a layout, with `extra` (see `metadata_extras`) written back around it."""
    return {
        "properties": {},
        **metadata_extras(extra),
        "epoch": layout.epoch,
        "nextSegmentId": layout.next_segment_id,
        "segments": {str(i): _write_segment(segment) for i, segment in sorted(layout.segments.items())},
    }


def read(document: Mapping[str, Any]) -> SegmentGraph:
    """The layout in a record; unknown fields are passed over. Raises InvalidInput naming what is amiss."""
    try:
        epoch, next_segment_id = int(document["epoch"]), int(document["nextSegmentId"])
        records = list(document["segments"].values())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"topic metadata cannot be read ({error!r}); it needs epoch, nextSegmentId and segments"
        ) from error
    segments = [_read_segment(record) for record in records]
    uncounted = {record["segmentId"] for record in records if record.get("mergeDepth") is None}
    graph = SegmentGraph(epoch, next_segment_id, {segment.segment_id: segment for segment in segments})
    return _count_merges(graph, uncounted)


def _write_segment(segment: Segment) -> dict[str, Any]:
    sealed_epoch, sealed_at_ms = segment.sealed_epoch, segment.sealed_at_ms
    return {
        "segmentId": segment.segment_id,
        "hashRange": {"start": segment.hash_range.start, "end": segment.hash_range.end},
        "state": segment.state.value,
        "parentIds": list(segment.parent_ids),
        "childIds": list(segment.child_ids),
        "createdAtEpoch": segment.created_epoch,
        "sealedAtEpoch": _ABSENT if sealed_epoch is None else sealed_epoch,
        "createdAtMs": segment.created_at_ms,
        "sealedAtMs": _ABSENT if sealed_at_ms is None else sealed_at_ms,
        "legacyTopicName": segment.legacy_topic_name,
        "entryBucketSplits": list(segment.bucket_splits),
        "mergeDepth": segment.merge_depth,
    }


def _read_segment(record: Mapping[str, Any]) -> Segment:
    """State decides whether there is a seal: PIP-468's text has epoch 0 while active, the code -1."""
    try:
        state = SegmentState(record["state"])
        sealed = state is SegmentState.SEALED
        return Segment(
            segment_id=int(record["segmentId"]),
            hash_range=HashRange(int(record["hashRange"]["start"]), int(record["hashRange"]["end"])),
            state=state,
            parent_ids=tuple(record.get("parentIds") or ()),
            child_ids=tuple(record.get("childIds") or ()),
            created_epoch=int(record["createdAtEpoch"]),
            sealed_epoch=int(record["sealedAtEpoch"]) if sealed else None,
            created_at_ms=int(record.get("createdAtMs") or 0),
            sealed_at_ms=max(0, int(record.get("sealedAtMs") or 0)) if sealed else None,
            bucket_splits=tuple(record.get("entryBucketSplits") or ()),
            merge_depth=int(record.get("mergeDepth") or 0),
            legacy_topic_name=record.get("legacyTopicName") or None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"segment metadata {record!r} cannot be read ({error!r}); compare PIP-468"
        ) from error


def _count_merges(graph: SegmentGraph, uncounted: set[int]) -> SegmentGraph:
    """Parents before children (their ids are lower), so that a stored depth carries over to its heirs."""
    segments = dict(graph.segments)
    counted = SegmentGraph(graph.epoch, graph.next_segment_id, segments)
    for segment_id in sorted(uncounted):
        segment = segments[segment_id]
        segments[segment_id] = replace(segment, merge_depth=counted.child_merge_depth(segment.parent_ids))
    return counted
