"""A backtest run of variants of the policy in force, each on the recorded load of some topics, and their
costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from controller.store.backtests import BacktestResult

IN_FORCE, CANDIDATE = "in-force", "candidate"
"""Names of the two policies in every backtest that is evidence. The database requires these names before a
candidate can be promoted.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy to try: the policy in force (rule `in-force`), or the profile that `rule` names, in both cases with
    `parameters` in place of its own.
    """

    name: str
    rule: str = IN_FORCE
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished backtest run. `left_out` maps each topic without results, or with results of a part of its load only,
    to the reason; `Trials` leaves it empty if the results were stored earlier. `was_done` is True then: an earlier call
    with the same key, perhaps with other variants, ran the backtest.
    """

    run_id: int
    results: tuple[BacktestResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    was_done: bool = False

    def of(self, topic: str) -> dict[str, BacktestResult]:
        """Return a topic's results by the names of the variants; empty for a topic that was left out."""
        return {result.policy: result for result in self.results if result.load == topic}


class Trials(Protocol):
    """Runs backtests. A repeated call with the same key returns the stored results. Raises NotFound if no
    load was recorded.
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
        """Run the variants on the load of the topics from `since` until `until`, and store the run under
        `request_key`.
        """


def regret(result: BacktestResult) -> float:
    """Return the cost divided by the least cost of any policy; the cost itself if the least cost is 0."""
    return result.cost / result.least_cost if result.least_cost else result.cost


def measured_days(result: BacktestResult) -> float:
    """Return the number of days of the load that have figures."""
    return float(result.figures.get("days", 0.0)) * float(result.figures.get("measured", 0.0))
