"""Manual split, merge, rebucket and re-cut: what a person asks for becomes an intent in the journal, or a refusal.

Cooldowns and caps are not asked (Pulsar's manual operations skip them too) but stamped; a segment in a live
operation is refused. An act is a `Planner`: `preview` shows what it would do, `submit` writes the intent. Running it
is the operation runner's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import naming
from controller.domain import reshape
from controller.domain.errors import InvalidInput, Unsupported
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import Reshape, ReshapeKind
from controller.store.journal import intents
from controller.store.journal.intents import Intent, Request
from controller.store.journal.reshape_drafts import Seen
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, policies, topics

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


def recutting(segment_ids: Sequence[int], cut_points: Sequence[int]) -> Planner:
    """Neighbours cut anew at other points."""
    return lambda layout, max_buckets: reshape.plan_recut(layout, segment_ids, cut_points, max_buckets)


def preview(store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner) -> Preview:
    """What `submit` would do now; writes nothing. Raises as `submit` does, except for a busy segment."""
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        layout = layouts.load_layout(tx, row.topic_id)
        planned = planner(layout, _max_buckets(tx))
    _demand_capable(_plane(planes, row.name, row.data_plane), layout, planned)
    return Preview(row.name, layout.epoch, planned)


def submit(
    store: Store, planes: Mapping[str, DataPlane], topic: str, planner: Planner, request: Request
) -> Intent:
    """Write the intent; the same request key gives the first one's operation.

    Raises TopicNotFound, TopicNotLive, SegmentNotFound, InvalidLayoutChange, SegmentBusy, or Unsupported when the
    topic's data plane cannot do it.
    """

    def build(seen: Seen, layout: SegmentLayout) -> Reshape:
        planned = planner(layout, seen.cluster_policy.entry_bucket_max_per_segment)
        _demand_capable(_plane(planes, seen.name, seen.data_plane), layout, planned)
        return planned

    return intents.ask_reshape(
        store,
        topic,
        build,
        backing_topic=lambda seen: naming(_plane(planes, seen.name, seen.data_plane)),
        request=request,
    )


def _plane(planes: Mapping[str, DataPlane], topic: str, name: str) -> DataPlane:
    if name not in planes:
        raise Unsupported(
            f"topic {topic} lives on data plane {name!r}, which is not configured here "
            f"(configured: {', '.join(sorted(planes)) or 'none'})"
        )
    return planes[name]


def _max_buckets(tx: Connection) -> int:
    """The bucket knobs hold for a cluster, as in PIP-486."""
    return policies.get_cluster(tx).policy.entry_bucket_max_per_segment


def _demand_capable(plane: DataPlane, layout: SegmentLayout, planned: Reshape) -> None:
    can = plane.capabilities
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
