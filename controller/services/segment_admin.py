"""Manual split, merge, rebucket and recut: a person's request becomes an intent in the journal, or is
refused.

Cooldowns and caps do not restrict manual requests (Pulsar's manual operations skip them too), but the
requests start the cooldowns. A segment in a live operation is refused. A `Planner` describes the action:
`preview` shows its result, and `submit` writes the intent. The operation runner runs the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper, naming
from controller.dataplane.registry import configured
from controller.domain import reshape
from controller.domain.errors import (
    Conflict,
    InvalidInput,
    InvalidLayoutChange,
    SegmentNotFound,
    TopicNotFound,
    Unsupported,
)
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationKind
from controller.domain.repeated_reshape import describe_first, describe_repeated
from controller.domain.reshape import Reshape, ReshapeKind
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent, repeated_intent, used_otherwise
from controller.store.journal.reshape_intents import ReshapeDraft, TopicView
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics

UNLOCKED_ATTEMPTS = 3
"""Number of attempts without a lock. After these, the request locks the topic."""
_RESHAPES = tuple(OperationKind(kind.value) for kind in ReshapeKind)

Planner = Callable[[SegmentLayout, int], Reshape]
"""Builds the reshape from the present layout and the policy's maximum number of buckets per segment. Raises
SegmentNotFound, and InvalidLayoutChange if the layout does not permit the reshape.
"""


def splitting(segment_id: int, *, at: Sequence[int] = (), parts: int | None = None) -> Planner:
    """Return a planner that splits the segment at the cut points `at` (the first hashes of all children except the
    first), or into `parts` children of equal width, or, if neither is given, into two halves. Raises InvalidInput if
    both `at` and `parts` are given. The planner, not this function, checks the values and whether the segment exists.
    """
    if at and parts is not None:
        raise InvalidInput(f"split of segment {segment_id}: give cut points or a number of parts, not both")

    def plan(layout: SegmentLayout, _max_buckets: int) -> Reshape:
        if parts is not None:
            return reshape.plan_equal_split(layout, segment_id, parts)
        return reshape.plan_split(layout, segment_id, tuple(at) or None)

    return plan


def merging(first_id: int, second_id: int) -> Planner:
    """Return a planner that merges two neighbours. Parents are recorded and terminated in the order given."""
    return lambda layout, max_buckets: reshape.plan_merge(layout, first_id, second_id, max_buckets)


def rebucketing(segment_id: int, bucket_count: int) -> Planner:
    """Return a planner that keeps the range and changes the number of entry buckets."""
    return lambda layout, max_buckets: reshape.plan_rebucket(layout, segment_id, bucket_count, max_buckets)


def replacing(segment_id: int) -> Planner:
    """Return a planner that terminates the segment's log and creates a successor with the same range and
    buckets.
    """
    return lambda layout, _max_buckets: reshape.plan_heal(layout, segment_id)


def recutting(segment_ids: Sequence[int], cut_points: Sequence[int]) -> Planner:
    """Return a planner that replaces neighbours by segments with other boundaries: `cut_points` are the first
    hashes of the children after the first.
    """
    return lambda layout, max_buckets: reshape.plan_recut(layout, segment_ids, cut_points, max_buckets)


def submit(
    store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner, request: Request
) -> Intent:
    """Write the intent of the reshape that `planner` plans on the topic's present layout, and return the intent; the
    operation runner performs the reshape later. If another request changes the topic in the meantime, the topic is
    read and planned again, at most `UNLOCKED_ATTEMPTS` times. After these attempts, or at once if the request key or
    a segment is in use, the topic's row is locked, so that other requests wait.

    If the request key was used for the same reshape of this topic, the first operation is returned with `repeated`
    True, also if the topic no longer exists. Raises Conflict if the request key was used for another topic, another
    reshape or another kind of request. Also raises TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound,
    InvalidLayoutChange, SegmentBusy if a segment is part of a live operation, LostRace if the topic changed during
    the last attempt, Unsupported if the topic's data plane is not configured here or cannot perform the reshape, and
    the errors of `Store.transaction`.
    """
    for _ in range(UNLOCKED_ATTEMPTS):
        try:
            view = store.in_single_statement(reshape_intents.look, topic, request.request_key)
        except TopicNotFound:
            repeated = store.in_transaction(repeated_intent, request.request_key, topic, _RESHAPES)
            if repeated is None:
                raise
            return _same(repeated, planner)
        if view.first_id is not None:
            break
        draft = _draft(store, planes, view, planner, request)
        # The database's constraint detects a later change; the reason is determined under the lock.
        draft.demand_possible()
        try:
            operation = store.in_single_statement(reshape_intents.write, [draft]).get(view.topic_id)
        except Conflict:  # Of the key or of a segment; `_submit_locked` determines which.
            break
        if operation is not None:
            return Intent(operation, repeated=False)
    return _submit_locked(store, planes, topic, planner, request)


def _submit_locked(
    store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner, request: Request
) -> Intent:
    """Lock the topic's row, plan the reshape and write the intent, and return the intent. Other requests for the
    topic wait. If the request key was used for the same reshape of this topic, return the first intent and write
    nothing. Raises Conflict if the request key was used for another topic, another reshape or another kind of
    request. Also raises TopicNotFound, TopicNotLive, TopicHeld, SegmentNotFound, InvalidLayoutChange, SegmentBusy,
    LostRace, Unsupported, and the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        topics.find_topic(tx, topic, lock=True)
        view = reshape_intents.look(tx, topic, request.request_key)
        intent = reshape_intents.first_intent(tx, view)
        if intent is None:
            intent = reshape_intents.intend(tx, _draft(store, planes, view, planner, request))
        return _same(intent, planner) if intent.repeated else intent


