"""The topic metadata record of PIP-468 as JSON values, with the fields that Pulsar 5 added.

Implements `SegmentLayout.to_metadata` and `from_metadata`. A layout is only part of the record: properties, the
auto-scale policy and all other fields pass through `metadata_extras` unchanged. Only Cleave writes `mergeDepth`;
Pulsar ignores the field, and it is computed if it is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.hash_range import HashRange
from controller.domain.segment import Segment, SegmentState
from controller.domain.segment_graph import SegmentGraph
from controller.domain.whole_numbers import whole, wholes

_LAYOUT_KEYS = frozenset({"epoch", "nextSegmentId", "segments"})
_ABSENT = -1


def metadata_extras(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a metadata record that are not the layout: properties, policy, unknown fields."""
    return {key: value for key, value in document.items() if key not in _LAYOUT_KEYS}


def write(layout: SegmentGraph, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a layout as JSON values. The fields of `extra` are added, except those of a layout;
    `properties` is empty if `extra` has none.
    """
    return {
        "properties": {},
        **metadata_extras(extra),
        "epoch": layout.epoch,
        "nextSegmentId": layout.next_segment_id,
        "segments": {str(i): _write_segment(segment) for i, segment in sorted(layout.segments.items())},
    }


def read(document: Mapping[str, Any]) -> SegmentGraph:
    """Return the layout in a record of `write` or of Pulsar. Unknown fields are ignored. The merge depth of a segment
    without `mergeDepth` is computed from its ancestors. The invariants of the layout are not checked.

    Raises InvalidInput for a field that is missing or cannot be read, and for a segment that is stored under a key
    other than its own id.
    """
    try:
        epoch, next_segment_id = (whole(document[name], name) for name in ("epoch", "nextSegmentId"))
        records = dict(document["segments"].items())
    except _MALFORMED as error:
        raise InvalidInput(
            f"topic metadata cannot be read ({error!r}); it needs epoch, nextSegmentId and segments"
        ) from error
    segments: dict[int, Segment] = {}
    uncounted: list[int] = []
    for key, record in records.items():
        segment = _read_segment(record)
        if str(key) != str(segment.segment_id):
            raise InvalidInput(
                f"segment metadata of {segment} is stored under the key {shown(key)}; store it under its id"
            )
        segments[segment.segment_id] = segment
        if record.get("mergeDepth") is None:
            uncounted.append(segment.segment_id)
    return _count_merges(SegmentGraph(epoch, next_segment_id, segments), uncounted)


def _write_segment(segment: Segment) -> dict[str, Any]:
    """Return the record of a segment as JSON values; -1 stands for the epoch and the time of a seal that has not
    happened.
    """
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
    """Return the segment in a record. A sealed segment has the epoch and the time of its seal from the record. An
    active segment has None for both, whatever the record contains, because PIP-468's text writes epoch 0 there and
    Pulsar's code -1. The merge depth is 0 if the record has none. Raises InvalidInput for a record with a missing
    field or a value that cannot be read.
    """
    try:
        state = SegmentState(record["state"])
        sealed = state is SegmentState.SEALED
        hash_range = record["hashRange"]
        return Segment(
            segment_id=whole(record["segmentId"], "segmentId"),
            hash_range=HashRange(whole(hash_range["start"], "start"), whole(hash_range["end"], "end")),
            state=state,
            parent_ids=wholes(record.get("parentIds"), "parentIds"),
            child_ids=wholes(record.get("childIds"), "childIds"),
            created_epoch=whole(record["createdAtEpoch"], "createdAtEpoch"),
            sealed_epoch=whole(record["sealedAtEpoch"], "sealedAtEpoch", _ABSENT) if sealed else None,
            created_at_ms=_instant(record, "createdAtMs"),
            sealed_at_ms=_instant(record, "sealedAtMs") if sealed else None,
            bucket_splits=wholes(record.get("entryBucketSplits"), "entryBucketSplits"),
            merge_depth=whole(record.get("mergeDepth") or 0, "mergeDepth"),
            legacy_topic_name=_text(record, "legacyTopicName"),
        )
    except _MALFORMED as error:
        raise InvalidInput(
            f"segment metadata {shown(record)} cannot be read ({error!r}); compare PIP-468"
        ) from error


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
_LAST_INSTANT = 253_402_300_799_999  # the end of the year 9999, and of Python's dates


def _instant(record: Mapping[str, Any], name: str) -> int:
    """Return the time in the field `name`, in milliseconds since the Unix epoch; 0 if the time is unknown, which Pulsar
    writes as -1 or leaves out. Raises InvalidInput for any other negative value, for a time after the year 9999, and for
    a value that is not a whole number.
    """
    return max(0, whole(record.get(name) or 0, name, _ABSENT, _LAST_INSTANT))


def _text(record: Mapping[str, Any], name: str) -> str | None:
    """Return the text in the field `name`; None if the field is absent, null, empty, 0 or false. Raises InvalidInput
    for another value that is not a text.
    """
    value = record.get(name) or None
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} = {shown(value)}; give a text")
    return value


def _count_merges(graph: SegmentGraph, uncounted: Sequence[int]) -> SegmentGraph:
    """Return a copy of the graph in which the segments with the ids `uncounted` have computed merge depths. Parents are
    computed before their children, whose ids are higher, so that a stored depth is passed on to the descendants.
    """
    segments = dict(graph.segments)
    counted = SegmentGraph(graph.epoch, graph.next_segment_id, segments)
    for segment_id in sorted(uncounted):
        segment = segments[segment_id]
        segments[segment_id] = replace(segment, merge_depth=counted.child_merge_depth(segment.parent_ids))
    return counted
