"""The forms that people fill in. They are validated here, because Airflow accepts unknown parameters
silently.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from controller.actions.fields import TopicName, split_words


def _demand_some(topics: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the topics unchanged. Raises ValueError for an empty list, which the task that made it does not mean as all
    topics.
    """
    if topics == ():
        raise ValueError("give at least one topic, or nothing for all topics")
    return topics


_Topics = Annotated[tuple[TopicName, ...] | None, BeforeValidator(split_words), AfterValidator(_demand_some)]


class BacktestForm(BaseModel):
    """Request of a backtest: loads, policies and time span. Without topics and namespace, it covers all
    topics; an empty list of topics is refused.

    Topics and policies may each be one text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: _Topics = None
    namespace: str | None = None
    policies: tuple[str, ...] | str = ()
    since: str | None = Field("7d", alias="from")
    until: str | None = Field(None, alias="to")
    weights: str = ""
    seeds: int = Field(1, ge=1, le=1_000)
    engine: Literal["spark", "here"] | None = None


class TuningForm(BaseModel):
    """Request of a tuning: topics, and days of their past. Without topics, it covers all topics; an empty list is
    refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: _Topics = None
    days: int = Field(14, ge=5, le=400)
