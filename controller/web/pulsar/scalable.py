"""`/admin/v2/scalable/…`: topics, their segments, subscriptions and statistics.

Each change is an operation in the journal, and is answered when the operation is done.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from fastapi import Request as HttpRequest
from pydantic import Field

from controller.actions.subscriptions import CreateSubscription, intend_creation
from controller.dataplane.registry import configured
from controller.domain.errors import Conflict
from controller.domain.seek_target import LATEST, SeekTarget
from controller.questions.history import LIST_LOAD
from controller.questions.question import read_answers
from controller.questions.subscriptions import LIST_SUBSCRIPTIONS
from controller.services import segment_admin, subscription_admin, topic_admin, topic_adoption
from controller.services.segment_admin import Planner
from controller.services.watches.topic_feed import TopicFilter
from controller.store.topics import inspector_reads, subscriptions, topics
from controller.store.topics.published_layout import published_segments
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionState
from controller.web.http_caller import Acting, HttpCaller
from controller.web.paths import Name
from controller.web.pulsar import documents
from controller.web.pulsar.documents import OneSegmentStats, TopicMetadata, TopicStats
from controller.web.pulsar.switch import SWITCHED_ON
from controller.web.refusals import REFUSALS
from controller.web.route_rights import ADMINISTER, OPERATE, READ, DemandingRoute
from controller.web.shared_parameters import Namespace, Timestamp, Topic, WithProperties, served_by

_NAMESPACE = "/admin/v2/scalable/{tenant}/{namespace}"
_TOPIC = _NAMESPACE + "/{topic}"
_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"
REASON = "requested with Pulsar's admin API"
router = APIRouter(
    route_class=DemandingRoute,
    dependencies=[SWITCHED_ON],
    responses=REFUSALS,
    tags=["Pulsar: scalable topics"],
)
SegmentId = Annotated[int, Path(ge=0, lt=2**63, examples=[0])]


@router.get(_NAMESPACE, dependencies=[READ])
def list_scalable_topics(
    request: HttpRequest,
    namespace: Namespace,
    wanted: WithProperties = (),
) -> Annotated[list[str], Field(examples=[["topic://acme/shop/orders"]])]:
    """Full names of the live topics of the namespace."""
    return list(served_by(request).topics.look(TopicFilter.of(namespace, wanted)))


@router.put(_TOPIC, dependencies=[ADMINISTER], status_code=204)
def create_scalable_topic(
    acting: HttpCaller,
    topic: Topic,
    properties: Annotated[dict[str, str] | Literal[""] | None, Body(examples=[{"team": "billing"}])] = None,
    segments: Annotated[int, Query(alias="numInitialSegments", ge=1, le=65_536, examples=[4])] = 1,
    data_plane: Annotated[
        str | None,
        Query(
            alias="dataPlane",
            description="Data plane of the topic. Default: CLEAVE_SERVE_DATA_PLANE.",
            examples=["embedded"],
        ),
    ] = None,
) -> None:
    """Create a topic with the given number of equal segments."""
    app = acting.app
    acting.finish(
        topic_admin.create_topic(
            app.store,
            app.planes,
            topic,
            acting.request(REASON),
            data_plane=data_plane or app.settings.serve_data_plane,
            segments=segments,
            properties=properties or {},
        )
    )


@router.get(_TOPIC, dependencies=[READ], response_model=TopicMetadata)
def get_scalable_topic(acting: HttpCaller, topic: Topic) -> dict[str, Any]:
    """The topic's record: its layout, sealed segments included, its properties and its policy overrides."""
    with acting.app.store.transaction() as tx:
        published = published_segments(tx, topic)
        row = topics.get_topic(tx, published.topic_id)
    return documents.metadata_of(published.layout, row.properties, row.policy)


@router.delete(_TOPIC, dependencies=[ADMINISTER], status_code=204)
def delete_scalable_topic(
    acting: HttpCaller,
    topic: Topic,
    force: Annotated[bool, Query(description="Delete even if consumers are registered.")] = False,
) -> None:
    """Delete the topic with every log behind it, unread messages included, and wait for the end of the operation.
    Without `force`, 409 if the topic has consumers: registered consumers, also disconnected ones within their grace
    period, or standard clients that were observed last.
    """
    if not force:
        _demand_unused(acting, topic)
    acting.finish(topic_admin.delete_topic(acting.app.store, topic, acting.request(REASON)))


