"""Pulsar's JSON documents of the policy override, a topic's metadata, and statistics of topics and segments; conversion
in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from controller.domain.layout import SegmentLayout
from controller.domain.policy import PARAMETERS
from controller.domain.policy_parameters import NON_FINITE, misfit, write_parameter
from controller.domain.segment import Segment, backing_topic_name
from controller.domain.whole_numbers import LARGEST_FLOAT, MOST
from controller.questions.layouts import RecordedRange, SegmentRecord

Document = dict[str, Any]


class _Camel(BaseModel):
    """Fields are named as Pulsar names them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


_MOST_INTEGER: Final = 2**31 - 1
_NEVER: Final = MOST
"""Infinity in a field that is a whole number in Pulsar: the largest one of 64 bits."""
_OLD_FLOOR, _FLOOR = "splitVsRebucketMinMsgRateIn", "splitVsRebucketMinMsgRateInThreshold"


def _number(value: object) -> object:
    """Return the value unchanged, but a text of `NON_FINITE` as a float. Raises ValueError for a truth value or another text, which
    pydantic would convert to a number.
    """
    if isinstance(value, str) and value in NON_FINITE:
        return float(value)
    if isinstance(value, bool | str):
        raise ValueError("give a number")
    return value


def _exact(value: object) -> object:
    """Return the value unchanged. Raises ValueError for a whole number that the policy, which holds 64-bit floating-point numbers, would
    round.
    """
    if isinstance(value, int) and (abs(value) > LARGEST_FLOAT or int(float(value)) != value):
        raise ValueError(f"give a number that 64 bits of floating point hold, such as one up to {2**53}")
    return value


def _exact_or_never(value: object) -> object:
    """Return the value unchanged. Raises the errors of `_exact`, except for the number that stands for infinity."""
    return value if value == _NEVER else _exact(value)


_NUMBER = BeforeValidator(_number)
_Count = Annotated[int, Field(ge=-_MOST_INTEGER, le=_MOST_INTEGER), _NUMBER]
_Seconds = Annotated[int, Field(ge=-MOST, le=MOST), _NUMBER]
_Bytes = Annotated[int, Field(ge=-MOST, le=MOST), BeforeValidator(_exact_or_never), _NUMBER]
_Messages = Annotated[
    float,
    BeforeValidator(_exact),
    _NUMBER,
    PlainSerializer(write_parameter),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["Infinity"]}]}),
]


class AutoScalePolicy(_Camel):
    """The policy parameters that a namespace or a topic overrides; a field that is null or absent is inherited (PIP-483). A threshold that is
    never reached is `"Infinity"`; for bytes it is the largest number of 64 bits.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"enabled": True, "maxSegments": 16, "splitMsgRateInThreshold": 10000.0}]
        },
    )

    enabled: StrictBool | None = None
    max_segments: _Count | None = None
    min_segments: _Count | None = None
    max_dag_depth: _Count | None = None
    split_cooldown_seconds: _Seconds | None = None
    rebucket_cooldown_seconds: _Seconds | None = None
    merge_cooldown_seconds: _Seconds | None = None
    merge_window_seconds: _Seconds | None = None
    split_vs_rebucket_min_msg_rate_in_threshold: _Messages | None = None
    split_msg_rate_in_threshold: _Messages | None = None
    split_bytes_rate_in_threshold: _Bytes | None = None
    split_msg_rate_out_threshold: _Messages | None = None
    split_bytes_rate_out_threshold: _Bytes | None = None
    merge_msg_rate_in_threshold: _Messages | None = None
    merge_bytes_rate_in_threshold: _Bytes | None = None
    merge_msg_rate_out_threshold: _Messages | None = None
    merge_bytes_rate_out_threshold: _Bytes | None = None

    @model_validator(mode="before")
    @classmethod
    def _under_its_present_name(cls, document: Any) -> Any:
        """Accept both names that Pulsar has used for the floor of the consumer lane; responses have the current name. Raises ValueError
        if both are given and differ.
        """
        if not isinstance(document, Mapping) or _OLD_FLOOR not in document:
            return document
        renamed = {name: value for name, value in document.items() if name != _OLD_FLOOR}
        if renamed.setdefault(_FLOOR, document[_OLD_FLOOR]) != document[_OLD_FLOOR]:
            raise ValueError(f"{_OLD_FLOOR} and {_FLOOR} are one field and differ; give {_FLOOR}")
        return renamed


_PARAMETER_OF = {
    name: name.removesuffix("_threshold").replace("_bytes_", "_byte_")
    for name in AutoScalePolicy.model_fields
}
"""The parameter behind each of Pulsar's fields."""
_FIELD_OF = {parameter: name for name, parameter in _PARAMETER_OF.items()}
_MOST_OF = {
    name: _MOST_INTEGER if PARAMETERS[parameter] is int and not parameter.endswith("_seconds") else _NEVER
    for name, parameter in _PARAMETER_OF.items()
    if PARAMETERS[parameter] is int or "_byte_" in parameter
}
"""The largest value of each field that is a whole number in Pulsar."""


