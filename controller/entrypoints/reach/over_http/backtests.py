"""Backtests that were run, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.entrypoints.reach.columns import BACKTEST, BACKTEST_FIGURES, BACKTEST_RESULT
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, told, with_instants
from controller.entrypoints.reach.port import FoundBacktest, Row


@dataclass(frozen=True, slots=True)
class HttpBacktests:
    """See `port.Backtests`."""

    calls: Calls

    def list(self, limit: int) -> Sequence[Row]:
        """See `port.Backtests`."""
        return [chosen(row, BACKTEST) for row in self.calls.every(f"{API}/backtests", limit=limit)]

    def find(self, run_id: int) -> FoundBacktest:
        """See `port.Backtests`."""
        run = chosen(with_instants(self.calls.get(f"{API}/backtests/{run_id}")), BACKTEST)
        results = self.calls.every(f"{API}/backtests/{run_id}/results")
        return FoundBacktest(run, [_result(run, row) for row in results])


def _result(run: Row, row: Row) -> Row:
    """With its figures beside it too, as `inspect.backtest_results` has them."""
    figures = {name: told(row, "figures").get(name) for name in BACKTEST_FIGURES}
    numbers = {name: None if value is None else float(value) for name, value in figures.items()}
    return chosen({**run, **row, **numbers}, BACKTEST_RESULT)
