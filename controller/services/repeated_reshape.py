"""Decides whether a request with a used request key wants the reshape that the first request with the key wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import shorten

from controller.domain.entry_buckets import equal_splits
from controller.domain.errors import InvalidLayoutChange, SegmentNotFound
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation
from controller.domain.reshape import ChildPlan, Reshape, ReshapeKind
from controller.domain.segment import Segment, segment_of_log
from controller.store.journal.request_keys import Intent, used_otherwise

MOST_CHARACTERS = 200
"""Maximum number of characters with which a message describes a reshape."""


def demand_same(repeated: Intent, planner: Callable[[SegmentLayout, int], Reshape]) -> Intent:
    """Return `repeated`, the intent of the first request with the request key, if this request wants the same
    reshape: kind, parents, ranges and, for a rebucket, number of buckets agree. Raises Conflict otherwise. `planner`
    is the plan of this request; it is applied to the parents of the first operation, as they were before, with any
    number of buckets permitted, because the policy's maximum may have changed since. Reads and writes nothing in the
    store.
    """
    first = repeated.operation
    did = _describe(_reshape_of(first))
    try:
        wanted = _describe(planner(_parents_of(first), RING_SIZE))
    except (SegmentNotFound, InvalidLayoutChange):
        wanted = f"a reshape that does not fit segment {', '.join(map(str, sorted(first.parent_ids)))}"
    if wanted != did:
        raise used_otherwise(
            first, did=shorten(did, MOST_CHARACTERS), wanted=shorten(wanted, MOST_CHARACTERS)
        )
    return repeated


def _reshape_of(operation: Operation) -> Reshape:
    """Return the reshape that the operation, which must be a reshape, performs or performed. If a broker keeps the
    layout and chooses the ids of the children, the children have the id 0.
    """
    children = tuple(child.plan for child in operation.children)
    ranges = operation.parameters.get("child_ranges")
    if isinstance(ranges, Sequence):
        splits = equal_splits(int(str(operation.parameters["bucket_count"])))
        children = tuple(ChildPlan(0, HashRange.parse(str(text)), splits) for text in ranges)
    return Reshape(ReshapeKind(operation.kind.value), operation.parent_ids, children)


def _parents_of(operation: Operation) -> SegmentLayout:
    """Return the parents of the operation as ACTIVE segments, with bucket boundaries that no request can choose, so that
    the plan of a rebucket is not refused because the parent has these buckets already.
    """
    logs = zip(operation.parent_ids, map(segment_of_log, operation.parent_topics), strict=True)
    parents = [Segment(i, named[0], bucket_splits=(1,)) for i, named in logs if named is not None]
    return SegmentLayout.from_segments(0, max(operation.parent_ids) + 1, parents)


def _describe(planned: Reshape) -> str:
    """Return the kind, parents and ranges of the reshape as text, and for a rebucket the number of buckets."""
    ranges = ", ".join(str(child.hash_range) for child in planned.children)
    text = f"{planned.kind} of segment {', '.join(map(str, sorted(planned.parent_ids)))} into {ranges}"
    if planned.kind is not ReshapeKind.REBUCKET:
        return text
    return f"{text} with {len(planned.children[0].bucket_splits) + 1} buckets"