def _demand_unused(acting: Acting, topic: str) -> None:
    """Raise Conflict if a live subscription of the topic has consumers: registered ones, also disconnected within their grace period, or
    standard consumers that were observed last. Nothing is locked, so a consumer may register afterwards. Raises TopicNotFound.
    """
    with acting.app.store.transaction() as tx:
        listed = read_answers(tx, LIST_SUBSCRIPTIONS, live=True, **inspector_reads.find_topic(tx, topic).key)
    for subscription in listed:
        if subscription["consumers"]:
            # Standard consumers may have no name.
            names = "".join(f", such as {name}" for name in subscription["consumer_names"][:1])
            raise Conflict(
                f"{topic} has consumers ({subscription['consumers']} of {subscription['subscription']}{names}); stop them, or delete the "
                "topic with force=true"
            )


@router.get(_TOPIC + "/stats", dependencies=[READ], response_model=TopicStats)
def get_scalable_topic_stats(acting: HttpCaller, topic: Topic) -> dict[str, Any]:
    """Segments and subscriptions as Pulsar counts them, the latest load of each segment, and the policy in force with the level that
    sets each parameter.
    """
    with acting.app.store.transaction() as tx:
        published, reference = published_segments(tx, topic), inspector_reads.find_topic(tx, topic)
        return documents.stats_of(
            topic,
            published.layout,
            published.backing_topics,
            read_answers(tx, LIST_LOAD, **reference.key),
            read_answers(tx, LIST_SUBSCRIPTIONS, live=True, **reference.key),
            inspector_reads.effective_policy(tx, reference),
        )


@router.get(_TOPIC + "/segments/{segment_id}/stats", dependencies=[READ], response_model=OneSegmentStats)
def get_segment_stats(acting: HttpCaller, topic: Topic, segment_id: SegmentId) -> dict[str, Any]:
    """One segment, sealed segments included, with its latest load and the backlog of each subscription. The load is
    null if no load was recorded. A backlog is null if the log or its cursor of the subscription is missing. 404 for
    an unknown segment.
    """
    app = acting.app
    with app.store.transaction() as tx:
        published = published_segments(tx, topic)
        segment = published.layout.segment(segment_id)
        reference = inspector_reads.find_topic(tx, topic)
        loads = read_answers(tx, LIST_LOAD, segment_id=segment_id, **reference.key)
        names = [
            subscription.name for subscription in subscriptions.list_subscriptions(tx, published.topic_id)
        ]
    plane, log = configured(app.planes, published.data_plane, topic), published.backing_topics[segment_id]
    backlogs = {name: plane.backlog(log, name) for name in names}
    return documents.one_segment_stats(topic, segment, log, next(iter(loads), None), backlogs)


@router.post(_TOPIC + "/migrate", dependencies=[ADMINISTER], status_code=204)
def migrate_topic(
    acting: HttpCaller,
    topic: Topic,
    force: Annotated[
        bool, Query(description="Migrate even if producers or consumers are connected.")
    ] = False,
) -> None:
    """Turn the plain or partitioned `persistent://` topic of that name into a scalable topic, and wait for the end of
    the operation. Consumers read the messages of the old topic first. Without `force`, 409 if producers or consumers
    are connected; with `force`, the broker notifies them that the old topic has ended.
    """
    app = acting.app
    old = f"persistent://{topic.removeprefix('topic://')}"
    planned = topic_adoption.plan(app.planes, old, topic=topic)
    request = acting.request(REASON)
    acting.finish(topic_adoption.adopt(app.store, app.planes, planned, request, cut_off=force))


@router.post(_TOPIC + "/split/{segment_id}", dependencies=[OPERATE], status_code=204)
def split_segment(acting: HttpCaller, topic: Topic, segment_id: SegmentId) -> None:
    """Split an ACTIVE segment at its midpoint."""
    reshape(acting, topic, segment_admin.splitting(segment_id))


