"""Computes a backtest on the recorded load. Light: a process that only computes needs neither the store nor the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def compute(
    history_url: str,
    since_ms: int,
    until_ms: int,
    recordings: Sequence[str],
    question: str,
    done: Callable[[int], None] = lambda _count: None,
) -> pa.Table:
    """Return the costs, from the history of these topics' rates. Recordings and question are JSON, as for Spark. `done` is called with
    how many more simulations are done.
    """
    from controller.landing.history import RateHistory
    from spark_jobs.policy_backtest import Question, compute_here
    from spark_jobs.recorded_load import RATE_COLUMNS, Recording

    recorded = [Recording.from_json(one) for one in recordings]
    table = RateHistory(history_url).read(since_ms, until_ms, {one.key for one in recorded})
    rates = table.rename_columns({"topic_id": "key"}).select(RATE_COLUMNS.names).cast(RATE_COLUMNS)
    return compute_here(rates, recorded, Question.from_json(question), done)