def _same(repeated: Intent, planner: Planner) -> Intent:
    """Return `repeated`, the intent of the first request with the request key, if this request wants the same reshape.
    Raises Conflict otherwise.
    """
    first = repeated.operation
    did, wanted = describe_first(first), describe_repeated(first, planner)
    if wanted != did:
        raise used_otherwise(first, did=did, wanted=wanted)
    return repeated


def _draft(
    store: Store, planes: Mapping[str, DataPlane], view: TopicView, planner: Planner, request: Request
) -> ReshapeDraft:
    """Return the draft of the reshape that the planner plans on the topic as it was read in `view`. Writes nothing.
    Raises TopicNotLive, TopicHeld, SegmentNotFound, InvalidLayoutChange, Unsupported if the data plane is not
    configured here or cannot perform the reshape, and the errors of `Store.single_statement`.
    """
    view.demand_current()
    plane = configured(planes, view.data_plane, view.name)
    layout, planned = _plan(store, view, planner)
    _demand_capable(plane, layout, planned)
    return ReshapeDraft(view, planned, request, naming(plane))


def _plan(store: Store, view: TopicView, planner: Planner) -> tuple[SegmentLayout, Reshape]:
    """Return a layout and the plan on this layout. The layout is that of `view`, which has the ACTIVE segments only.
    If the planner refuses this layout, the whole layout is read from the store, and the plan is made on the whole
    layout, because its errors are more specific. Raises SegmentNotFound, InvalidLayoutChange, and the errors of
    `Store.single_statement`. Writes nothing.
    """
    max_buckets = view.cluster_policy.entry_bucket_max_per_segment
    try:
        return view.layout, planner(view.layout, max_buckets)
    except (SegmentNotFound, InvalidLayoutChange):
        layout = store.in_single_statement(layouts.load_layout, view.topic_id)
        return layout, planner(layout, max_buckets)


def _demand_capable(plane: DataPlane, layout: SegmentLayout, planned: Reshape) -> None:
    """Raise Unsupported if the data plane cannot perform the reshape. A repair (`ReshapeKind.HEAL`) is refused if the
    broker keeps the layout. A recut is refused without the capability `recut`. A split is refused if it has more than
    `max_children` children, or if the data plane splits at the midpoint only and the children are not the two halves.
    `layout` must have the parent of a split. Makes no call.
    """
    capabilities = plane.capabilities
    if planned.kind is ReshapeKind.HEAL and isinstance(plane, LayoutKeeper):
        raise Unsupported(
            f"data plane {plane.name!r} keeps the layout itself, so Cleave cannot replace a segment; replace the segment with the broker's admin client"
        )
    if planned.kind is ReshapeKind.RECUT and not capabilities.recut:
        raise Unsupported(f"data plane {plane.name!r} cannot recut segments; split and merge them instead")
    if planned.kind is not ReshapeKind.SPLIT:
        return
    if len(planned.children) > capabilities.max_children:
        raise Unsupported(
            f"data plane {plane.name!r} splits a segment into at most {capabilities.max_children}, "
            f"not {len(planned.children)}; split again afterwards"
        )
    halves = layout.segment(planned.parent_ids[0]).hash_range.halves()
    if capabilities.midpoint_only and tuple(child.hash_range for child in planned.children) != halves:
        raise Unsupported(f"data plane {plane.name!r} splits at the midpoint only; give no cut point")