@router.post(_TOPIC + "/merge/{first_id}/{second_id}", dependencies=[OPERATE], status_code=204)
def merge_segments(
    acting: HttpCaller,
    topic: Topic,
    first_id: SegmentId,
    second_id: Annotated[int, Path(ge=0, lt=2**63, examples=[1])],
) -> None:
    """Merge two neighbouring ACTIVE segments."""
    reshape(acting, topic, segment_admin.merging(first_id, second_id))


@router.post(_TOPIC + "/rebucket/{segment_id}", dependencies=[OPERATE], status_code=204)
def rebucket_segment(
    acting: HttpCaller,
    topic: Topic,
    segment_id: SegmentId,
    bucket_count: Annotated[int, Query(alias="bucketCount", ge=1, le=65_536, examples=[8])],
) -> None:
    """Give an ACTIVE segment another number of entry buckets."""
    reshape(acting, topic, segment_admin.rebucketing(segment_id, bucket_count))


def reshape(acting: Acting, topic: str, planner: Planner) -> None:
    """Write the intent of the reshape that the planner plans, and wait until the operation is done. Raises the errors of
    `segment_admin.submit` and `Acting.finish`.
    """
    app = acting.app
    acting.finish(segment_admin.submit(app.store, app.planes, topic, planner, acting.request(REASON)))


@router.put(_SUBSCRIPTION, dependencies=[ADMINISTER], status_code=204)
def create_subscription(
    acting: HttpCaller,
    topic: Topic,
    subscription: Name,
    kind: Annotated[SubscriptionKind, Query(alias="type")] = SubscriptionKind.STREAM,
) -> None:
    """Create a subscription at the earliest message of every segment, and wait for the end of the operation. The policy parameter
    `subscription_consumers` decides who reads a STREAM subscription; 422 if standard consumers cannot read it in order. An existing
    live subscription of that name and type stays as it is; 409 for another type, or while the subscription is being deleted.
    """
    with acting.app.store.transaction() as tx:
        topic_id = topics.find_topic(tx, topic).topic_id
        listed = subscriptions.list_subscriptions(tx, topic_id)
    if (subscription, kind, SubscriptionState.LIVE) in {(row.name, row.kind, row.state) for row in listed}:
        return
    wanted = CreateSubscription(topic=topic, subscription=subscription, kind=kind, reason=REASON)
    acting.finish(intend_creation(acting.context(), wanted))


@router.delete(_SUBSCRIPTION, dependencies=[ADMINISTER], status_code=204)
def delete_subscription(acting: HttpCaller, topic: Topic, subscription: Name) -> None:
    """Delete the subscription with its positions on every segment."""
    acting.finish(
        subscription_admin.delete_subscription(acting.app.store, topic, subscription, acting.request(REASON))
    )


@router.post(_SUBSCRIPTION + "/seek", dependencies=[ADMINISTER], status_code=204)
def seek_subscription(
    acting: HttpCaller,
    topic: Topic,
    subscription: Name,
    timestamp: Timestamp,
) -> None:
    """Move the subscription to the timestamp on every segment, with all its consumers."""
    seek(acting, topic, subscription, SeekTarget(timestamp))


@router.post(_SUBSCRIPTION + "/skip-all", dependencies=[ADMINISTER], status_code=204)
def skip_all(acting: HttpCaller, topic: Topic, subscription: Name) -> None:
    """Move the subscription past all messages published so far."""
    seek(acting, topic, subscription, LATEST)


def seek(acting: Acting, topic: str, subscription: str, target: SeekTarget) -> None:
    """Write the intent to move the subscription, and wait until the operation is done. Consumers have the grace period of the settings to
    release their buckets. Raises the errors of `subscription_admin.seek_subscription` and `Acting.finish`.
    """
    app = acting.app
    intent = subscription_admin.seek_subscription(
        app.store,
        topic,
        subscription,
        target,
        acting.request(REASON),
        release_seconds=app.settings.consumer_grace_seconds,
    )
    acting.finish(intent)
