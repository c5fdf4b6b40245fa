"""Describes the reshapes of two requests with the same request key, so that they can be compared."""

from __future__ import annotations

from collections.abc import Callable

from controller.domain.entry_buckets import equal_splits
from controller.domain.errors import InvalidLayoutChange, SegmentNotFound
from controller.domain.hash_range import RING_SIZE
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation
from controller.domain.reshape import ChildPlan, Reshape, ReshapeKind
from controller.domain.segment import Segment, segment_of_log


def describe_first(operation: Operation) -> str:
    """Return the reshape that the operation, the first with its request key, performs or performed, as text."""
    return _describe(_reshape_of(operation))


def describe_repeated(operation: Operation, planner: Callable[[SegmentLayout, int], Reshape]) -> str:
    """Return the reshape that a later request with the key of the operation wants, as text. `planner` is applied to the
    parents of the operation, as they were before, with any number of buckets permitted, because the policy's maximum may
    have changed since. The text equals that of `describe_first` if kind, parents, ranges and, for a rebucket, the number
    of buckets agree.
    """
    try:
        return _describe(planner(_parents_of(operation), RING_SIZE))
    except (SegmentNotFound, InvalidLayoutChange):
        return f"a reshape that does not fit segment {', '.join(map(str, sorted(operation.parent_ids)))}"


def _reshape_of(operation: Operation) -> Reshape:
    """Return the reshape that the operation, which must be a reshape, performs or performed. If a broker keeps the
    layout and chooses the ids of the children, the children have the id 0.
    """
    children = tuple(child.plan for child in operation.children)
    if operation.ranges_on_broker is not None:
        splits = equal_splits(int(str(operation.parameters["bucket_count"])))
        children = tuple(ChildPlan(0, hash_range, splits) for hash_range in operation.ranges_on_broker)
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
