"""The forms people fill in, checked again here, since Airflow accepts unknown parameters silently."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from controller.domain.errors import CleaveError, InvalidInput
from controller.domain.shown import shown
from controller.domain.utf8 import utf8
from controller.domain.whole_numbers import MOST
from controller.entrypoints.commands.options import hash_value, level, topic_name
from controller.entrypoints.printable_fields import Reason


def _topic(value: object) -> object:
    return topic_name(value.strip()) if isinstance(value, str) else value


def _level(value: object) -> object:
    """The level's name. A wrong one is a ValueError, which pydantic expects."""
    try:
        return level(value.strip()) if isinstance(value, str) else value
    except CleaveError as error:
        raise ValueError(str(error)) from error


def _hash(value: object) -> object:
    """A number, or its text. A wrong text is a ValueError, which pydantic expects."""
    try:
        return hash_value(value.strip() if isinstance(value, str) else shown(value))
    except CleaveError as error:
        raise ValueError(str(error)) from error


def _words(value: object) -> object:
    """Several in one text, divided by commas, spaces or lines; an empty text is none."""
    if not isinstance(value, str):
        return value
    return re.findall(r"[^\s,;]+", value) or None


TopicName = Annotated[str, BeforeValidator(_topic)]
Hash = Annotated[int, BeforeValidator(_hash)]
SegmentId = Annotated[int, Field(ge=0, le=MOST)]


class Form(BaseModel):
    """What every form asks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: TopicName
    reason: Reason = "asked for in Airflow"
    timeout_seconds: float = Field(60.0, gt=0, le=3600)
    dry_run: bool = False


class SplitForm(Form):
    """Neither cut points nor parts: at the midpoint."""

    segment: SegmentId
    cut_points: Annotated[tuple[Hash, ...] | None, BeforeValidator(_words)] = None
    parts: int | None = Field(None, ge=2, le=65_536)


class MergeForm(Form):
    """Two neighbours."""

    first: SegmentId
    second: SegmentId


class RebucketForm(Form):
    """The number of entry buckets of the successor."""

    segment: SegmentId
    bucket_count: int = Field(ge=1)


class CreateForm(Form):
    """A topic to be."""

    segments: int = Field(1, ge=1, le=65_536)
    data_plane: str = "embedded"
    properties: dict[str, str] = {}


class DeleteForm(Form):
    """`confirm` is the topic's name once more."""

    confirm: Annotated[str, BeforeValidator(lambda value: _topic(value) if value else value)] = ""


class BacktestForm(BaseModel):
    """Which loads, which policies, from when until when. Neither topics nor a namespace: all topics.

    Topics and policies may each be one text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: Annotated[tuple[TopicName, ...] | None, BeforeValidator(_words)] = None
    namespace: str | None = None
    policies: tuple[str, ...] | str = ()
    since: str | None = Field("7d", alias="from")
    until: str | None = Field(None, alias="to")
    weights: str = ""
    seeds: int = Field(1, ge=1, le=1_000)
    engine: Literal["spark", "here"] | None = None


class PolicyForm(BaseModel):
    """Knobs of one level of policy, null for those to be taken back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Annotated[str, BeforeValidator(_level)]
    knobs: dict[str, Any] = {}
    replace: bool = False
    dry_run: bool = False

    def changed(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """What the level is to have."""
        return {**({} if self.replace else before), **self.knobs}


class AnswerForm(BaseModel):
    """Which approvals, and what is said of all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    approvals: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST)], ...], Field(min_length=1, max_length=100)
    ]
    answer: Literal["approve", "reject"]
    reason: Reason = "asked for in Airflow"
    dry_run: bool = False


class TuningForm(BaseModel):
    """Which topics, and on how much of their past. No topics: all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: Annotated[tuple[TopicName, ...] | None, BeforeValidator(_words)] = None
    days: int = Field(14, ge=5, le=400)


class ProposalForm(BaseModel):
    """Knobs of a candidate for one topic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: TopicName
    knobs: dict[str, Any]
    reason: Reason = "asked for in Airflow"
    dry_run: bool = False


class PromotionForm(BaseModel):
    """Whose candidate, and on how much of the topic's past it is weighed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: TopicName
    days: int = Field(14, ge=3, le=400)


AnyForm = TypeVar("AnyForm", bound=BaseModel)


def fill_in(form: type[AnyForm], params: Mapping[str, object]) -> AnyForm:
    """The form, or InvalidInput: one line that names each wrong field and what is wrong with it."""
    for name, value in params.items():
        _demand_utf8(name, value)
    try:
        return form.model_validate(dict(params))
    except ValidationError as error:
        raise InvalidInput("; ".join(_sentence(form, problem) for problem in error.errors())) from error


def _demand_utf8(name: str, value: object) -> None:
    """JSON can carry half of a surrogate pair, which could neither be stored nor printed."""
    if isinstance(value, str):
        utf8(value, name)
    elif isinstance(value, Mapping):
        for pair in value.items():
            _demand_utf8(name, pair)
    elif isinstance(value, list | tuple):
        for part in value:
            _demand_utf8(name, part)


def _sentence(form: type[BaseModel], problem: Mapping[str, object]) -> str:
    place = problem["loc"]
    name = ".".join(map(str, place)) if isinstance(place, tuple) else str(place)
    if problem["type"] == "extra_forbidden":
        return f"{name}: there is no such parameter; the form has {', '.join(field.alias or name for name, field in form.model_fields.items())}"
    if problem["type"] == "missing":
        return f"{name}: is missing"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{name}={shown(problem['input'])}: {message[:1].lower()}{message[1:]}"