def parameters_of(policy: AutoScalePolicy, before: Mapping[str, Any]) -> Document:
    """Return the document to store for a level, by the names of Cleave's parameters. The parameters that Pulsar has
    come from `policy`: a field that is null is left out, so that the level no longer sets the parameter, and the
    largest 64-bit number in a field of bytes becomes infinity. The parameters that Pulsar does not have are kept from
    `before`, the level's stored document. The result is not validated.
    """
    other_parameters = {parameter: value for parameter, value in before.items() if parameter not in _FIELD_OF}
    overrides = {name: value for name in _PARAMETER_OF if (value := getattr(policy, name)) is not None}
    return {
        **other_parameters,
        **{
            _PARAMETER_OF[name]: math.inf if "_bytes_" in name and value == _NEVER else value
            for name, value in overrides.items()
        },
    }


def policy_of(stored: Mapping[str, Any]) -> AutoScalePolicy | None:
    """Return the parameters of a level's stored document that Pulsar has, under Pulsar's names; None if the document
    has no such parameter with a usable value. A number outside the range of Pulsar's field becomes the nearest number
    in the range. A value that is neither a number nor a truth value is left out.
    """
    read = ((_FIELD_OF[parameter], value) for parameter, value in stored.items() if parameter in _FIELD_OF)
    fields: Document = {
        name: field_value for name, value in read if (field_value := _field_value(name, value)) is not None
    }
    return AutoScalePolicy.model_construct(**fields) if fields else None


def _field_value(name: str, value: Any) -> float | None:
    """Return the value of Pulsar's field `name`: a truth value unchanged, a number (also as a text of `NON_FINITE`) as a float, or, if the
    field is a whole number in Pulsar, rounded and cut to the field's range. None for NaN, and for another value, which a newer version or a
    manual update may have written.
    """
    if isinstance(value, bool):
        return value
    number = float(value) if value in NON_FINITE or misfit(value, float) is None else math.nan
    if math.isnan(number):
        return None
    largest = _MOST_OF.get(name)
    if largest is None:
        return number
    return round(number) if abs(number) < largest else largest if number > 0 else -largest


class TopicMetadata(_Camel):
    """The record of PIP-468 with the fields that Pulsar 5 added."""

    epoch: int = Field(examples=[7])
    next_segment_id: int
    segments: dict[str, SegmentRecord]
    properties: dict[str, Any] = Field(examples=[{"team": "billing"}])
    auto_scale_policy: AutoScalePolicy | None


class SegmentLoad(_Camel):
    """The latest load record, per second, compared with the thresholds in force."""

    msg_rate_in: float = Field(examples=[9000.0])
    byte_rate_in: float = Field(examples=[3600000.0])
    msg_rate_out: float
    byte_rate_out: float
    modified_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    observed_at: datetime | None
    cold_since: datetime | None
    is_stale: bool
    is_hot: bool | None
    is_cold: bool | None


class SegmentStats(_Camel):
    """Statistics of a segment. `name` and `state` are Pulsar's fields, the others are additions. `load` is null without
    a load record, as for a sealed segment.
    """

    name: str = Field(examples=["segment://acme/shop/orders/0000-7fff-0"])
    state: str = Field(examples=["ACTIVE"])
    backing_topic: str = Field(examples=["persistent://acme/shop/orders-segment-0000-7fff-0"])
    load: SegmentLoad | None


class SubscriptionStats(_Camel):
    """Statistics of a subscription. `consumerCount` is Pulsar's field, the others are additions."""

    consumer_count: int
    type: str = Field(examples=["STREAM"])
    consumers: list[str] = Field(examples=[["a"]])


