"""Actions on topics that existed before Cleave: adopt plain topics, and attach or detach topics whose layout
a broker keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, FailFast, Field, model_validator

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import Reason, SubscriptionName, TopicName, TopicRequest
from controller.actions.responses import OperationResponse, Row, SegmentDocument
from controller.actions.rights import Right
from controller.dataplane.registry import PLANE_NAMES
from controller.domain.names import LONGEST_TOPIC, topic_name
from controller.domain.operation import OperationKind
from controller.services import subscription_consumers, topic_admin, topic_adoption

PLANES = ", ".join(PLANE_NAMES)
_ON_BROKER = {"segment_id", "hash_range", "parents"}
"""Fields of a segment on the broker that fit into a table."""


class AdoptTopic(TopicRequest):
    """Turn a plain or partitioned topic into a scalable topic. Its existing messages are read first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "old": "persistent://acme/shop/orders",
                    "segments": 4,
                    "cut_off": False,
                    "reason": "it has become too much for one topic",
                }
            ]
        }
    )

    old: Annotated[
        str,
        Field(
            min_length=1,
            max_length=LONGEST_TOPIC,
            description="Name of the old topic: persistent://tenant/namespace/name.",
            examples=["persistent://acme/shop/orders"],
        ),
    ]
    topic: TopicName = Field(
        default="", description="Name of the scalable topic. None: the name of the old topic."
    )
    segments: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description="Number of segments at the beginning. None: one segment for each partition."
    )
    data_plane: str = Field("pulsar", description=f"Data plane of the topic, one of {PLANES}.")
    cut_off: bool = Field(False, description="Adopt the topic even if producers or consumers are connected.")
    stock: Annotated[list[SubscriptionName], Field(max_length=1_000), FailFast()] = Field(
        default=[],
        description="Subscriptions that standard Pulsar consumers continue to read, kept in key order by gates at the broker.",
        examples=[["billing"]],
    )
    reason: Reason | None = Field(None, description="Reason, for the journal.")

    @model_validator(mode="before")
    @classmethod
    def _named_after_old(cls, values: Any) -> Any:
        """Return a copy of the values with the full name of the old topic as `topic`. Values that have a `topic` which is not empty, and
        values other than a dict with `old` as a text, are returned unchanged.
        """
        if isinstance(values, dict) and not values.get("topic") and isinstance(values.get("old"), str):
            return {**values, "topic": topic_name(values["old"])}
        return values


class AttachTopic(TopicRequest):
    """Let Cleave decide for a scalable topic of Pulsar 5: mirror its layout, and turn off the broker's own
    auto-scaler for it.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"data_plane": "pulsar_scalable", "reason": "Cleave decides from now on"}]
        }
    )

    data_plane: str = Field(
        "pulsar_scalable", description=f"Data plane that keeps the layout, one of {PLANES}."
    )


class DetachTopic(TopicRequest):
    """Return an attached topic to its broker's own auto-scaler, with its earlier settings."""


class AdoptionResponse(OperationResponse):
    """The operation that adopts a topic. The lists describe the old topic before the adoption."""

    old: str | None = Field(None, examples=["persistent://acme/shop/orders"])
    closes: list[str] = Field(
        default=[],
        description="Logs that are terminated, and read first.",
        examples=[["persistent://acme/shop/orders"]],
    )
    subscriptions: dict[str, str] = Field(
        default={}, description="Kind of each subscription.", examples=[{"billing": "STREAM"}]
    )
    producers: list[str] = Field(
        default=[], description="Connected producers; stop them first, or cut them off."
    )
    consumers: list[str] = Field(default=[], description="Connected consumers.", examples=[["a"]])
    cut_off: bool = Field(
        False, description="True: the connected clients are cut off. False: they prevent the adoption."
    )
    unserved: list[str] = Field(
        default=[],
        description="Subscriptions that no consumer of Cleave can read, with the reasons; delete them first.",
    )

    def preview(self) -> tuple[str, Sequence[Row]]:
        """Return a sentence about the logs that would end, the number of segments that would be created, the connected clients (cut off, or
        to be stopped first unless `cut_off`), and the unreadable subscriptions for which the adoption would be refused; the segments to
        create as rows.
        """
        connected = ", ".join([*self.producers, *self.consumers])
        connected_text = (
            f"{connected} would be cut off" if self.cut_off else f"stop {connected} first, or give cut_off"
        )
        refusal_text = f"; it would be refused, because {'; '.join(self.unserved)}" if self.unserved else ""
        sentence = (
            f"{', '.join(self.closes)} would end; {self.topic} would have {len(self.creates)} segments"
            f"{f'; {connected_text}' if connected else ''}{refusal_text}"
        )
        return sentence, [segment.model_dump() for segment in self.creates]


class AttachmentResponse(OperationResponse):
    """The operation that attaches a topic."""

    on_broker: list[SegmentDocument] | None = Field(
        None,
        description="Active segments of the topic on the broker, in a dry run; null otherwise, and for a repeated request.",
    )

    def preview(self) -> tuple[str, Sequence[Row]]:
        """Return the sentence of any operation, and the active segments on the broker as rows."""
        sentence, rows = super().preview()
        if self.on_broker is None:
            return sentence, rows
        return sentence, [segment.model_dump(include=_ON_BROKER) for segment in self.on_broker]


