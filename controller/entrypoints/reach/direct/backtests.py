"""Backtests, computed here or on Spark, and those that were run, read in the database."""

from __future__ import annotations

import os
from collections.abc import Sequence

from controller.actions.waiting import user_name
from controller.bootstrap import application, build_backtest
from controller.domain.errors import NotFound
from controller.entrypoints.backtest_requests import AskedBacktest
from controller.entrypoints.reach.columns import BACKTEST, BACKTEST_RESULT
from controller.entrypoints.reach.port import FoundBacktest, Row
from controller.entrypoints.reading import reading
from controller.services.policy_backtest import BacktestAnswer, Progress
from controller.store.postgres import inspection

_RUNS = f"SELECT {', '.join(BACKTEST)} FROM inspect.backtest_runs ORDER BY run_id DESC LIMIT :limit"  # noqa: S608 - as below
_RUN = f"SELECT {', '.join(BACKTEST)} FROM inspect.backtest_runs WHERE run_id = :run_id"  # noqa: S608
_RESULTS = f"""
    SELECT {", ".join(BACKTEST_RESULT)} FROM inspect.backtest_results WHERE run_id = :run_id ORDER BY load, policy, seed
"""  # noqa: S608


class DirectBacktests:
    """See `port.Backtests`."""

    def run(self, asked: AskedBacktest, progress: Progress) -> BacktestAnswer:
        """See `port.Backtests`. In the name of whoever runs this process."""
        question = asked.question()
        with application() as cleave:
            return build_backtest(cleave).run(
                question,
                asked.loads,
                asked_by=user_name(),
                request_key=f"cli-{os.urandom(8).hex()}",
                engine=asked.engine,
                progress=progress,
            )

    def list(self, limit: int) -> Sequence[Row]:
        """See `port.Backtests`."""
        with reading() as tx:
            return inspection.rows(tx, _RUNS, limit=limit)

    def find(self, run_id: int) -> FoundBacktest:
        """See `port.Backtests`."""
        with reading() as tx:
            found = inspection.rows(tx, _RUN, run_id=run_id)
            results = inspection.rows(tx, _RESULTS, run_id=run_id)
        if not found:
            raise NotFound(f"there is no backtest {run_id}; `cleave backtests list` has them")
        return FoundBacktest(found[0], results)
