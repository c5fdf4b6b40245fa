"""The forms that people fill in. They are validated here, because Airflow accepts unknown parameters
silently.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from controller.actions.fields import TopicName, split_words


class BacktestForm(BaseModel):
    """Request of a backtest: loads, policies and time span. Without topics and namespace, it covers all
    topics.

    Topics and policies may each be one text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: Annotated[tuple[TopicName, ...] | None, BeforeValidator(split_words)] = None
    namespace: str | None = None
    policies: tuple[str, ...] | str = ()
    since: str | None = Field("7d", alias="from")
    until: str | None = Field(None, alias="to")
    weights: str = ""
    seeds: int = Field(1, ge=1, le=1_000)
    engine: Literal["spark", "here"] | None = None


class TuningForm(BaseModel):
    """Request of a tuning: topics, and days of their past. Without topics, it covers all topics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: Annotated[tuple[TopicName, ...] | None, BeforeValidator(split_words)] = None
    days: int = Field(14, ge=5, le=400)
