"""`/admin/v2/segments/…`: one segment's log, named by its descriptor (`0000-7fff-12`).

Pulsar's controller creates its segments with these calls. In Cleave the journal creates segments, so each call becomes an operation:
terminating a segment replaces it by a successor of the same range, and deleting a segment prunes it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field

from controller.domain.errors import Unsupported
from controller.domain.seek_target import LATEST, SeekTarget
from controller.services import garbage_collector, segment_admin, segment_logs, subscription_admin
from controller.services.segment_logs import SegmentLog
from controller.web.http_caller import Acting, HttpCaller
from controller.web.paths import Name
from controller.web.pulsar.scalable import REASON, reshape, seek
from controller.web.pulsar.switch import SWITCHED_ON
from controller.web.refusals import REFUSALS
from controller.web.route_rights import ADMINISTER, READ, DemandingRoute
from controller.web.shared_parameters import Timestamp, Topic

_PATH = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
_SUBSCRIPTION = _PATH + "/subscription/{subscription}"
router = APIRouter(
    route_class=DemandingRoute, dependencies=[SWITCHED_ON], responses=REFUSALS, tags=["Pulsar: segments"]
)
Descriptor = Annotated[str, Path(pattern=r"^[^\s/\x00]+$", max_length=100, examples=["0000-7fff-0"])]


def _log(acting: Acting, topic: str, descriptor: str) -> SegmentLog:
    """Return the log of the segment that the descriptor names. Raises the errors of `segment_logs.find`."""
    return segment_logs.find(acting.app.store, acting.app.planes, topic, descriptor)


@router.put(_PATH, dependencies=[ADMINISTER], status_code=204)
def create_segment(
    acting: HttpCaller,
    topic: Topic,
    descriptor: Descriptor,
    subscriptions: Annotated[list[str] | str | None, Body(examples=[["billing"]])] = None,
) -> None:
    """Make sure that the log of a segment of the layout exists, with every subscription of the topic at earliest; `subscriptions` must be
    among them. 404 for a segment that is not in the layout: splits and merges create segments. 409 for a sealed segment.
    """
    names = subscriptions if isinstance(subscriptions, list) else []
    _log(acting, topic, descriptor).ensure_exists(names)


@router.post(_PATH + "/terminate", dependencies=[ADMINISTER], status_code=204)
def terminate_segment(acting: HttpCaller, topic: Topic, descriptor: Descriptor) -> None:
    """Terminate the log of an ACTIVE segment. A successor with the same hash range takes over, so that every key has
    a segment. A sealed segment stays as it is; the call then succeeds.
    """
    segment_log = _log(acting, topic, descriptor)
    if not segment_log.is_sealed:
        planner = segment_admin.replacing(segment_log.segment.segment_id)
        reshape(acting, topic, planner)


@router.delete(_PATH, dependencies=[ADMINISTER], status_code=204)
def delete_segment(
    acting: HttpCaller,
    topic: Topic,
    descriptor: Descriptor,
    force: Annotated[bool, Query(description="Accepted for Pulsar's client, and ignored.")] = False,  # noqa: ARG001 - Pulsar's client sends it
) -> None:
    """Remove a sealed segment that all subscriptions have drained, and queue its log for deletion; 409 with the reason for any other segment
    of the layout.
    """
    segment_log = _log(acting, topic, descriptor)
    acting.finish(
        garbage_collector.collect_segment(
            acting.app.store,
            acting.app.planes,
            topic,
            segment_log.segment.segment_id,
            acting.request(REASON),
        )
    )


@router.put(_SUBSCRIPTION, dependencies=[ADMINISTER], status_code=204)
def create_segment_subscription(
    acting: HttpCaller, topic: Topic, descriptor: Descriptor, subscription: Name
) -> None:
    """Make sure that the log of an ACTIVE segment exists with the cursors of all subscriptions of the topic. 404 if the topic has no such
    subscription, 409 for a sealed segment.
    """
    _log(acting, topic, descriptor).ensure_exists([subscription])


@router.delete(_SUBSCRIPTION, dependencies=[ADMINISTER], status_code=204)
def delete_segment_subscription(
    acting: HttpCaller, topic: Topic, descriptor: Descriptor, subscription: Name
) -> None:
    """Delete nothing: 204 if the topic has no such live subscription, otherwise 409, because each segment needs the cursor."""
    _log(acting, topic, descriptor).demand_none(subscription)


@router.get(_SUBSCRIPTION + "/backlog", dependencies=[READ])
def get_segment_backlog(
    acting: HttpCaller, topic: Topic, descriptor: Descriptor, subscription: Name
) -> Annotated[int, Field(examples=[120])]:
    """Number of messages that the subscription has not acknowledged."""
    return _log(acting, topic, descriptor).backlog(subscription)


@router.post(_SUBSCRIPTION + "/seek", dependencies=[ADMINISTER], status_code=204)
def seek_segment_subscription(
    acting: HttpCaller,
    topic: Topic,
    descriptor: Descriptor,
    subscription: Name,
    timestamp: Timestamp,
) -> None:
    """Move the subscription to the timestamp. A subscription moves on all its segments at once, to keep the order of keys: 422 if it has
    cursors on other segments.
    """
    _move(acting, _log(acting, topic, descriptor), subscription, SeekTarget(timestamp))


@router.post(_SUBSCRIPTION + "/skip-all", dependencies=[ADMINISTER], status_code=204)
def skip_all_of_segment_subscription(
    acting: HttpCaller, topic: Topic, descriptor: Descriptor, subscription: Name
) -> None:
    """Move the subscription past all messages published so far; 422 as for seek."""
    _move(acting, _log(acting, topic, descriptor), subscription, LATEST)


def _move(acting: Acting, segment_log: SegmentLog, subscription: str, target: SeekTarget) -> None:
    """Move the subscription as `seek` does, if the segment of `segment_log` is the only segment on which the
    subscription has a cursor to move. Otherwise move nothing and raise Unsupported, because a subscription is moved
    on all its segments at once. Also raises the errors of `subscription_admin.cursors_to_move` and `seek`.
    """
    app = acting.app
    cursors = subscription_admin.cursors_to_move(app.store, app.planes, segment_log.topic, subscription)
    if {cursor.segment_id for cursor in cursors} != {segment_log.segment.segment_id}:
        raise Unsupported(
            f"subscription {subscription} is moved on all {len(cursors)} segments of {segment_log.topic} at once; seek or skip it on the topic"
        )
    seek(acting, segment_log.topic, subscription, target)
