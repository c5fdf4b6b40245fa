"""A backtest run of variants of the policy in force, each on the recorded load of some topics, and their
costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from controller.store.backtests import BacktestAnswer, BacktestResult

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
    ) -> BacktestAnswer:
        """Run the variants on the load of the topics from `since` until `until`, and store the run under
        `request_key`.
        """


def regret(result: BacktestResult) -> float:
    """Return the cost divided by the least cost of any policy; the cost itself if the least cost is 0."""
    return result.cost / result.least_cost if result.least_cost else result.cost


def measured_days(result: BacktestResult) -> float:
    """Return the number of days of the load that have figures."""
    return float(result.figures.get("days", 0.0)) * float(result.figures.get("measured", 0.0))
