"""Computes a backtest on recorded load. Imports little, so that a process that only computes loads neither
the store nor the settings.
"""

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
    """Read the rates of the recorded topics from the history at `history_url`, in the inclusive span (milliseconds
    since the Unix epoch), simulate, and return the costs, with the columns of `spark_jobs.policy_backtest.RESULTS`: one
    row for each simulation, or one row with the error for a load that cannot be simulated, sorted by load, key, policy
    and seed. A recording without rates has no row. `recordings` and `question` are JSON, as `to_json` of `Recording`
    and `Question` returns. `done` is a progress callback: it is called with the number of simulations completed since
    its last call. Raises the errors of the storage.
    """
    from controller.landing.history import RateHistory
    from spark_jobs.policy_backtest import Question, compute_here
    from spark_jobs.recorded_load import RATE_COLUMNS, Recording

    parsed_recordings = [Recording.from_json(recording) for recording in recordings]
    table = RateHistory(history_url).read(
        since_ms, until_ms, {recording.key for recording in parsed_recordings}
    )
    rates = table.rename_columns({"topic_id": "key"}).select(RATE_COLUMNS.names).cast(RATE_COLUMNS)
    return compute_here(rates, parsed_recordings, Question.from_json(question), done)