def adopt(context: Context, request: AdoptTopic) -> AdoptionResponse:
    """Write the intent to adopt the topic, and return its operation after the wait that the context allows, with the old
    topic's clients and subscriptions as this call found them. A repeated request returns the first operation with the
    old topic's logs alone, and does not look at the old topic.

    Otherwise the old topic is checked first: Unsupported if the data plane has no topics to adopt,
    or no gates for `stock`; TopicNotFound; Conflict if a log of the old topic is already terminated, or unless `cut_off`
    if clients are connected; InvalidInput for subscriptions that no consumer of Cleave can read, or names in `stock` that
    do not exist or are read as queues; the errors of the data plane. A dry run lists connected clients and unreadable
    subscriptions instead of refusing them. Then raises TopicExists, InvalidInput for an invalid name or number of
    segments, LostRace if another topic used the name in the meantime, and Conflict if the request key was used for
    another request, of which only `cut_off` and the reason may differ.
    """
    earlier = context.earlier_intent(request.topic, (OperationKind.ADOPT,))
    if earlier is not None:  # the adoption may have terminated the old topic, which a plan refuses
        topic_adoption.demand_same(
            earlier,
            request.old,
            segments=request.segments,
            data_plane=request.data_plane,
            stock_subscriptions=request.stock,
        )
        return context.respond(AdoptionResponse, earlier, closes=list(earlier.operation.fenced_topics))
    planes = context.app.planes
    plan = topic_adoption.plan(
        planes, request.old, topic=request.topic, segments=request.segments, data_plane=request.data_plane
    )
    if request.stock:
        subscription_consumers.demand_gates(planes, request.data_plane, request.topic)
    intent = topic_adoption.adopt(
        context.store,
        planes,
        plan,
        context.journal_request(request.reason),
        data_plane=request.data_plane,
        cut_off=request.cut_off or context.dry_run,
        stock_subscriptions=request.stock,
    )
    old_topic = plan.found
    return context.respond(
        AdoptionResponse,
        intent,
        old=old_topic.name,
        closes=list(old_topic.logs),
        subscriptions={
            name: "QUEUE" if is_queue else "STREAM" for name, is_queue in old_topic.subscriptions.items()
        },
        producers=list(old_topic.producers),
        consumers=list(old_topic.consumers),
        cut_off=request.cut_off,
        unserved=list(plan.unserved.values()),
    )


def attach(context: Context, request: AttachTopic) -> AttachmentResponse:
    """Write the intent to attach the topic, and return its operation after the wait that the context allows. A dry run
    also reads the active segments from the broker, with the errors of the data plane and TopicNotFound, unless the
    request is repeated. Raises InvalidInput for an invalid name, TopicExists, Unsupported for a data plane that keeps no
    layouts or is not configured here, LostRace if another topic used the name in the meantime, and Conflict if the
    request key was used for another topic, data plane or kind of operation.
    """
    intent = topic_admin.attach_topic(
        context.store,
        context.app.planes,
        request.topic,
        context.journal_request(request.reason),
        data_plane=request.data_plane,
    )
    on_broker = _segments_on_broker(context, request) if context.dry_run and not intent.repeated else None
    return context.respond(AttachmentResponse, intent, on_broker=on_broker)


def _segments_on_broker(context: Context, request: AttachTopic) -> list[SegmentDocument]:
    """Return the active segments of the broker's layout, by range. Raises Unsupported for a data plane that keeps no
    layouts or is not configured here, TopicNotFound if the broker lacks the topic, and the errors of the data plane.
    """
    keeper = topic_admin.layout_keeper(context.app.planes, request.data_plane)
    return [SegmentDocument.of(segment) for segment in keeper.read_layout(request.topic).active]


def detach(context: Context, request: DetachTopic) -> OperationResponse:
    """Write the intent to detach the topic, and return its operation after the wait that the context allows. Raises
    TopicNotFound, TopicNotLive, and Conflict for a topic that was not attached, or if the request key was used for
    another request.
    """
    intent = topic_admin.detach_topic(context.store, request.topic, context.journal_request(request.reason))
    return context.respond(OperationResponse, intent)


ACTIONS = (
    Action(
        "topics adopt",
        "/topics/{topic}/adopt",
        Right.ADMINISTER,
        AdoptTopic,
        AdoptionResponse,
        adopt,
        operation_kinds=(OperationKind.ADOPT,),
    ),
    Action(
        "topics attach",
        "/topics/{topic}/attach",
        Right.ADMINISTER,
        AttachTopic,
        AttachmentResponse,
        attach,
        operation_kinds=(OperationKind.ATTACH,),
    ),
    Action(
        "topics detach",
        "/topics/{topic}/detach",
        Right.ADMINISTER,
        DetachTopic,
        OperationResponse,
        detach,
        operation_kinds=(OperationKind.DETACH,),
    ),
)
