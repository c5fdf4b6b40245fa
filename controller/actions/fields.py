"""Fields that requests share, with the rules of the domain. Every interface accepts the same text for a
field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from controller.domain.durations import parse_duration
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.hash_range import parse_hash
from controller.domain.names import (
    LONGEST_NAME,
    LONGEST_REASON,
    LONGEST_TOPIC,
    demand_name,
    demand_reason,
    full_topic_name,
    policy_level,
)
from controller.domain.policy_parameters import write_parameter
from controller.domain.utf8 import demand_utf8
from controller.domain.whole_numbers import MOST

PATH_FORMS: Mapping[str, str] = MappingProxyType(
    {
        "topic": "{tenant}/{namespace}/{topic}",
        "namespace": "{tenant}/{namespace}",
        "bundle": "{tenant}/{namespace}/bundles/{bundle}",
    }
)
"""Forms in a path of fields that have several parts."""
AS_ARGUMENT = object()
"""Marks a field with a default that a command takes as an argument instead of an option."""
LONGEST_KEEP = timedelta(days=366)
"""Longest time for which a request prevents merges of the segments that it creates."""
TOPIC_PATTERN = r"^\s*(((topic|persistent)://)?[^/\s]+/[^/\s]+/)?[^/\s]+\s*$"


def as_value_error(rule: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a function that applies the rule and raises ValueError, which pydantic expects, instead of
    InvalidInput.
    """

    def checked(value: Any) -> Any:
        try:
            return rule(value)
        except InvalidInput as error:
            raise ValueError(error.message) from error

    return checked


def from_text(rule: Callable[[str], object]) -> BeforeValidator:
    """Return a validator that applies the rule to text without surrounding white space. Other values are left to
    the check of the field's type.
    """
    checked = as_value_error(rule)
    return BeforeValidator(lambda value: checked(value.strip()) if isinstance(value, str) else value)


def _hash(value: object) -> object:
    """Return the hash of a number, or of decimal or hexadecimal text. Raises InvalidInput for any other value."""
    return parse_hash(value.strip() if isinstance(value, str) else shown(value))


def _keep(text: str) -> str | None:
    """Check the text of a duration for which created segments are not merged, and return the text as it is; None for an
    empty text, which a form sends. Raises InvalidInput for a text that is no duration, and for a duration outside 1
    minute to `LONGEST_KEEP`.
    """
    if not text:
        return None
    if not timedelta(minutes=1) <= parse_duration(text) <= LONGEST_KEEP:
        raise InvalidInput(f"give a time from 1min to {LONGEST_KEEP.days}d")
    return text


def split_words(value: object) -> object:
    """Return the words of a text, or of a list of texts, separated by commas, semicolons, spaces or line breaks;
    None if there is no word. Any other value, an empty list too, is returned unchanged, for the field's type to check.
    """
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = " ".join(value)
    if not isinstance(value, str):
        return value
    return re.findall(r"[^\s,;]+", value) or None


def split_lines(value: object) -> object:
    """Return the non-empty lines of a text, without surrounding white space; None if there are none. Any other
    value is returned unchanged, for the field's type to check.
    """
    if not isinstance(value, str):
        return value
    return [line.strip() for line in value.splitlines() if line.strip()] or None


