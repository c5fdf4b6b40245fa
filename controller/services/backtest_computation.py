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
    """Read the rates of the recorded topics from the history at `history_url` in the span from `since_ms` to
    `until_ms` (inclusive, milliseconds since the Unix epoch), simulate the policies, and return the costs.
    `recordings` are the topics and `question` is what to simulate, both as JSON that `to_json` of `Recording` and
    `Question` returns.

    The table has the columns of `spark_jobs.policy_backtest.RESULTS`, and is sorted by load, key, policy and seed. It
    has one row for each simulation. A load that cannot be simulated has a single row, with the error. A recording
    without rates has no row.

    `done` is called with the number of simulations completed since its last call. Raises OSError if the storage does
    not answer, and the errors of broken files.
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
