"""A trial: variants of the policy in force, each on the recorded load of some topics, and what they would have cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from controller.store.backtests import BacktestResult

IN_FORCE, CANDIDATE = "in-force", "candidate"
"""Names of the two policies in every backtest that is evidence. The database looks for them before it lets a candidate be
promoted.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy to try: the one in force (rule `in-force`), or a profile by name, with parameters that differ from it."""

    name: str
    rule: str = IN_FORCE
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """A backtest that was run. `left_out` says why a topic has no results."""

    run_id: int
    results: tuple[BacktestResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def of(self, topic: str) -> dict[str, BacktestResult]:
        """A topic's results by variant."""
        return {one.policy: one for one in self.results if one.load == topic}


class Trials(Protocol):
    """Runs trials. A repeat under the same key gives the results that are there. Raises NotFound where nothing was
    recorded.
    """

    def __call__(
        self,
        variants: Sequence[Variant],
        topics: Iterable[str],
        since: datetime,
        until: datetime,
        *,
        asked_by: str,
        request_key: str,
    ) -> Trial:
        """The span is from `since` until `until`."""


def regret(result: BacktestResult) -> float:
    """The cost over the least any policy can pay; the cost where that is nothing."""
    return result.cost / result.least_cost if result.least_cost else result.cost


def measured_days(result: BacktestResult) -> float:
    """Days of the load for which there are figures."""
    return float(result.figures.get("days", 0.0)) * float(result.figures.get("measured", 0.0))
