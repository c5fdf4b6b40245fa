"""Backtests that were run, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.entrypoints.reach.columns import BACKTEST, BACKTEST_RESULT
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, with_instants
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
        run = chosen(with_instants(self.calls.get(f"{API}/backtests/{run_id}")), (*BACKTEST, "inputs"))
        results = self.calls.every(f"{API}/backtests/{run_id}/results")
        return FoundBacktest(run, [chosen(row, BACKTEST_RESULT) for row in results])