class EffectiveParameter(_Camel):
    """A parameter and the level that it comes from."""

    value: Any
    level: str = Field(examples=["topic", "namespace", "cluster", "default"])


class TopicStats(_Camel):
    """Pulsar's statistics, with each segment's load and the policy in force."""

    epoch: int = Field(examples=[7])
    total_segments: int
    active_segments: int
    sealed_segments: int
    segments: dict[str, SegmentStats]
    subscriptions: dict[str, SubscriptionStats]
    effective_policy: dict[str, EffectiveParameter]


class SegmentSubscription(_Camel):
    """Statistics of a subscription on one segment. `backlog` is the number of unread messages; null if there is no cursor."""

    backlog: int | None = Field(examples=[120])


class OneSegmentStats(SegmentStats):
    """Statistics of one segment, with the backlog of each subscription."""

    segment_id: int
    hash_range: RecordedRange
    parent_ids: list[int] = Field(examples=[[0]])
    child_ids: list[int]
    created_at_epoch: int
    sealed_at_epoch: int = Field(examples=[-1])
    subscriptions: dict[str, SegmentSubscription]


def metadata_of(
    layout: SegmentLayout, properties: Mapping[str, Any], stored: Mapping[str, Any] | None
) -> Document:
    """Return the document of `TopicMetadata`. `stored` is the topic's stored policy; None: it overrides nothing."""
    policy = policy_of(stored or {})
    policy_document = None if policy is None else policy.model_dump(exclude_none=True, by_alias=True)
    return layout.to_metadata({"properties": dict(properties), "autoScalePolicy": policy_document})


def stats_of(
    topic: str,
    layout: SegmentLayout,
    backing_topics: Mapping[int, str],
    loads: Sequence[Mapping[str, Any]],
    subscriptions: Sequence[Mapping[str, Any]],
    policy: Sequence[Mapping[str, Any]],
) -> Document:
    """Return the document of `TopicStats`. `backing_topics` are by segment id; `loads`, `subscriptions` and `policy` are the topic's rows
    of `inspect.load_now`, `inspect.subscriptions` and `inspect.policy_effective`.
    """
    load_of = {row["segment_id"]: row for row in loads}
    active = len(layout.active)
    return {
        "epoch": layout.epoch,
        "totalSegments": len(layout.segments),
        "activeSegments": active,
        "sealedSegments": len(layout.segments) - active,
        "segments": {
            str(i): segment_stats(topic, segment, backing_topics[i], load_of.get(i))
            for i, segment in sorted(layout.segments.items())
        },
        "subscriptions": {
            row["subscription"]: {
                "consumerCount": row["consumers"],
                "type": row["kind"],
                "consumers": row["consumer_names"],
            }
            for row in subscriptions
        },
        "effectivePolicy": {
            to_camel(_FIELD_OF.get(row["parameter"], row["parameter"])): {
                "value": row["value"],
                "level": row["level"],
            }
            for row in policy
        },
    }


def segment_stats(
    topic: str, segment: Segment, backing_topic: str, load: Mapping[str, Any] | None
) -> Document:
    """Return the document of `SegmentStats`. `load` is a row of `inspect.load_now`, of which `SegmentLoad` takes its fields."""
    return {
        "name": backing_topic_name(topic, segment),
        "state": segment.state.value,
        "backingTopic": backing_topic,
        "load": None if load is None or load["modified_at"] is None else load,
    }


def one_segment_stats(
    topic: str,
    segment: Segment,
    backing_topic: str,
    load: Mapping[str, Any] | None,
    backlogs: Mapping[str, int | None],
) -> Document:
    """Return the document of `OneSegmentStats`. `load` is the segment's row of `inspect.load_now`, or None; `backlogs` are by subscription,
    None for a subscription without a cursor.
    """
    return {
        **segment_stats(topic, segment, backing_topic, load),
        "segmentId": segment.segment_id,
        "hashRange": {"start": segment.hash_range.start, "end": segment.hash_range.end},
        "parentIds": list(segment.parent_ids),
        "childIds": list(segment.child_ids),
        "createdAtEpoch": segment.created_epoch,
        "sealedAtEpoch": -1 if segment.sealed_epoch is None else segment.sealed_epoch,
        "subscriptions": {name: {"backlog": backlog} for name, backlog in backlogs.items()},
    }