def parse_parameters(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the parameters of `parameter=value` texts. A value is read as JSON (true, 16, 0.25), otherwise taken
    as plain text; of several texts with one name the last counts. Raises InvalidInput for a text without `=` or
    without a name.
    """
    parameters: dict[str, Any] = _read_pairs([*pairs], _json)
    return parameters


def _read_pairs(texts: Any, convert: Callable[[str], object]) -> Any:
    """Return a dict of `key=value` texts, each value converted by `convert`; of several texts with one key the last
    counts. A value that is not a list is returned unchanged, for the field's type to check. Raises InvalidInput for
    a text without `=` or without a key.
    """
    if not isinstance(texts, list):
        return texts
    values = {}
    for text in texts:
        key, separator, value_text = str(text).partition("=")
        if not key or not separator:
            raise InvalidInput(f"{shown(text)} must have the form key=value, for example max_segments=16")
        values[key] = convert(value_text)
    return values


def _json(text: str) -> object:
    """Return the JSON value of the text; `NaN`, `Infinity` and `-Infinity` are numbers too. Return the text itself if the
    text is not JSON, or is a number or nesting that is too large to read.
    """
    try:
        return json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError):  # The value is plain text, or a value that no parameter can hold.
        return text


def _finite(text: str) -> float | str:
    """Return the number; return the text if it exceeds every float and would be read as infinity."""
    number = float(text)
    return number if math.isfinite(number) else text


def name_of(kind: str) -> AfterValidator:
    """Return a pydantic validator that refuses values which are not valid names; `kind` is the noun of the message, such as
    `subscription`.
    """
    return AfterValidator(as_value_error(partial(demand_name, kind)))


TopicName = Annotated[
    str,
    Field(
        max_length=LONGEST_TOPIC,
        description="topic://tenant/namespace/name, tenant/namespace/name, or a name in Pulsar's form; a name alone is in public/default.",
        examples=["topic://acme/shop/orders"],
        json_schema_extra={"pattern": TOPIC_PATTERN},
    ),
    from_text(full_topic_name),
]
PolicyLevel = Annotated[
    str, Field(description="cluster, tenant/namespace, or a topic."), from_text(policy_level)
]
SubscriptionName = Annotated[
    str,
    Field(max_length=LONGEST_NAME, description="Name of the subscription.", examples=["billing"]),
    name_of("subscription"),
]
Properties = Annotated[dict[str, str], BeforeValidator(as_value_error(lambda value: _read_pairs(value, str)))]
"""Names and texts, also as a list of `key=value`."""
ParameterValues = Annotated[
    dict[str, Any],
    PlainSerializer(
        lambda values: {name: write_parameter(value) for name, value in values.items()},
        return_type=dict[str, Any],
        when_used="json",
    ),
]
"""Parameters of a policy with their values. In JSON, a number that is not finite is a text; pydantic would write null, which removes a
parameter.
"""
PolicyParameters = Annotated[
    ParameterValues,
    Field(max_length=100),
    BeforeValidator(as_value_error(lambda value: _read_pairs(value, _json))),
]
"""Parameters of a policy with their values, also as a list of `parameter=value`; null removes a parameter."""
Hash = Annotated[
    int,
    Field(ge=0, le=0xFFFF, examples=[32768]),
    BeforeValidator(as_value_error(_hash)),
]
"""A point on the hash ring, as a number or as text (`0x8000`)."""
Keep = Annotated[str | None, Field(max_length=8), from_text(_keep)]
"""A duration, as text in every interface."""
SegmentId = Annotated[int, Field(ge=0, le=MOST, examples=[0])]
Reason = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_REASON),
    AfterValidator(as_value_error(partial(demand_reason, "reason"))),
]


REASON = Field(None, description="Reason, for the journal.", examples=["before the sale"])


class ActionRequest(BaseModel):
    """A request for an action."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TopicRequest(ActionRequest):
    """A request about one topic that becomes an operation of the journal."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "before the sale"}]})

    topic: TopicName
    reason: Reason | None = REASON


RequestT = TypeVar("RequestT", bound=BaseModel)


def fill_in(model: type[RequestT], values: Mapping[str, object]) -> RequestT:
    """Return a request of class `model` with these values, by field. Raises InvalidInput with one line that names each
    wrong, missing or unknown field and its error, and for a text that has no UTF-8 form.
    """
    for name, value in values.items():
        demand_utf8(value, name)  # Such text could be neither stored nor printed.
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise InvalidInput("; ".join(_sentence(model, problem) for problem in error.errors())) from error


def _sentence(model: type[BaseModel], problem: Mapping[str, Any]) -> str:
    """Return the error of pydantic (`type`, `loc`, `msg`, `input`) as text: the path of the field, its value and the
    problem. A missing field has no value; for an unknown field, the text names the fields of the model instead.
    """
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        fields = ", ".join(field.alias or name for name, field in model.model_fields.items())
        return f"{name}: there is no such parameter; use one of {fields}"
    if problem["type"] == "missing":
        return f"{name}: is missing"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{name}={shown(problem['input'])}: {message[:1].lower()}{message[1:]}"
