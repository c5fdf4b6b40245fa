"""The report of a small backtest: two loads with long names, three policies with actions and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from controller.actions import backtest_rows
from controller.backtest.load_series import of_messages
from controller.backtest.summary import Row
from controller.commands.backtest_page import write_page
from controller.domain.policy import AutoScalePolicy
from controller.services.policy_backtest import _read_table
from spark_jobs.policy_backtest import Candidate, Question, compute_here, rates_of_trace
from spark_jobs.recorded_load import Recording

LONG = "adaptive:target_use=0.8,reseal_price_segment_seconds=3600"
LOADS = (
    "topic://acme/shop/orders",
    "topic://acme/a-namespace-with-a-name/a-topic-with-a-rather-long-name-too",
)
_QUESTION = Question(
    (
        Candidate("pip483", "pip483"),
        Candidate(LONG, "adaptive", {"target_use": 0.8, "reseal_price_segment_seconds": 3600.0}),
        Candidate(f"{LONG},max_segments=9", "adaptive", {"max_segments": 9}),
    ),
    pictures=True,
)


def computed() -> tuple[list[Row], dict[tuple[str, str], Any]]:
    """Compute the backtest and return its rows and pictures."""
    policy = AutoScalePolicy()
    minutes = np.arange(600)
    recordings, tables = [], []
    for number, name in enumerate(LOADS, start=1):
        load = (3 + 2.5 * np.sin(minutes / (20 * number))) * policy.split_msg_rate_in
        series = of_messages(name, load, start_ms=1_776_000_000_000)
        end_ms = series.start_ms + 60_000 * series.steps
        recordings.append(Recording(-number, name, series.start_ms, end_ms, policy.to_document()))
        tables.append(rates_of_trace(recordings[-1], series))
    results, pictures, _ = _read_table(compute_here(pa.concat_tables(tables), recordings, _QUESTION))
    return backtest_rows.result_rows(results), pictures


def written(path: Path) -> None:
    """Write the page to that path."""
    rows, pictures = computed()
    write_page(path, "Backtest 7", "Two loads.", rows, pictures, excess_price=20.0)
