"""Backtests, computed by a server within its bounds, and those that were run, asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.client.servers import topic_path
from controller.entrypoints.backtest_requests import AskedBacktest
from controller.entrypoints.reach.columns import BACKTEST, BACKTEST_FIGURES, BACKTEST_RESULT
from controller.entrypoints.reach.over_http.calls import (
    API,
    BACKTEST_SECONDS,
    Calls,
    chosen,
    namespace_path,
    told,
    with_instants,
)
from controller.entrypoints.reach.port import FoundBacktest, Row
from controller.services.policy_backtest import BacktestAnswer, Loads, Progress
from controller.store.backtests import BacktestResult


@dataclass(frozen=True, slots=True)
class HttpBacktests:
    """See `port.Backtests`."""

    calls: Calls

    def run(self, asked: AskedBacktest, progress: Progress) -> BacktestAnswer:  # noqa: ARG002 - a server tells of none
        """See `port.Backtests`. Raises InvalidInput for what a server does not compute while somebody waits."""
        path, topics = _place(asked.loads)
        said = {
            "since": asked.loads.since.isoformat(),
            "until": asked.loads.until.isoformat(),
            "policies": list(asked.policies),
            "knobs": None if asked.knobs is None else dict(asked.knobs),
            "weights": asked.weights,
            "seeds": asked.seeds,
            "actuation_seconds": asked.actuation_seconds,
            **topics,
        }
        answer = self.calls.change("POST", path, said, False, answer_seconds=BACKTEST_SECONDS)
        results = tuple(BacktestResult(**row) for row in told(answer, "results"))
        return BacktestAnswer(
            told(answer, "run_id"), told(answer, "engine"), results, told(answer, "left_out")
        )

    def list(self, limit: int) -> Sequence[Row]:
        """See `port.Backtests`."""
        return [chosen(row, BACKTEST) for row in self.calls.every(f"{API}/backtests", limit=limit)]

    def find(self, run_id: int) -> FoundBacktest:
        """See `port.Backtests`."""
        run = chosen(with_instants(self.calls.get(f"{API}/backtests/{run_id}")), BACKTEST)
        results = self.calls.every(f"{API}/backtests/{run_id}/results")
        return FoundBacktest(run, [_result(run, row) for row in results])


def _place(loads: Loads) -> tuple[str, Row]:
    """Where it is asked, so that it takes no more than the right there, and which topics are named besides."""
    if loads.topics is not None and len(loads.topics) == 1:
        return f"{topic_path(loads.topics[0])}/backtests", {}
    if loads.namespace is not None:
        return f"{namespace_path(loads.namespace)}/backtests", {}
    return f"{API}/backtests", {"topics": None if loads.topics is None else list(loads.topics)}


def _result(run: Row, row: Row) -> Row:
    """With its figures beside it too, as `inspect.backtest_results` has them."""
    figures = {name: told(row, "figures").get(name) for name in BACKTEST_FIGURES}
    numbers = {name: None if value is None else float(value) for name, value in figures.items()}
    return chosen({**run, **row, **numbers}, BACKTEST_RESULT)
