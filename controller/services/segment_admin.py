"""Manual split, merge, rebucket and re-cut: what a person asks for becomes an intent in the journal, or a refusal.

Cooldowns and caps do not hold it back (Pulsar's manual operations skip them too), but it starts the cooldowns. A
segment in a live operation is refused. An act is a `Planner`: `preview` shows what it would do, `submit` writes the
intent. Running it is the operation runner's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper, naming
from controller.dataplane.registry import configured
from controller.domain import reshape
from controller.domain.errors import Conflict, InvalidInput, InvalidLayoutChange, SegmentNotFound, Unsupported
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import Reshape, ReshapeKind
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.journal.reshape_intents import ReshapeDraft, TopicView
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics

UNLOCKED_ATTEMPTS = 3
"""How often a request looks again before it locks the topic and waits its turn."""

Planner = Callable[[SegmentLayout, int], Reshape]
"""Builds the reshape from the layout of the moment and the policy's cap of buckets a segment."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be done to the layout of `epoch`; the ids may differ when it is submitted later."""

    topic: str
    epoch: int
    reshape: Reshape


def splitting(segment_id: int, *, at: Sequence[int] = (), parts: int | None = None) -> Planner:
    """At the midpoint, at cut points (each the first hash of a child), or into `parts` of equal width."""
    if at and parts is not None:
        raise InvalidInput(f"split of segment {segment_id}: give cut points or a number of parts, not both")

    def plan(layout: SegmentLayout, _max_buckets: int) -> Reshape:
        if parts is not None:
            return reshape.plan_equal_split(layout, segment_id, parts)
        return reshape.plan_split(layout, segment_id, tuple(at) or None)

    return plan


def merging(a: int, b: int) -> Planner:
    """Two neighbours into one; parents are recorded and closed in the order given."""
    return lambda layout, max_buckets: reshape.plan_merge(layout, a, b, max_buckets)


def rebucketing(segment_id: int, bucket_count: int) -> Planner:
    """The same range with another number of entry buckets."""
    return lambda layout, max_buckets: reshape.plan_rebucket(layout, segment_id, bucket_count, max_buckets)


def replacing(segment_id: int) -> Planner:
    """Its log is closed, and a successor of the same range and buckets takes over."""
    return lambda layout, _max_buckets: reshape.plan_heal(layout, segment_id)


def recutting(segment_ids: Sequence[int], cut_points: Sequence[int]) -> Planner:
    """Neighbours cut anew at other points."""
    return lambda layout, max_buckets: reshape.plan_recut(layout, segment_ids, cut_points, max_buckets)


def preview(store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner) -> Preview:
    """What `submit` would do now; writes nothing. Raises as `submit` does, except for a busy segment."""
    with store.single_statement() as tx:
        view = reshape_intents.look(tx, topic)
    view.demand_current()
    layout, planned = _plan(store, view, planner)
    _demand_capable(configured(planes, view.data_plane, view.name), layout, planned)
    return Preview(view.name, view.layout.epoch, planned)


def submit(
    store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner, request: Request
) -> Intent:
    """Look, plan, write; look again if another request was faster. A topic that others change all the time is locked in
    the end.

    The same request key gives the first one's operation. Raises TopicNotFound, TopicNotLive, SegmentNotFound,
    InvalidLayoutChange, SegmentBusy, LostRace, or Unsupported when the topic's data plane cannot do it.
    """
    for _ in range(UNLOCKED_ATTEMPTS):
        with store.single_statement() as tx:
            view = reshape_intents.look(tx, topic, request.request_key)
        if view.first_id is not None:
            break
        draft = _draft(store, planes, view, planner, request)
        draft.demand_possible()  # what comes in between is the constraint's to see, and named under the lock
        try:
            with store.single_statement() as tx:
                written = reshape_intents.write(tx, [draft]).get(view.topic_id)
        except Conflict:  # the key, or a segment; told apart below
            break
        if written is not None:
            return Intent(written, repeated=False)
    return _submit_locked(store, planes, topic, planner, request)


def _submit_locked(
    store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner, request: Request
) -> Intent:
    """Under the topic's lock, so nothing changes in between; others wait."""
    with store.transaction() as tx:
        topics.find_topic(tx, topic, lock=True)
        view = reshape_intents.look(tx, topic, request.request_key)
        first = reshape_intents.first_intent(tx, view, request)
        if first is not None:
            return first
        return reshape_intents.intend(tx, _draft(store, planes, view, planner, request))


def _draft(
    store: Store, planes: Mapping[str, DataPlane], view: TopicView, planner: Planner, request: Request
) -> ReshapeDraft:
    view.demand_current()
    plane = configured(planes, view.data_plane, view.name)
    layout, planned = _plan(store, view, planner)
    _demand_capable(plane, layout, planned)
    return ReshapeDraft(view, planned, request, naming(plane))


def _plan(store: Store, view: TopicView, planner: Planner) -> tuple[SegmentLayout, Reshape]:
    """The plan on the ACTIVE segments. Where it does not fit, it is made on the whole layout, whose
    refusals say more.
    """
    max_buckets = view.cluster_policy.entry_bucket_max_per_segment
    try:
        return view.layout, planner(view.layout, max_buckets)
    except (SegmentNotFound, InvalidLayoutChange):
        with store.single_statement() as tx:
            layout = layouts.load_layout(tx, view.topic_id)
        return layout, planner(layout, max_buckets)


def _demand_capable(plane: DataPlane, layout: SegmentLayout, planned: Reshape) -> None:
    can = plane.capabilities
    if planned.kind is ReshapeKind.HEAL and isinstance(plane, LayoutKeeper):
        raise Unsupported(
            f"data plane {plane.name!r} makes the layout itself; replace no segment of it from here"
        )
    if planned.kind is ReshapeKind.RECUT and not can.recut:
        raise Unsupported(f"data plane {plane.name!r} cannot re-cut segments; split and merge them instead")
    if planned.kind is not ReshapeKind.SPLIT:
        return
    if len(planned.children) > can.max_children:
        raise Unsupported(
            f"data plane {plane.name!r} splits a segment into at most {can.max_children}, "
            f"not {len(planned.children)}; split again afterwards"
        )
    halves = layout.segment(planned.parent_ids[0]).hash_range.halves()
    if can.midpoint_only and tuple(child.hash_range for child in planned.children) != halves:
        raise Unsupported(f"data plane {plane.name!r} splits at the midpoint only; give no cut point")
